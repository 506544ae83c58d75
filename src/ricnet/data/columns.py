"""How the columns of a table become numbers. What is learned from the training rows is stored as JSON with the model,
so that new rows are encoded in the same way.

- Numbers and dates (in days) are standardised. A missing value is encoded as the mean; if training rows had some, a
  second number flags them. Whole numbers of one length, some with leading zeros (00109), are codes, not numbers.
- Numbers may have a decimal comma, thousands separators or a unit (see `notation`). The notation of a column depends
  on the whole table and is stored with the column.
- A column of numbers or dates may hold a few other cells (`ODD_SHARE`), which count as missing. They are stored with
  the column: in rows to predict they count as missing again, and any other text is refused.
- Any other column is one-hot encoded. A value that few training rows have counts as `other`, and so does a new one; if
  training had no rare values, a new value is encoded as zeros. An empty cell is a value like any other.
- The kind of a column is decided from all rows of a table; everything else is learned from the training rows only.
- `ric train` leaves out identifiers and columns with nothing to learn from. Estimators keep all.
- A column of texts (see `texts`) is read instead of all others, and only if the user names it.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import compress
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64, Num
from torch import Tensor

from ricnet.data.notation import COMMAS, ENGLISH, NOTATIONS, PLAIN, POINTS, in_plain, is_written, without_unit
from ricnet.data.tables import (
    DATE_FORMATS,
    UNAMBIGUOUS,
    Cells,
    Parsed,
    Rows,
    Table,
    TableError,
    is_missing,
    parse_date,
    parse_number,
    show_date,
    unnamed_place,
)
from ricnet.data.texts import MOST_TOKENS, PROSE_ROWS, PROSE_WORDS, Text, Tokenizer, is_prose
from ricnet.errors import RicnetError, listed, setting
from ricnet.io import Absent, Maybe, are_texts, is_count, is_finite, is_switch, is_text, misfit

if TYPE_CHECKING:
    from pandas import DataFrame

RARE_ROWS, RARE_SHARE = 3, 0.005  # a value in fewer training rows is rare
MANY_ROWS = 30  # to detect an identifier: in fewer rows, the values of any column may all differ
# Last words, and whole names, of identifiers
IDENTIFIER_WORDS = frozenset({"id", "ids", "identifier", "uuid", "guid", "key", "index", "idx", "pk"})
IDENTIFIER_NAMES = frozenset({"row", "row number", "row num", "row no", "row nr", "rownumber", "rownum", "no", "nr"})
_THING_ID = re.compile(
    r"(account|case|client|customer|item|order|passenger|patient|person|product|record|row|sample|user)id"
)  # customerid, but neither paid nor acid
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_WHOLE = re.compile(r"\d{1,18}")
_NUMERIC = re.compile(r"[^\w]*\d")  # begins with a digit, perhaps after signs


@dataclass(frozen=True)
class Number:
    kind: ClassVar[str] = "number"

    name: str
    mean: float
    std: float
    flagged: bool
    """Whether a second number flags missing values."""
    gaps: tuple[str, ...] = field(default=(), kw_only=True, repr=False)
    """Cells that were neither numbers nor missing in the table it was learned from; they count as missing."""
    notation: str = field(default=PLAIN, kw_only=True, repr=False)
    """How numbers are written, one of `NOTATIONS`. Plain numbers are read too."""
    unit: str = field(default="", kw_only=True, repr=False)
    """Unit that cells may have before or after the number."""

    @property
    def width(self) -> int:
        return 1 + self.flagged

    @property
    def wanted(self) -> str:
        """Description of its cells in messages."""
        return "numbers" if self.notation in (PLAIN, COMMAS) else f"numbers such as {self.notation}"

    def read(self, cells: Cells) -> Parsed:
        return cells.numbers_as(self.notation, self.unit)

    def encode(self, table: Table) -> Float[np.ndarray, "n width"]:
        cells = table.columns[self.name]
        reading, known = self.read(cells), set(self.gaps)
        unknown = next((row for row in reading.odd.tolist() if cells[row] not in known), None)
        if unknown is not None:
            raise TableError(
                f"{table.place(unknown)}: {self.name!r} is {cells[unknown]!r}, but the model was trained on "
                f"{self.wanted}; correct it, or leave it empty if it is unknown."
            )
        return self.scaled(reading.values)

    def scaled(self, numbers: Float64[np.ndarray, "n"]) -> Float64[np.ndarray, "n width"]:
        """Standardised numbers and, if `flagged`, 1 for missing values."""
        missing = np.isnan(numbers)
        with np.errstate(over="ignore"):
            values = np.where(missing, 0.0, (numbers - self.mean) / self.std)
        return np.column_stack([values, missing]) if self.flagged else values[:, None]


@dataclass(frozen=True)
class Date(Number):
    """Days since 1970, as a number."""

    kind: ClassVar[str] = "date"

    format: str
    """One of `DATE_FORMATS`."""

    @property
    def wanted(self) -> str:
        return f"dates such as {DATE_FORMATS[self.format]}"

    def read(self, cells: Cells) -> Parsed:
        return cells.dates(self.format)

    def show(self, days: float) -> str:
        return show_date(days, self.format)


@dataclass(frozen=True)
class Category:
    kind: ClassVar[str] = "category"

    name: str
    values: tuple[str, ...]
    other: bool
    """Whether one more number stands for all other values."""

    @property
    def width(self) -> int:
        return len(self.values) + self.other

    def places(self, cells: Cells) -> Int64[np.ndarray, "n"]:
        """Index of each cell in `values`; len(values) for any other value."""
        place = {value: i for i, value in enumerate(self.values)}
        codes, texts = cells.values
        found = np.array([place.get(text, len(self.values)) for text in texts], dtype=np.int64)
        return np.asarray(found[codes])

    def encode(self, table: Table) -> Float[np.ndarray, "n width"]:
        places = self.places(table.columns[self.name])
        numbers = np.zeros((len(places), len(self.values) + 1), np.float32)
        numbers[np.arange(len(places)), places] = 1
        return numbers[:, : self.width]


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
        """The column of texts, which is then the only one; None for other tables."""
        return next((column for column in self.inputs if isinstance(column, Text)), None)

    def encode(self, table: Table) -> Num[Tensor, "n width"]:
        """Token ids if the column is one of texts, else float32 numbers."""
        table = self.complete(table)
        if self.text is not None:
            return torch.from_numpy(self.text.encode(table))
        numbers, start = np.empty((len(table), self.width), np.float32), 0
        with np.errstate(over="ignore"):
            for column in self.inputs:
                numbers[:, start : start + column.width] = column.encode(table)
                start += column.width
        finite = np.isfinite(numbers).all(axis=1)
        if not finite.all():
            raise TableError(f"{table.place(int(finite.argmin()))}: a number is too large; correct it.")
        return torch.from_numpy(numbers)

    def complete(self, table: Table) -> Table:
        """The table with all columns that the model reads. A row of JSON lines may lack some of them, but not all."""
        names = [column.name for column in self.inputs]
        lacking = [name for name in names if name not in table.columns]
        if lacking and table.absent is None:
            raise TableError(
                f"{table.name} lacks columns that the model was trained on: {quoted(lacking)}; "
                f"add them to {quoted(table.columns, 10)}."
            )
        if table.absent is not None:
            empty = np.ones(len(table), bool)
            for name in set(names) - set(lacking):
                empty &= table.absent.get(name, False)
            if empty.any():
                raise TableError(
                    f"{table.place(int(empty.argmax()))}: it has none of the columns that the model was trained on; "
                    f"give at least one of {quoted(names)}."
                )
        filled = table.columns | {name: Cells([""] * len(table)) for name in lacking}
        return Table(table.name, filled, table.lines, table.unit, table.absent, table.notes) if lacking else table

    def odd_cells(self, table: Table) -> tuple[str, ...]:
        """Notes about cells that are not numbers in a column of numbers."""
        notes = []
        for column in self.inputs:
            cells = table.columns[column.name]
            if isinstance(column, Number) and len(odd := column.read(cells).odd):
                named = [f"{cells[row]!r} in {table.unit} {table.lines[row]}" for row in odd[:3].tolist()]
                more = f" and {len(odd) - 3} more" if len(odd) > 3 else ""
                notes.append(
                    f"Column {column.name!r} is read as {column.wanted}; {len(odd)} of its {len(cells)} cells "
                    f"{'is' if len(odd) == 1 else 'are'} not, and counted as missing: {', '.join(named)}{more}."
                )
        return tuple(notes)

    def surprises(self, table: Table) -> tuple[str, ...]:
        """Notes about rows to predict: cells that are not numbers, and values that no training row had."""
        lacking = [column.name for column in self.inputs if column.name not in table.columns]
        notes = [*table.notes, *[f"{table.name}: no row has {quoted(lacking)}; counted as missing."] * bool(lacking)]
        table = self.complete(table)
        notes += [f"{table.name}: {note[0].lower()}{note[1:]}" for note in self.odd_cells(table)]
        for column in self.inputs:
            if isinstance(column, Text):
                own = table.columns[column.name]
                notes += [f"{table.name}: {note}" for note in column.notes(own, column.rows(own))]
            if not isinstance(column, Category) or column.other:  # the names of rare values are not kept
                continue
            cells = table.columns[column.name]
            rows = np.flatnonzero(column.places(cells) == len(column.values)).tolist()
            texts = [cells[row] for row in rows]
            empty, unseen = texts.count(""), next(filter(None, texts), None)
            for count, value in (
                (len(texts) - empty, f"a value of {column.name!r} that no training row had, such as {unseen!r}"),
                (empty, f"an empty {column.name!r}, which no training row had"),
            ):
                if count:
                    share = f"{count} of {len(table)} rows"
                    notes.append(f"{table.name}: {share} have {value}; the model treats it as unknown.")
        return tuple(notes)

    def cells(self, numbers: Sequence[float]) -> dict[str, str | float | None]:
        """Cells that are encoded as these numbers; None for a rare value, whose name is not stored."""
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

    def with_known_words(self, known: Bool[np.ndarray, "slots"] | None) -> "Columns":
        """A copy that notes texts without any word that the network knows; see `Text.known`."""
        inputs = [replace(column, known=known) if isinstance(column, Text) else column for column in self.inputs]
        return replace(self, inputs=tuple(inputs))

    def to_json(self) -> dict[str, Any]:
        entries = [{"kind": column.kind, **asdict(column)} for column in self.with_known_words(None).inputs]
        for entry in entries:
            entry.pop("known", None)  # read from the network
            for key, usual in (("notation", PLAIN), ("unit", "")):
                if entry.get(key) == usual:
                    del entry[key]
        lists = [{key: list(it) if isinstance(it, tuple) else it for key, it in entry.items()} for entry in entries]
        return {"target": self.target, "inputs": lists}


_NUMBER: dict[str, Any] = {
    "name": is_text,
    "mean": is_finite,
    "std": lambda value: is_finite(value) and value > 0,
    "flagged": is_switch,
    "gaps": Absent(are_texts),
    "notation": Absent(lambda value: is_text(value) and value in NOTATIONS),
    "unit": Absent(lambda value: is_text(value) and value.isprintable()),
}
_FORMS: dict[str, Any] = {
    "number": _NUMBER,
    "date": {**_NUMBER, "format": lambda value: is_text(value) and value in DATE_FORMATS},
    "category": {"name": is_text, "values": are_texts, "other": is_switch},
    "text": {
        "name": is_text,
        "tokens": lambda value: is_count(value) and 0 < value <= MOST_TOKENS,
        "tokenizer": Maybe({"content": is_text, "pad": is_count, "most": is_count}),
    },
}


def columns_from_json(entry: Any, source: str) -> Columns:
    """Columns from untrusted JSON."""
    form = {"target": is_text, "inputs": [{"kind": lambda kind: is_text(kind) and kind in _FORMS}]}
    fits = misfit(entry, form) is None and all(misfit(each, _FORMS[each["kind"]]) is None for each in entry["inputs"])
    kinds = [each["kind"] for each in entry["inputs"]] if fits else []
    void = fits and any(not (each.get("values", True) or each["other"]) for each in entry["inputs"])
    if not fits or void or (Text.kind in kinds and len(kinds) > 1):
        raise RicnetError(f"{source}: its columns are damaged; restore the file or train again.")
    return Columns(entry["target"], tuple(map(_column_from_json, entry["inputs"])))


def _column_from_json(entry: dict[str, Any]) -> Number | Category | Text:
    kind = next(kind for kind in (Number, Date, Category, Text) if kind.kind == entry["kind"])
    own = {each.name: entry[each.name] for each in fields(kind) if each.name in entry}
    own |= {key: tuple(value) for key, value in own.items() if isinstance(value, list)}
    own |= {key: float(own[key]) for key in ("mean", "std") if key in own}
    if tokenizer := own.get("tokenizer"):
        own["tokenizer"] = Tokenizer(*(tokenizer[each.name] for each in fields(Tokenizer)))
    return kind(**own)


# Learning columns from training rows


class _Examined(NamedTuple):
    """A learned column, and notes about it for the user."""

    name: str
    column: Number | Category | None
    """None if there is nothing to learn from."""
    constant: Number | Category
    """Encodes all training rows alike; used instead of a missing `column` if all columns are kept."""
    identifier: bool = False
    prose: bool = False
    mistake: str = ""
    """Why the column is read as text though most of its cells are numbers or dates, and what to do."""


def fit_columns(
    table: Table, target: str, training: Rows | None = None, keep_all: bool = False
) -> tuple[Columns, tuple[str, ...]]:
    """Learn the columns from the training rows (None: all rows). Also returns notes for the user. With `keep_all` no
    column is left out: one with nothing to learn from is a constant."""
    rows = np.arange(len(table)) if training is None else np.asarray(training, dtype=np.int64)
    readers, doubts = _readers({name: cells for name, cells in table.columns.items() if name != target})
    found = [_examine(reader, name, table, rows, keep_all) for name, reader in readers.items()]
    used = [each for each in found if not each.identifier]
    inputs = [each.column or each.constant for each in used if each.column is not None or keep_all]
    notes = [*_notes(found, target, keep_all), *doubts, *_reading_notes(table, inputs)]
    if all(each.column is None for each in used):
        reason = "each column is the same in all rows, or differs in nearly all as names and identifiers do."
        raise TableError(
            " ".join([f"{table.name}: beside {target!r} there is nothing to learn from: {reason}", *notes])
        )
    if all(each.prose or each.column is None for each in used):
        raise TableError(f"{table.name}: there is nothing but texts to learn from. {_prose_note(used, target)}")
    return Columns(target, tuple(inputs)), tuple(notes)


def _examine(reader: Number | None, name: str, table: Table, rows: Int64[np.ndarray, "m"], keep_all: bool) -> _Examined:
    cells = table.columns[name]
    identifier = not keep_all and _is_identifier(name, cells, rows, reader)
    if reader is None:
        words = PROSE_WORDS if len(table.columns) > 2 else 3  # the table has only classes and these texts
        prose, category = is_prose(cells.take(rows[:PROSE_ROWS]), words), _fit_category(name, cells, rows)
        mistake = _mistake(cells, table) or ("" if prose else _lost_numbers(cells, table, category))
        return _Examined(name, category, Category(name, (), True), identifier, prose, mistake)
    values = reader.read(cells).values[rows]
    column = None if identifier else _fit_values(reader, values, table.name)
    return _Examined(name, column, _constant_number(reader, values), identifier)


def _notes(found: Sequence[_Examined], target: str, keep_all: bool) -> list[str]:
    used = [each for each in found if not each.identifier]
    unused = [each.name for each in used if each.column is None and not (each.prose or each.mistake)]
    places = {each.name: unnamed_place(each.name) for each in found}
    groups = {
        f"Columns that are the same in all rows or hold texts that hardly repeat "
        f"{'carry no information' if keep_all else 'were left out'}": unused,
        "Columns that are identifiers by name and value, different in all rows, were left out (rename one that "
        "measures something)": [each.name for each in found if each.identifier and not places[each.name]],
        "Columns read as dates, in days": [each.name for each in used if isinstance(each.column, Date)],
    }
    notes = [f"{what}: {quoted(names)}." for what, names in groups.items() if names]
    notes += [_prose_note([each], target) for each in found if each.prose]
    fate = "carries no information" if keep_all else "was left out"
    for each in used:
        if each.mistake:
            how = "is read as text" if each.column else f"{fate}, as its texts hardly repeat"
            notes.append(f"Column {each.name!r} {how}: {each.mistake}.")
    for each in found:
        if (place := places[each.name]) and (each.identifier or each.column is not None):
            how = "numbers the rows, so it was left out" if each.identifier else f"is called {each.name!r}"
            notes.append(f"Column {place} has no name and {how}.")
    return notes


def _reading_notes(table: Table, inputs: Iterable[Number | Category]) -> list[str]:
    """Notes about numbers that are not plain and about columns with several date formats."""
    examples, notes = [], list[str]()
    for column in inputs:
        cells = table.columns[column.name]
        if isinstance(column, Date):
            notes += _date_notes(column, cells)
        elif isinstance(column, Number) and (example := _example(column, cells)):
            examples.append(f"{column.name!r} ({example})")
    return [*notes, *[f"Read as numbers: {listed(examples)}."] * bool(examples)]


def _date_notes(column: Date, cells: Cells) -> Iterator[str]:
    if column.format not in UNAMBIGUOUS and len(cells.formats) > 1:
        yield f"{column.name!r} is read as {column.wanted}, month first; write 1999-12-31 if it is not."
    known = set(column.gaps)
    others = (text for text in cells.values.texts if not is_missing(text) and text not in known)
    other = next((text for text in others if parse_date(text, column.format) is None), None)
    if other is not None:
        yield f"Column {column.name!r} has dates in several formats, for instance {other!r}; all are read."


def _example(column: Number, cells: Cells) -> str:
    """A cell that the plain notation would read differently or not at all, and its number; empty if there is none.
    Decimal commas in files with semicolons need no example."""
    usual = column.notation == PLAIN or (cells.decimal_comma and column.notation == COMMAS)
    if usual and not column.unit:
        return ""
    values = column.read(cells).values
    signs = {POINTS: "." if cells.decimal_comma else ".,", ENGLISH: ","}.get(column.notation, ",")
    for sign in [column.unit] if column.unit else signs:
        for row, cell in enumerate(cells):
            if sign in cell and not math.isnan(values[row]) and values[row] != parse_number(cell):
                return f"{cell!r} as {_shown(values[row])}"
    return ""


def _shown(value: float) -> str:
    return f"{value:.15g}"


def _prose_note(columns: Sequence[_Examined], target: str) -> str:
    """About the first column of prose."""
    name = next(each.name for each in columns if each.prose)
    how = setting("text", name) if target else f"X[{name!r}] alone"  # the data frame of an estimator has no target
    return f"Column {name!r} looks like prose; to learn from its words, and from nothing else, give {how}."


def _readers(columns: Mapping[str, Cells]) -> tuple[dict[str, Number | None], list[str]]:
    """The reader of each column, and notes about numbers that can be read in two ways. In a table with decimal commas
    1.234 is 1234."""
    units, forms = {}, {}
    for name, cells in columns.items():
        units[name], forms[name] = "", cells.notations()
        if not forms[name] and not cells.formats and (unit := cells.unit()):
            units[name], forms[name] = unit, cells.notations(unit)
    commas = any(_has_decimal_commas(columns[name], units[name], tied) for name, tied in forms.items())
    readers = {
        name: _reader(name, cells, _notation(cells, units[name], forms[name], commas), units[name])
        for name, cells in columns.items()
    }
    doubts = [_doubt(name, columns[name]) for name, reader in readers.items() if reader and not commas]
    return readers, list(filter(None, doubts))


def _has_decimal_commas(cells: Cells, unit: str, tied: Sequence[str]) -> bool:
    """Whether the numbers of a column show that the comma is the decimal sign. `tied`: its likeliest notations."""
    if tied == [POINTS] or tied[:1] != [COMMAS] or not cells.contains(","):
        return tied == [POINTS]
    return any(is_written(without_unit(cell, unit), COMMAS) for cell in cells if "," in cell)


def _notation(cells: Cells, unit: str, tied: Sequence[str], commas: bool) -> str | None:
    """Notation of a column; None if it has no numbers. `tied`: the notations that read it equally well. `commas`:
    whether the table has decimal commas."""
    if commas and not {PLAIN, COMMAS}.isdisjoint(tied):
        return COMMAS if cells.point_decimals(unit) else POINTS
    return tied[0] if tied else None


def _doubt(name: str, cells: Cells) -> str:
    """A note if 1.234 may be 1234, in a table without decimal commas: all numbers are below 1000, some are whole, and
    each point could separate thousands."""
    if cells.typed or not cells.numbers.few_odd:
        return ""
    values = cells.numbers.values
    present = values[~np.isnan(values)]
    if not len(present) or present.max() >= 1000 or not cells.contains(".") or cells.point_decimals():
        return ""
    row = next((row for row, cell in enumerate(cells) if "." in cell and is_written(cell, POINTS)), None)
    if row is None or not any(cell.isdecimal() for cell in cells):
        return ""
    whole = in_plain(cells[row], POINTS)
    return (
        f"Column {name!r}: {cells[row]!r} is read as {_shown(values[row])}; write {whole} if the point separates "
        "thousands."
    )


def _reader(name: str, cells: Cells, notation: str | None, unit: str) -> Number | None:
    """A column of numbers or dates that reads all but a few of these cells; None if they are texts. Only `gaps` is
    learned yet, not the mean and standard deviation."""
    reader = None
    if notation is not None:
        reader = Number(name, 0.0, 1.0, False, notation=notation, unit=unit)
        reader = reader if _padded(cells, reader.read(cells)) is None else None
    elif cells.formats:
        reader = Date(name, 0.0, 1.0, False, cells.formats[0])
    return reader and replace(reader, gaps=tuple(sorted({cells[row] for row in reader.read(cells).odd.tolist()})))


def _padded(cells: Cells, parsed: Parsed) -> int | None:
    """First row with a leading zero, if the numbers are different whole numbers of one length, as codes are. A single
    012 among numbers of several lengths is a number."""
    present = ~np.isnan(parsed.values)
    values = parsed.values[present]
    first = cells[int(present.argmax())] if len(values) else ""
    if len(first) < 2 or not first.isdecimal() or (values % 1).any() or values.min() == values.max():
        return None
    padded = parsed.values < 10.0 ** min(len(first) - 1, 300)  # False for NaN
    if not padded.any() or any(len(cell) != len(first) or not cell.isdecimal() for cell in compress(cells, present)):
        return None
    return int(padded.argmax())


def _named_identifier(name: str) -> bool:
    """Whether the name ends in one of `IDENTIFIER_WORDS` (PassengerId, user_id) or is one of `IDENTIFIER_NAMES`."""
    words = [word.lower() for word in _WORDS.findall(name)]
    ends = bool(words) and (words[-1] in IDENTIFIER_WORDS or _THING_ID.fullmatch(words[-1]) is not None)
    return ends or " ".join(words) in IDENTIFIER_NAMES


def _is_identifier(name: str, cells: Cells, rows: Rows, reader: Number | None) -> bool:
    """Whether name and values are those of an identifier. A column without a name is one if its values are whole
    numbers, different in all rows."""
    if not unnamed_place(name):
        return _named_identifier(name) and _all_differ(cells.take(rows), reader)
    values = set(cells)
    return len(values) == len(cells) and all(map(_WHOLE.fullmatch, values))


def _all_differ(cells: Cells, reader: Number | None) -> bool:
    """Whether the values are whole numbers or texts, different in all rows; none is missing."""
    values = set(cells)
    if len(cells) < MANY_ROWS or len(values) < len(cells) or any(map(is_missing, values)):
        return False
    return reader is None or all(map(_WHOLE.fullmatch, values.difference(reader.gaps)))


def _mistake(cells: Cells, table: Table) -> str:
    """Why a column is read as text though most of its cells are numbers or dates, and what to do."""
    padded = _padded(cells, cells.numbers) if cells.numbers.few_odd else None
    if padded is not None:
        return (
            f"{cells[padded]!r} in {table.unit} {table.lines[padded]} has leading zeros, as codes have; write its "
            "numbers without them if they measure something"
        )
    for noun, odd in (("number", cells.numbers.odd), ("date", cells.no_dates)):
        if 0 < 2 * len(odd) < len(cells):
            row = int(odd[0])
            more = f", nor are {len(odd) - 1} more of its {len(cells)} cells" if len(odd) > 1 else ""
            return (
                f"{cells[row]!r} in {table.unit} {table.lines[row]} is not a {noun}{more}; correct it, or leave empty "
                "what is unknown"
            )
    return ""


def _lost_numbers(cells: Cells, table: Table, column: Category | None) -> str:
    """What to correct if most cells of a column look like numbers and the values of most cells are not kept, as they
    are rare; else empty."""
    codes, texts = cells.values
    numbers = np.array([_NUMERIC.match(text) is not None for text in texts], dtype=bool)[codes]
    kept = 0 if column is None else int((column.places(cells) < len(column.values)).sum())
    if 2 * int(numbers.sum()) <= len(cells) or 2 * kept >= len(cells) or len(texts) < RARE_ROWS:
        return ""
    row = int(numbers.argmax())
    return (
        f"its cells look like numbers or dates, such as {cells[row]!r} in {table.unit} {table.lines[row]}; write "
        "23154.68 or 1999-12-31"
    )


def _fit_category(name: str, cells: Cells, rows: Int64[np.ndarray, "m"]) -> Category | None:
    """None if there is one value only, or texts that hardly repeat, such as names."""
    codes, texts = cells.values
    counts = np.bincount(codes[rows], minlength=len(texts))
    kept = sorted(texts[code] for code in np.flatnonzero(counts >= max(RARE_ROWS, RARE_SHARE * len(rows))))
    other = len(kept) < int((counts > 0).sum())
    return Category(name, tuple(kept), other) if kept and len(kept) + other > 1 else None


def _fit_values(reader: Number, values: Float64[np.ndarray, "n"], source: str) -> Number | None:
    """None if all values are equal."""
    present = values[~np.isnan(values)]
    flagged = 0 < len(present) < len(values)
    if not flagged and not (len(present) and (present != present[0]).any()):
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        mean, std = float(present.mean()), float(present.std())
    if not math.isfinite(std):
        raise TableError(f"{source}: the numbers of {reader.name!r} are too large for double precision; scale them.")
    return replace(reader, mean=mean, std=std or 1.0, flagged=flagged)


def _constant_number(reader: Number, values: Float64[np.ndarray, "n"]) -> Number:
    present = values[~np.isnan(values)]
    return replace(reader, mean=float(present[0]) if len(present) else 0.0)


# Arrays, whose columns are named by their indices


def fit_array(array: Num[np.ndarray, "n columns"], name: str) -> Columns:
    """Columns of an array with missing values (NaN), named by their indices. No column is left out."""
    columns = []
    for place, values in enumerate(array.astype(np.float64).T):
        reader = Number(str(place), 0.0, 1.0, False)
        columns.append(_fit_values(reader, values, name) or _constant_number(reader, values))
    return Columns("", tuple(columns))


def encode_array(columns: Columns, array: Num[np.ndarray, "n columns"]) -> Float64[np.ndarray, "n width"]:
    """Encode the rows of an array by the columns of `fit_array`."""
    numbers = [column for column in columns.inputs if isinstance(column, Number)]
    values = array.astype(np.float64).T
    return np.concatenate([column.scaled(own) for column, own in zip(numbers, values, strict=True)], axis=1)


def reads_arrays(columns: Columns | None, row_shape: Sequence[int]) -> bool:
    """Whether these are columns of `fit_array` for rows of this shape."""
    if columns is None or len(row_shape) != 1:
        return False
    return [column.name for column in columns.inputs if type(column) is Number] == list(map(str, range(row_shape[0])))


def quoted(names: Iterable[str], most: int = 5) -> str:
    """The first few of some names in quotation marks, and how many more there are."""
    return listed([repr(name) for name in names], most)


def is_plain(frame: "DataFrame") -> bool:
    """Whether a data frame holds nothing but numbers, without gaps."""
    return all(dtype.kind in "biuf" for dtype in frame.dtypes) and not frame.isna().any(axis=None)
