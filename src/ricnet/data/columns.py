"""How the columns of a table become numbers. What was learned from the training rows is kept as plain JSON with the
model, so that new rows are read as they were.

- A column of numbers is standardised. A missing value is taken as the mean; if training rows lacked some, a second
  number says which do.
- A column of dates is a column of numbers, in days.
- Any other column is one number for each of its values, 1 where the cell has it. A value that few training rows have
  counts as `other`, and so does one that none had; where training knew no rare values, a new one is none of them, all
  numbers 0. An empty cell is a value like any other.
- A column that differs in every row because it names the row, such as PassengerId, is left out.
"""

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float, Float32
from torch import Tensor

from ricnet.data.tables import Table
from ricnet.errors import RicnetError, listed

MISSING = frozenset({"", "na", "n/a", "#n/a", "<na>", "nan", "null", "none", "?"})
"""What stands for no number, in capitals or not."""
RARE_ROWS, RARE_SHARE = 3, 0.005
"""A value in fewer training rows is rare. Standardised, its number would be the larger the rarer it is."""
MANY_ROWS, SPREAD = 30, 3
"""Whole numbers that are different in each of so many rows, and spread over no more than so many times their count,
number the rows: the training rows are a part of those that were numbered."""
_WHOLE = re.compile(r"\d{1,18}")


@dataclass(frozen=True)
class Number:
    kind: ClassVar[str] = "number"
    wanted: ClassVar[str] = "numbers"

    name: str
    mean: float
    std: float
    flagged: bool
    """Whether a second number says where the value is missing."""

    @property
    def width(self) -> int:
        return 1 + self.flagged

    def parse(self, cell: str) -> float | None:
        """NaN where it is missing, None where it is something else."""
        return parse_number(cell)

    def encode(self, table: Table) -> Float[np.ndarray, "n width"]:
        values = np.array([self._require(table, row, cell) for row, cell in enumerate(table.columns[self.name])])
        missing = np.isnan(values)
        with np.errstate(over="ignore"):
            scaled = np.where(missing, 0.0, (values - self.mean) / self.std)
        return np.stack([scaled, missing][: self.width], axis=1).astype(np.float64)

    def _require(self, table: Table, row: int, cell: str) -> float:
        value = self.parse(cell)
        if value is None:
            raise RicnetError(
                f"{table.place(row)}: {self.name!r} is {cell!r}, but the model was trained on {self.wanted}; "
                "correct it, or leave it empty if it is unknown."
            )
        return value

    def is_new(self, cell: str) -> bool:
        return False


@dataclass(frozen=True)
class Date(Number):
    """Days since 1970, as a number."""

    kind: ClassVar[str] = "date"

    format: str
    """One of `dates.FORMATS`."""

    @property
    def wanted(self) -> str:  # type: ignore[override]
        return f"dates such as {FORMATS[self.format]}"

    def parse(self, cell: str) -> float | None:
        return math.nan if cell.lower() in MISSING else parse_date(cell, self.format)

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

    def is_new(self, cell: str) -> bool:
        """Rare values are not told from new ones: their names are not kept."""
        return not self.other and cell not in self.values


@dataclass(frozen=True)
class Columns:
    target: str
    """The column of the classes; new rows need not have it."""
    inputs: tuple[Number | Category, ...]

    @property
    def width(self) -> int:
        return sum(column.width for column in self.inputs)

    def encode(self, table: Table) -> Float32[Tensor, "n width"]:
        absent = [repr(column.name) for column in self.inputs if column.name not in table.columns]
        if absent:
            raise RicnetError(
                f"{table.name} lacks columns that the model was trained on: {listed(absent)}; "
                f"it has {listed([repr(name) for name in table.columns], 10)}."
            )
        with np.errstate(over="ignore"):
            numbers = np.concatenate([column.encode(table) for column in self.inputs], axis=1).astype(np.float32)
        beyond = np.flatnonzero(~np.isfinite(numbers).all(axis=1)).tolist()
        if beyond:
            raise RicnetError(f"{table.place(beyond[0])}: a number is too large; correct it.")
        return torch.from_numpy(numbers)

    def surprises(self, table: Table) -> tuple[str, ...]:
        """What the user should know of rows to predict: values that training had not."""
        found = {column.name: [c for c in table.columns[column.name] if column.is_new(c)] for column in self.inputs}
        return tuple(
            f"{table.name}: {len(cells)} of {len(table)} rows have {_new_value(name, cells)}; "
            "it counts as none of those it knows."
            for name, cells in found.items()
            if cells
        )

    def to_json(self) -> dict[str, Any]:
        inputs = [{"kind": column.kind, **asdict(column)} for column in self.inputs]
        return {"target": self.target, "inputs": [entry | _as_list(entry) for entry in inputs]}


