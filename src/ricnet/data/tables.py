"""Tables as cells of text: delimited text, JSON lines, Parquet and data frames of pandas."""

import csv
import gzip
import io
import re
import sys
import zlib
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
import torch
from jaxtyping import Bool

from ricnet.data.cells import BLOCK, Cells, Rows
from ricnet.errors import RicnetError, counted, require_extra
from ricnet.io import TABLES, encoding_of, parse_json, table_suffix
from ricnet.machine import SHARE, free_bytes

if TYPE_CHECKING:
    from pandas import DataFrame

DELIMITERS = ",;\t|"
LARGEST = 1 << 32
"""Maximum bytes of an unpacked table."""
LETTER, CELL = 1.1, 24
"""Bytes of memory for each byte of the unpacked file and for each cell, until the table is encoded."""
SEPARATORS = (*(sign.encode() for sign in DELIMITERS), b"\n")
CHUNK = 1 << 18
"""Bytes read at once."""
FRAME = "the data frame"
"""Name of a data frame in messages."""
LONGEST = csv.field_size_limit()
"""Characters of a line from which on `csv` reads it, which refuses cells of more."""
SPACES = " \t\r\v\f\x1c\x1d\x1e\x1f"
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")


class TableError(RicnetError, ValueError):
    """A table or data frame that cannot be used; users of scikit-learn expect a ValueError."""


class Table:
    """Named columns of cells. Messages name the table and the line of a row."""

    def __init__(
        self,
        name: str,
        columns: Mapping[str, Cells | Sequence[str]],
        lines: Sequence[int],
        unit: str = "line",
        absent: Mapping[str, Bool[np.ndarray, "n"]] | None = None,
    ) -> None:
        self.name = name
        self.columns = {key: cells if isinstance(cells, Cells) else Cells(cells) for key, cells in columns.items()}
        self.lines = lines
        """Line of the file in which each row ends, counted from 1; for data frames the row, counted from 0."""
        self.unit = unit
        """What `lines` counts."""
        self.absent = absent
        """For JSON lines, the rows that lack a column, by its name; None if every row has all columns."""

    def __len__(self) -> int:
        return len(self.lines)

    def take(self, rows: Rows) -> "Table":
        columns = {name: cells.take(rows) for name, cells in self.columns.items()}
        absent = None if self.absent is None else {name: lacks[rows] for name, lacks in self.absent.items()}
        lines = array("q", [self.lines[row] for row in np.asarray(rows, np.int64).tolist()])
        return Table(self.name, columns, lines, self.unit, absent)

    def place(self, row: int) -> str:
        """Where a row is found, for the beginning of a sentence."""
        return f"{self.name}, {self.unit} {self.lines[row]}"


Check = Callable[["Table"], object]
"""Raises if the columns of a table do not fit. It is called before the rows are read, with a table without rows; for
JSON lines, with the first row only."""


# Delimited text


def parse_table(text: str, name: str) -> Table:
    return read_delimited(io.StringIO(text, newline=""), name)


def read_delimited(lines: io.TextIOBase, name: str, check: Check | None = None) -> Table:
    """The first line names the columns; a column without a name, such as the index that pandas writes, is skipped. The
    delimiter is the most frequent one in the first line. If it is a semicolon, decimals may have a comma."""
    reader = _Delimited(lines, name)
    header = reader.header(check)
    columns, ends = [Cells() for _ in header], array("q")
    for block, numbers in reader.blocks(len(header)):
        ends.extend(numbers)
        for column, cells in zip(columns, block, strict=True):
            clean = _stripped(cells)
            column.append(clean if reader.delimiter != ";" else [_with_decimal_point(cell) for cell in clean])
    if not ends:
        raise TableError(f"{name} has no rows; its first line must name the columns, each further one is an example.")
    return Table(name, {column: cells for column, cells in zip(header, columns, strict=True) if column}, ends)


Columnwise = tuple[Sequence[Sequence[str]], Sequence[int]]
"""The cells of each column in a block of rows, and the line in which each row ends."""


