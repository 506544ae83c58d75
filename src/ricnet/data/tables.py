"""Tables as cells of text: delimited text, JSON lines, Parquet and data frames of pandas. The cells of a column are
read as numbers, as dates or as distinct values."""

import csv
import gzip
import io
import math
import re
import zlib
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property, partial
from itertools import chain, count, islice, product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int32, Int64

from ricnet.data.notation import (
    COMMAS,
    ENGLISH,
    PLAIN,
    POINTS,
    all_written,
    common_unit,
    in_plain,
    is_written,
    without_unit,
)
from ricnet.errors import RicnetError, counted, first_line, require_extra
from ricnet.io import TABLES, encoding_of, parse_json, table_suffix
from ricnet.machine import SHARE, free_bytes

if TYPE_CHECKING:
    from pandas import DataFrame

MISSING = frozenset({"", "na", "n/a", "#n/a", "<na>", "nan", "null", "none", "?"})
"""Cells that count as missing, in any case."""
_NAN = {"".join(letters): "nan" for word in MISSING for letters in product(*({c, c.upper()} for c in word))}
"""Every spelling of a missing cell, as Python's `float` reads it."""
ODD_SHARE = 0.05
"""Maximum share of cells, of those not missing, that may be something else in a column of numbers or dates."""
DATE_FORMATS = {
    "iso": "1999-12-31 or 1999-12-31T23:59",
    "%Y/%m/%d": "1999/12/31",
    "%d.%m.%Y": "31.12.1999",
    "%m/%d/%Y": "12/31/1999",
    "%d/%m/%Y": "31/12/1999",
}
"""Date formats, with an example of each. If several read a column equally well, the first is taken."""
UNAMBIGUOUS = ("iso", "%Y/%m/%d", "%d.%m.%Y")
"""Date formats that cannot be confused with another one. A column may mix them."""
BLOCK = 4096  # rows whose cells are joined to one text
SAMPLE = 100  # rows that decide whether a column is parsed by its distinct values, as texts are, or in blocks
DELIMITERS = ",;\t|"
SEPARATORS = (*(sign.encode() for sign in DELIMITERS), b"\n")
SPACES = " \t\r\v\f\x1c\x1d\x1e\x1f"
MAX_UNPACKED = 1 << 32  # bytes of an unpacked table
MEMORY_PER_BYTE, MEMORY_PER_CELL = (
    1.1,
    24,
)  # bytes of memory per byte of the unpacked file and per cell, until the table is encoded
CHUNK = 1 << 18  # bytes read at once
MAX_CELL = csv.field_size_limit()  # characters of a cell that `csv` reads
FRAME = "the data frame"  # its name in messages
Rows = Sequence[int] | Int64[np.ndarray, "rows"]
UNNAMED = "Unnamed: {}"  # name of a column without one, by its position from 0, as in pandas
_UNNAMED = re.compile(r"Unnamed: (\d+)")
_BINARY = re.compile(rb"[\x00-\x08\x0e-\x1b]")  # control characters, which text files do not have
_DAY = 86_400
_EARLIEST, _LATEST = (datetime(*day, tzinfo=UTC).timestamp() for day in ((1, 1, 1), (9999, 12, 31)))


class TableError(RicnetError, ValueError):
    """A table or data frame that cannot be used; users of scikit-learn expect a ValueError."""


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


def parse_written(cell: str, notation: str, unit: str = "", typed: bool = False) -> float | None:
    """As `parse_number`, for numbers in this notation, with or without the unit. With `typed`, as in `Cells`, 1.234 is
    never 1234."""
    if is_missing(cell):
        return math.nan
    number = without_unit(cell, unit)
    value = parse_number(number) if typed or not is_written(number, notation) else None
    return value if value is not None or not is_written(number, notation) else parse_number(in_plain(number, notation))


def parse_date(cell: str, form: str) -> float | None:
    """Days since 1970, UTC if no time zone is given; None if it is not such a date."""
    if not 8 <= len(cell) <= 40 or not cell[0].isdigit() or cell.isdigit():
        return None
    if form != "iso" and cell.count(form[2]) != 2:  # `strptime` is 20 times slower to reject a cell
        return None
    try:
        found = datetime.fromisoformat(cell) if form == "iso" else datetime.strptime(cell, form)
    except ValueError:
        return None
    aware = found if found.tzinfo else found.replace(tzinfo=UTC)
    return aware.timestamp() / _DAY


