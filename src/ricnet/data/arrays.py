"""Arrays in an .npz file as data: tables of numbers, in which NaN is a missing value, or images."""

import struct
import sys
import zipfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from jaxtyping import Int32, Int64, Num
from torch import Tensor

from ricnet.data.batches import pack_rows
from ricnet.data.columns import Columns, encode_array, fit_array, reads_arrays
from ricnet.data.dataset import Augmentation, Dataset, GivenSplits, Split, small_crops
from ricnet.data.images import as_bytes
from ricnet.errors import RicnetError, listed
from ricnet.io import Array, open_zip, printable, read_array_header, read_arrays
from ricnet.machine import SHARE, fits_memory, free_bytes

_NUMBERS = "biuf"
_BLOCK = 4096  # rows that are checked at once
LOCAL_HEADER = 30
"""Bytes of the fixed part of the header of a zip member; the last four are the lengths of its name and extra field."""


def read_npz(path: Path, cache: Path, columns: Columns | None = None) -> GivenSplits:
    """`x`, `y`, or `x_train`, `y_train`, `x_test`, `y_test` and perhaps `x_val`, `y_val`; inputs that do not fit into
    memory come from a file in `cache`. `columns` are those of a model to be evaluated on the file."""
    suffixes = _find_parts(_sizes(path), path)
    arrays = _read_arrays(path, [f"{half}{suffix}" for suffix in suffixes for half in "xy"], map_large=True)
    found = {f"x{suffix}": arrays[f"x{suffix}"] for suffix in suffixes}
    inputs, augmentation, notes, fill = _prepare(found, path, cache, columns)
    labels, class_names = _read_labels({f"y{suffix}": arrays[f"y{suffix}"] for suffix in suffixes}, path)
    parts = {}
    for suffix in suffixes:
        x, y = inputs[f"x{suffix}"], labels[f"y{suffix}"]
        if len(x) != len(y):
            raise RicnetError(f"{path}: x{suffix} has {len(x)} rows but y{suffix} has {len(y)}; make them equal.")
        parts[suffix] = Split(x, y)
    return GivenSplits(
        parts[suffixes[0]], class_names, parts.get("_test"), parts.get("_val"), augmentation, notes, fill
    )


Fill = Callable[[Dataset], Dataset]
Prepared = tuple[dict[str, Num[Tensor, "n ..."]], Augmentation, tuple[str, ...], Fill | None]
"""Inputs of each array (their row numbers if `Fill` encodes or maps the rows later), and notes for the user."""


def _prepare(found: dict[str, Array], path: Path, cache: Path, columns: Columns | None) -> Prepared:
    counts = list(map(len, found.values()))
    numbers = dict(zip(found, torch.arange(sum(counts)).split(counts), strict=True))  # run on from array to array
    if any(isinstance(array, np.memmap) for array in found.values()):
        _check_large(found, path)
        [first, *_] = _read_inputs({name: array[:1] for name, array in found.items()}, path).values()
        note = f"The inputs are read from {cache}: they do not fit into memory."
        return numbers, small_crops(first.shape), (note,), partial(_fill, found, path, cache)
    inputs = _read_inputs(found, path)
    [first, *_] = inputs.values()
    gaps = sum(int(rows.isnan().any(1).sum()) for rows in inputs.values() if rows.ndim == 2)
    if first.ndim == 2 and columns is None and bool(first.isnan().all()):
        raise RicnetError(f"{path}: every value is missing (nan); give at least one column with numbers.")
    if gaps or reads_arrays(columns, first.shape[1:]):
        notes = (f"{gaps} of {sum(counts)} rows have missing values (NaN).",) * (gaps > 0)
        return numbers, Augmentation(), notes, partial(_encode, found, path, columns)
    return inputs, small_crops(first.shape), (), None


def _encode(arrays: dict[str, Array], path: Path, columns: Columns | None, numbered: Dataset) -> Dataset:
    """Replace row numbers by rows encoded by `columns`; if None, these are learned from the training rows."""
    rows = np.concatenate(list(arrays.values()))
    if columns is None or not reads_arrays(columns, rows.shape[1:]):
        if not len(numbered.train):
            _refuse_not_finite(rows, f"{path}: x")
        columns = fit_array(rows[numbered.train.inputs], f"{path}: x")
    train, val, test = (
        replace(split, inputs=_features(encode_array(columns, rows[split.inputs]), f"{path}: x"))
        for split in (numbered.train, numbered.val, numbered.test)
    )
    return replace(numbered, train=train, val=val, test=test, columns=columns)


