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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import torch

from ricnet.errors import RicnetError, counted, require_extra
from ricnet.io import TABLES, encoding_of, parse_json, table_suffix
from ricnet.machine import SHARE, free_bytes

if TYPE_CHECKING:
    from pandas import DataFrame

DELIMITERS = ",;\t|"
LARGEST = 1 << 32
"""Maximum bytes of an unpacked table."""
LETTER, CELL = 2, 64
"""Bytes of memory that a table takes per byte of the unpacked file, plus those per cell."""
SEPARATORS = (*(sign.encode() for sign in DELIMITERS), b"\n")
CHUNK = 1 << 18
"""Bytes read at once."""
ABSENT = type("Absent", (str,), {})()
"""The cell of a JSON row that lacks a column: an empty text, distinguished from other empty texts by `is`."""
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


Check = Callable[["Table"], object]
"""Raises if the columns of a table do not fit. It is called before the rows are read, with a table without rows; for
JSON lines, with the first row only."""


def parse_table(text: str, name: str) -> Table:
    """Delimited text."""
    return read_delimited(io.StringIO(text, newline=""), name)


def read_delimited(lines: io.TextIOBase, name: str, check: Check | None = None) -> Table:
    """The first line names the columns; one without a name (an index, as pandas writes it) is passed over.

    The delimiter is the one the first line has most of. Where it is a semicolon, decimals may have a comma: so it is
    in the countries whose spreadsheets write semicolons.
    """
    first = lines.readline()
    delimiter = max(DELIMITERS, key=first.count)
    reader = csv.reader(chain([first], lines), delimiter=delimiter, strict=True)
    rows: list[list[str]] = []
    ends: list[int] = []
    try:
        for row in reader:
            cells = [cell.strip() for cell in row]
            if not _is_row(row, cells, names=len(rows[0]) if rows else 0):
                continue
            if not rows:
                _check_header(cells, name, check)
            rows.append(cells if delimiter != ";" else [_with_decimal_point(cell) for cell in cells])
            ends.append(reader.line_num)
    except csv.Error as error:
        raise TableError(f"{name}, line {reader.line_num}: {error}; is a quotation mark missing?") from error
    if len(rows) < 2:
        raise TableError(f"{name} has no rows; its first line must name the columns, each further one is an example.")
    header = rows[0]
    for row, line in zip(rows, ends, strict=True):
        if len(row) != len(header):
            cells_, named = counted(len(row), "cell"), counted(len(header), "column")
            raise TableError(f"{name}, line {line}: {cells_} where the first line names {named}.")
    columns = {column: list(cells) for column, *cells in zip(*rows, strict=True) if column}
    return Table(name, columns, ends[1:])


def _check_header(header: list[str], name: str, check: Check | None) -> None:
    _refuse_twins(header, name)
    if all(cell.replace(".", "", 1).lstrip("+-").isdigit() for cell in header):
        raise TableError(f"{name} begins with numbers, {header[0]} first; its first line must name the columns.")
    if check is not None:
        check(Table(name, {column: [] for column in header if column}, []))


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


def read_json_lines(lines: io.TextIOBase, name: str, check: Check | None = None) -> Table:
    """Columns are all names that occur, in the order in which they first do; a row that lacks one has a gap there."""
    rows: dict[int, dict[str, str]] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        row = _json_row(line, f"{name}, line {number}")
        if not rows and check is not None:
            check(Table(name, {key: [cell] for key, cell in row.items() if key}, [number], sparse=True))
        rows[number] = row
    if not rows:
        raise TableError(f"{name} has no rows; each line must be a JSON object, one example.")
    names = dict.fromkeys(key for row in rows.values() for key in row if key)
    columns = {key: [row.get(key, ABSENT) for row in rows.values()] for key in names}
    return Table(name, columns, list(rows), sparse=True)


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


