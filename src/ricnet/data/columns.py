"""How the columns of a table become numbers. What was learned from the training rows is kept as plain JSON with the
model, so that new rows are read as they were.

- A column of numbers is standardised. A missing value is taken as the mean; if training rows lacked some, a second
  number says which do.
- Any other column is one number for each of its values, 1 where the cell has it. A value that few training rows have
  counts as `other`, and so does one that none had; where training knew no rare values, a new one is none of them, all
  numbers 0. An empty cell is a value like any other.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float, Float32
from torch import Tensor

from ricnet.data.delimited import Table
from ricnet.data.words import listed
from ricnet.errors import RicnetError

MISSING = frozenset({"", "na", "n/a", "#n/a", "<na>", "nan", "null", "none", "?"})
"""What stands for no number, in capitals or not."""
RARE_ROWS, RARE_SHARE = 3, 0.005
"""A value in fewer training rows is rare. Standardised, its number would be the larger the rarer it is."""


@dataclass(frozen=True)
class Number:
    kind: ClassVar[str] = "number"

    name: str
    mean: float
    std: float
    flagged: bool
    """Whether a second number says where the value is missing."""

    @property
    def width(self) -> int:
        return 1 + self.flagged

    def encode(self, table: Table) -> Float[np.ndarray, "n width"]:
        values = np.array(
            [_require_number(cell, self.name, table, row) for row, cell in enumerate(table.columns[self.name])]
        )
        missing = np.isnan(values)
        with np.errstate(over="ignore"):
            scaled = np.where(missing, 0.0, (values - self.mean) / self.std)
        return np.stack([scaled, missing][: self.width], axis=1).astype(np.float64)

    def is_new(self, cell: str) -> bool:
        return False


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
            raise RicnetError(f"{table.name}, line {table.lines[beyond[0]]}: a number is too large; correct it.")
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
    if kind == "number":
        number = Number(name, float(rest["mean"]), float(rest["std"]), bool(rest["flagged"]))
        if not (math.isfinite(number.mean) and 0 < number.std < math.inf):
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
    fitted = {name: _fit(name, table) for name in table.columns if name != target}
    inputs = tuple(column for column in fitted.values() if column is not None)
    unused = [repr(name) for name, column in fitted.items() if column is None]
    if not inputs:
        raise RicnetError(
            f"{table.name}: beside {target!r} there is no column to learn from: "
            "each is the same in all rows, or a text that differs in nearly all."
        )
    notes = [] if not unused else [f"Columns with nothing to learn from were left out: {listed(unused)}."]
    return Columns(target, inputs), (*notes, *_almost_numbers(inputs, table))


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
    if None in numbers:
        return _fit_category(name, cells)
    values = np.array(numbers, dtype=np.float64)
    present = values[~np.isnan(values)]
    flagged = 0 < len(present) < len(values)
    if not flagged and len(np.unique(present)) < 2:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        mean, std = float(present.mean()), float(present.std())
    if not math.isfinite(std):
        raise RicnetError(f"{table.name}: the numbers of {name!r} are too large to compute with; scale them.")
    return Number(name, mean, std or 1.0, flagged)


def _fit_category(name: str, cells: Sequence[str]) -> Category | None:
    counts = Counter(cells)
    kept = sorted(value for value, n in counts.items() if n >= max(RARE_ROWS, RARE_SHARE * len(cells)))
    other = len(kept) < len(counts)
    return Category(name, tuple(kept), other) if kept and len(kept) + other > 1 else None


def _almost_numbers(inputs: Sequence[Number | Category], table: Table) -> list[str]:
    """A typing error makes a text of a column of numbers; that must not happen in silence."""
    notes = []
    for column in inputs:
        if isinstance(column, Category):
            cells = table.columns[column.name]
            texts = [row for row, cell in enumerate(cells) if parse_number(cell) is None]
            if 2 * len(texts) < len(cells):
                first = f"{cells[texts[0]]!r} in line {table.lines[texts[0]]}"
                notes.append(f"Column {column.name!r} is read as text, for {first} is no number; correct it if it is.")
    return notes


def _require_number(cell: str, column: str, table: Table, row: int) -> float:
    value = parse_number(cell)
    if value is None:
        raise RicnetError(
            f"{table.name}, line {table.lines[row]}: {column!r} is {cell!r}, but the model was trained on numbers; "
            "correct it, or leave it empty if it is unknown."
        )
    return value
