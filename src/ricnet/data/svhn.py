"""Street View House Numbers, the cropped 32 × 32 form, in MATLAB files."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import scipy.io
import torch

from ricnet.data.dataset import Split
from ricnet.errors import RicnetError

PLAIN = frozenset(
    {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)} | {"single", "double", "logical"}
)
MOST_ROWS = 1_000_000
"""The extra part of SVHN has half as many."""


def read_svhn(paths: Sequence[Path], _resolution: int | None) -> tuple[Split, Split]:
    train, test = paths
    return _read_half(train), _read_half(test)


def _check_header(path: Path) -> None:
    """Arrays only: scipy follows cells within cells until the program's stack is full, and that ends it."""
    for name, shape, kind in scipy.io.whosmat(path):
        if name in ("X", "y") and (kind not in PLAIN or math.prod(shape) > 3 * 32 * 32 * MOST_ROWS):
            raise ValueError(f"{name} is {kind} of shape {shape}")


def _read_half(path: Path) -> Split:
    try:
        _check_header(path)
        content = scipy.io.loadmat(path, variable_names=["X", "y"])
        pixels, labels = content["X"], content["y"].ravel()
        if pixels.dtype != np.uint8 or pixels.shape != (32, 32, 3, len(labels)):
            raise ValueError(f"X is {pixels.dtype} of shape {pixels.shape}")
        if labels.min() < 1 or labels.max() > 10:
            raise ValueError(f"labels run from {labels.min()} to {labels.max()}")
    except Exception as error:  # a damaged file can fail in any way
        raise RicnetError(f"{path} is no whole SVHN file ({error}); put a fresh copy in its place.") from error
    images = torch.from_numpy(np.ascontiguousarray(pixels.transpose(3, 2, 0, 1)))
    return Split(images, torch.from_numpy(labels.astype(np.int64) % 10))  # 10 stands for the digit 0