def _new_value(name: str, cells: Sequence[str]) -> str:
    text = next(filter(None, cells), None)
    if text is None:
        return f"an empty {name!r}, which no training row had"
    return f"a value of {name!r} that training had not, such as {text!r}"


def columns_from_json(entry: Any, source: str) -> Columns:
    """It comes from a file, so nothing in it is trusted."""
    try:
        inputs = tuple(_column_from_json(**column) for column in entry["inputs"])
        names = [column.name for column in inputs]
        if not inputs or not all(isinstance(name, str) for name in [*names, entry["target"]]):
            raise ValueError
        return Columns(entry["target"], inputs)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise RicnetError(f"{source}: its columns are damaged; restore the file or train again.") from error


def _column_from_json(kind: str, name: str, **rest: Any) -> Number | Category:
    if kind in ("number", "date"):
        learned = name, float(rest["mean"]), float(rest["std"]), bool(rest["flagged"])
        number = Number(*learned) if kind == "number" else Date(*learned, rest["format"])
        known = not isinstance(number, Date) or number.format in FORMATS
        if not (known and math.isfinite(number.mean) and 0 < number.std < math.inf):
            raise ValueError
        return number
    if kind != "category" or not all(isinstance(value, str) for value in rest["values"]):
        raise ValueError
    return Category(name, tuple(rest["values"]), bool(rest["other"]))


def _as_list(entry: dict[str, Any]) -> dict[str, Any]:
    """As JSON will return it, so that what was written and what was read are equal."""
    return {name: list(value) for name, value in entry.items() if isinstance(value, tuple)}


def fit_columns(table: Table, target: str) -> tuple[Columns, tuple[str, ...]]:
    """Learn the columns of training rows; also what the user should know of them."""
    names = [name for name in table.columns if name != target]
    identifiers = [name for name in names if _names_the_row(table.columns[name])]
    fitted = {name: _fit(name, table) for name in names if name not in identifiers}
    inputs = tuple(column for column in fitted.values() if column is not None)
    unused = [repr(name) for name, column in fitted.items() if column is None]
    if not inputs:
        raise RicnetError(
            f"{table.name}: beside {target!r} there is no column to learn from: "
            "each is the same in all rows, or differs in nearly all as names and identifiers do."
        )
    notes = [] if not unused else [f"Columns with nothing to learn from were left out: {listed(unused)}."]
    if identifiers:
        notes.append(
            f"Columns that only name the row, different in each, were left out: {listed(list(map(repr, identifiers)))} "
            "(whole numbers that measure something are learned from if they are written with a decimal point)."
        )
    return Columns(target, inputs), (*notes, *_dates_note(inputs, table), *_almost_numbers(inputs, table))


def _names_the_row(cells: Sequence[str]) -> bool:
    """Texts that never repeat and are neither numbers nor dates, or whole numbers without repetition or wide gaps."""
    if len(cells) < MANY_ROWS or len(set(cells)) < len(cells) or any(cell.lower() in MISSING for cell in cells):
        return False
    if all(map(_WHOLE.fullmatch, cells)):
        numbers = list(map(int, cells))
        return max(numbers) - min(numbers) < SPREAD * len(numbers)
    return None in map(parse_number, cells) and not common_formats(cells)


