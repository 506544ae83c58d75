"""How the columns of a table become numbers. What was learned from the training rows is kept as plain JSON with the
model, so that new rows are read as they were.

- A column of numbers is standardised. A missing value is taken as the mean; if training rows lacked some, a second
  number says which do.
- Whole numbers of one length, some with leading zeros (00109), are codes and no numbers.
- A column of dates is a column of numbers, in days.
- A column is one of numbers, or of dates, if at most one cell in twenty is something else ("n/k", "> 100"). Those cells
  count as missing, and a note names them. With more of them it is a column of texts. The kind of a column is decided by
  all rows of the table; what is learned from it (mean, values) comes from the training rows only.
- The texts that counted as missing are stored with the column. In rows to predict they count as missing again, and any
  other text in a column of numbers is refused. This depends on the cell alone, not on the other rows.
- Any other column is one number for each of its values, 1 where the cell has it. A value that few training rows have
  counts as `other`, and so does one that none had; where training knew no rare values, a new one is none of them, all
  numbers 0. An empty cell is a value like any other.
- `ric train` leaves out a column whose name and values are those of an identifier, such as PassengerId (see
  `is_identifier`), and one with nothing to learn from. An estimator keeps every column.
- A column of texts (see `texts`) is read instead of all others, and only where the user says so.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float, Num
from torch import Tensor

from ricnet.data.tables import ABSENT, Table, TableError
from ricnet.data.texts import MOST_TOKENS, Text, Tokenizer, is_prose
from ricnet.errors import RicnetError, listed, setting
from ricnet.io import Absent, Maybe, are_texts, is_count, is_finite, is_switch, is_text, misfit

if TYPE_CHECKING:
    from pandas import DataFrame

MISSING = frozenset({"", "na", "n/a", "#n/a", "<na>", "nan", "null", "none", "?"})
"""What stands for no number, in capitals or not."""
ODD_SHARE = 0.05
"""So many of the cells that are not missing may be no numbers, or no dates, in a column of these. Read as texts, the
other nineteen of twenty would be lost; but those that are more may be a kind of their own."""
RARE_ROWS, RARE_SHARE = 3, 0.005
"""A value in fewer training rows is rare. Standardised, its number would be the larger the rarer it is."""
MANY_ROWS = 30
"""Minimum rows to detect an identifier: in fewer, the values of any column may all differ."""
IDENTIFIER_WORDS = frozenset({"id", "ids", "identifier", "uuid", "guid", "key", "index", "idx", "pk"})
"""Last words of the names of identifiers."""
IDENTIFIER_NAMES = frozenset({"row", "row number", "row num", "row no", "row nr", "rownumber", "rownum", "no", "nr"})
"""Whole names of identifiers."""
_THING_ID = re.compile(
    r"(account|case|client|customer|item|order|passenger|patient|person|product|record|row|sample|user)id"
)  # customerid, but neither paid nor acid
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
FORMATS = {
    "iso": "1999-12-31 or 1999-12-31T23:59",
    "%Y/%m/%d": "1999/12/31",
    "%d.%m.%Y": "31.12.1999",
    "%m/%d/%Y": "12/31/1999",
    "%d/%m/%Y": "31/12/1999",
}
"""How dates may be written, with an example of each. The cells of a column must agree; month first wins a draw."""
_WHOLE = re.compile(r"\d{1,18}")
_DAY = 86_400
_EARLIEST = datetime(1, 1, 1, tzinfo=UTC).timestamp()
_LATEST = datetime(9999, 12, 31, tzinfo=UTC).timestamp()


# Cells


def is_missing(cell: str) -> bool:
    return cell.lower() in MISSING


def parse_number(cell: str) -> float | None:
    """NaN where it is missing, None where it is something else."""
    try:
        value = float(cell)
        if math.isfinite(value) and "_" not in cell:  # Python reads 1_000 as a thousand; tables do not mean it
            return value
    except ValueError:
        pass
    return math.nan if is_missing(cell) else None


def parse_date(cell: str, form: str) -> float | None:
    """Days since 1970, UTC where no time zone is given; None where it is no such date."""
    if not 8 <= len(cell) <= 40 or not cell[0].isdigit() or cell.isdigit():
        return None
    try:
        found = datetime.fromisoformat(cell) if form == "iso" else datetime.strptime(cell, form)
    except ValueError:
        return None
    aware = found if found.tzinfo else found.replace(tzinfo=UTC)
    return aware.timestamp() / _DAY


def show_date(days: float, form: str) -> str:
    """The day as it would be written in a cell, without the time of day; the nearest one that a calendar has."""
    seconds = min(max(days * _DAY, _EARLIEST), _LATEST)
    day = datetime.fromtimestamp(seconds, UTC)
    return day.date().isoformat() if form == "iso" else day.strftime(form)


def few(cells: Sequence[str]) -> float:
    """How many of these may be odd."""
    return ODD_SHARE * sum(not is_missing(cell) for cell in cells)


def common_formats(cells: Sequence[str]) -> list[str]:
    """In which most of these cells can be read as dates, and all but few; none if all are missing."""
    present = Counter(cell for cell in cells if not is_missing(cell))
    odd, most = dict.fromkeys(FORMATS if present else (), 0), ODD_SHARE * present.total()
    for cell, count in present.items():
        for form in odd:
            odd[form] += count * (parse_date(cell, form) is None)
        odd = {form: unread for form, unread in odd.items() if unread <= most}
        if not odd:
            break
    return [form for form, unread in odd.items() if unread == min(odd.values())]


# Columns


@dataclass(frozen=True)
class Number:
    kind: ClassVar[str] = "number"
    wanted: ClassVar[str] = "numbers"

    name: str
    mean: float
    std: float
    flagged: bool
    """Whether a second number says where the value is missing."""
    gaps: tuple[str, ...] = field(default=(), kw_only=True, repr=False)
    """Texts among the cells of the table that the column was learned from; they count as missing."""

    @property
    def width(self) -> int:
        return 1 + self.flagged

    def parse(self, cells: Sequence[str]) -> list[float | None]:
        """NaN where it is missing, None where it is something else."""
        return list(map(parse_number, cells))

    def odd(self, cells: Sequence[str]) -> list[int]:
        """The rows of those that are something else."""
        return self.read(cells)[1]

    def read(self, cells: Sequence[str]) -> tuple[Float[np.ndarray, "n"], list[int]]:
        """Numbers, NaN where one is missing or something else, and the rows of the latter."""
        values = self.parse(cells)
        odd = [row for row, value in enumerate(values) if value is None]
        return np.array(values, dtype=np.float64), odd  # None becomes NaN

    def encode(self, table: Table) -> Float[np.ndarray, "n width"]:
        cells = table.columns[self.name]
        numbers, odd = self.read(cells)
        known = set(self.gaps)
        unknown = [row for row in odd if cells[row] not in known]
        if unknown:
            raise TableError(
                f"{table.place(unknown[0])}: {self.name!r} is {cells[unknown[0]]!r}, but the model was trained on "
                f"{self.wanted}; correct it, or leave it empty if it is unknown."
            )
        return self.scaled(numbers)

    def scaled(self, numbers: Float[np.ndarray, "n"]) -> Float[np.ndarray, "n width"]:
        """Standardised numbers and, if `flagged`, 1 where they are missing."""
        missing = np.isnan(numbers)
        with np.errstate(over="ignore"):
            values = np.where(missing, 0.0, (numbers - self.mean) / self.std)
        return np.stack([values, missing][: self.width], axis=1).astype(np.float64)

    def new_values(self, _cells: Sequence[str]) -> list[str]:
        return []


@dataclass(frozen=True)
class Date(Number):
    """Days since 1970, as a number."""

    kind: ClassVar[str] = "date"

    format: str
    """One of `FORMATS`."""

    @property
    def wanted(self) -> str:  # type: ignore[override]
        return f"dates such as {FORMATS[self.format]}"

    def parse(self, cells: Sequence[str]) -> list[float | None]:
        days = {cell: math.nan if is_missing(cell) else parse_date(cell, self.format) for cell in set(cells)}
        return [days[cell] for cell in cells]

    def show(self, days: float) -> str:
        return show_date(days, self.format)


@dataclass(frozen=True)
class Category:
    kind: ClassVar[str] = "category"

    name: str
    values: tuple[str, ...]
    other: bool
    """Whether there is a number for values that are not among them."""

    @property
    def width(self) -> int:
        return len(self.values) + self.other

    def encode(self, table: Table) -> Float[np.ndarray, "n width"]:
        place = {value: i for i, value in enumerate(self.values)}
        places = np.array([place.get(cell, len(self.values)) for cell in table.columns[self.name]])
        numbers = np.zeros((len(places), len(self.values) + 1))
        numbers[np.arange(len(places)), places] = 1
        return numbers[:, : self.width]

    def new_values(self, cells: Sequence[str]) -> list[str]:
        """Rare values are not told from new ones: their names are not kept."""
        known = set(self.values)
        return [] if self.other else [cell for cell in cells if cell not in known]


@dataclass(frozen=True)
class Columns:
    target: str
    """The column of the classes; new rows need not have it."""
    inputs: tuple[Number | Category | Text, ...]

    @property
    def width(self) -> int:
        return sum(column.width for column in self.inputs)

    @property
    def text(self) -> Text | None:
        """The column of texts, which stands alone; None of other tables."""
        return next((column for column in self.inputs if isinstance(column, Text)), None)

    def encode(self, table: Table) -> Num[Tensor, "n width"]:
        """Token ids of texts, real numbers of all else."""
        table = self.complete(table)
        if self.text is not None:
            return torch.from_numpy(self.text.encode(table))
        with np.errstate(over="ignore"):
            numbers = np.concatenate([column.encode(table) for column in self.inputs], axis=1).astype(np.float32)
        beyond = np.flatnonzero(~np.isfinite(numbers).all(axis=1)).tolist()
        if beyond:
            raise TableError(f"{table.place(beyond[0])}: a number is too large; correct it.")
        return torch.from_numpy(numbers)

    def complete(self, table: Table) -> Table:
        """The table with all columns that the model reads. A JSON row may lack some of them, but not all."""
        names = [column.name for column in self.inputs]
        absent = [name for name in names if name not in table.columns]
        if absent and not table.sparse:
            raise TableError(
                f"{table.name} lacks columns that the model was trained on: {listed([repr(name) for name in absent])}; "
                f"it has {listed([repr(name) for name in table.columns], 10)}."
            )
        table = replace(table, columns=table.columns | {name: [ABSENT] * len(table) for name in absent})
        for row in range(len(table)) if table.sparse else ():
            if all(table.columns[name][row] is ABSENT for name in names):
                raise TableError(
                    f"{table.place(row)}: it has none of the columns that the model was trained on: "
                    f"{listed([repr(name) for name in names])}."
                )
        return table

    def odd_cells(self, table: Table) -> tuple[str, ...]:
        """What the user should know of cells that are no numbers in a column of these."""
        notes = []
        for column in self.inputs:
            cells = table.columns[column.name]
            if isinstance(column, Number) and (odd := column.odd(cells)):
                named = listed([f"{cells[row]!r} in {table.unit} {table.lines[row]}" for row in odd], 3)
                share = f"{len(odd)} of its {len(cells)} cells {'is' if len(odd) == 1 else 'are'} not"
                notes.append(
                    f"Column {column.name!r} is read as {column.wanted}; {share}, and counted as missing: {named}."
                )
        return tuple(notes)

    def surprises(self, table: Table) -> tuple[str, ...]:
        """What the user should know of rows to predict: odd cells, and values that training had not."""
        absent = [repr(column.name) for column in self.inputs if column.name not in table.columns]
        notes = [f"{table.name}: no row has {listed(absent)}; counted as missing."] * bool(absent)
        table = self.complete(table)
        notes += [f"{table.name}: {note[0].lower()}{note[1:]}" for note in self.odd_cells(table)]
        for column in self.inputs:
            if cells := column.new_values(table.columns[column.name]):
                text = next(filter(None, cells), None)
                value = f"a value of {column.name!r} that training had not, such as {text!r}"
                if text is None:
                    value = f"an empty {column.name!r}, which no training row had"
                share = f"{len(cells)} of {len(table)} rows"
                notes.append(f"{table.name}: {share} have {value}; it counts as none of those it knows.")
        return tuple(notes)

    def cells(self, numbers: Sequence[float]) -> dict[str, str | float | None]:
        """The cells that `encode` turned into these numbers; None for a rare value, whose name is not stored."""
        found: dict[str, str | float | None] = {}
        for column, part in self.split(numbers):
            if isinstance(column, Number):
                missing = column.flagged and part[1] > 0.5
                value = part[0] * column.std + column.mean
                shown = column.show(value) if isinstance(column, Date) else float(f"{value:.6g}")
                found[column.name] = None if missing else shown
            elif isinstance(column, Category):
                best = int(np.argmax(part))
                known = part[best] > 0.5 and best < len(column.values)
                found[column.name] = column.values[best] if known else None
        return found

    def split(self, numbers: Sequence[float]) -> Iterator[tuple[Number | Category | Text, Sequence[float]]]:
        """Each column with its own numbers of a row."""
        start = 0
        for column in self.inputs:
            yield column, numbers[start : start + column.width]
            start += column.width

    def to_json(self) -> dict[str, Any]:
        entries = [{"kind": column.kind, **asdict(column)} for column in self.inputs]
        lists = [{key: list(it) if isinstance(it, tuple) else it for key, it in entry.items()} for entry in entries]
        return {"target": self.target, "inputs": lists}


_NUMBER: dict[str, Any] = {
    "name": is_text,
    "mean": is_finite,
    "std": lambda value: is_finite(value) and value > 0,
    "flagged": is_switch,
    "gaps": Absent(are_texts),
}
_FORMS: dict[str, Any] = {
    "number": _NUMBER,
    "date": {**_NUMBER, "format": lambda value: is_text(value) and value in FORMATS},
    "category": {"name": is_text, "values": are_texts, "other": is_switch},
    "text": {
        "name": is_text,
        "tokens": lambda value: is_count(value) and 0 < value <= MOST_TOKENS,
        "tokenizer": Maybe({"content": is_text, "pad": is_count, "most": is_count}),
    },
}


def columns_from_json(entry: Any, source: str) -> Columns:
    """It comes from a file, so nothing in it is trusted."""
    form = {"target": is_text, "inputs": [{"kind": lambda kind: is_text(kind) and kind in _FORMS}]}
    fits = misfit(entry, form) is None and all(misfit(each, _FORMS[each["kind"]]) is None for each in entry["inputs"])
    kinds = [each["kind"] for each in entry["inputs"]] if fits else []
    void = fits and any(not (each.get("values", True) or each["other"]) for each in entry["inputs"])
    if not fits or void or (Text.kind in kinds and len(kinds) > 1):
        raise RicnetError(f"{source}: its columns are damaged; restore the file or train again.")
    return Columns(entry["target"], tuple(map(_column_from_json, entry["inputs"])))


def _column_from_json(entry: dict[str, Any]) -> Number | Category | Text:
    if entry["kind"] == Text.kind:
        own = entry.get("tokenizer")
        return Text(entry["name"], entry["tokens"], own and Tokenizer(own["content"], own["pad"], own["most"]))
    if entry["kind"] == "category":
        return Category(entry["name"], tuple(entry["values"]), entry["other"])
    learned, gaps = (entry["name"], float(entry["mean"]), float(entry["std"]), entry["flagged"]), entry.get("gaps", ())
    return (
        Number(*learned, gaps=tuple(gaps))
        if entry["kind"] == "number"
        else Date(*learned, entry["format"], gaps=tuple(gaps))
    )


# Learning them from training rows


def fit_columns(
    table: Table, target: str, training: Sequence[int] | None = None, keep_all: bool = False
) -> tuple[Columns, tuple[str, ...]]:
    """Learn the columns from the training rows (None: all rows). Also returns notes for the user. With `keep_all` no
    column is left out: one with nothing to learn from is a constant."""
    learned = table if training is None else table.take(training)
    fitted: list[Number | Category] = []
    identifiers, unused, mistyped, prose = list[str](), list[str](), list[str](), list[str]()
    useful = False
    for name, cells in learned.columns.items():
        if name == target:
            continue
        reader = _reader(name, table.columns[name])
        if reader is None and is_prose(cells):
            prose.append(name)
        if not keep_all and is_identifier(name, cells, reader):
            identifiers.append(repr(name))
            continue
        column = _fit_category(name, cells) if reader is None else _fit_number(reader, learned)
        useful = useful or column is not None
        if column is not None or keep_all:
            fitted.append(column or _constant(name, cells, reader))
        mistake = _mistake(table.columns[name], table) if reader is None else None
        if mistake is not None:
            why, remedy = mistake
            fate = "carries nothing" if keep_all else "was left out"
            mistyped.append(
                f"Column {name!r} is read as text, for {why}; {remedy}."
                if column is not None
                else f"Column {name!r} {fate}: {why}, and as texts its cells hardly repeat; {remedy}."
            )
        elif column is None and name not in prose:
            unused.append(repr(name))
    if not useful:
        raise _nothing_to_learn(table, target, prose, mistyped)
    notes = _left_out_notes(unused, identifiers, keep_all)
    notes += [f"Column {name!r} looks like prose; {_as_text(name, target)}." for name in prose]
    return Columns(target, tuple(fitted)), (*notes, *_date_notes(fitted, table), *mistyped)


def _left_out_notes(unused: Sequence[str], identifiers: Sequence[str], keep_all: bool) -> list[str]:
    notes = []
    if unused:
        fate = "carry nothing" if keep_all else "were left out"
        notes.append(
            f"Columns that are the same in all rows or hold texts that hardly repeat {fate}: {listed(unused)}."
        )
    if identifiers:
        notes.append(
            "Columns that are identifiers by name and value, different in all rows, were left out: "
            f"{listed(identifiers)} (rename one that measures something)."
        )
    return notes


def _nothing_to_learn(table: Table, target: str, prose: Sequence[str], mistyped: Sequence[str]) -> TableError:
    if prose:
        return TableError(
            f"{table.name}: beside {target!r} there is only prose, {prose[0]!r}; {_as_text(prose[0], target)}."
        )
    reason = "each is the same in all rows, or differs in nearly all as names and identifiers do."
    return TableError(
        " ".join([f"{table.name}: beside {target!r} there is no column to learn from: {reason}", *mistyped])
    )


def _reader(name: str, cells: Sequence[str]) -> Number | None:
    """A column of numbers or dates that reads these cells, all but a few; None if they are texts. Only `gaps` is
    learned yet, not the mean and standard deviation."""
    number = Number(name, 0.0, 1.0, False)
    if len(number.odd(cells)) <= few(cells):
        return _with_gaps(number, cells) if _padded(cells) is None else None
    formats = common_formats(cells)
    return _with_gaps(Date(name, 0.0, 1.0, False, formats[0]), cells) if formats else None


def _with_gaps(reader: Number, cells: Sequence[str]) -> Number:
    return replace(reader, gaps=tuple(sorted({cells[row] for row in reader.odd(cells)})))


def _as_text(name: str, target: str) -> str:
    """How to learn from a column of texts. Only an estimator's data has no column of classes in it."""
    how = setting("text", name) if target else f"X[{name!r}] alone"
    return f"to learn from its words, and from nothing else, give {how}"