def parse_any_date(cell: str, form: str) -> float | None:
    """As `parse_date`, in this format or one of the `UNAMBIGUOUS` ones."""
    days = (parse_date(cell, each) for each in (form, *UNAMBIGUOUS))
    return next((each for each in days if each is not None), None)


def show_date(days: float, form: str) -> str:
    """The day as a cell, without the time of day; clipped to the years 1 to 9999."""
    day = datetime.fromtimestamp(min(max(days * _DAY, _EARLIEST), _LATEST), UTC)
    return day.date().isoformat() if form == "iso" else day.strftime(form)


# The cells of a column


class Parsed(NamedTuple):
    """A column read as numbers, or as dates in days."""

    values: Float64[np.ndarray, "n"]
    """NaN if the cell is missing or odd."""
    odd: Int64[np.ndarray, "odd"]
    """Rows of the cells that are neither missing nor a number (or date)."""

    @property
    def few_odd(self) -> bool:
        present = int(np.count_nonzero(~np.isnan(self.values))) + len(self.odd)
        return len(self.odd) <= ODD_SHARE * present


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
    of the memory of a list of strings. Parsed values are cached."""

    def __init__(self, cells: Iterable[str] = (), typed: bool = True, decimal_comma: bool = False) -> None:
        self.typed = typed
        """Whether some cells were numbers instead of text, as in JSON and data frames. Then 1.234 is never 1234."""
        self.decimal_comma = decimal_comma
        """Whether decimals may have a comma, as in a file with semicolons."""
        self._blocks: list[str | list[str]] = []
        self._length = 0
        self._numbers: dict[tuple[str, str], Parsed] = {}
        self._dates: dict[str, Parsed] = {}
        self._last: tuple[int, list[str]] = (-1, [])
        rest = iter(cells)
        while block := list(islice(rest, BLOCK)):
            self.append(block)

    def append(self, cells: list[str]) -> None:
        """Add the next block of rows. All blocks but the last have `BLOCK` rows."""
        joined = "\n".join(cells)
        one_line_each = joined.count("\n") == len(cells) - 1
        self._blocks.append(joined if one_line_each else cells)
        self._length += len(cells)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(map(self._list, self._blocks))

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
        taken = (self[row] for row in np.asarray(rows, np.int64).tolist())
        return Cells(taken, self.typed, self.decimal_comma)

    @staticmethod
    def _list(block: str | list[str]) -> list[str]:
        return block.split("\n") if isinstance(block, str) else block

    @property
    def numbers(self) -> Parsed:
        return self.numbers_as(PLAIN)

    def numbers_as(self, notation: str, unit: str = "") -> Parsed:
        """The cells as numbers in this notation, with or without the unit."""
        if (notation == PLAIN and self.decimal_comma) or (notation == POINTS and not self._has_points):
            notation = COMMAS
        if (notation, unit) not in self._numbers:
            self._numbers[notation, unit] = self._parsed(notation, unit)
        return self._numbers[notation, unit]

    def _parsed(self, notation: str, unit: str) -> Parsed:
        plain = notation == PLAIN and not unit
        parse = parse_number if plain else partial(parse_written, notation=notation, unit=unit, typed=self.typed)
        first = [parse(cell) for cell in islice(self, SAMPLE)]
        if 2 * first.count(None) > len(first):  # texts, which repeat
            return self._by_value(parse)
        values, odd = np.empty(self._length), [np.empty(0, np.int64)]
        for place, block in enumerate(self._blocks):
            cells = self._list(block)
            own, rows = _parse_numbers(cells) if plain else _parse_written(cells, notation, unit, self.typed)
            values[place * BLOCK : place * BLOCK + len(own)] = own
            odd.append(rows + place * BLOCK)
        return Parsed(values, np.concatenate(odd))

    def notations(self, unit: str = "") -> list[str]:
        """Notations that read the most cells, the likeliest first; empty if more than ODD_SHARE of the cells fail."""
        forms = (COMMAS, ENGLISH, POINTS) if self.decimal_comma else (PLAIN, ENGLISH, COMMAS, POINTS)
        sample = [cell for cell in islice(self, SAMPLE) if not is_missing(cell)]
        unread = {form: sum(parse_written(cell, form, unit) is None for cell in sample) for form in forms}
        first, *others = sorted(forms, key=unread.__getitem__)
        best = self.numbers_as(first, unit)
        if not len(best.odd) and first == forms[0]:
            return [first]
        doubtful = self.some(best.odd)
        odd = {first: len(best.odd)} if best.few_odd else {}
        for form in others:
            reads_all = not len(best.odd) and unread[form] == 0
            if reads_all or any(parse_written(cell, form, unit) is not None for cell in doubtful):
                found = self.numbers_as(form, unit)
                odd |= {form: len(found.odd)} if found.few_odd else {}
        return [form for form in forms if form in odd and odd[form] == min(odd.values())]

    def unit(self) -> str:
        """Unit before or after the numbers, if at most ODD_SHARE of the cells lack it; else empty."""
        unit = common_unit(self.some(np.flatnonzero(np.isnan(self.numbers.values))))
        if not unit:
            return ""
        present = {cell: n for cell, n in self.values.counts.items() if not is_missing(cell)}
        without = sum(n for cell, n in present.items() if without_unit(cell, unit) == cell)
        return unit if without <= ODD_SHARE * sum(present.values()) else ""

    def some(self, rows: Int64[np.ndarray, "m"]) -> list[str]:
        """The cells of these rows; if they are many, of about SAMPLE of them, evenly spread."""
        return [self[row] for row in rows[:: max(1, len(rows) // SAMPLE)].tolist()]

    def contains(self, sign: str) -> bool:
        return any(sign in (block if isinstance(block, str) else "".join(block)) for block in self._blocks)

    @cached_property
    def _has_points(self) -> bool:
        return self.contains(".")

    def point_decimals(self, unit: str = "") -> bool:
        """Whether some number has a point that cannot separate thousands."""
        for block in self._blocks if self._has_points else ():
            text = without_unit("\n".join(self._list(block)), unit)
            if all_written(text, POINTS):
                continue
            cells = text.split("\n")
            if any("." in cell and not is_written(cell, POINTS) and parse_number(cell) is not None for cell in cells):
                return True
        return False

    @cached_property
    def values(self) -> Values:
        number: dict[str, int] = defaultdict(count().__next__)
        codes = np.fromiter(map(number.__getitem__, self), np.int32, self._length)
        return Values(codes, list(number))

    def dates(self, form: str) -> Parsed:
        """The cells as dates, in days since 1970: in this format of `DATE_FORMATS` or in an unambiguous one."""
        if form not in self._dates:
            self._dates[form] = self._by_value(
                lambda cell: math.nan if is_missing(cell) else parse_any_date(cell, form)
            )
        return self._dates[form]

    def _by_value(self, parse: Callable[[str], float | None]) -> Parsed:
        """Each distinct cell parsed once."""
        codes, texts = self.values
        found = [parse(cell) for cell in texts]
        odd = np.array([value is None for value in found], dtype=bool)
        return Parsed(np.array(found, dtype=np.float64)[codes], np.flatnonzero(odd[codes]))  # None becomes NaN

    @cached_property
    def formats(self) -> list[str]:
        """Date formats that fail for the fewest cells, at most ODD_SHARE; of these, the formats that most cells have.
        An unambiguous format also reads cells in the other unambiguous ones. Empty if no format fits."""
        present = {cell: n for cell, n in self.values.counts.items() if not is_missing(cell)}
        odd, most = dict.fromkeys(DATE_FORMATS if present else (), 0), ODD_SHARE * sum(present.values())
        own = dict.fromkeys(odd, 0)
        for cell, n in present.items():
            fits = {form: parse_date(cell, form) is not None for form in odd}
            clear = any(fits.get(form, False) for form in UNAMBIGUOUS)
            for form, fit in fits.items():
                own[form] += n * fit
                odd[form] += n * (not fit and not (clear and form in UNAMBIGUOUS))
            odd = {form: unread for form, unread in odd.items() if unread <= most}
            if not odd:
                return []
        best = min(((odd[form], -own[form]) for form in odd), default=None)
        return [form for form in odd if (odd[form], -own[form]) == best]

    @property
    def no_dates(self) -> Int64[np.ndarray, "m"]:
        """Rows of the cells that are neither missing nor a date of any format."""
        codes, texts = self.values
        dates = [is_missing(cell) or any(parse_date(cell, form) is not None for form in DATE_FORMATS) for cell in texts]
        return np.flatnonzero(~np.array(dates, dtype=bool)[codes])


def _parse_numbers(cells: list[str]) -> tuple[Float64[np.ndarray, "n"], Int64[np.ndarray, "odd"]]:
    """Numbers, NaN for all else, and the rows that are neither a number nor missing, as `parse_number` says."""
    values = None
    if "_" not in "".join(cells):
        values = _floats(cells)
        if values is None:
            values = _floats([_NAN.get(cell, cell) for cell in cells])
    if values is None:
        known = {cell: parse_number(cell) for cell in set(cells)}
        values = np.array([known[cell] for cell in cells], dtype=np.float64)  # None becomes NaN
    doubtful = np.flatnonzero(~np.isfinite(values)).tolist()
    odd = np.array([row for row in doubtful if cells[row] not in _NAN], dtype=np.int64)
    values[odd] = np.nan
    return values, odd


def _parse_written(
    cells: list[str], notation: str, unit: str, typed: bool
) -> tuple[Float64[np.ndarray, "n"], Int64[np.ndarray, "odd"]]:
    """As `_parse_numbers`, with the arguments of `parse_written`."""
    text = without_unit("\n".join(cells), unit)
    if "," not in text and not unit and notation != POINTS:
        return _parse_numbers(cells)
    convertible = notation != POINTS or not typed
    if convertible and text.count("\n") == len(cells) - 1 and all_written(text, notation):
        return _parse_numbers(in_plain(text, notation).split("\n"))
    known = {cell: parse_written(cell, notation, unit, typed) for cell in set(cells)}
    values = np.array([known[cell] for cell in cells], dtype=np.float64)  # None becomes NaN
    odd = [row for row in np.flatnonzero(np.isnan(values)).tolist() if known[cells[row]] is None]
    return values, np.array(odd, dtype=np.int64)


def _floats(cells: list[str]) -> Float64[np.ndarray, "n"] | None:
    """Python's `float` of each cell, called by numpy; None if one is not a number."""
    try:
        return np.array(cells, dtype=object).astype(np.float64)
    except ValueError:
        return None


