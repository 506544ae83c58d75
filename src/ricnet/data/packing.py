"""Data larger than memory: rows in the form in which they are learned, in one file on the disk, paged in when used.

Pictures are decoded once and written in the order of the splits, so that each split is one stretch of the file. The
file is mapped into memory: processes of one machine share the pages they read, and those not needed cost nothing.
"""

import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int64, Num
from rich.console import Console
from rich.progress import track
from torch import Tensor

from ricnet.data.dataset import Dataset, Split
from ricnet.data.memory import SHARE, free_bytes
from ricnet.errors import RicnetError

CHUNK = 1024
"""Rows that are made and written at once."""

Chunk = Callable[[list[int]], tuple[Num[Tensor, "n ..."], dict[int, str]]]
"""From numbers of rows to those that can be read, in their order, and what is wrong with each of the others."""


def fits_memory(size: int) -> bool:
    """Whether so many bytes of data may be held by every process that torchrun has started on this machine."""
    return size <= SHARE * free_bytes(torch.device("cpu")) / int(os.environ.get("LOCAL_WORLD_SIZE", 1))


def fill(
    numbered: Dataset, read: Chunk, row_shape: tuple[int, ...], dtype: torch.dtype, what: object, folder: Path
) -> tuple[Dataset, dict[int, str]]:
    """A data set whose inputs are numbers of rows, with those rows in their place, from a file in `folder`.

    `what` tells the rows from all others, and the file is made only if that has not been done before. Rows that cannot
    be read are left out; what is wrong with them is returned.
    """
    splits = (numbered.train, numbered.val, numbered.test)
    order = torch.cat([split.inputs for split in splits])
    key = hashlib.sha256(json.dumps([what, row_shape, str(dtype)]).encode() + order.numpy().tobytes()).hexdigest()[:24]
    path = folder / f"{key}.rows"
    if not path.is_file():
        _write(path, order, read, math.prod(row_shape) * dtype.itemsize)
    broken = {int(row): text for row, text in json.loads(path.with_suffix(".json").read_text("utf-8")).items()}
    rows = map_rows(path, row_shape, dtype)
    filled, start = [], 0
    for split in splits:
        whole = torch.tensor([row not in broken for row in split.inputs.tolist()])
        stop = start + int(whole.sum())
        filled.append(Split(rows[start:stop], split.labels[whole]))
        start = stop
    return replace(numbered, train=filled[0], val=filled[1], test=filled[2]), broken


def map_rows(path: Path, row_shape: tuple[int, ...], dtype: torch.dtype) -> Num[Tensor, "n ..."]:
    size = path.stat().st_size // dtype.itemsize
    return torch.from_file(str(path), shared=False, size=size, dtype=dtype).view(-1, *row_shape)


def _write(path: Path, order: Int64[Tensor, "n"], read: Chunk, row_bytes: int) -> None:
    """Beside its place first: a file that is there is whole."""
    draft = path.with_name(f".{path.stem}.{os.getpid()}.draft")
    broken: dict[int, str] = {}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _require_space(path.parent, len(order) * row_bytes)
        with draft.open("wb") as file:
            for some in _shown(order.split(CHUNK)):
                rows, damaged = read(some.tolist())
                file.write(rows.numpy().tobytes())
                broken |= damaged
        path.with_suffix(".json").write_text(json.dumps(broken), "utf-8")
        draft.replace(path)
    except OSError as error:
        raise RicnetError(
            f"{path.parent} cannot take the data, which does not fit into memory ({error.strerror or error}); "
            "name another folder with --data-dir."
        ) from error
    finally:
        with suppress(OSError):
            draft.unlink()


def _require_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise RicnetError(
            f"the data does not fit into memory and needs {needed / 1e9:.1f} GB on the disk, but {folder} has "
            f"{free / 1e9:.1f} GB left; name another folder with --data-dir, or lower --resolution."
        )


def _shown(chunks: Iterable[Any]) -> Iterable[Any]:
    console = Console(stderr=True)
    return track(list(chunks), "writing data to the disk", console=console, disable=not console.is_terminal)