def is_identifier(name: str, cells: Sequence[str], reader: Number | None) -> bool:
    """Judged by both name and values. The name ends in one of `IDENTIFIER_WORDS` (PassengerId, user_id) or is one of
    `IDENTIFIER_NAMES`. The values are whole numbers or texts, different in all rows; none is missing."""
    if not _named_identifier(name) or len(cells) < MANY_ROWS or len(set(cells)) < len(cells):
        return False
    if any(map(is_missing, cells)):
        return False
    odd = set(range(len(cells)) if reader is None else reader.odd(cells))
    return all(map(_WHOLE.fullmatch, (cell for row, cell in enumerate(cells) if row not in odd)))


def _named_identifier(name: str) -> bool:
    words = [word.lower() for word in _WORDS.findall(name)]
    ends = bool(words) and (words[-1] in IDENTIFIER_WORDS or _THING_ID.fullmatch(words[-1]) is not None)
    return ends or " ".join(words) in IDENTIFIER_NAMES


def _constant(name: str, cells: Sequence[str], reader: Number | None) -> Number | Category:
    """A column with nothing to learn from, encoded as the same number in all training rows."""
    return Category(name, (), True) if reader is None else _constant_number(reader, reader.read(cells)[0])


def _constant_number(reader: Number, values: Float[np.ndarray, "n"]) -> Number:
    present = values[~np.isnan(values)]
    return replace(reader, mean=float(present[0]) if len(present) else 0.0)


