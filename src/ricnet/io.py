"""Files: paths as users write them, JSON and arrays from strangers, and files that are written whole or not at all.

Nothing in a stranger's file is executed, and what is wrong with it is a ValueError. A few bytes can claim to be
gigabytes (brackets within brackets, the shape in an array's header, an archive of zeros), so sizes are compared with a
limit before memory is taken for them.
"""

import codecs
import io
import json
import math
import os
import re
import sys
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ricnet.errors import RicnetError, setting

LARGEST_TEXT = 1 << 26
"""Bytes of a JSON file; a run of a thousand epochs writes a fiftieth of it."""
LARGEST_ARRAYS = 1 << 30
"""Bytes of all arrays in a file that a run wrote."""
LARGEST_NUMBER = 1e15
"""A number beyond it is no result, and drawing it fails in strange ways."""
_COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # numpy writes no others, and those have no memory limit
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
CLASS, FIGURE, TABLE = 14, 32, 48
MARK = " †"
"""At the end of the name of a run whose training collapsed, in tables and figures."""
"""The most letters of a class's name anywhere, and of a system's or a data set's in figures and in tables."""

Array = np.ndarray[Any, np.dtype[Any]]


# Paths and names


def user_path(text: str | Path) -> Path:
    """The path that is meant, with ~ as the user's home; refused where no file can have such a name."""
    if _ADDRESS.match(str(text)):
        raise RicnetError(
            f"{str(text)[:200]} is an address, and only data sets known by name are downloaded (ric data list); "
            "download it first, for instance with curl -LO, and give the path of the file."
        )
    try:
        if not str(text) or "\0" in str(text):
            raise ValueError("it is empty" if not str(text) else "it has a zero byte")
        path = Path(text).expanduser()
        os.fsencode(path)
        path.exists()
    except UnicodeEncodeError as error:
        raise RicnetError(f"{str(text)[:200]!a} cannot be a path (no file has such letters); check it.") from error
    except (OSError, TypeError, ValueError, RuntimeError) as error:  # too long, no text, empty, the home of nobody
        reason = error.strerror if isinstance(error, OSError) else error
        raise RicnetError(f"{str(text)[:200]!r} cannot be a path ({reason}); check its spelling.") from error
    return path


def short(name: str, width: int = CLASS) -> str:
    """Names come from strangers' folders: one printable line of bounded length is safe to draw anywhere."""
    clean = "".join(c if c.isprintable() else "�" for c in name)
    if len(clean) <= width:
        return clean
    end = "…" + MARK * clean.endswith(MARK)
    return clean[: width - len(end)] + end


def printable(text: str) -> str:
    """Names come from strangers' files, and a terminal obeys some characters instead of showing them."""
    return "".join(c if c.isprintable() or c == "\n" else "�" for c in text)


# What data is called: a name, a path, or a table with the column of its classes, my.csv#label

_TEXTS = (".csv", ".tsv", ".jsonl")
TABLES = (*_TEXTS, *(f"{suffix}.gz" for suffix in _TEXTS), ".parquet")
"""Endings of the tables that are read."""
UNREAD_TABLES = (".xlsx", ".xls", ".ods", ".numbers", ".feather")
"""Tables all the same."""
UNFIT = re.compile(r"[^\w.-]+")
"""For the name of a folder."""
_WITH_TARGET = re.compile(rf"(.*?(?:{'|'.join(map(re.escape, TABLES))}))#(.+)", re.IGNORECASE | re.DOTALL)


def split_target(spec: str) -> tuple[str, str | None]:
    """my.csv#label is the table my.csv with the classes in its column `label`, whose name may have slashes."""
    match = _WITH_TARGET.fullmatch(spec)
    return (match[1], match[2]) if match else (spec, None)


def table_suffix(path: str | Path) -> str | None:
    """The ending that says which kind of table a file is; None for other files."""
    name = Path(path).name.lower()
    return next((suffix for suffix in TABLES if name.endswith(suffix)), None)


def is_table(path: str | Path) -> bool:
    return table_suffix(path) is not None


