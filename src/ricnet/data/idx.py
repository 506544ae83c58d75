"""Fashion-MNIST's idx files: a magic number, the sizes, then the bytes; with or without gzip."""

import gzip
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

import torch
from jaxtyping import UInt8
from torch import Tensor

from ricnet.data.dataset import Split
from ricnet.errors import RicnetError

LARGEST = 1 << 28
"""Bytes of such a file, unpacked; the images of Fashion-MNIST have 47 million."""


def read_fashion_mnist(paths: Sequence[Path], _resolution: int | None) -> tuple[Split, Split]:
    train_images, train_labels, test_images, test_labels = paths
    return _read_half(train_images, train_labels), _read_half(test_images, test_labels)


def _read_half(images: Path, labels: Path) -> Split:
    pixels, classes = read_idx(images, axes=3), read_idx(labels, axes=1)
    if len(pixels) != len(classes) or int(classes.max()) > 9:
        raise RicnetError(
            f"{images} has {len(pixels)} images but {labels} has {len(classes)} labels up to {int(classes.max())}, "
            "so they do not belong together; get both again with `ric data get fashion-mnist`."
        )
    return Split(pixels[:, None], classes.long())


def read_idx(path: Path, axes: int) -> UInt8[Tensor, "..."]:
    try:
        content = _content(path)
        magic, *shape = struct.unpack_from(f">{1 + axes}I", content)
        if magic != 0x0800 + axes:  # 08: unsigned bytes
            raise ValueError(f"its magic number is {magic:#010x}, not {0x0800 + axes:#010x}")
        values = torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=4 * (1 + axes))
        return values.reshape(shape)
    except (OSError, EOFError, zlib.error, struct.error, ValueError, RuntimeError) as error:
        raise RicnetError(f"{path} is no whole idx file ({error}); put a fresh copy in its place.") from error


def _content(path: Path) -> bytes:
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise ValueError(f"it has more than {LARGEST / 1e6:.0f} MB")
    return content