def fit_array(array: Num[np.ndarray, "n columns"], name: str) -> Columns:
    """Columns of an array with missing values (NaN), named by their indices. None is left out."""
    readers = [Number(str(place), 0.0, 1.0, False) for place in range(array.shape[1])]
    values = array.astype(np.float64).T
    return Columns(
        "",
        tuple(
            _fit_values(reader, own, name) or _constant_number(reader, own)
            for reader, own in zip(readers, values, strict=True)
        ),
    )


def encode_array(columns: Columns, array: Num[np.ndarray, "n columns"]) -> Float[np.ndarray, "n width"]:
    """Encode the rows of an array by the columns of `fit_array`."""
    numbers = [column for column in columns.inputs if isinstance(column, Number)]
    values = array.astype(np.float64).T
    return np.concatenate([column.scaled(own) for column, own in zip(numbers, values, strict=True)], axis=1)


def _fit_number(reader: Number, table: Table) -> Number | None:
    """None where all have the same value."""
    return _fit_values(reader, reader.read(table.columns[reader.name])[0], table.name)


def _fit_values(reader: Number, values: Float[np.ndarray, "n"], source: str) -> Number | None:
    present = values[~np.isnan(values)]
    flagged = 0 < len(present) < len(values)
    if not flagged and len(np.unique(present)) < 2:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        mean, std = float(present.mean()), float(present.std())
    if not math.isfinite(std):
        raise TableError(f"{source}: the numbers of {reader.name!r} are too large to compute with; scale them.")
    return replace(reader, mean=mean, std=std or 1.0, flagged=flagged)