def with_target(spec: str, target: str | None) -> str:
    """The table and its column of classes as one name, which is all that a run has to keep of them."""
    if target is None:
        return spec
    path = split_target(spec)[0]
    if is_table(path):
        return f"{path}#{target}"
    suffix = Path(path).suffix.lower()
    if suffix in UNREAD_TABLES or (suffix != ".npz" and user_path(path).is_file()):
        raise RicnetError(f"{path} cannot be read; save the table as CSV, in a file that ends in .csv.")
    raise RicnetError(
        f"{setting('target', target)} is for tables ({', '.join(TABLES)}); {path} says by itself what its classes are."
    )


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


# What encoders are called that others have trained: hf:PATH, timm:NAME@PATH


def whole_name(name: str) -> str:
    """An encoder's name with the path in it made whole, so that a run can be resumed from anywhere."""
    if name.startswith("hf:") and (path := user_path(name.removeprefix("hf:"))).is_dir():
        return f"hf:{path.resolve()}"
    network, at, file = name.partition("@")
    return f"{network}@{user_path(file).resolve()}" if name.startswith("timm:") and at else name


def without_folder(name: str) -> str:
    """An encoder's name without what it tells of the machine: of a path only the last part."""
    library, colon, rest = name.partition(":")
    network, at, file = rest.partition("@")
    shown = f"{network}@{Path(file).name}" if at and library == "timm" else Path(rest).name
    return f"{library}:{shown}" if colon and (Path(rest).is_absolute() or at) else name


# Files that are written whole or not at all


class Unwritable(RicnetError):
    """A full disk, a read-only one, a folder that is gone."""


def write_atomically(path: Path, write: Callable[[Path], object], keep: Path | None = None) -> None:
    """Write beside the target, flush to the disk, then rename: a crash leaves the old file or the new one. A symbolic
    link in place of either file is replaced, never followed.

    `keep` is where the old file goes; a crash between the two renames leaves it there, and none at `path`.
    """
    draft = draft_of(path)
    if path.exists() and not path.is_file():
        raise Unwritable(f"{path} is not a regular file and would be replaced; choose another {setting('out')}.")
    with writing(path):
        try:
            draft.unlink(missing_ok=True)
            write(draft)
            replace_file(draft, path, keep)
        finally:
            with suppress(OSError):
                draft.unlink(missing_ok=True)


def draft_of(path: Path) -> Path:
    """Where a file is written before it takes its name; all that a killed process leaves."""
    return path.with_name(f".{path.name}.draft")


def replace_file(draft: Path, path: Path, keep: Path | None = None) -> None:
    """Flush the draft to the disk and rename it, then flush the folder: neither a kill nor a power cut loses both."""
    fsync_file(draft)
    if keep is not None and path.exists():
        path.replace(keep)
    draft.replace(path)
    fsync_folder(path.parent)


def open_no_link(path: str, flags: int) -> int:
    """An `opener` for `open` that refuses symbolic links (not on Windows, which has no such flag)."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


def fsync_file(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def fsync_folder(folder: Path) -> None:
    """Wait until the disk knows the new names in a folder, where the system can say so (Windows cannot)."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what the system says into a sentence."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise Unwritable(
            f"{path} could not be written ({reason}); free space or choose another {setting('out')}."
        ) from error


