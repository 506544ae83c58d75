"""The cells of one column of a table, kept as compact text, and what they are read as: numbers, dates or values."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import cached_property
from itertools import chain, count, islice, product
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int32, Int64

MISSING = frozenset({"", "na", "n/a", "#n/a", "<na>", "nan", "null", "none", "?"})
"""Cells that count as missing, in any case."""
ODD_SHARE = 0.05
"""Maximum share of cells, of those not missing, that may be something else in a column of numbers or dates."""
FORMATS = {
    "iso": "1999-12-31 or 1999-12-31T23:59",
    "%Y/%m/%d": "1999/12/31",
    "%d.%m.%Y": "31.12.1999",
    "%m/%d/%Y": "12/31/1999",
    "%d/%m/%Y": "31/12/1999",
}
"""Date formats, with an example of each. If several read a column equally well, the first is taken."""
BLOCK = 4096
"""Rows whose cells are joined to one text."""
SAMPLE = 100
"""Rows that decide how a column is parsed: texts by their distinct values, numbers in blocks. Shorter columns are
parsed cell by cell, which is faster there."""
Rows = Sequence[int] | Int64[np.ndarray, "rows"]
_NAN = {"".join(letters): "nan" for word in MISSING for letters in product(*({c, c.upper()} for c in word))}
"""Every spelling of a missing cell, as Python's `float` reads it."""
_DAY = 86_400
_EARLIEST = datetime(1, 1, 1, tzinfo=UTC).timestamp()
_LATEST = datetime(9999, 12, 31, tzinfo=UTC).timestamp()


# One cell


def is_missing(cell: str) -> bool:
    return cell in _NAN


def parse_number(cell: str) -> float | None:
    """NaN if the cell is missing, None if it is something else."""
    try:
        value = float(cell)
        if math.isfinite(value) and "_" not in cell:  # Python reads 1_000 as a thousand; tables do not mean it
            return value
    except ValueError:
        pass
    return math.nan if is_missing(cell) else None


def parse_date(cell: str, form: str) -> float | None:
    """Days since 1970, UTC if no time zone is given; None if it is no such date."""
    if not 8 <= len(cell) <= 40 or not cell[0].isdigit() or cell.isdigit():
        return None
    if form != "iso" and cell.count(form[2]) != 2:  # `strptime` takes 20 times as long to say no
        return None
    try:
        found = datetime.fromisoformat(cell) if form == "iso" else datetime.strptime(cell, form)
    except ValueError:
        return None
    aware = found if found.tzinfo else found.replace(tzinfo=UTC)
    return aware.timestamp() / _DAY


def show_date(days: float, form: str) -> str:
    """The day as a cell, without the time of day; clipped to the years 1 to 9999."""
    seconds = min(max(days * _DAY, _EARLIEST), _LATEST)
    day = datetime.fromtimestamp(seconds, UTC)
    return day.date().isoformat() if form == "iso" else day.strftime(form)


# The cells of a column


class Reading(NamedTuple):
    """A column read as numbers, or as dates in days."""

    values: Float64[np.ndarray, "n"]
    """NaN if the cell is missing or odd."""
    odd: Int64[np.ndarray, "odd"]
    """Rows of the cells that are neither missing nor a number (or date)."""

    @property
    def present(self) -> int:
        """Number of cells that are not missing."""
        return int(np.count_nonzero(~np.isnan(self.values))) + len(self.odd)

    @property
    def few_odd(self) -> bool:
        return len(self.odd) <= ODD_SHARE * self.present


class Values(NamedTuple):
    """A column as numbers of its distinct cells."""

    codes: Int32[np.ndarray, "n"]
    """For each row the place of its cell in `texts`."""
    texts: list[str]
    """Distinct cells, in the order of their first rows."""

    @property
    def counts(self) -> dict[str, int]:
        return dict(zip(self.texts, np.bincount(self.codes, minlength=len(self.texts)).tolist(), strict=True))


