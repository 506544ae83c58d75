"""CIFAR-10 in its official Python form, and the human labels of CIFAR-10N."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64

from ricnet.data.archives import unpack
from ricnet.data.dataset import Split
from ricnet.data.pickles import read_npy_object, read_pickle, read_pt
from ricnet.errors import RicnetError

FOLDER = "cifar-10-batches-py"
_TRAIN = [f"data_batch_{i}" for i in range(1, 6)]


def read_cifar10(paths: Sequence[Path], _resolution: int | None) -> tuple[Split, Split]:
    folder = paths[0] if paths[0].is_dir() else unpack(paths[0], FOLDER)
    train = [_read_batch(folder / name) for name in _TRAIN]
    inputs = torch.cat([batch.inputs for batch in train])
    labels = torch.cat([batch.labels for batch in train])
    return Split(inputs, labels), _read_batch(folder / "test_batch")


def read_cifar10n(key: str) -> Callable[[Sequence[Path], int | None], tuple[Split, Split]]:
    """A reader whose training labels are those of `key`; the test labels stay clean."""

    def read(paths: Sequence[Path], resolution: int | None) -> tuple[Split, Split]:
        images, human = paths
        train, test = read_cifar10([images], resolution)
        noisy, clean = _read_human_labels(human, [key, "clean_label"])
        if not np.array_equal(clean, train.labels.numpy()):
            raise RicnetError(
                f"{human} is not in the order of the images in {images}: its clean_label differs from their labels; "
                "use the authors' CIFAR-10_human.pt (CIFAR-10_human_ordered.npy follows TensorFlow's order)."
            )
        return Split(train.inputs, torch.from_numpy(noisy)), test

    return read


def _read_batch(path: Path) -> Split:
    if not path.is_file():
        raise RicnetError(f"{path} is missing; unpack cifar-10-python.tar.gz again.")
    batch = _text_keys(read_pickle(path), path)
    pixels, labels = batch.get("data"), _checked(batch.get("labels"), path)
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape != (len(labels), 3 * 32 * 32):
        what = f"{pixels.dtype} of shape {pixels.shape}" if isinstance(pixels, np.ndarray) else type(pixels).__name__
        raise RicnetError(f"{path} is no batch of CIFAR-10: its data are {what} beside {len(labels)} labels.")
    images = torch.from_numpy(pixels.reshape(-1, 3, 32, 32).copy())
    return Split(images, torch.from_numpy(labels))


def _read_human_labels(path: Path, keys: Sequence[str]) -> list[Int64[np.ndarray, "n"]]:
    table = _text_keys(read_pt(path) if path.suffix == ".pt" else read_npy_object(path), path)
    missing = [key for key in keys if key not in table]
    if missing:
        raise RicnetError(f"{path} lacks {missing[0]}, so it is not CIFAR-10N; use the authors' CIFAR-10_human.pt.")
    return [_checked(table[key], path) for key in keys]


def _text_keys(table: Any, path: Path) -> dict[str, Any]:
    if not isinstance(table, dict):
        raise RicnetError(
            f"{path} holds a {type(table).__name__} where a dictionary belongs; put a fresh copy in its place."
        )
    return {key.decode("latin1") if isinstance(key, bytes) else str(key): value for key, value in table.items()}


def _checked(labels: Any, path: Path) -> Int64[np.ndarray, "n"]:
    if isinstance(labels, list) and all(type(label) is int and 0 <= label <= 9 for label in labels):
        labels = np.array(labels, dtype=np.int64)  # only now: lists of lists of the same list would fill any memory
    plain = isinstance(labels, np.ndarray) and labels.ndim == 1 and labels.dtype.kind in "iu" and len(labels) > 0
    if not plain or labels.min() < 0 or labels.max() > 9:
        raise RicnetError(f"{path} has labels that are not whole numbers from 0 to 9; put a fresh copy in its place.")
    return np.asarray(labels.astype(np.int64))