def _fit_category(name: str, cells: Sequence[str]) -> Category | None:
    """None where there is one value only, or texts that hardly repeat, such as names."""
    counts = Counter(cells)
    kept = sorted(value for value, n in counts.items() if n >= max(RARE_ROWS, RARE_SHARE * len(cells)))
    other = len(kept) < len(counts)
    return Category(name, tuple(kept), other) if kept and len(kept) + other > 1 else None


def _date_notes(fitted: Sequence[Number | Category], table: Table) -> list[str]:
    dates = [column for column in fitted if isinstance(column, Date)]
    notes = [f"Columns read as dates, in days: {listed([repr(column.name) for column in dates])}."] if dates else []
    return notes + [
        f"{column.name!r} is read as {column.wanted}, month first; write 1999-12-31 if it is not."
        for column in dates
        if len(common_formats(table.columns[column.name])) > 1
    ]


def _padded(cells: Sequence[str]) -> int | None:
    """The first row with a leading zero, where different whole numbers are all of one length, as codes are. A single
    012 among numbers of all lengths is none."""
    found = {cell for cell in set(cells) if parse_number(cell) is not None and not is_missing(cell)}
    if len(found) < 2 or len(set(map(len, found))) > 1 or not all(map(str.isdecimal, found)):
        return None
    return next((row for row, cell in enumerate(cells) if cell in found and len(cell) > 1 and cell[0] == "0"), None)


