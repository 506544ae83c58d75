"""Pickles from outside, read without the power to run code: arrays, numbers, texts and containers, nothing else."""

import pickle
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from ricnet.errors import RicnetError

# Asked from numpy itself, as these functions moved between its versions.
_RECONSTRUCT = np.empty(0).__reduce__()[0]
_SCALAR = np.int64(0).__reduce__()[0]
_FROM_BUFFER = np.empty(1).__reduce_ex__(5)[0]


def _encode(text: str, encoding: str) -> bytes:
    """How Python 3 writes bytes in protocol 2; other codecs have no place in a data file."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"codec {encoding}")
    return text.encode("latin1")


_ALLOWED: dict[str, Any] = {"numpy.ndarray": np.ndarray, "numpy.dtype": np.dtype, "_codecs.encode": _encode}
for _core in ("numpy.core", "numpy._core"):
    _ALLOWED[f"{_core}.multiarray._reconstruct"] = _RECONSTRUCT
    _ALLOWED[f"{_core}.multiarray.scalar"] = _SCALAR
    _ALLOWED[f"{_core}.numeric._frombuffer"] = _FROM_BUFFER

_TORCH_ALLOWED: list[Any] = [
    np.ndarray,
    np.dtype,
    *{type(np.dtype(code)) for code in "bBhHiIlLqQ"},
    (_RECONSTRUCT, "numpy.core.multiarray._reconstruct"),
    (_RECONSTRUCT, "numpy._core.multiarray._reconstruct"),
]


class _Refused(pickle.UnpicklingError):
    pass


class _RestrictedUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if f"{module}.{name}" not in _ALLOWED:
            raise _Refused(f"{module}.{name}")
        return _ALLOWED[f"{module}.{name}"]


def read_pickle(path: Path) -> Any:
    """Python 2's strings come back as bytes."""
    with path.open("rb") as file:
        return _unpickle(file, path)


def read_npy_object(path: Path) -> Any:
    """The one object that `np.save` wrapped into an array without dimensions."""
    with path.open("rb") as file:
        try:
            np.lib.format.read_magic(file)
            np.lib.format.read_array_header_1_0(file)
        except (ValueError, EOFError) as error:
            raise RicnetError(f"{path} is not an .npy file or is cut off; put a fresh copy in its place.") from error
        array = _unpickle(file, path)
    if not isinstance(array, np.ndarray) or array.shape != ():
        raise RicnetError(f"{path} does not hold one object, as `np.save` writes it; put a fresh copy in its place.")
    return array.item()


def read_pt(path: Path) -> Any:
    try:
        with torch.serialization.safe_globals(_TORCH_ALLOWED):
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file can fail in any way
        raise RicnetError(
            f"{path} is damaged or holds more than arrays, so it was not loaded; put a fresh copy in its place."
        ) from error


def _unpickle(file: IO[bytes], path: Path) -> Any:
    try:
        return _RestrictedUnpickler(file, encoding="bytes").load()
    except _Refused as error:
        raise RicnetError(
            f"{path} asks for {error}, which no data file needs, so it was not loaded; get it from a source you trust."
        ) from error
    except Exception as error:  # arbitrary bytes can fail in any way
        raise RicnetError(f"{path} is damaged or no pickle ({error}); put a fresh copy in its place.") from error