class Room:
    """The memory that a table may take: a share of the free memory when reading begins."""

    def __init__(self, path: Path) -> None:
        self.path, self.free = path, free_bytes(torch.device("cpu"))
        self.size, self.cells = 0, 0

    def take(self, size: int, cells: int) -> None:
        """Count unpacked bytes and cells; raise if there is no room for them."""
        self.size, self.cells = self.size + size, self.cells + cells
        if self.size > LARGEST:
            raise TableError(
                f"{self.path} has more than {LARGEST / 1e9:.1f} GB once it is unpacked; give a part of it."
            )
        if LETTER * self.size + CELL * self.cells > SHARE * self.free:
            raise TableError(
                f"{self.path} does not fit into memory: it has more than {self.size / 1e6:,.0f} MB and {self.cells:,} "
                f"cells once it is unpacked, and {self.free / 1e9:.1f} GB are free; give a part of it."
            )


class Metered(io.RawIOBase):
    """A file that can be read only as long as its table fits into memory. A small packed file can unpack to more than
    the memory, and a cell takes more memory than its letters."""

    def __init__(self, file: io.BufferedIOBase, path: Path) -> None:
        self.file, self.room = file, Room(path)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        content = self.file.read(len(buffer))
        self.room.take(len(content), sum(content.count(sign) for sign in SEPARATORS))
        buffer[: len(content)] = content
        return len(content)


@contextmanager
def _metered(path: Path, packed: bool) -> Iterator[io.BufferedReader]:
    with gzip.open(path) if packed else path.open("rb") as file:
        yield io.BufferedReader(Metered(file, path), CHUNK)


def read_parquet(path: Path, check: Check | None = None) -> Table:
    """In parts, so that a file which unpacks to more than memory holds is noticed in time."""
    require_extra(f"{path}: reading Parquet", "parquet", "pyarrow")
    import pyarrow
    from pyarrow.parquet import ParquetFile

    batches, room = [], Room(path)
    try:
        with ParquetFile(path) as file:
            if check is not None:
                check(Table(str(path), {name: [] for name in map(str.strip, file.schema_arrow.names) if name}, []))
            for batch in file.iter_batches():
                batches.append(batch)
                room.take(batch.nbytes, batch.num_rows * batch.num_columns)
            frame = pyarrow.Table.from_batches(batches, file.schema_arrow).to_pandas()
    except RicnetError:
        raise
    except Exception as error:  # arrow, thrift and the codecs each complain in their own way
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise TableError(f"{path} is no Parquet file that can be read ({reason}); save the table again.") from error
    return frame_table(frame, str(path))


READERS: dict[str, Callable[[io.TextIOBase, str, Check | None], Table]] = {
    ".csv": read_delimited,
    ".tsv": read_delimited,
    ".jsonl": read_json_lines,
}
"""What makes a table of a text, by the ending of its file."""


def read_table(path: Path, check: Check | None = None) -> Table:
    """`check` is called with the columns first, so that a file with wrong columns is refused before its rows are read.
    Then the file is read once to see whether it fits into memory, and once more for its rows."""
    suffix = table_suffix(path) or ".csv"
    if not path.exists():
        raise TableError(f"{path} does not exist; give the path of a table ({', '.join(TABLES)}).")
    if suffix == ".parquet":
        return read_parquet(path, check)
    packed = suffix.endswith(".gz")

    def fits(header: Table) -> None:
        if check is not None:
            check(header)
        with _metered(path, packed) as content:  # raises if it does not fit into memory
            while content.read(CHUNK):
                pass

    try:
        with _metered(path, packed) as content:
            encoding = encoding_of(content.peek(2))
            return READERS[suffix.removesuffix(".gz")](io.TextIOWrapper(content, encoding), str(path), fits)
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        kind = "no whole gzip of a text in UTF-8" if packed else "no text in UTF-8"
        raise TableError(f"{path} is {kind} ({error}); save the table as CSV in UTF-8.") from error
