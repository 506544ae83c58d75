"""A JSON object a line (.jsonl) as a table of cells."""

from typing import Any

from ricnet.data.delimited import Table
from ricnet.errors import RicnetError
from ricnet.io import parse_json


def parse_json_lines(text: str, name: str) -> Table:
    """Columns are all names that occur, in the order in which they first do; a row that lacks one has a gap there."""
    rows, lines = [], []
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            rows.append(_row(line, f"{name}, line {number}"))
            lines.append(number)
    if not rows:
        raise RicnetError(f"{name} has no rows; each line must be a JSON object, one example.")
    names = dict.fromkeys(key for row in rows for key in row if key)
    return Table(name, {key: [row.get(key, "") for row in rows] for key in names}, lines)


def _row(line: str, place: str) -> dict[str, str]:
    try:
        entry = parse_json(line)
    except ValueError as error:
        raise RicnetError(f"{place}: no JSON ({error}); correct the line.") from error
    if not isinstance(entry, dict):
        raise RicnetError(f'{place}: no JSON object but a {type(entry).__name__}; write {{"column": value, …}}.')
    cells = {key.strip(): _cell(value, key, place) for key, value in entry.items()}
    try:
        "".join([*cells, *cells.values()]).encode("utf-8")
    except UnicodeEncodeError:  # JSON may write half of a character, which no file can hold
        raise RicnetError(f"{place}: a text in it is none in UTF-8; correct it.") from None
    return cells


def _cell(value: Any, key: str, place: str) -> str:
    if isinstance(value, dict | list):
        raise RicnetError(f"{place}: {key!r} holds a {type(value).__name__}, which is no single value; spread it out.")
    return "" if value is None else str(value).strip()