def parse_number(cell: str) -> float | None:
    """NaN where it is missing, None where it is something else."""
    if cell.lower() in MISSING:
        return math.nan
    try:
        value = float(cell) if "_" not in cell else math.inf  # Python reads 1_000 as a thousand; tables do not mean it
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _fit(name: str, table: Table) -> Number | Category | None:
    """None where there is nothing to learn: one value only, or texts that hardly repeat, such as names."""
    cells = table.columns[name]
    numbers = [parse_number(cell) for cell in cells]
    formats = common_formats([cell for cell in cells if cell.lower() not in MISSING]) if None in numbers else []
    if None in numbers and not formats:
        return _fit_category(name, cells)
    found = Date(name, 0.0, 1.0, False, formats[0]) if formats else Number(name, 0.0, 1.0, False)
    values = np.array([found.parse(cell) for cell in cells], dtype=np.float64)
    present = values[~np.isnan(values)]
    flagged = 0 < len(present) < len(values)
    if not flagged and len(np.unique(present)) < 2:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        mean, std = float(present.mean()), float(present.std())
    if not math.isfinite(std):
        raise RicnetError(f"{table.name}: the numbers of {name!r} are too large to compute with; scale them.")
    return replace(found, mean=mean, std=std or 1.0, flagged=flagged)


def _fit_category(name: str, cells: Sequence[str]) -> Category | None:
    counts = Counter(cells)
    kept = sorted(value for value, n in counts.items() if n >= max(RARE_ROWS, RARE_SHARE * len(cells)))
    other = len(kept) < len(counts)
    return Category(name, tuple(kept), other) if kept and len(kept) + other > 1 else None


def _dates_note(inputs: Sequence[Number | Category], table: Table) -> list[str]:
    dates = [column for column in inputs if isinstance(column, Date)]
    notes = [f"Columns read as dates, in days: {listed([repr(column.name) for column in dates])}."] if dates else []
    for column in dates:
        cells = [cell for cell in table.columns[column.name] if cell.lower() not in MISSING]
        if len(common_formats(cells)) > 1:
            notes.append(f"{column.name!r} is read as {column.wanted}, month first; write 1999-12-31 if it is not.")
    return notes


def _almost_numbers(inputs: Sequence[Number | Category], table: Table) -> list[str]:
    """A typing error makes a text of a column of numbers or dates; that must not happen in silence."""
    notes = []
    for column in inputs:
        if isinstance(column, Category):
            cells = table.columns[column.name]
            for noun, parse in (("number", parse_number), ("date", _parse_any_date)):
                texts = [row for row, cell in enumerate(cells) if parse(cell) is None]
                if 2 * len(texts) < len(cells):
                    first = f"{cells[texts[0]]!r} in {table.unit} {table.lines[texts[0]]}"
                    said = f"Column {column.name!r} is read as text, for {first} is no {noun}; correct it if it is."
                    notes.append(said)
                    break
    return notes


def _parse_any_date(cell: str) -> float | None:
    found = (parse_date(cell, name) for name in FORMATS)
    return math.nan if cell.lower() in MISSING else next((day for day in found if day is not None), None)


# Dates

FORMATS = {
    "iso": "1999-12-31 or 1999-12-31T23:59",
    "%Y/%m/%d": "1999/12/31",
    "%d.%m.%Y": "31.12.1999",
    "%m/%d/%Y": "12/31/1999",
    "%d/%m/%Y": "31/12/1999",
}
"""How dates may be written, with an example of each. All cells of a column must agree; month first wins a draw."""
_DAY = 86_400
_EARLIEST = datetime(1, 1, 1, tzinfo=UTC).timestamp()
_LATEST = datetime(9999, 12, 31, tzinfo=UTC).timestamp()


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


def common_formats(cells: Sequence[str]) -> list[str]:
    """In which all these cells can be read; none if there are no cells."""
    fitting = list(FORMATS) if cells else []
    for cell in cells:
        fitting = [form for form in fitting if parse_date(cell, form) is not None]
        if not fitting:
            break
    return fitting
