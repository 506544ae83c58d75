"""Files: paths and names given by users, atomic writes, and untrusted JSON and arrays.

Nothing in an untrusted file is executed, and errors in it are ValueErrors. A small file can claim to be gigabytes
(nested brackets, the shape in an array's header, a zip archive of zeros), so sizes are checked before memory is
allocated.
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
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

import numpy as np

from ricnet.errors import RicnetError, setting

if TYPE_CHECKING:
    from pandas import DataFrame

LARGEST_TEXT = 1 << 26
"""Largest JSON file in bytes; a run of a thousand epochs writes a fiftieth of it."""
LARGEST_ARRAYS = 1 << 30
"""Largest total size in bytes of the arrays in a file of a run."""
LARGEST_NUMBER = 1e15
"""Largest number in results; larger ones cannot be plotted."""
_COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # numpy writes only these; others have no memory limit
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
CLASS, FIGURE, TABLE = 14, 32, 48
"""Most characters of a class name, and of the name of a system or data set in figures and in tables."""
MARK = " †"
"""Suffix, in tables and figures, of a run whose training collapsed."""

Array = np.ndarray[Any, np.dtype[Any]]


# Paths and names


def user_path(text: str | Path) -> Path:
    """The path with ~ expanded. Raises if no file can have this name."""
    if _ADDRESS.match(str(text)):
        raise RicnetError(
            f"{str(text)[:200]} is a URL, but only data sets in ric data list are downloaded; "
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
    except (OSError, TypeError, ValueError, RuntimeError) as error:  # too long, not a text, empty, unknown ~user
        reason = error.strerror if isinstance(error, OSError) else error
        raise RicnetError(f"{str(text)[:200]!r} cannot be a path ({reason}); check its spelling.") from error
    return path


def short(name: str, width: int = CLASS) -> str:
    """An untrusted name as one printable line of at most `width` characters."""
    clean = "".join(c if c.isprintable() else "�" for c in name)
    if len(clean) <= width:
        return clean
    end = "…" + MARK * clean.endswith(MARK)
    return clean[: width - len(end)] + end


def printable(text: str) -> str:
    """Untrusted text without control characters, which a terminal would execute."""
    return "".join(c if c.isprintable() or c == "\n" else "�" for c in text)


# Names of data: a name, a path, or a table with its target column, my.csv#label

_TEXTS = (".csv", ".tsv", ".jsonl")
TABLES = (*_TEXTS, *(f"{suffix}.gz" for suffix in _TEXTS), ".parquet")
"""File name suffixes of supported tables."""
UNREAD_TABLES = (".xlsx", ".xls", ".ods", ".numbers", ".feather")
"""File name suffixes of tables that are not supported."""
UNFIT = re.compile(r"[^\w.-]+")
"""Characters that are replaced in folder names."""
_WITH_TARGET = re.compile(rf"(.*?(?:{'|'.join(map(re.escape, TABLES))}))#(.+)", re.IGNORECASE | re.DOTALL)


def split_target(spec: str) -> tuple[str, str | None]:
    """Split my.csv#label into the path my.csv and the target column `label`, whose name may contain slashes."""
    match = _WITH_TARGET.fullmatch(spec)
    return (match[1], match[2]) if match else (spec, None)


def table_suffix(path: str | Path) -> str | None:
    """Suffix of a supported table; None for other files."""
    name = Path(path).name.lower()
    return next((suffix for suffix in TABLES if name.endswith(suffix)), None)


def is_table(path: str | Path) -> bool:
    return table_suffix(path) is not None


def with_target(spec: str, target: str | None) -> str:
    """The table and its target column as one name, my.csv#label."""
    if target is None:
        return spec
    path = split_target(spec)[0]
    if is_table(path):
        return f"{path}#{target}"
    suffix = Path(path).suffix.lower()
    if suffix in UNREAD_TABLES or (suffix != ".npz" and user_path(path).is_file()):
        raise RicnetError(f"{path} cannot be read; save the table as CSV, in a file that ends in .csv.")
    raise RicnetError(
        f"{setting('target', target)} is for tables ({', '.join(TABLES)}), and {path} is not a table; remove it."
    )


