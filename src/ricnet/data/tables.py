"""Tables as cells: delimited text, a JSON object a line, Parquet, data frames of pandas; and how a table is named."""

import csv
import gzip
import io
import re
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from ricnet.errors import RicnetError, setting
from ricnet.extras import require_extra
from ricnet.io import parse_json, split_target, user_path

if TYPE_CHECKING:
    from pandas import DataFrame, Series

DELIMITERS = ",;\t|"
UNREAD = (".xlsx", ".xls", ".ods", ".numbers", ".feather")
"""Tables all the same."""
LARGEST = 1 << 32
"""Bytes of a text once it is unpacked: a few can claim to be all there are."""
FRAME = "the data frame"
"""What messages call it."""
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")
UNFIT = re.compile(r"[^\w.-]+")
"""For the name of a folder."""


@dataclass(frozen=True)
class Table:
    name: str
    """What messages call it."""
    columns: dict[str, list[str]]
    """The cells of each, without the spaces around them; an empty text where there is none."""
    lines: list[int]
    """Where each row ends in the file, counted from 1."""
    unit: str = "line"
    """What those are called; the rows of a data frame are no lines."""

    def __len__(self) -> int:
        return len(self.lines)

    def take(self, rows: Sequence[int]) -> "Table":
        columns = {name: [cells[row] for row in rows] for name, cells in self.columns.items()}
        return Table(self.name, columns, [self.lines[row] for row in rows], self.unit)

    def place(self, row: int) -> str:
        """Where a row is found, for the beginning of a sentence."""
        return f"{self.name}, {self.unit} {self.lines[row]}"


