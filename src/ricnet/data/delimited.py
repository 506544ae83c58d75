"""Delimited text (.csv, .tsv, standard input) as a table of cells; what the cells mean is for `columns` to say."""

import csv
import io
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ricnet.errors import RicnetError

DELIMITERS = ",;\t|"
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")


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