def _check_large(arrays: dict[str, Array], path: Path) -> None:
    """Refuse arrays with invalid values. Rows are checked in blocks, because all of them do not fit into memory."""
    for name, array in arrays.items():
        what = f"{path}: {name}"
        _refuse_wrong_form(array, what)
        for row in range(0, len(array), _BLOCK):
            block = array[row : row + _BLOCK]
            _refuse_not_finite(block, what, row)
            if array.ndim == 2:
                _features(block, what, row)


def _fill(arrays: dict[str, Array], path: Path, cache: Path, numbered: Dataset) -> Dataset:
    scale, ends = _pixel_scale(arrays), np.cumsum(list(map(len, arrays.values())))

    def read(rows: list[int]) -> tuple[Num[Tensor, "n ..."], dict[int, str]]:
        pieces, numbers = [], np.array(rows)
        homes = np.searchsorted(
            ends, numbers, side="right"
        )  # index of the array of each row; rows of one array are adjacent
        for home in dict.fromkeys(homes.tolist()):
            name, array = list(arrays.items())[home]
            some = np.asarray(array[numbers[homes == home] - (ends[home] - len(array))])
            what = f"{path}: {name}"
            pieces.append(_features(some, what) if some.ndim == 2 else _pixels(some, scale, what))
        return torch.cat(pieces), {}

    first, _ = read([0])
    about = path.stat()
    what = [str(path.resolve()), about.st_size, about.st_mtime_ns]
    return pack_rows(numbered, read, tuple(first.shape[1:]), first.dtype, what, cache)


def read_npz_inputs(
    path: Path,
    input_shape: tuple[int, ...],
    kind: Literal["image", "features", "tokens"],
    columns: Columns | None = None,
) -> Num[Tensor, "n ..."]:
    """Inputs to predict: `x`, else `x_test`, else the only array there is. Rows of a table are encoded by the model's
    `columns`; those in the examples.npz of a run are encoded already."""
    names = _sizes(path).keys()
    only = list(names) if len(names) == 1 else []
    name = next((name for name in ("x", "x_test", *only) if name in names), None)
    if name is None:
        raise RicnetError(f"{path} holds {_found(names)}; give the array of inputs the name `x`.")
    arrays = _read_arrays(path, [name])
    if kind == "tokens":
        return _tokens(arrays[name], input_shape, f"{path}: {name}")
    inputs = _read_inputs(arrays, path)[name]
    if columns is not None and "halt_step" not in names and reads_arrays(columns, inputs.shape[1:]):
        return _features(encode_array(columns, arrays[name]), f"{path}: {name}")
    if kind == "features":
        _refuse_not_finite(arrays[name], f"{path}: {name}")
    if kind != ("image" if inputs.ndim == 4 else "features") or tuple(inputs.shape[1:]) != input_shape:
        raise RicnetError(
            f"{path}: the rows of {name} are of shape {tuple(inputs.shape[1:])}, "
            f"but the model was trained on {'images' if kind == 'image' else kind} of shape {input_shape}; "
            "give it rows of that shape."
        )
    return inputs


def _tokens(array: Array, input_shape: tuple[int, ...], what: str) -> Int32[Tensor, "n tokens"]:
    known = array.dtype.kind in "iu" and array.shape[1:] == input_shape and array.size > 0
    if not known or array.min() < 0 or array.max() > np.iinfo(np.int32).max:
        raise RicnetError(
            f"{what} does not hold {input_shape[0]} token ids per row, which the model reads; give texts."
        )
    return torch.from_numpy(array.astype(np.int32))


def _sizes(path: Path) -> dict[str, int]:
    """The bytes of every array by its name."""
    if not path.is_file():
        raise RicnetError(f"{path} does not exist; give the path of an .npz file.")
    with _in_words(path), open_zip(path) as archive:
        return {info.filename.removesuffix(".npy"): info.file_size for info in archive.infolist()}


