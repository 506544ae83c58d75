"""Files that hold a table: delimited text, a JSON object a line, Parquet; the texts also packed by gzip."""

import gzip
import zlib
from collections.abc import Callable
from pathlib import Path

from ricnet.data.delimited import Table, parse_table
from ricnet.data.frames import parquet_table
from ricnet.data.json_lines import parse_json_lines
from ricnet.errors import RicnetError

READERS: dict[str, Callable[[str, str], Table]] = {
    ".csv": parse_table,
    ".tsv": parse_table,
    ".jsonl": parse_json_lines,
}
"""What makes a table of a text, by the ending of its file."""
SUFFIXES = (*READERS, *(f"{suffix}.gz" for suffix in READERS), ".parquet")
UNREAD = (".xlsx", ".xls", ".ods", ".numbers", ".feather")
"""Tables all the same."""
LARGEST = 1 << 32
"""Bytes of a text once it is unpacked: a few can claim to be all there are."""


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
