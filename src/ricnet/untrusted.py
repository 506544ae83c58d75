"""Files from strangers, read within bounds. Nothing in them is executed, and whatever is wrong is a ValueError.

A few bytes can claim to be gigabytes: brackets within brackets, the shape in an array's header, an archive of zeros.
So sizes are held against a limit before memory is taken for them. No part of this needs torch.
"""

import json
import math
import zipfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ricnet.errors import RicnetError

LARGEST_TEXT = 1 << 26
"""Bytes of a JSON file; a run of a thousand epochs writes a fiftieth of it."""
LARGEST_ARRAYS = 1 << 30
"""Bytes of all arrays in a file that a run wrote."""
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # numpy writes no others, and theirs take memory as they like


def printable(text: str) -> str:
    """Names come from strangers' files, and a terminal obeys some characters instead of showing them."""
    return "".join(c if c.isprintable() or c == "\n" else "�" for c in text)


def read_text(path: Path) -> str:
    with path.open("rb") as file:
        content = file.read(LARGEST_TEXT + 1)
    if len(content) > LARGEST_TEXT:
        raise ValueError(f"it is larger than {LARGEST_TEXT / 1e6:.0f} MB")
    return content.decode("utf-8")


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


def read_arrays(
    path: Path, limit: int = LARGEST_ARRAYS, names: Collection[str] | None = None
) -> dict[str, np.ndarray[Any, np.dtype[Any]]]:
    """All arrays of an .npz file or those named, which must be plain ones and take no more than `limit` bytes
    together."""
    with zip_in_words(path) as archive:
        members = [m for m in archive.infolist() if names is None or m.filename.removesuffix(".npy") in names]
        if sum(member.file_size for member in members) > limit:
            raise ValueError(f"its arrays would take more than {limit / 1e9:.1f} GB of memory")
        return {member.filename.removesuffix(".npy"): _read_array(archive, member) for member in members}


@contextmanager
def zip_in_words(path: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except (OSError, ValueError, RicnetError):
        raise
    except Exception as error:  # zip, zlib, ast and numpy each complain in their own way
        raise ValueError(str(error) or type(error).__name__) from error


def _read_array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray[Any, np.dtype[Any]]:
    try:
        if not member.filename.endswith(".npy") or member.compress_type not in _METHODS:
            raise ValueError("it is no array")
        with archive.open(member) as file:
            read_header(file, member.file_size)
        with archive.open(member) as file:
            array: np.ndarray[Any, np.dtype[Any]] = np.lib.format.read_array(file, allow_pickle=False)
            return array
    except Exception as error:
        name = printable(member.filename.removesuffix(".npy"))
        raise ValueError(f"the array {name}: {str(error) or type(error).__name__}") from error


def read_header(file: Any, size: int) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether columns come first, and kind of an array, which must take exactly the bytes that follow."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(file)
    if dtype.hasobject:
        raise ValueError("it holds Python objects")
    if not dtype.itemsize or math.prod(shape) * dtype.itemsize != size - file.tell():
        raise ValueError(f"its header claims {dtype} of shape {shape}, which is not what follows")
    return shape, fortran, dtype
