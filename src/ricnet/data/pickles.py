"""Pickles from outside, read without the power to run code: arrays, numbers, texts and containers, nothing else.

Python's own readers can be told which functions a file may call, but not to keep within bounds: six bytes can make them
take gigabytes, or hash for years. So the instructions are listed by the standard library and carried out here, those
few that data files need. Even numpy is called only with what was checked: an array is made of bytes that were there.
"""

import io
import pickletools
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ricnet.errors import RicnetError

LARGEST = 1 << 28
"""Bytes of a pickle; a batch of CIFAR-10 has 31 million."""
LEGACY_HEADERS = 3
"""Pickles before the one that counts in a .pt file that is no zip archive: magic number, version, machine."""
_CODE = re.compile(r"[<>|=]?([?]|b1|[iu][1248]|f[248]|O8?|[SU][1-9]\d{0,3})")

_IGNORED = ("PROTO", "FRAME")
_SAID = {
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *("SHORT_BINBYTES", "BINBYTES", "BINBYTES8", "BYTEARRAY8"),
    *("UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"),
}
"""Instructions that bring their value along."""
_BYTES_OF_PYTHON_2 = ("STRING", "BINSTRING", "SHORT_BINSTRING")
_SINGLE: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
    "EMPTY_TUPLE": tuple,
}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_PUTS, _GETS = ("PUT", "BINPUT", "LONG_BINPUT"), ("GET", "BINGET", "LONG_BINGET")


class _Refused(Exception):
    """A name that no data file needs."""


class _Type:
    """In place of numpy's dtype. Of its state only the order of the bytes is taken; plain types have no more."""

    def __init__(self, code: str | bytes, *_: object) -> None:
        text = code.decode("ascii") if isinstance(code, bytes) else code
        if not isinstance(text, str) or not _CODE.fullmatch(text):
            raise ValueError("it has arrays of a strange type")
        self.dtype = np.dtype(text)

    def build(self, state: Any) -> None:
        if state[1] in ("<", ">", b"<", b">"):
            self.dtype = self.dtype.newbyteorder("<" if state[1] in ("<", b"<") else ">")


def _new_array(*_: object) -> np.ndarray[Any, np.dtype[Any]]:
    """Empty, whatever the file says: its content comes later."""
    return np.empty(0, np.uint8)


def _array_of(content: Any, kind: _Type, shape: Any, order: Any) -> np.ndarray[Any, np.dtype[Any]]:
    if kind.dtype.hasobject:
        array = np.empty(len(content), dtype=object)
        array[:] = content
    else:
        array = np.frombuffer(bytes(content) if isinstance(content, bytearray) else content, kind.dtype)
    return array.reshape(shape, order="F" if order in ("F", b"F", True) else "C")


def _scalar(kind: _Type, content: bytes) -> Any:
    return np.frombuffer(content, kind.dtype, count=1)[0]


def _encode(text: str, encoding: str) -> bytes:
    """How Python 3 writes bytes in protocol 2; other codecs have no place in a data file."""
    if encoding != "latin1":
        raise _Refused(f"the codec {encoding!r}")
    return text.encode("latin1")


def _no_bytes() -> bytes:
    """How it writes none."""
    return b""


_ALLOWED: dict[str, Any] = {"numpy ndarray": None, "numpy dtype": _Type, "_codecs encode": _encode}
_ALLOWED["__builtin__ bytes"] = _no_bytes
for _core in ("numpy.core", "numpy._core"):
    _ALLOWED[f"{_core}.multiarray _reconstruct"] = _new_array
    _ALLOWED[f"{_core}.multiarray scalar"] = _scalar
    _ALLOWED[f"{_core}.numeric _frombuffer"] = _array_of


