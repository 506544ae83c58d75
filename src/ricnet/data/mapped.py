"""An array of an .npz file as it lies in the file, mapped into memory instead of read."""

import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from ricnet.errors import RicnetError
from ricnet.io import open_zip, read_array_header

LOCAL_HEADER = 30
"""Bytes of what stands before a member of a zip file, less its name and its extra field, whose lengths are the last."""


def stored_bytes(path: Path) -> dict[str, int]:
    """How large the arrays of an .npz file are, by name."""
    with open_zip(path) as archive:
        return {info.filename.removesuffix(".npy"): info.file_size for info in archive.infolist()}


def map_array(path: Path, name: str) -> np.ndarray[Any, np.dtype[Any]]:
    """Only of plain numbers, and as numpy.savez writes them: a compressed array can only be read as a whole."""
    with open_zip(path) as archive:
        member = archive.getinfo(f"{name}.npy")
        if member.compress_type != zipfile.ZIP_STORED:
            raise RicnetError(
                f"{path}: {name} does not fit into memory, and compressed it cannot be read in parts; write it with "
                "numpy.savez instead of numpy.savez_compressed."
            )
        with archive.open(member) as file:
            shape, fortran, dtype = read_array_header(file, member.file_size)
            header = file.tell()
    start = _start(path, member.header_offset) + header
    return np.memmap(path, dtype, "c", start, shape, "F" if fortran else "C")


def _start(path: Path, offset: int) -> int:
    with path.open("rb") as file:
        file.seek(offset)
        name, extra = struct.unpack("<HH", file.read(LOCAL_HEADER)[-4:])
    return offset + LOCAL_HEADER + int(name) + int(extra)