class Table:
    """Named columns of cells. Messages name the table and the line of a row."""

    def __init__(
        self,
        name: str,
        columns: Mapping[str, Cells | Sequence[str]],
        lines: Sequence[int],
        unit: str = "line",
        absent: Mapping[str, Bool[np.ndarray, "n"]] | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.columns = {key: cells if isinstance(cells, Cells) else Cells(cells) for key, cells in columns.items()}
        self.lines = lines
        """Line of the file in which each row ends, counted from 1; for data frames the row, counted from 0."""
        self.unit = unit
        """What `lines` counts."""
        self.absent = absent
        """For JSON lines, the rows that lack a column, by its name; None if every row has all columns."""
        self.notes = tuple(notes)
        """Notes for the user about how the file was read."""

    def __len__(self) -> int:
        return len(self.lines)

    def take(self, rows: Rows) -> "Table":
        columns = {name: cells.take(rows) for name, cells in self.columns.items()}
        absent = None if self.absent is None else {name: lacks[rows] for name, lacks in self.absent.items()}
        lines = array("q", [self.lines[row] for row in np.asarray(rows, np.int64).tolist()])
        return Table(self.name, columns, lines, self.unit, absent, self.notes)

    def place(self, row: int) -> str:
        """Where a row is found, for the beginning of a sentence."""
        return f"{self.name}, {self.unit} {self.lines[row]}"


CheckColumns = Callable[["Table"], object]
"""Raises if the columns of a table do not fit. It is called before the rows are read, with a table without rows; for
JSON lines, with the first row only."""


# Delimited text


def parse_table(text: str, name: str) -> Table:
    return read_delimited(io.StringIO(text, newline=""), name)


def read_delimited(lines: io.TextIOBase, name: str, check: CheckColumns | None = None) -> Table:
    """The first line names the columns; `UNNAMED` gives a name to those without one. The delimiter is the most
    frequent one in the first line. If it is a semicolon, decimals may have a comma."""
    reader = _Delimited(lines, name)
    header = reader.header()
    if header and check is not None:
        check(Table(name, {column: [] for column in header}, []))
    comma = reader.delimiter == ";"
    columns, ends = [Cells(typed=False, decimal_comma=comma) for _ in header], array("q")
    for block, numbers in reader.blocks(len(header)):
        ends.extend(numbers)
        for column, cells in zip(columns, block, strict=True):
            column.append(_cleaned(cells))
    if not ends:
        raise TableError(f"{name} has no rows; its first line must name the columns, each further one is an example.")
    return Table(name, dict(zip(header, columns, strict=True)), ends)


Columnwise = tuple[Sequence[Sequence[str]], Sequence[int]]
"""The cells of each column in a block of rows, and the line in which each row ends."""


class _Delimited:
    """Splits lines into cells: plain lines at once, and from the first quotation mark on with `csv`."""

    def __init__(self, lines: io.TextIOBase, name: str) -> None:
        first = lines.readline()
        self.name, self.delimiter = name, max(DELIMITERS, key=first.count)
        self.lines: Iterator[str] = chain([first], lines)
        self.line = 0  # number of the last line that was read

    def header(self) -> list[str]:
        """Names of the columns: the first line that has any; empty if there is none."""
        header = next((cells for row in self._rows() if any(cells := [cell.strip() for cell in row])), [])
        header = _named(header, self.name)
        if header and all(cell.replace(".", "", 1).lstrip("+-").isdigit() for cell in header):
            raise TableError(
                f"{self.name} begins with a line of numbers ({header[0]}, …); add a first line that names the columns."
            )
        return header

    def blocks(self, width: int) -> Iterator[Columnwise]:
        while block := self._plain_block(width):
            yield block
        rows = ((row, self.line) for row in self._rows() if self._is_row(row, width))
        while some := list(islice(rows, BLOCK)):
            cells, ends = zip(*some, strict=True)
            yield list(zip(*cells, strict=True)), ends

    def _plain_block(self, width: int) -> Columnwise | None:
        """The next lines; None at the end, or if one of them is blank, quoted, or has another number of cells."""
        block = list(islice(self.lines, BLOCK))
        text, start = "".join(block).removesuffix("\n"), self.line + 1
        plain = width > 1 and not ('"' in text or "\r" in text) and max(map(len, block), default=0) < MAX_CELL
        if not plain or {line.count(self.delimiter) for line in block} != {width - 1}:
            self.lines = chain(block, self.lines)
            return None
        self.line += len(block)
        cells = text.replace("\n", self.delimiter).split(self.delimiter)
        return [cells[place::width] for place in range(width)], range(start, start + len(block))

    def _rows(self) -> Iterator[list[str]]:
        reader, start = csv.reader(self.lines, delimiter=self.delimiter, strict=True), self.line
        try:
            for row in reader:
                self.line = start + reader.line_num
                yield row
        except csv.Error as error:
            line = start + reader.line_num
            raise TableError(f"{self.name}, line {line}: {error}; is a quotation mark missing?") from error

    def _is_row(self, row: list[str], width: int) -> bool:
        """Blank lines are skipped, and so is a single empty cell below several names. A row of empty cells counts:
        predictions need one answer for each row."""
        if not row or (len(row) == 1 and not row[0].strip() and (width > 1 or row != [""])):
            return False
        if len(row) != width:
            cells, named = counted(len(row), "cell"), counted(width, "column")
            raise TableError(
                f"{self.name}, line {self.line}: {cells} where the first line names {named}; make them equal."
            )
        return True


def _cleaned(cells: Sequence[str]) -> list[str]:
    """Cells without the spaces around them. Most columns have no spaces at all, which one search shows."""
    text = "\n".join(cells)
    spaced = not text.isascii() or text.count("\n") >= len(cells) or any(sign in text for sign in SPACES)
    return list(map(str.strip, cells) if spaced else cells)


def _named(names: Sequence[str], table: str) -> list[str]:
    """Names of the columns, with `UNNAMED` for those that have none; duplicates are refused."""
    twice = [column for column, count in Counter(filter(None, names)).items() if count > 1]
    if twice:
        raise TableError(f"{table} has two columns called {twice[0]!r}; give each its own name.")
    return [column or UNNAMED.format(place) for place, column in enumerate(names)]


def unnamed_place(column: str) -> int | None:
    """Position, from 1, of a column that had no name; None for any other."""
    found = _UNNAMED.fullmatch(column)
    return int(found[1]) + 1 if found else None


# JSON lines


def read_json_lines(lines: io.TextIOBase, name: str, check: CheckColumns | None = None) -> Table:
    """Columns are all names that occur, in the order in which they first do. A cell that a row lacks is empty."""
    columns, absent, ends = dict[str, Cells](), dict[str, list[Bool[np.ndarray, "rows"]]](), array("q")
    numbered = ((number, line) for number, line in enumerate(lines, start=1) if line.strip())
    first = next(numbered, None)
    if first is None:
        raise TableError(f"{name} has no rows; each line must be a JSON object, one example.")
    if check is not None:
        row, _ = _json_row(name, *first)
        check(Table(name, {key: [cell] for key, cell in row.items() if key}, first[:1], absent={}))
    every = chain([first], numbered)
    while block := list(islice(every, BLOCK)):
        rows, typed = zip(*(_json_row(name, number, line) for number, line in block), strict=True)
        for key in dict.fromkeys(key for row in rows for key in row if key and key not in columns):
            columns[key], absent[key] = Cells([""] * len(ends), typed=False), [np.ones(len(ends), bool)]
        for key, cells in columns.items():
            cells.typed |= any(key in keys for keys in typed)
            cells.append([row.get(key, "") for row in rows])
            absent[key].append(np.array([key not in row for row in rows]))
        ends.extend(number for number, _ in block)
    return Table(name, columns, ends, absent={key: np.concatenate(lacks) for key, lacks in absent.items()})


def _json_row(table: str, number: int, line: str) -> tuple[dict[str, str], set[str]]:
    """The cells of a row, and the names of its columns with a number that is not whole, as 1.0 or 1.5."""
    place = f"{table}, line {number}"
    try:
        entry = parse_json(line)
    except ValueError as error:
        raise TableError(f"{place}: not JSON ({error}); correct the line.") from error
    if not isinstance(entry, dict):
        raise TableError(f'{place}: not a JSON object but a {type(entry).__name__}; write {{"column": value, …}}.')
    for key, value in entry.items():
        if isinstance(value, dict | list):
            kind = type(value).__name__
            raise TableError(f"{place}: {key!r} holds a {kind}; write each of its values as a column of its own.")
    cells = {key.strip(): "" if value is None else str(value).strip() for key, value in entry.items()}
    try:
        "".join([*cells, *cells.values()]).encode("utf-8")
    except UnicodeEncodeError:  # JSON may escape half of a surrogate pair
        raise TableError(f"{place}: a text in it is not valid UTF-8; correct it.") from None
    return cells, {key.strip() for key, value in entry.items() if isinstance(value, float)}


# Data frames, Parquet, and the memory that a table may take


def frame_table(frame: "DataFrame", name: str = FRAME) -> Table:
    """Cells as a CSV file would have them, so that a model reads both alike."""
    names = _named([str(column).strip() for column in frame.columns], name)
    if frame.empty:
        raise TableError(f"{name} has no rows or no columns; each row is an example.")
    columns = {}
    for column, (_, series) in zip(names, frame.items(), strict=True):
        gaps = series.isna()
        cells = ("" if gap else str(value).strip() for value, gap in zip(series, gaps, strict=True))
        columns[column] = Cells(cells, typed=not all(isinstance(value, str) for value in series[~gaps]))
    return Table(name, columns, range(len(frame)), "row")


class Allowance:
    """Memory that a table may take: a share of the free memory when reading begins."""

    def __init__(self, path: Path) -> None:
        self.path, self.free = path, free_bytes(torch.device("cpu"))
        self.size, self.cells = 0, 0

    def take(self, size: int, cells: int) -> None:
        """Count unpacked bytes and cells; raise if they do not fit into memory."""
        self.size, self.cells = self.size + size, self.cells + cells
        if self.size > MAX_UNPACKED:
            raise TableError(f"{self.path} has more than {MAX_UNPACKED / 1e9:.1f} GB when unpacked; give a part of it.")
        if MEMORY_PER_BYTE * self.size + MEMORY_PER_CELL * self.cells > SHARE * self.free:
            raise TableError(
                f"{self.path} does not fit into memory: it has more than {self.size / 1e6:,.0f} MB and {self.cells:,} "
                f"cells once it is unpacked, and {self.free / 1e9:.1f} GB are free; give a part of it."
            )


class Metered(io.RawIOBase):
    """A file that can be read only as long as its table fits into memory: a small packed file can unpack to more."""

    def __init__(self, file: io.BufferedIOBase, path: Path) -> None:
        self.file, self.allowance = file, Allowance(path)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        content = self.file.read(len(buffer))
        self.allowance.take(len(content), sum(content.count(sign) for sign in SEPARATORS))
        buffer[: len(content)] = content
        return len(content)


def read_parquet(path: Path, check: CheckColumns | None = None) -> Table:
    """Read in batches, so that a file that does not fit into memory is refused in time."""
    require_extra(f"{path}: reading Parquet", "parquet", "pyarrow")
    import pyarrow
    from pyarrow.parquet import ParquetFile

    batches, allowance = [], Allowance(path)
    try:
        with ParquetFile(path) as file:
            if check is not None:
                check(Table(str(path), {name: [] for name in map(str.strip, file.schema_arrow.names) if name}, []))
            for batch in file.iter_batches():
                batches.append(batch)
                allowance.take(batch.nbytes, batch.num_rows * batch.num_columns)
            frame = pyarrow.Table.from_batches(batches, file.schema_arrow).to_pandas()
    except RicnetError:
        raise
    except Exception as error:  # arrow, thrift and the codecs raise various exceptions
        reason = first_line(error)
        raise TableError(f"{path} is not a readable Parquet file ({reason}); save the table again.") from error
    return frame_table(frame, str(path))


def read_table(path: Path, check: CheckColumns | None = None) -> Table:
    """`check` is called with the columns, so that a file with wrong columns is refused before its rows are read."""
    suffix = table_suffix(path) or ".csv"
    if not path.exists():
        raise TableError(f"{path} does not exist; give the path of a table ({', '.join(TABLES)}).")
    if suffix == ".parquet":
        return read_parquet(path, check)
    if suffix.startswith(".jsonl"):
        return _read_text(path, read_json_lines, check)
    try:
        return _read_text(path, read_delimited, check)
    except _NotUtf8 as error:
        return _read_windows(path, check, error)


class _NotUtf8(TableError):
    """A file whose bytes are not UTF-8 text."""


ReadText = Callable[[io.TextIOBase, str, CheckColumns | None], Table]


def _opened(path: Path) -> Any:
    return gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb")


def _read_text(path: Path, read: ReadText, check: CheckColumns | None, encoding: str | None = None) -> Table:
    try:
        with _opened(path) as file:
            content = io.BufferedReader(Metered(file, path), CHUNK)
            return read(io.TextIOWrapper(content, encoding or encoding_of(content.peek(2))), str(path), check)
    except UnicodeDecodeError as error:
        raise _NotUtf8(f"{path} is not UTF-8 text; save the table as CSV in UTF-8.") from error
    except (OSError, EOFError, zlib.error) as error:
        kind = "is not a complete gzip file" if path.suffix.lower() == ".gz" else "cannot be read"
        raise TableError(f"{path} {kind} ({error}); save the table as CSV in UTF-8.") from error


def _read_windows(path: Path, check: CheckColumns | None, refusal: TableError) -> Table:
    """A table in Windows-1252, the encoding of Excel's plain CSV in western Europe."""
    with _opened(path) as file:
        if _BINARY.search(file.read(CHUNK)):
            raise refusal
    try:
        table = _read_text(path, read_delimited, check, "cp1252")
    except _NotUtf8:
        raise refusal from None
    table.notes = (f"{path} is not UTF-8 text; read as Windows-1252, as Excel saves CSV; check letters with accents.",)
    return table
