"""The data of a table or a figure: plain rows, the same before and after they have been a CSV file."""

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float

from ricnet.errors import RicnetError

Value = str | int | float | None
Row = dict[str, Value]
Rows = list[Row]


def write_csv(rows: Rows, path: Path) -> None:
    """Columns in the order in which the rows first name them; what a row does not say is left empty."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        writer.writerows([[_text(row.get(name)) for name in names] for row in rows])


def read_csv(path: Path) -> Rows:
    """What `write_csv` wrote; every row names every column."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            names, *lines = csv.reader(file)
        return [{name: _value(text) for name, text in zip(names, line, strict=True)} for line in lines]
    except (OSError, ValueError, csv.Error) as error:
        raise RicnetError(f"{path} cannot be read ({error}): delete it and run the reproduction again.") from error


def pick(rows: Rows, **wanted: Value) -> Rows:
    """The rows that say all of this."""
    return [row for row in rows if all(row.get(name) == value for name, value in wanted.items())]


def distinct(rows: Rows, name: str) -> list[str]:
    """What the rows call something, each name once, in their order."""
    return list(dict.fromkeys(str(row[name]) for row in rows if row.get(name) is not None))


def floats(rows: Rows, name: str) -> Float[np.ndarray, "rows"]:
    """One column as numbers; NaN where a row does not say."""
    return np.array([np.nan if row.get(name) is None else row[name] for row in rows], dtype=float)


def number(rows: Sequence[Row], name: str) -> float | None:
    """The first number that a row says."""
    found = [value for row in rows if (value := row.get(name)) is not None]
    return float(found[0]) if found else None


def _text(value: Value) -> str:
    """CSV knows only text, so text that would come back as a number or as nothing is no text we may write."""
    text = "" if value is None else repr(value) if isinstance(value, float) else str(value)
    if isinstance(value, str) and _value(value) != value:
        raise ValueError(f"{value!r} would be read back as {_value(value)!r}")
    return text


def _value(text: str) -> Value:
    if not text:
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