class _Machine:
    """A stack, the places marked on it, and what is to be used again."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def run(self, file: io.BytesIO) -> Any:
        for opcode, argument, _ in pickletools.genops(file):
            self._step(opcode.name, argument)
        return self.stack.pop()

    def _step(self, name: str, argument: Any) -> None:
        if name in _SAID:
            self.stack.append(argument)
        elif name in _BYTES_OF_PYTHON_2:
            self.stack.append(argument.encode("latin1"))
        elif name in _SINGLE:
            self.stack.append(_SINGLE[name]())
        elif name in _PUTS or name == "MEMOIZE":
            self.memo[len(self.memo) if name == "MEMOIZE" else argument] = self.stack[-1]
        elif name in _GETS:
            self.stack.append(self.memo[argument])
        elif name in _TUPLES:
            self.stack.append(tuple(self._take(len(self.stack) - _TUPLES[name])))
        elif name == "MARK":
            self.marks.append(len(self.stack))
        elif name not in (*_IGNORED, "STOP"):
            self._combine(name, argument)

    def _combine(self, name: str, argument: Any) -> None:
        stack = self.stack
        match name:
            case "TUPLE" | "LIST":
                items = self._take(self.marks.pop())
                stack.append(tuple(items) if name == "TUPLE" else items)
            case "APPEND" | "APPENDS":
                items = self._take(len(stack) - 1 if name == "APPEND" else self.marks.pop())
                _require(stack[-1], list).extend(items)
            case "DICT":
                stack.append(_pairs(self._take(self.marks.pop())))
            case "SETITEM" | "SETITEMS":
                items = self._take(len(stack) - 2 if name == "SETITEM" else self.marks.pop())
                _require(stack[-1], dict).update(_pairs(items))
            case "GLOBAL":
                stack.append(_find(argument))
            case "STACK_GLOBAL":
                stack.append(_find(" ".join(self._take(len(stack) - 2))))
            case "REDUCE":
                function, arguments = self._take(len(stack) - 2)
                stack.append(function(*_require(arguments, tuple)))
            case "BUILD":
                _build(stack[-2], stack.pop())
            case _:
                raise _Refused(f"the instruction {name}")

    def _take(self, start: int) -> list[Any]:
        if not 0 <= start <= len(self.stack):
            raise ValueError("its stack is empty")
        taken = self.stack[start:]
        del self.stack[start:]
        return taken


def _require(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"it has a {type(value).__name__} where a {kind.__name__} belongs")
    return value


def _pairs(items: list[Any]) -> dict[str | bytes, Any]:
    """Keys are texts: a tuple of tuples of tuples can take forever to hash."""
    keys = items[::2]
    if not all(isinstance(key, str | bytes) for key in keys):
        raise ValueError("it has a dictionary whose keys are no texts")
    return dict(zip(keys, items[1::2], strict=True))


def _find(name: str) -> Any:
    if name not in _ALLOWED:
        raise _Refused(name.replace(" ", "."))
    return _ALLOWED[name]


def _build(target: Any, state: Any) -> None:
    if isinstance(target, _Type):
        target.build(state)
        return
    _, shape, kind, fortran, content = state
    array = np.ascontiguousarray(_array_of(content, kind, shape, fortran))
    held = array.ravel().tolist() if array.dtype.hasobject else array.tobytes()
    _require(target, np.ndarray).__setstate__((1, tuple(shape), array.dtype, False, held))


def read_pickle(path: Path) -> Any:
    """Python 2's strings come back as bytes."""
    return _unpickle(_content(path), path)


def read_npy_object(path: Path) -> Any:
    """The one object that `np.save` wrapped into an array without dimensions."""
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
    """What `torch.save` wrote of numpy's arrays; tensors are not among what data sets come in."""
    file = _content(path)
    if file.getvalue().startswith(b"PK"):
        return _unpickle(_pickle_in_zip(file, path), path)
    for _ in range(LEGACY_HEADERS):
        _unpickle(file, path)
    return _unpickle(file, path)


def _content(path: Path) -> io.BytesIO:
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST + 1)
    except OSError as error:
        raise RicnetError(f"{path} cannot be read ({error.strerror}).") from error
    if len(content) > LARGEST:
        raise RicnetError(f"{path} is larger than {LARGEST / 1e6:.0f} MB, as no data file of its kind is.")
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
        return _Machine().run(file)
    except _Refused as error:
        raise RicnetError(
            f"{path} asks for {error}, which no data file needs, so it was not loaded; get it from a source you trust."
        ) from error
    except Exception as error:  # arbitrary bytes can fail in any way
        raise RicnetError(f"{path} is damaged or no pickle ({error}); put a fresh copy in its place.") from error