class Cells:
    """Cells of one column, without the spaces around them. Each block of `BLOCK` rows is one text, which takes a fifth
    of the memory of a list of strings. What the cells are read as is computed once and kept."""

    def __init__(self, cells: Sequence[str] = ()) -> None:
        self._blocks: list[str | list[str]] = []
        self._length = 0
        self._dates: dict[str, Reading] = {}
        self._last: tuple[int, list[str]] = (-1, [])
        for start in range(0, len(cells), BLOCK):
            self.append(list(cells[start : start + BLOCK]))

    def append(self, cells: list[str]) -> None:
        """Add the next block of rows. All blocks but the last have `BLOCK` rows."""
        self._length += len(cells)
        if len(cells) > SAMPLE:
            joined = "\n".join(cells)
            if joined.count("\n") == len(cells) - 1:  # else a cell has several lines
                self._blocks.append(joined)
                return
        self._blocks.append(cells)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(self._lists())

    def __getitem__(self, row: int) -> str:
        place, within = divmod(row % self._length, BLOCK)
        if self._last[0] != place:
            self._last = place, self._list(self._blocks[place])
        return self._last[1][within]

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Cells | list) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Cells({list(self)!r})"

    def take(self, rows: Rows) -> "Cells":
        return Cells([self[row] for row in np.asarray(rows, np.int64).tolist()])

    def _lists(self) -> Iterator[list[str]]:
        return map(self._list, self._blocks)

    @staticmethod
    def _list(block: str | list[str]) -> list[str]:
        return block.split("\n") if isinstance(block, str) else block

    @cached_property
    def numbers(self) -> Reading:
        first = [parse_number(cell) for cell in islice(self, SAMPLE)]
        if len(first) == self._length:
            return Reading(np.array(first, np.float64), _none_rows(first))  # None becomes NaN
        if 2 * first.count(None) > len(first):  # texts, which repeat
            return self._by_value(parse_number)
        values, odd = np.empty(self._length), []
        for place, cells in enumerate(self._lists()):
            start = place * BLOCK
            own, rows = _parse_numbers(cells)
            values[start : start + len(own)] = own
            odd.append(rows + start)
        return Reading(values, np.concatenate(odd) if odd else np.empty(0, np.int64))

    @cached_property
    def values(self) -> Values:
        number: dict[str, int] = defaultdict(count().__next__)
        codes = np.fromiter(map(number.__getitem__, self), np.int32, self._length)
        return Values(codes, list(number))

    def dates(self, form: str) -> Reading:
        """Read as dates of a format in `FORMATS`, in days since 1970."""
        if form not in self._dates:
            self._dates[form] = self._by_value(lambda cell: math.nan if is_missing(cell) else parse_date(cell, form))
        return self._dates[form]

    def _by_value(self, parse: Callable[[str], float | None]) -> Reading:
        """Each distinct cell parsed once."""
        codes, texts = self.values
        found = [parse(cell) for cell in texts]
        odd = np.array([value is None for value in found], dtype=bool)
        return Reading(np.array(found, dtype=np.float64)[codes], np.flatnonzero(odd[codes]))  # None becomes NaN

    @property
    def formats(self) -> list[str]:
        """Date formats that read the most of the cells, and all but few of them; empty if all cells are missing."""
        present = {cell: n for cell, n in self.values.counts.items() if not is_missing(cell)}
        odd, most = dict.fromkeys(FORMATS if present else (), 0), ODD_SHARE * sum(present.values())
        for cell, n in present.items():
            for form in odd:
                odd[form] += n * (parse_date(cell, form) is None)
            odd = {form: unread for form, unread in odd.items() if unread <= most}
            if not odd:
                break
        return [form for form, unread in odd.items() if unread == min(odd.values())]

    @property
    def no_dates(self) -> Int64[np.ndarray, "m"]:
        """Rows of the cells that are neither missing nor a date of any format."""
        codes, texts = self.values
        dates = [is_missing(cell) or any(parse_date(cell, form) is not None for form in FORMATS) for cell in texts]
        return np.flatnonzero(~np.array(dates, dtype=bool)[codes])


def _none_rows(parsed: list[float | None]) -> Int64[np.ndarray, "m"]:
    """Rows of None."""
    rows = [row for row, value in enumerate(parsed) if value is None] if None in parsed else []
    return np.array(rows, dtype=np.int64)


def _parse_numbers(cells: list[str]) -> tuple[Float64[np.ndarray, "n"], Int64[np.ndarray, "odd"]]:
    """Numbers, NaN for all else, and the rows that are neither a number nor missing, as `parse_number` says."""
    values = None
    if "_" not in "".join(cells):
        values = _floats(cells)
        if values is None:
            values = _floats([_NAN.get(cell, cell) for cell in cells])
    if values is None:
        known = {cell: parse_number(cell) for cell in set(cells)}
        parsed = [known[cell] for cell in cells]
        return np.array(parsed, dtype=np.float64), _none_rows(parsed)
    doubtful = np.flatnonzero(~np.isfinite(values))
    odd = doubtful[[cells[row] not in _NAN for row in doubtful.tolist()]] if len(doubtful) else doubtful
    values[odd] = np.nan
    return values, odd


def _floats(cells: list[str]) -> Float64[np.ndarray, "n"] | None:
    """Python's `float` of each cell, called by numpy; None if one is no number."""
    try:
        return np.array(cells, dtype=object).astype(np.float64)
    except ValueError:
        return None
