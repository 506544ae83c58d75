"""Nested settings and numbers by one dotted name each, and rows of them as columns, which take a third of the room."""

from collections.abc import Mapping, Sequence
from typing import Any


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"method": {"gamma": 0.8}} as {"method.gamma": 0.8}, the way the command line spells it."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return flat


def nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    """What `flatten` made flat, as it was."""
    nested: dict[str, Any] = {}
    for name, value in flat.items():
        *path, last = name.split(".")
        place = nested
        for key in path:
            place = place.setdefault(key, {})
        place[last] = value
    return nested


def to_columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """A column for each name that any row has; None where a row does not have it."""
    flat = [flatten(row) for row in rows]
    return {name: [row.get(name) for row in flat] for name in dict.fromkeys(name for row in flat for name in row)}


def to_rows(columns: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """The rows of columns of equal length, without what they do not have."""
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return [nest({name: value for name, value in row.items() if value is not None}) for row in rows]
