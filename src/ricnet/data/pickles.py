"""Restricted unpickler for data files: arrays, numbers, texts and containers, no code.

Official CIFAR files are pickles, and unpacked ones have no published checksum. So only functions of this module can be
called (`find_class`), and only the few instructions that data files need are allowed. It extends the unpickler written
in Python: the one in C allocates gigabytes if six bytes ask for them.
"""

import io
import pickle
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ricnet.errors import RicnetError
from ricnet.io import Array, opened

LARGEST = 1 << 28
"""Maximum bytes of a pickle; a batch of CIFAR-10 has 31 million."""
LEGACY_HEADERS = 3
"""Pickles before the data in a .pt file that is no zip archive: magic number, version, machine."""
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
            raise ValueError("it has arrays of a strange type")
        self.dtype = np.dtype(text)

    def set_state(self, state: Any) -> None:
        if state[1] in ("<", ">", b"<", b">"):
            self.dtype = self.dtype.newbyteorder("<" if state[1] in ("<", b"<") else ">")


def _new_array(*_: object) -> Array:
    """Empty, whatever size the file claims: `load_build` sets the content."""
    return np.empty(0, np.uint8)


def _array_of(content: Any, kind: _Dtype, shape: Any, order: Any) -> Array:
    """An array of the bytes in the file, never of a size that it claims."""
    if kind.dtype.hasobject:
        array = np.empty(len(content), dtype=object)
        array[:] = content
    else:
        array = np.frombuffer(bytes(content) if isinstance(content, bytearray) else content, kind.dtype)
    return array.reshape(shape, order="F" if order in ("F", b"F", True) else "C")


def _scalar(kind: _Dtype, content: bytes) -> Any:
    return np.frombuffer(content, kind.dtype, count=1)[0]


def _encode(text: str, encoding: str) -> bytes:
    """Protocol 2 of Python 3 writes bytes as a call of this function; other codecs are refused."""
    if encoding != "latin1":
        raise _Refused(f"the codec {encoding!r}")
    return text.encode("latin1")


def _no_bytes() -> bytes:
    """Protocol 2 of Python 3 writes b"" as a call of this function."""
    return b""


_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): None,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _encode,
    ("__builtin__", "bytes"): _no_bytes,
}
for _core in ("numpy.core", "numpy._core"):
    _ALLOWED[f"{_core}.multiarray", "_reconstruct"] = _new_array
    _ALLOWED[f"{_core}.multiarray", "scalar"] = _scalar
    _ALLOWED[f"{_core}.numeric", "_frombuffer"] = _array_of


class _TextKeys(dict[str | bytes, Any]):
    """A dictionary with texts as keys: nested tuples can take forever to hash."""

    def __setitem__(self, key: Any, value: Any) -> None:
        if not isinstance(key, str | bytes):
            raise ValueError("it has a dictionary whose keys are no texts")
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
    if file.getvalue().startswith(b"PK"):
        return _unpickle(_pickle_in_zip(file, path), path)
    for _ in range(LEGACY_HEADERS):
        _unpickle(file, path)
    return _unpickle(file, path)


def _content(path: Path) -> io.BytesIO:
    with opened(path) as file:
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise RicnetError(
            f"{path} is larger than {LARGEST / 1e6:.0f} MB, the maximum for its kind; put a fresh copy in its place."
        )
    return io.BytesIO(content)


def _pickle_in_zip(file: io.BytesIO, path: Path) -> io.BytesIO:
    try:
        with zipfile.ZipFile(file) as archive:
            name = next(name for name in archive.namelist() if name.endswith("/data.pkl"))
            with archive.open(name) as member:
                return io.BytesIO(member.read(LARGEST))
    except Exception as error:  # arbitrary bytes can fail in any way
        raise RicnetError(f"{path} is damaged; put a fresh copy in its place.") from error


def _unpickle(file: io.BytesIO, path: Path) -> Any:
    try:
        return _Unpickler(file, encoding="bytes").load()
    except _Refused as error:
        raise RicnetError(
            f"{path} asks for {error}, which no data file needs, so it was not loaded; get it from a source you trust."
        ) from error
    except Exception as error:  # arbitrary bytes can fail in any way
        raise RicnetError(f"{path} is damaged or no pickle ({error}); put a fresh copy in its place.") from error