def _read_arrays(path: Path, names: Collection[str], map_large: bool = False) -> dict[str, Array]:
    """With `map_large`, inputs that do not fit into memory are memory-mapped. Other arrays of the file are not read."""
    limit = int(SHARE * free_bytes(torch.device("cpu")))
    sizes = _sizes(path)
    with _in_words(path):
        large = map_large and not fits_memory(sum(sizes[name] for name in names))
        mapped = {name: map_array(path, name) for name in names if large and name.startswith("x")}
        return mapped | read_arrays(path, limit, set(names) - mapped.keys())


def map_array(path: Path, name: str) -> Array:
    """Memory-map an array of numbers as `numpy.savez` writes it; a compressed array cannot be mapped."""
    with open_zip(path) as archive:
        member = archive.getinfo(f"{name}.npy")
        if member.compress_type != zipfile.ZIP_STORED:
            raise RicnetError(
                f"{path}: {name} does not fit into memory, and a compressed array cannot be read in parts; write it "
                "with numpy.savez instead of numpy.savez_compressed."
            )
        with archive.open(member) as file:
            shape, fortran, dtype = read_array_header(file, member.file_size)
            header = file.tell()
    with path.open("rb") as file:
        file.seek(member.header_offset)
        name_bytes, extra = struct.unpack("<HH", file.read(LOCAL_HEADER)[-4:])
    start = member.header_offset + LOCAL_HEADER + name_bytes + extra + header
    return np.memmap(path, dtype, "c", start, shape, "F" if fortran else "C")


@contextmanager
def _in_words(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        raise RicnetError(
            f"{path} cannot be read ({error}); write plain arrays (no dtype=object) with numpy.savez(path, x=x, y=y)."
        ) from error


def _find_parts(arrays: Collection[str], path: Path) -> list[str]:
    """Suffixes of the parts in the file, the training part first."""
    if {"x", "y"} <= set(arrays):
        return [""]
    pair, four = ["x", "y"], ["x_train", "y_train", "x_test", "y_test"]
    if not set(four) <= set(arrays):
        meant = pair if set(pair) & set(arrays) else four
        missing = [name for name in meant if name not in arrays]
        raise RicnetError(
            f"{path} holds {_found(arrays)}; it must hold x and y, or {', '.join(four)} "
            f"(missing: {', '.join(missing)})."
        )
    halves = {"x_val", "y_val"} & set(arrays)
    if len(halves) == 1:
        raise RicnetError(f"{path} holds only {halves.pop()} of x_val and y_val; give both or neither.")
    return ["_train", "_test", *(["_val"] if halves else [])]


def _found(arrays: Collection[str]) -> str:
    return f"the arrays {listed([printable(name) for name in sorted(arrays)], 10)}" if arrays else "no arrays"


def _read_inputs(arrays: dict[str, Array], path: Path) -> dict[str, Num[Tensor, "n ..."]]:
    for name, array in arrays.items():
        _refuse_wrong_form(array, f"{path}: {name}")
        _refuse_not_finite(array, f"{path}: {name}", gaps=array.ndim == 2)
    if all(array.ndim == 2 for array in arrays.values()):
        tensors = {name: _features(array, f"{path}: {name}") for name, array in arrays.items()}
    else:
        scale = _pixel_scale(arrays)
        tensors = {name: _pixels(array, scale, f"{path}: {name}") for name, array in arrays.items()}
    if len({tensor.shape[1:] for tensor in tensors.values()}) > 1:
        shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        raise RicnetError(f"{path}: rows differ in shape between {shapes}; make them equal.")
    return tensors


def _refuse_wrong_form(array: Array, what: str) -> None:
    if array.dtype.kind not in _NUMBERS:
        raise RicnetError(f"{what} is of type {array.dtype}; it must hold numbers.")
    if array.ndim not in (2, 3, 4) or not array.size:
        raise RicnetError(
            f"{what} is of shape {array.shape}; it must be (rows, columns) for features "
            "or (rows, height, width[, channels]) for images, and not empty."
        )


def _refuse_not_finite(array: Array, what: str, offset: int = 0, gaps: bool = False) -> None:
    """`offset` is the number of the first row. With `gaps` NaN is a missing value."""
    finite = np.isfinite(array) | np.isnan(array) if gaps else np.isfinite(array)
    if finite.all():
        return
    first = np.unravel_index(finite.argmin(), array.shape)
    row, *place = (int(i) for i in first)
    column = f"column {place[0]}" if len(place) == 1 else f"position {tuple(place)}"
    raise RicnetError(
        f"{what} has {array[first]} in row {row + offset}, {column} (counted from 0); fill or remove such values."
    )


def _features(array: Array, what: str, offset: int = 0) -> Num[Tensor, "n d"]:
    with np.errstate(over="ignore"):
        single = array.astype(np.float32)
    _refuse_not_finite(single, f"{what}, in single precision,", offset, gaps=True)
    return torch.from_numpy(single)


def _pixel_scale(arrays: dict[str, Array]) -> float:
    """255 if real pixels are fractions of full brightness. One scale for all splits: a dark test set stays dark."""
    real = [array for array in arrays.values() if array.dtype.kind in "fb"]
    return 255.0 if real and max(array.max() for array in real) <= 1 else 1.0


def _pixels(array: Array, scale: float, what: str) -> Num[Tensor, "n c h w"]:
    try:
        pixels = as_bytes(array, scale if array.dtype.kind in "fb" else 1.0) if array.dtype != np.uint8 else array
    except ValueError as error:
        raise RicnetError(
            f"{what} of shape {array.shape} is read as images, but its values are not in 0..1 or 0..255; "
            "scale them, or flatten each row to (rows, columns) for features."
        ) from error
    return torch.from_numpy(_channels_first(pixels, what))


def _channels_first(pixels: Array, what: str) -> Array:
    """If both orders are possible, channels come first."""
    if pixels.ndim == 3:
        return np.ascontiguousarray(pixels[:, None])
    if pixels.ndim == 4 and pixels.shape[1] in (1, 3):
        return np.ascontiguousarray(pixels)
    if pixels.ndim == 4 and pixels.shape[3] in (1, 3):
        return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))
    raise RicnetError(
        f"{what} is of shape {pixels.shape}; images must be (n, h, w), (n, h, w, c) or (n, c, h, w) "
        "with 1 or 3 channels."
    )