def short_name(spec: str) -> str:
    """Name of run folders for this data; it contains the target column."""
    name, target = split_target(spec)
    path = Path(name)
    suffix = ".npz" if path.suffix.lower() == ".npz" else table_suffix(path) or ""
    short = path.name[: len(path.name) - len(suffix)]
    return short if target is None else f"{short}-{UNFIT.sub('-', target).strip('-.')}"


def is_frame(given: Any) -> "TypeGuard[DataFrame]":
    """Does not import pandas: if it is not imported yet, there is no data frame."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(given, pandas.DataFrame)


def frame_name(target: str) -> str:
    """Name of a data frame with this target column."""
    return f"data-frame-{UNFIT.sub('-', target).strip('-.')}"


def shown_name(spec: str) -> str:
    """Name of the data without its folder; a target column may contain slashes."""
    name, target = split_target(spec)
    return with_target(Path(name).name, target)


# Names of pretrained encoders: hf:PATH, timm:NAME@PATH


def whole_name(name: str) -> str:
    """Name of an encoder with an absolute path, so that a run can be resumed from any folder."""
    if name.startswith("hf:") and (path := user_path(name.removeprefix("hf:"))).is_dir():
        return f"hf:{path.resolve()}"
    network, at, file = name.partition("@")
    return f"{network}@{user_path(file).resolve()}" if name.startswith("timm:") and at else name


def without_folder(name: str) -> str:
    """Name of an encoder with only the last part of its path, for publishing."""
    library, colon, rest = name.partition(":")
    network, at, file = rest.partition("@")
    shown = f"{network}@{Path(file).name}" if at and library == "timm" else Path(rest).name
    return f"{library}:{shown}" if colon and (Path(rest).is_absolute() or at) else name


# Names of models: a run folder, pretrained:NAME, or user/name[@revision] on the Hub

PREFIX = "pretrained:"
"""Begins the names of models that come with ricnet."""
RUNS = "runs"
"""Default folder of `ric train`; runs/NAME is never a Hub id."""
HUB_ID = re.compile(r"(?P<repo>(?P<user>\w[\w.-]*)/\w[\w.-]*)(?:@(?P<revision>[\w./-]+))?")


def is_hub_id(run: str | Path) -> bool:
    """False if the path exists, or if only its last part is missing, which is more likely a typo."""
    found = HUB_ID.fullmatch(str(run))
    if found is None or Path(run).suffix == ".json" or Path(run).exists():
        return False
    return found["user"] != RUNS and not Path(found["user"]).is_dir()


def run_config(folder: Path) -> Path:
    """config.json of a run folder; raises if there is none."""
    if not folder.exists():
        raise RicnetError(f"there is no run at {folder}; give the folder that ric train wrote.")
    if not (folder / "config.json").is_file():
        raise RicnetError(f"{folder} is not a run folder: it has no config.json; give the folder that ric train wrote.")
    return folder / "config.json"


# Atomic writes


class Unwritable(RicnetError):
    """A file could not be written: the disk is full or read-only, or the folder is missing."""


def write_atomically(path: Path, write: Callable[[Path], object], keep: Path | None = None) -> None:
    """Write a draft beside the target, flush it to the disk, then rename it: a crash leaves the old file or the new
    one. A symbolic link at either path is replaced, not followed.

    The old file is moved to `keep`, if given; after a crash between the two renames there is no file at `path`.
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
    """Path of the draft of a file, which a killed process may leave."""
    return path.with_name(f".{path.name}.draft")