def parse_table(text: str, name: str) -> Table:
    """The first line names the columns; one without a name (an index, as pandas writes it) is passed over.

    The delimiter is the one the first line has most of. Where it is a semicolon, decimals may have a comma: so it is
    in the countries whose spreadsheets write semicolons.
    """
    first = text.partition("\n")[0]
    delimiter = max(DELIMITERS, key=first.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    rows: list[list[str]] = []
    lines = []
    try:
        for row in reader:
            if _is_row(row, names=len(rows[0]) if rows else 0):
                rows.append([_clean(cell, delimiter) for cell in row])
                lines.append(reader.line_num)
    except csv.Error as error:
        raise RicnetError(f"{name}, line {reader.line_num}: {error}; is a quotation mark missing?") from error
    if len(rows) < 2:
        raise RicnetError(f"{name} has no rows; its first line must name the columns, each further one is an example.")
    header = _check_header(rows[0], name)
    for row, line in zip(rows, lines, strict=True):
        if len(row) != len(header):
            cells, named = _counted(len(row), "cell"), _counted(len(header), "column")
            raise RicnetError(f"{name}, line {line}: {cells} where the first line names {named}.")
    columns = {column: [row[i] for row in rows[1:]] for i, column in enumerate(header) if column}
    return Table(name, columns, lines[1:])


def _is_row(cells: list[str], names: int) -> bool:
    """Blank lines are none, nor is a single empty cell ("") below several names. A row of empty cells is one, for who
    asks about rows counts on an answer to each; above the names, where spreadsheets leave such lines too, it is none.
    """
    if any(cell.strip() for cell in cells):
        return True
    return names > 0 and (len(cells) > 1 or (names == 1 and cells == [""]))


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _clean(cell: str, delimiter: str) -> str:
    cell = cell.strip()
    return cell.replace(",", ".") if delimiter == ";" and _DECIMAL_COMMA.fullmatch(cell) else cell


def _check_header(header: list[str], name: str) -> list[str]:
    twice = [column for column, count in Counter(filter(None, header)).items() if count > 1]
    if twice:
        raise RicnetError(f"{name} has two columns called {twice[0]!r}; give each its own name.")
    if all(cell.replace(".", "", 1).lstrip("+-").isdigit() for cell in header):
        raise RicnetError(f"{name} begins with numbers, {header[0]} first; its first line must name the columns.")
    return header


# JSON lines


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


# Data frames and Parquet


def is_frame(given: Any) -> "TypeGuard[DataFrame]":
    """Where pandas has not been imported, nobody has made one; `ric` shall not wait for the import."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(given, pandas.DataFrame)


def is_plain(frame: "DataFrame") -> bool:
    """Whether it holds nothing but numbers, without gaps."""
    return all(dtype.kind in "biuf" for dtype in frame.dtypes) and not frame.isna().any(axis=None)


def frame_table(frame: "DataFrame", name: str = FRAME) -> Table:
    """Cells as a CSV file would have them, so that a model reads both alike; rows are counted from 0."""
    names = [str(column).strip() for column in frame.columns]
    twice = [column for place, column in enumerate(names) if column in names[:place]]
    if twice:
        raise RicnetError(f"{name} has two columns called {twice[0]!r}; give each its own name.")
    if frame.empty:
        raise RicnetError(f"{name} has no rows or no columns; each row is an example.")
    columns = {column: _cells(frame.iloc[:, place]) for place, column in enumerate(names) if column}
    return Table(name, columns, list(range(len(frame))), "row")


def _cells(column: "Series[Any]") -> list[str]:
    missing = column.isna()
    return ["" if gap else str(value).strip() for value, gap in zip(column, missing, strict=True)]


def parquet_table(path: Path) -> Table:
    require_extra(f"{path}: reading Parquet", "parquet", "pyarrow")
    import pandas

    try:
        frame = pandas.read_parquet(path, engine="pyarrow")
    except Exception as error:  # arrow, thrift and the codecs each complain in their own way
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise RicnetError(f"{path} is no Parquet file that can be read ({reason}); save the table again.") from error
    return frame_table(frame, str(path))


# Files

READERS: dict[str, Callable[[str, str], Table]] = {
    ".csv": parse_table,
    ".tsv": parse_table,
    ".jsonl": parse_json_lines,
}
"""What makes a table of a text, by the ending of its file."""
SUFFIXES = (*READERS, *(f"{suffix}.gz" for suffix in READERS), ".parquet")


def table_suffix(path: str | Path) -> str | None:
    """The ending that says which kind of table a file is; None for other files."""
    name = Path(path).name.lower()
    return next((suffix for suffix in SUFFIXES if name.endswith(suffix)), None)


def is_table(path: str | Path) -> bool:
    return table_suffix(path) is not None


def read_table(path: Path) -> Table:
    suffix = table_suffix(path) or ".csv"
    if not path.exists():
        raise RicnetError(f"{path} does not exist; give the path of a table ({', '.join(SUFFIXES)}).")
    if suffix == ".parquet":
        return parquet_table(path)
    return READERS[suffix.removesuffix(".gz")](_text(path, suffix.endswith(".gz")), str(path))


def _text(path: Path, packed: bool) -> str:
    try:
        if not packed:
            return path.read_text(encoding="utf-8-sig")
        with gzip.open(path) as file:
            content = file.read(LARGEST + 1)
        if len(content) > LARGEST:
            raise RicnetError(f"{path} has more than {LARGEST / 1e9:.1f} GB once it is unpacked; give a part of it.")
        return content.decode("utf-8-sig")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        kind = "no whole gzip of a text in UTF-8" if packed else "no text in UTF-8"
        raise RicnetError(f"{path} is {kind} ({error}); save the table as CSV in UTF-8.") from error


# How a table is named


def with_target(spec: str, target: str | None) -> str:
    """The table and its column of classes as one name, which is all that a run has to keep of them."""
    if target is None:
        return spec
    path = split_target(spec)[0]
    if not is_table(path):
        raise RicnetError(_not_a_table(path, target))
    return f"{path}#{target}"


def _not_a_table(path: str, target: str) -> str:
    suffix = Path(path).suffix.lower()
    if suffix in UNREAD or (suffix != ".npz" and user_path(path).is_file()):
        return f"{path} cannot be read; save the table as CSV, in a file that ends in .csv."
    tables = f"tables ({', '.join(SUFFIXES)})"
    return f"{setting('target', target)} is for {tables}; {path} says by itself what its classes are."


def short_name(spec: str) -> str:
    """What folders made for this data are called; two targets of one table are two tasks."""
    name, target = split_target(spec)
    path = Path(name)
    suffix = ".npz" if path.suffix.lower() == ".npz" else table_suffix(path) or ""
    short = path.name[: len(path.name) - len(suffix)]
    return short if target is None else f"{short}-{UNFIT.sub('-', target).strip('-.')}"


def shown_name(spec: str) -> str:
    """Without the folders it lies in; a target may have slashes of its own."""
    name, target = split_target(spec)
    return with_target(Path(name).name, target)
