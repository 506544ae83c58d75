"""Tables as cells of text: CSV, a JSON object a line, Parquet, data frames of pandas; and how a table is named.

Text is read by Python's `csv`, not by pandas, which fills short rows in silence and forgets on which line a row was.
What the cells mean is for `columns` to say.
"""

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

from ricnet.errors import RicnetError, counted, require_extra
from ricnet.io import TABLES, decode, parse_json, table_suffix

if TYPE_CHECKING:
    from pandas import DataFrame

DELIMITERS = ",;\t|"
LARGEST = 1 << 32
"""Bytes of a table once it is unpacked: a few can claim to be all there are."""
ABSENT = type("Absent", (str,), {})()
"""The cell of a JSON row that lacks a column: an empty text that is told from others by `is`."""
FRAME = "the data frame"
"""What messages call it."""
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")


class TableError(RicnetError, ValueError):
    """A table or data frame that cannot be used; users of scikit-learn expect a ValueError."""


@dataclass(frozen=True)
class Table:
    name: str
    """What messages call it."""
    columns: dict[str, list[str]]
    """The cells of each, without the spaces around them; an empty text where there is none."""
    lines: Sequence[int]
    """Where each row ends in the file, counted from 1."""
    unit: str = "line"
    """What those are called; the rows of a data frame are no lines."""
    sparse: bool = False
    """Whether a row may lack a column, as in JSON lines; its cell is `ABSENT` then."""

    def __len__(self) -> int:
        return len(self.lines)

    def take(self, rows: Sequence[int]) -> "Table":
        columns = {name: [cells[row] for row in rows] for name, cells in self.columns.items()}
        return Table(self.name, columns, [self.lines[row] for row in rows], self.unit, self.sparse)

    def place(self, row: int) -> str:
        """Where a row is found, for the beginning of a sentence."""
        return f"{self.name}, {self.unit} {self.lines[row]}"