class _Delimited:
    """Splits lines into cells: plain lines at once, and from the first quotation mark on with `csv`."""

    def __init__(self, lines: io.TextIOBase, name: str) -> None:
        first = lines.readline()
        self.name, self.delimiter = name, max(DELIMITERS, key=first.count)
        self.lines: Iterator[str] = chain([first], lines)
        self.line = 0
        """Number of the last line that was read."""

    def header(self, check: Check | None) -> list[str]:
        """Names of the columns: the first line that has any; empty if there is none."""
        header = next((cells for row in self._rows() if any(cells := [cell.strip() for cell in row])), [])
        _refuse_twins(header, self.name)
        if header and all(cell.replace(".", "", 1).lstrip("+-").isdigit() for cell in header):
            raise TableError(
                f"{self.name} begins with numbers, {header[0]} first; its first line must name the columns."
            )
        if header and check is not None:
            check(Table(self.name, {column: [] for column in header if column}, []))
        return header

    def blocks(self, width: int) -> Iterator[Columnwise]:
        while block := self._plain_block(width):
            yield block
        rows: list[list[str]] = []
        ends: list[int] = []
        for row in self._rows():
            if self._is_row(row, width):
                rows.append(row)
                ends.append(self.line)
            if len(rows) == BLOCK:
                yield list(zip(*rows, strict=True)), ends
                rows, ends = [], []
        if rows:
            yield list(zip(*rows, strict=True)), ends

    def _plain_block(self, width: int) -> Columnwise | None:
        """The next lines; None at the end, or if one of them is blank, quoted, or has another number of cells."""
        block = list(islice(self.lines, BLOCK))
        text, start = "".join(block).removesuffix("\n"), self.line + 1
        plain = width > 1 and not ('"' in text or "\r" in text) and max(map(len, block), default=0) < LONGEST
        if not plain or {line.count(self.delimiter) for line in block} != {width - 1}:
            self.lines = chain(block, self.lines)
            return None
        self.line += len(block)
        cells = text.replace("\n", self.delimiter).split(self.delimiter)
        return [cells[place::width] for place in range(width)], range(start, start + len(block))

    def _rows(self) -> Iterator[list[str]]:
        reader, start = csv.reader(self.lines, delimiter=self.delimiter, strict=True), self.line
        try:
            for row in reader:
                self.line = start + reader.line_num
                yield row
        except csv.Error as error:
            line = start + reader.line_num
            raise TableError(f"{self.name}, line {line}: {error}; is a quotation mark missing?") from error

    def _is_row(self, row: list[str], width: int) -> bool:
        """Blank lines are skipped, and so is a single empty cell below several names. A row of empty cells counts:
        predictions need one answer for each row."""
        if len(row) == width > 1:
            return True
        if not row or (len(row) == 1 and not row[0].strip() and (width > 1 or row != [""])):
            return False
        if len(row) != width:
            cells, named = counted(len(row), "cell"), counted(width, "column")
            raise TableError(f"{self.name}, line {self.line}: {cells} where the first line names {named}.")
        return True


def _stripped(cells: Sequence[str]) -> list[str]:
    """Cells without the spaces around them. Most columns have no spaces at all, which one search shows."""
    text = "\n".join(cells)
    spaced = not text.isascii() or text.count("\n") >= len(cells) or any(sign in text for sign in SPACES)
    return list(map(str.strip, cells)) if spaced else list(cells)


def _with_decimal_point(cell: str) -> str:
    return cell.replace(",", ".") if _DECIMAL_COMMA.fullmatch(cell) else cell


def _refuse_twins(names: Sequence[str], table: str) -> None:
    twice = [column for column, count in Counter(filter(None, names)).items() if count > 1]
    if twice:
        raise TableError(f"{table} has two columns called {twice[0]!r}; give each its own name.")


# JSON lines