def replace_file(draft: Path, path: Path, keep: Path | None = None) -> None:
    """Flush the draft to the disk, rename it and flush the folder, so that a power cut cannot lose both files."""
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
    """Flush the names in a folder to the disk; no effect on Windows."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError into an `Unwritable` that names the file."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise Unwritable(
            f"{path} could not be written ({reason}); free space or choose another {setting('out')}."
        ) from error


# Untrusted JSON


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file of a run."""
    try:
        entry = parse_json(read_text(path))
    except (ValueError, OSError) as error:
        raise RicnetError(f"{path} cannot be read ({error}); restore it or train again.") from error
    if not isinstance(entry, dict):
        raise RicnetError(f"{path} is not a file of ricnet: it is not a JSON object; restore it or train again.")
    return entry


def read_text(path: Path) -> str:
    with path.open("rb") as file:
        content = file.read(LARGEST_TEXT + 1)
    if len(content) > LARGEST_TEXT:
        raise ValueError(f"it is larger than {LARGEST_TEXT / 1e6:.0f} MB")
    return content.decode("utf-8")


@contextmanager
def opened(path: Path) -> Iterator[io.BufferedReader]:
    """Open a file for reading; error messages name it."""
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
    """UTF-16 if there is a byte order mark, as in files that Windows calls Unicode; else UTF-8."""
    is_utf16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return "utf-16" if is_utf16 else "utf-8-sig"


def parse_json(text: str) -> Any:
    """Parse JSON; raises on NaN and infinity, which Python would accept."""
    try:
        return json.loads(text, parse_float=_finite, parse_constant=_finite)
    except RecursionError:
        raise ValueError("its brackets are nested too deeply") from None


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:20]} is not a finite number")
    return number


# Schema of untrusted JSON: a predicate, a list with one form for all items, or a dict with a form for each key

Form = Any


class Maybe(NamedTuple):
    """The value may be missing or null."""

    form: Form


class Absent(NamedTuple):
    """The value may be missing, but not null."""

    form: Form


def misfit(entry: object, form: Form, place: str = "") -> str | None:
    """Path of the first value that does not match the form; None if all match."""
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


def is_finite(value: object) -> TypeGuard[float]:
    """Whether a value is a finite number, also one above LARGEST_NUMBER."""
    return is_number(value, sys.float_info.max)


def is_count(value: object) -> bool:
    return is_number(value) and isinstance(value, int) and value >= 0


def is_switch(value: object) -> bool:
    return isinstance(value, bool)


def is_text(value: object) -> bool:
    return isinstance(value, str)


def are_texts(value: object) -> bool:
    """Whether a value is a list of texts; it may be empty."""
    return isinstance(value, list) and all(map(is_text, value))


# Untrusted arrays


def read_arrays(path: Path, limit: int = LARGEST_ARRAYS, names: Collection[str] | None = None) -> dict[str, Array]:
    """The arrays of an .npz file, or those in `names`; raises if they take more than `limit` bytes or hold Python
    objects."""
    with open_zip(path) as archive:
        members = [m for m in archive.infolist() if names is None or m.filename.removesuffix(".npy") in names]
        if sum(member.file_size for member in members) > limit:
            raise ValueError(f"its arrays would take more than {limit / 1e9:.1f} GB of memory")
        return {member.filename.removesuffix(".npy"): _read_array(archive, member) for member in members}


@contextmanager
def open_zip(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open a zip file; errors of any type, from zipfile, zlib, ast or numpy, become ValueErrors."""
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
            raise ValueError("it is not an array")
        with archive.open(member) as file:
            read_array_header(file, member.file_size)
        with archive.open(member) as file:
            array: Array = np.lib.format.read_array(file, allow_pickle=False)
            return array
    except Exception as error:
        name = printable(member.filename.removesuffix(".npy"))
        raise ValueError(f"the array {name}: {str(error) or type(error).__name__}") from error


def read_array_header(file: Any, size: int) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, Fortran order and dtype of an array. Raises unless its size is that of the bytes that follow."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(file)
    if dtype.hasobject:
        raise ValueError("it holds Python objects")
    if not dtype.itemsize or math.prod(shape) * dtype.itemsize != size - file.tell():
        raise ValueError(f"its header claims {dtype} of shape {shape}, which does not fit its size in bytes")
    return shape, fortran, dtype