def parse_table(text: str, name: str) -> Table:
    """Delimited text. The first line names the columns; one without a name (an index, as pandas writes it) is passed
    over.

    The delimiter is the one the first line has most of. Where it is a semicolon, decimals may have a comma: so it is
    in the countries whose spreadsheets write semicolons.
    """
    delimiter = max(DELIMITERS, key=text.partition("\n")[0].count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    rows: list[list[str]] = []
    lines: list[int] = []
    try:
        for row in reader:
            cells = [cell.strip() for cell in row]
            if _is_row(row, cells, names=len(rows[0]) if rows else 0):
                rows.append(cells if delimiter != ";" else [_with_decimal_point(cell) for cell in cells])
                lines.append(reader.line_num)
    except csv.Error as error:
        raise TableError(f"{name}, line {reader.line_num}: {error}; is a quotation mark missing?") from error
    if len(rows) < 2:
        raise TableError(f"{name} has no rows; its first line must name the columns, each further one is an example.")
    header = rows[0]
    _refuse_twins(header, name)
    if all(cell.replace(".", "", 1).lstrip("+-").isdigit() for cell in header):
        raise TableError(f"{name} begins with numbers, {header[0]} first; its first line must name the columns.")
    for row, line in zip(rows, lines, strict=True):
        if len(row) != len(header):
            cells_, named = counted(len(row), "cell"), counted(len(header), "column")
            raise TableError(f"{name}, line {line}: {cells_} where the first line names {named}.")
    columns = {column: list(cells) for column, *cells in zip(*rows, strict=True) if column}
    return Table(name, columns, lines[1:])


def _is_row(row: list[str], cells: list[str], names: int) -> bool:
    """Blank lines are none, nor is a single empty cell ("") below several names. A row of empty cells is one, for who
    asks about rows counts on an answer to each; above the names, where spreadsheets leave such lines too, it is none.
    """
    return any(cells) or (names > 0 and (len(row) > 1 or (names == 1 and row == [""])))


def _with_decimal_point(cell: str) -> str:
    return cell.replace(",", ".") if _DECIMAL_COMMA.fullmatch(cell) else cell


def _refuse_twins(names: Sequence[str], table: str) -> None:
    twice = [column for column, count in Counter(filter(None, names)).items() if count > 1]
    if twice:
        raise TableError(f"{table} has two columns called {twice[0]!r}; give each its own name.")


def parse_json_lines(text: str, name: str) -> Table:
    """Columns are all names that occur, in the order in which they first do; a row that lacks one has a gap there."""
    found = {number: line for number, line in enumerate(text.split("\n"), start=1) if line.strip()}
    if not found:
        raise TableError(f"{name} has no rows; each line must be a JSON object, one example.")
    rows = [_json_row(line, f"{name}, line {number}") for number, line in found.items()]
    names = dict.fromkeys(key for row in rows for key in row if key)
    return Table(name, {key: [row.get(key, ABSENT) for row in rows] for key in names}, list(found), sparse=True)


def _json_row(line: str, place: str) -> dict[str, str]:
    try:
        entry = parse_json(line)
    except ValueError as error:
        raise TableError(f"{place}: no JSON ({error}); correct the line.") from error
    if not isinstance(entry, dict):
        raise TableError(f'{place}: no JSON object but a {type(entry).__name__}; write {{"column": value, …}}.')
    for key, value in entry.items():
        if isinstance(value, dict | list):
            kind = type(value).__name__
            raise TableError(f"{place}: {key!r} holds a {kind}, which is no single value; spread it out.")
    cells = {key.strip(): "" if value is None else str(value).strip() for key, value in entry.items()}
    try:
        "".join([*cells, *cells.values()]).encode("utf-8")
    except UnicodeEncodeError:  # JSON may write half of a character, which no file can hold
        raise TableError(f"{place}: a text in it is none in UTF-8; correct it.") from None
    return cells


def is_frame(given: Any) -> "TypeGuard[DataFrame]":
    """Without importing pandas: where it is not imported yet, nothing can be a data frame."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(given, pandas.DataFrame)


def frame_table(frame: "DataFrame", name: str = FRAME) -> Table:
    """Cells as a CSV file would have them, so that a model reads both alike; rows are counted from 0."""
    names = [str(column).strip() for column in frame.columns]
    _refuse_twins(names, name)
    if frame.empty:
        raise TableError(f"{name} has no rows or no columns; each row is an example.")
    columns = {}
    for place, column in enumerate(names):
        if column:
            series = frame.iloc[:, place]
            gaps = series.isna()
            columns[column] = ["" if gap else str(value).strip() for value, gap in zip(series, gaps, strict=True)]
    return Table(name, columns, range(len(frame)), "row")


def _too_large(path: Path) -> TableError:
    return TableError(f"{path} has more than {LARGEST / 1e9:.1f} GB once it is unpacked; give a part of it.")


def read_parquet(path: Path) -> Table:
    """In parts, so that a file which unpacks to more than memory holds is noticed in time."""
    require_extra(f"{path}: reading Parquet", "parquet", "pyarrow")
    import pyarrow
    from pyarrow.parquet import ParquetFile

    batches, size = [], 0
    try:
        with ParquetFile(path) as file:
            for batch in file.iter_batches():
                batches.append(batch)
                size += max(batch.nbytes, 8 * batch.num_rows * batch.num_columns)  # a list takes 8 bytes a cell
                if size > LARGEST:
                    raise _too_large(path)
            frame = pyarrow.Table.from_batches(batches, file.schema_arrow).to_pandas()
    except TableError:
        raise
    except Exception as error:  # arrow, thrift and the codecs each complain in their own way
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise TableError(f"{path} is no Parquet file that can be read ({reason}); save the table again.") from error
    return frame_table(frame, str(path))


READERS: dict[str, Callable[[str, str], Table]] = {
    ".csv": parse_table,
    ".tsv": parse_table,
    ".jsonl": parse_json_lines,
}
"""What makes a table of a text, by the ending of its file."""


def read_table(path: Path) -> Table:
    suffix = table_suffix(path) or ".csv"
    if not path.exists():
        raise TableError(f"{path} does not exist; give the path of a table ({', '.join(TABLES)}).")
    if suffix == ".parquet":
        return read_parquet(path)
    packed = suffix.endswith(".gz")
    try:
        with gzip.open(path) if packed else path.open("rb") as file:
            content = file.read(LARGEST + 1 if packed else -1)
        if packed and len(content) > LARGEST:
            raise _too_large(path)
        text = decode(content)
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        kind = "no whole gzip of a text in UTF-8" if packed else "no text in UTF-8"
        raise TableError(f"{path} is {kind} ({error}); save the table as CSV in UTF-8.") from error
    lines = text.replace("\r\n", "\n").replace("\r", "\n")
    return READERS[suffix.removesuffix(".gz")](lines, str(path))