def _mistake(cells: Sequence[str], table: Table) -> tuple[str, str] | None:
    """Why a column is one of texts, though most of its cells are numbers or dates, and what to do about it: that must
    not happen in silence."""
    dates = {cell for cell in set(cells) if is_missing(cell) or common_formats([cell])}
    no_numbers = [row for row, cell in enumerate(cells) if parse_number(cell) is None]
    padded = _padded(cells) if len(no_numbers) <= few(cells) else None
    if padded is not None:
        why = f"{cells[padded]!r} in {table.unit} {table.lines[padded]} has leading zeros, as codes have"
        return why, "write its numbers without them if they measure something"
    no_dates = [row for row, cell in enumerate(cells) if cell not in dates]
    for noun, texts in (("number", no_numbers), ("date", no_dates)):
        if texts and 2 * len(texts) < len(cells):
            first = f"{cells[texts[0]]!r} in {table.unit} {table.lines[texts[0]]} is no {noun}"
            more = f", nor are {len(texts) - 1} more of its {len(cells)} cells" if len(texts) > 1 else ""
            return first + more, "correct it, or leave empty what is unknown"
    return None


def is_plain(frame: "DataFrame") -> bool:
    """Whether a data frame holds nothing but numbers, without gaps."""
    return all(dtype.kind in "biuf" for dtype in frame.dtypes) and not frame.isna().any(axis=None)