def read_json_lines(lines: io.TextIOBase, name: str, check: Check | None = None) -> Table:
    """Columns are all names that occur, in the order in which they first do. A cell that a row lacks is empty."""
    columns, absent, ends = dict[str, Cells](), dict[str, list[Bool[np.ndarray, "rows"]]](), array("q")
    rows: list[dict[str, str]] = []

    def flush() -> None:
        for key in dict.fromkeys(key for row in rows for key in row if key and key not in columns):
            columns[key], absent[key] = Cells(), []
            for _ in range((len(ends) - 1) // BLOCK):  # blocks before the name first occurs
                columns[key].append([""] * BLOCK)
                absent[key].append(np.ones(BLOCK, bool))
        for key, cells in columns.items():
            cells.append([row.get(key, "") for row in rows])
            absent[key].append(np.array([key not in row for row in rows]))
        rows.clear()

    for number, line in enumerate(lines, start=1):
        if line.strip():
            rows.append(_json_row(line, f"{name}, line {number}"))
            if not ends and check is not None:
                check(Table(name, {key: [cell] for key, cell in rows[0].items() if key}, [number], absent={}))
            ends.append(number)
            if len(rows) == BLOCK:
                flush()
    if rows:
        flush()
    if not ends:
        raise TableError(f"{name} has no rows; each line must be a JSON object, one example.")
    return Table(name, columns, ends, absent={key: np.concatenate(lacks) for key, lacks in absent.items()})


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
            raise TableError(f"{place}: {key!r} holds a {kind}; write each of its values as a column of its own.")
    cells = {key.strip(): "" if value is None else str(value).strip() for key, value in entry.items()}
    try:
        "".join([*cells, *cells.values()]).encode("utf-8")
    except UnicodeEncodeError:  # JSON may escape half of a surrogate pair
        raise TableError(f"{place}: a text in it is not valid UTF-8; correct it.") from None
    return cells


def is_frame(given: Any) -> "TypeGuard[DataFrame]":
    """Does not import pandas: if it is not imported yet, there is no data frame."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(given, pandas.DataFrame)


def frame_table(frame: "DataFrame", name: str = FRAME) -> Table:
    """Cells as a CSV file would have them, so that a model reads both alike."""
    names = [str(column).strip() for column in frame.columns]
    _refuse_twins(names, name)
    if frame.empty:
        raise TableError(f"{name} has no rows or no columns; each row is an example.")
    columns = {column: Cells() for column in names if column}
    for place, column in enumerate(names):
        if column:
            series = frame.iloc[:, place]
            cells = ("" if gap else str(value).strip() for value, gap in zip(series, series.isna(), strict=True))
            while block := list(islice(cells, BLOCK)):
                columns[column].append(block)
    return Table(name, columns, range(len(frame)), "row")


class Allowance:
    """Memory that a table may take: a share of the free memory when reading begins."""

    def __init__(self, path: Path) -> None:
        self.path, self.free = path, free_bytes(torch.device("cpu"))
        self.size, self.cells = 0, 0

    def take(self, size: int, cells: int) -> None:
        """Count unpacked bytes and cells; raise if there is no room for them."""
        self.size, self.cells = self.size + size, self.cells + cells
        if self.size > LARGEST:
            raise TableError(f"{self.path} has more than {LARGEST / 1e9:.1f} GB when unpacked; give a part of it.")
        if LETTER * self.size + CELL * self.cells > SHARE * self.free:
            raise TableError(
                f"{self.path} does not fit into memory: it has more than {self.size / 1e6:,.0f} MB and {self.cells:,} "
                f"cells once it is unpacked, and {self.free / 1e9:.1f} GB are free; give a part of it."
            )


class Metered(io.RawIOBase):
    """A file that can be read only as long as its table fits into memory: a small packed file can unpack to more."""

    def __init__(self, file: io.BufferedIOBase, path: Path) -> None:
        self.file, self.room = file, Allowance(path)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        content = self.file.read(len(buffer))
        self.room.take(len(content), sum(content.count(sign) for sign in SEPARATORS))
        buffer[: len(content)] = content
        return len(content)


def read_parquet(path: Path, check: Check | None = None) -> Table:
    """Read in batches, so that a file that does not fit into memory is refused in time."""
    require_extra(f"{path}: reading Parquet", "parquet", "pyarrow")
    import pyarrow
    from pyarrow.parquet import ParquetFile

    batches, room = [], Allowance(path)
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
    except Exception as error:  # arrow, thrift and the codecs raise various exceptions
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise TableError(f"{path} is no Parquet file that can be read ({reason}); save the table again.") from error
    return frame_table(frame, str(path))


READERS: dict[str, Callable[[io.TextIOBase, str, Check | None], Table]] = {
    ".csv": read_delimited,
    ".tsv": read_delimited,
    ".jsonl": read_json_lines,
}
"""Readers of text files, by suffix."""


def read_table(path: Path, check: Check | None = None) -> Table:
    """`check` is called with the columns, so that a file with wrong columns is refused before its rows are read."""
    suffix = table_suffix(path) or ".csv"
    if not path.exists():
        raise TableError(f"{path} does not exist; give the path of a table ({', '.join(TABLES)}).")
    if suffix == ".parquet":
        return read_parquet(path, check)
    packed = suffix.endswith(".gz")
    try:
        with gzip.open(path) if packed else path.open("rb") as file:
            content = io.BufferedReader(Metered(file, path), CHUNK)
            text = io.TextIOWrapper(content, encoding_of(content.peek(2)))
            return READERS[suffix.removesuffix(".gz")](text, str(path), check)
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        kind = "no complete gzip of a text in UTF-8" if packed else "no text in UTF-8"
        raise TableError(f"{path} is {kind} ({error}); save the table as CSV in UTF-8.") from error