def _read_labels(arrays: dict[str, Array], path: Path) -> tuple[dict[str, Int64[Tensor, "n"]], tuple[str, ...]]:
    """Class numbers 0..K−1 in the order of the sorted values; the training part must have every class."""
    plain = {name: _plain_labels(array, f"{path}: {name}") for name, array in arrays.items()}
    if len({array.dtype.kind == "U" for array in plain.values()}) > 1:
        raise RicnetError(f"{path}: some labels are texts and some are numbers; use one kind in {', '.join(plain)}.")
    train, *others = plain
    classes = np.unique(plain[train])
    for name in others:
        unknown = [str(value) for value in np.setdiff1d(plain[name], classes)]
        if unknown:
            raise RicnetError(
                f"{path}: {name} has classes that {train} lacks: {listed(unknown)}; add rows or remove them."
            )
    numbered = {name: torch.from_numpy(np.searchsorted(classes, array)) for name, array in plain.items()}
    return numbered, tuple(str(value) for value in classes)


def _plain_labels(array: Array, what: str) -> Array:
    """One-dimensional integers or texts."""
    if array.ndim != 1 or not array.size:
        raise RicnetError(
            f"{what} is of shape {array.shape}; it must be one label for each row, not empty (for one-hot rows: "
            "y.argmax(1))."
        )
    if array.dtype.kind not in "biufUS":
        raise RicnetError(f"{what} is of type {array.dtype}; labels must be whole numbers or texts.")
    if array.dtype.kind == "S":
        try:
            return np.char.decode(array, "utf-8")
        except UnicodeDecodeError as error:
            raise RicnetError(f"{what} has a label that is not UTF-8 text ({error}); write it again.") from error
    if array.dtype.kind == "U":
        # numpy stores texts as code points, which a damaged file may set out of range.
        codes = np.ascontiguousarray(array).view(np.dtype(np.uint32).newbyteorder(array.dtype.byteorder))
        if codes.max() > sys.maxunicode:
            raise RicnetError(f"{what} has a label that is not text; write it again.")
    if array.dtype.kind == "f":
        # Floats beyond 2^53 are not exact, so classes would merge.
        whole = np.isfinite(array) & (np.abs(array) < 2**53) & (array == np.rint(array))
        if not whole.all():
            row = int(whole.argmin())
            raise RicnetError(f"{what} has {array[row]} in row {row}; labels must be whole numbers or texts.")
        return array.astype(np.int64)
    return array