# JSON from strangers


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file of a run."""
    try:
        entry = parse_json(read_text(path))
    except (ValueError, OSError) as error:
        raise RicnetError(f"{path} cannot be read ({error}); restore it or train again.") from error
    if not isinstance(entry, dict):
        raise RicnetError(f"{path} is not a file of ricnet's: it holds no JSON object; restore it or train again.")
    return entry


def read_text(path: Path) -> str:
    with path.open("rb") as file:
        content = file.read(LARGEST_TEXT + 1)
    if len(content) > LARGEST_TEXT:
        raise ValueError(f"it is larger than {LARGEST_TEXT / 1e6:.0f} MB")
    return content.decode("utf-8")


@contextmanager
def opened(path: Path) -> Iterator[io.BufferedReader]:
    """A file that the user names, opened for reading; errors name it."""
    try:
        with path.open("rb") as file:
            yield file
    except FileNotFoundError as error:
        raise RicnetError(f"{path} does not exist; check the path.") from error
    except OSError as error:
        raise RicnetError(f"{path} cannot be read ({error.strerror}); make it readable.") from error


def decode(content: bytes) -> str:
    return content.decode(encoding_of(content))


def encoding_of(content: bytes) -> str:
    """UTF-8, or UTF-16 where a byte order mark says so, as in what Windows calls Unicode."""
    is_utf16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return "utf-16" if is_utf16 else "utf-8-sig"


def parse_json(text: str) -> Any:
    """Without NaN and infinity, which Python reads though JSON has no such numbers."""
    try:
        return json.loads(text, parse_float=_finite, parse_constant=_finite)
    except RecursionError:
        raise ValueError("its brackets are nested too deeply") from None


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:20]} is no number that JSON has")
    return number


# The form of JSON from strangers: a test of a value, a list of one form, or a table of names with a form each

Form = Any


class Maybe(NamedTuple):
    """Missing, null, or of this form."""

    form: Form


class Absent(NamedTuple):
    """Missing or of this form, but not null."""

    form: Form


def misfit(entry: object, form: Form, place: str = "") -> str | None:
    """The first place where an entry is not of a form; None where it is."""
    if isinstance(form, Maybe | Absent):
        return None if entry is None and isinstance(form, Maybe) else misfit(entry, form.form, place)
    if isinstance(form, Mapping):
        if not isinstance(entry, Mapping):
            return place
        wanted = {key: each for key, each in form.items() if key in entry or not isinstance(each, Absent)}
        parts = [(entry.get(key), each, f"{place}.{key}" if place else key) for key, each in wanted.items()]
    elif isinstance(form, list):
        if not isinstance(entry, list) or not entry:
            return place
        parts = [(each, form[0], f"{place}[{i}]") for i, each in enumerate(entry)]
    else:
        return None if form(entry) else place
    found = (misfit(*part) for part in parts)
    return next((where for where in found if where is not None), None)


def is_number(value: object, largest: float = LARGEST_NUMBER) -> bool:
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return plain and not (isinstance(value, float) and not math.isfinite(value)) and abs(value) <= largest  # type: ignore[arg-type]


def is_finite(value: object) -> bool:
    """Also one that is too large to draw."""
    return is_number(value, sys.float_info.max)


def is_count(value: object) -> bool:
    return is_number(value) and isinstance(value, int) and value >= 0


def is_switch(value: object) -> bool:
    return isinstance(value, bool)


def is_text(value: object) -> bool:
    return isinstance(value, str)


def are_texts(value: object) -> bool:
    """Whether a value is a list of texts, perhaps empty."""
    return isinstance(value, list) and all(map(is_text, value))


# Arrays from strangers


def read_arrays(path: Path, limit: int = LARGEST_ARRAYS, names: Collection[str] | None = None) -> dict[str, Array]:
    """All arrays of an .npz file or those named, which must be plain ones and take no more than `limit` bytes
    together."""
    with open_zip(path) as archive:
        members = [m for m in archive.infolist() if names is None or m.filename.removesuffix(".npy") in names]
        if sum(member.file_size for member in members) > limit:
            raise ValueError(f"its arrays would take more than {limit / 1e9:.1f} GB of memory")
        return {member.filename.removesuffix(".npy"): _read_array(archive, member) for member in members}


@contextmanager
def open_zip(path: Path) -> Iterator[zipfile.ZipFile]:
    """A zip file; whatever is wrong with it is a ValueError, for zip, zlib, ast and numpy each have errors of their
    own."""
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except (OSError, ValueError, RicnetError):
        raise
    except Exception as error:
        raise ValueError(str(error) or type(error).__name__) from error


def _read_array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Array:
    try:
        if not member.filename.endswith(".npy") or member.compress_type not in _COMPRESSIONS:
            raise ValueError("it is no array")
        with archive.open(member) as file:
            read_array_header(file, member.file_size)
        with archive.open(member) as file:
            array: Array = np.lib.format.read_array(file, allow_pickle=False)
            return array
    except Exception as error:
        name = printable(member.filename.removesuffix(".npy"))
        raise ValueError(f"the array {name}: {str(error) or type(error).__name__}") from error


def read_array_header(file: Any, size: int) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether columns come first, and dtype of an array, which must take exactly the bytes that follow."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(file)
    if dtype.hasobject:
        raise ValueError("it holds Python objects")
    if not dtype.itemsize or math.prod(shape) * dtype.itemsize != size - file.tell():
        raise ValueError(f"its header claims {dtype} of shape {shape}, which is not what follows")
    return shape, fortran, dtype
