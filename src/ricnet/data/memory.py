"""Data that does not fit into memory: rows are written once to a file on the disk, split by split, and memory-mapped,
so that processes share the pages they read."""

import hashlib
import json
import math
import os
import shutil
import struct
import zipfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int64, Num
from rich.console import Console
from rich.progress import track
from torch import Tensor

from ricnet.data.dataset import Dataset, Split
from ricnet.errors import RicnetError, setting
from ricnet.io import Array, open_zip, read_array_header, replace_file

CHUNK = 1024
"""Rows that are read and written at once."""
LOCAL_HEADER = 30
"""Bytes of the header before a member of a zip file, without its name and extra field, whose lengths come last."""

Chunk = Callable[[list[int]], tuple[Num[Tensor, "n ..."], dict[int, str]]]
"""Reads rows by their numbers: returns the readable ones in order, and for each other row what is wrong with it."""


# Rows in a packed file


class Damaged(RicnetError):
    """Some rows cannot be read."""

    def __init__(self, rows: dict[int, str]) -> None:
        super().__init__(f"{len(rows)} rows cannot be read: {next(iter(rows.values()))}")
        self.rows = rows
        """What is wrong with each, by row number."""


def pack_rows(
    numbered: Dataset, read: Chunk, row_shape: tuple[int, ...], dtype: torch.dtype, what: object, folder: Path
) -> Dataset:
    """Replace row numbers, the inputs of a data set, by rows that are mapped from a file in `folder`.

    `what` identifies the rows; the file is written once for each. Unreadable rows are stored too and raise `Damaged`:
    the caller leaves them out and splits again.
    """
    splits = (numbered.train, numbered.val, numbered.test)
    order = torch.cat([split.inputs for split in splits])
    key = hashlib.sha256(json.dumps([what, row_shape, str(dtype)]).encode() + order.numpy().tobytes()).hexdigest()[:24]
    path, damaged = folder / f"{key}.rows", folder / f"{key}.damaged"
    row_bytes = math.prod(row_shape) * dtype.itemsize
    if not damaged.is_file() and not (path.is_file() and path.stat().st_size == len(order) * row_bytes):
        _write(path, damaged, order, read, row_bytes)
    if damaged.is_file():
        raise Damaged({int(row): text for row, text in json.loads(damaged.read_text("utf-8")).items()})
    rows = map_rows(path, row_shape, dtype).split([len(split) for split in splits])
    train, val, test = (Split(own, split.labels) for own, split in zip(rows, splits, strict=True))
    return replace(numbered, train=train, val=val, test=test)


def map_rows(path: Path, row_shape: tuple[int, ...], dtype: torch.dtype) -> Num[Tensor, "n ..."]:
    size = path.stat().st_size // dtype.itemsize
    return torch.from_file(str(path), shared=False, size=size, dtype=dtype).view(-1, *row_shape)


def _write(path: Path, damaged: Path, order: Int64[Tensor, "n"], read: Chunk, row_bytes: int) -> None:
    """Write the rows, or the list of damaged ones, to a draft that is renamed, so that a file is always complete."""
    draft = path.with_name(f".{path.stem}.{os.getpid()}.draft")
    broken: dict[int, str] = {}
    console = Console(stderr=True)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _require_space(path.parent, len(order) * row_bytes)
        with draft.open("wb") as file:
            chunks = list(order.split(CHUNK))
            for some in track(chunks, "writing data to the disk", console=console, disable=not console.is_terminal):
                rows, unread = read(some.tolist())
                file.write(rows.numpy().tobytes())
                broken |= unread
        if broken:
            draft.write_text(json.dumps(broken), "utf-8")
        replace_file(draft, damaged if broken else path)
    except OSError as error:
        raise RicnetError(
            f"{path.parent} cannot be written ({error.strerror or error}), and the data does not fit into memory; "
            f"name another folder with {setting('data_dir')}."
        ) from error
    finally:
        with suppress(OSError):
            draft.unlink()


def _require_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise RicnetError(
            f"the data does not fit into memory and needs {needed / 1e9:.1f} GB on the disk, but {folder} has "
            f"{free / 1e9:.1f} GB left; name another folder with {setting('data_dir')}, or lower "
            f"{setting('resolution')}."
        )


# Arrays mapped from an .npz file


def map_array(path: Path, name: str) -> Array:
    """Memory-map an array of numbers as `numpy.savez` writes it; a compressed array cannot be mapped."""
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
    with path.open("rb") as file:
        file.seek(member.header_offset)
        name_bytes, extra = struct.unpack("<HH", file.read(LOCAL_HEADER)[-4:])
    start = member.header_offset + LOCAL_HEADER + name_bytes + extra + header
    return np.memmap(path, dtype, "c", start, shape, "F" if fortran else "C")
