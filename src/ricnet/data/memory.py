"""What fits into memory: all data on the host, a batch and what the network makes of it on the device. Data that does
not fit lies in one file on the disk, paged in when used.

Pictures are decoded once and written in the order of the splits, so that each split is one stretch of the file. The
file is mapped into memory: processes of one machine share the pages they read, and those not needed cost nothing.
"""

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
from torch import Tensor, nn

from ricnet.data.dataset import Dataset, Split
from ricnet.errors import RicnetError, setting
from ricnet.io import Array, open_zip, read_array_header, replace_file

SHARE = 0.5
"""Of the memory that is free, that data or a batch may take; the rest is for weights, copies and other programs."""
FEWEST = 8
KEPT = 2
"""Bytes in use at once for each byte of the encoder's outputs. Measured on a CPU: 0.8 to 1.3 for ResNets;
3.5 for the smallest encoder, whose batches are small beside any memory."""
CHUNK = 1024
"""Rows that are made and written at once."""
LOCAL_HEADER = 30
"""Bytes of what stands before a member of a zip file, less its name and its extra field, whose lengths are the last."""

Chunk = Callable[[list[int]], tuple[Num[Tensor, "n ..."], dict[int, str]]]
"""From numbers of rows to those that can be read, in their order, and what is wrong with each of the others."""


def free_bytes(device: torch.device) -> int:
    """An estimate; where the system does not say what is free, half of all there is, or of 8 GiB."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 2**33
        return total // 2


def fits_memory(size: int) -> bool:
    """Whether so many bytes of data may be held by every process that torchrun has started on this machine."""
    return size <= SHARE * free_bytes(torch.device("cpu")) / int(os.environ.get("LOCAL_WORLD_SIZE", 1))


def fitting_batch(encoder: nn.Module, example: Num[Tensor, "1 ..."], batch_size: int, free: int) -> int:
    """`batch_size`, halved until an update fits; but never so small that its statistics mean nothing."""
    needed = KEPT * activation_bytes(encoder, example)
    while batch_size >= 2 * FEWEST and batch_size * needed > SHARE * free:
        batch_size //= 2
    return batch_size


@torch.no_grad()
def activation_bytes(encoder: nn.Module, example: Num[Tensor, "1 ..."]) -> int:
    """What all layers of a network make of one input."""
    total = 0

    def count(_module: nn.Module, _inputs: object, output: object) -> None:
        nonlocal total
        if isinstance(output, Tensor):
            total += output.numel() * output.element_size()

    leaves = [module for module in encoder.modules() if not any(module.children())]
    hooks = [module.register_forward_hook(count) for module in leaves]
    was_training = encoder.training
    try:
        encoder.eval()(example)
    finally:
        encoder.train(was_training)
        for hook in hooks:
            hook.remove()
    return total


# Rows in a file of ours


class Damaged(RicnetError):
    """Some rows cannot be read."""

    def __init__(self, rows: dict[int, str]) -> None:
        super().__init__(f"{len(rows)} rows cannot be read: {next(iter(rows.values()))}")
        self.rows = rows
        """By number, what is wrong with each."""


def pack_rows(
    numbered: Dataset, read: Chunk, row_shape: tuple[int, ...], dtype: torch.dtype, what: object, folder: Path
) -> Dataset:
    """A data set whose inputs are numbers of rows, with those rows in their place, from a file in `folder`.

    `what` tells the rows from all others, and the file is made only if that has not been done before. Which rows cannot
    be read is remembered in the same way: leaving them out is for the one who splits, as it changes every split.
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
    """The rows, or which of them are damaged; beside its place first: a file that is there is whole."""
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
            f"{path.parent} cannot take the data, which does not fit into memory ({error.strerror or error}); "
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


# An array of an .npz file as it lies in the file


def map_array(path: Path, name: str) -> Array:
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
    with path.open("rb") as file:
        file.seek(member.header_offset)
        name_bytes, extra = struct.unpack("<HH", file.read(LOCAL_HEADER)[-4:])
    start = member.header_offset + LOCAL_HEADER + name_bytes + extra + header
    return np.memmap(path, dtype, "c", start, shape, "F" if fortran else "C")
