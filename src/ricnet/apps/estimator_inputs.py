"""What scikit-learn's users hand over (tables, image arrays, any labels, weights), as the tensors a network reads."""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float32, Float64, Int64, Num, UInt8
from sklearn.utils import assert_all_finite, check_array
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.validation import _check_sample_weight
from torch import Tensor

from ricnet.data import Dataset, Split
from ricnet.data.dataset import small_crops, split_off
from ricnet.data.images import as_bytes
from ricnet.errors import RicnetError, listed
from ricnet.training.recipes import HELD_OUT, LARGE_TABLE, ROWS_TO_JUDGE

MOST_CHANNELS = 4
SHOWN = 1_000
"""Training rows that stand in for validation data where none is kept aside; they choose nothing."""


class InputError(RicnetError, ValueError):
    """scikit-learn's contract asks for a ValueError."""


def pixel_scale(array: np.ndarray) -> float | None:
    """What takes pixels to 0..255, decided when fitting: a dark picture must not be brightened by itself later.

    Whole numbers are taken as they are; real ones that never exceed 1 as fractions of full brightness. None: a table.
    """
    if array.ndim == 2:
        return None
    _require_pixels(array)
    return 255.0 if array.dtype.kind in "fb" and array.max() <= 1 else 1.0


def column_means(array: np.ndarray) -> Float64[np.ndarray, "columns"] | None:
    """Mean of each column without its missing values (NaN), 0 if all are missing; None for images, in which NaN is
    refused."""
    if array.ndim != 2:
        assert_all_finite(array, input_name="X")
        return None
    known = ~np.isnan(array)
    sums = np.where(known, array, 0).sum(axis=0, dtype=np.float64)
    return np.asarray(sums / known.sum(axis=0).clip(min=1))


def as_inputs(array: np.ndarray, scale: float | None) -> Num[Tensor, "n ..."]:
    if array.ndim == 2:
        return _features(array)
    _require_pixels(array)
    if scale == 1 and pixel_scale(array) == 255 and array.max() > 0:
        raise InputError(
            "X holds fractions of full brightness, none above 1, but fit saw pixels from 0 to 255; multiply X by 255, "
            "or round it to whole numbers (uint8) if all of these images are as good as black."
        )
    return _images(array, scale if scale is not None else 1.0)


def _require_pixels(array: np.ndarray) -> None:
    if array.size == 0:
        raise InputError(f"X of shape {array.shape} holds no pixels; give at least one image.")


def _features(array: np.ndarray) -> Float32[Tensor, "n columns"]:
    """Standardising them is the network's business."""
    with np.errstate(over="ignore"):  # what does not fit is refused by name
        return torch.tensor(check_array(array, dtype=np.float32))


def _images(array: np.ndarray, scale: float) -> UInt8[Tensor, "n channels height width"]:
    if array.ndim > 4 or (array.ndim == 4 and array.shape[3] > MOST_CHANNELS):
        raise InputError(
            f"X is of shape {array.shape}; give a table (n, columns) or images (n, height, width) or "
            f"(n, height, width, channels), with at most {MOST_CHANNELS} channels, which come last."
        )
    try:
        pixels = array if array.dtype == np.uint8 else as_bytes(array, scale)
    except ValueError as error:
        raise InputError(
            f"X of shape {array.shape} is read as images, but its values are not in 0..{255 / scale:.0f} as when "
            "fitting; scale them, or flatten each image into a row of features."
        ) from error
    last = pixels[..., None] if pixels.ndim == 3 else pixels
    return torch.tensor(np.ascontiguousarray(last.transpose(0, 3, 1, 2)))


def example_weights(sample_weight: Any, class_weight: Any, labels: np.ndarray) -> Float64[np.ndarray, "n"] | None:
    """The product of both; None where neither is given."""
    if sample_weight is None and class_weight is None:
        return None
    by_row = _check_sample_weight(sample_weight, labels, dtype=np.float64, ensure_non_negative=True)
    weights: np.ndarray = by_row * compute_sample_weight(class_weight, labels)
    return weights


def usual_fraction(
    labels: Int64[np.ndarray, "n"], weights: Float64[np.ndarray, "n"] | None, is_table: bool, has_exits: bool
) -> float:
    """The default share of validation rows. Tables need them against over-fitting, exits to fit thresholds. With fewer
    than `ROWS_TO_JUDGE` rows, all are for training. Above `LARGE_TABLE` rows their number no longer grows."""
    counts = np.bincount(labels if weights is None else labels[weights > 0])
    if not (has_exits or is_table) or counts.sum() < ROWS_TO_JUDGE or counts[counts > 0].min() < 2:
        return 0.0
    return HELD_OUT if has_exits else HELD_OUT * min(1.0, LARGE_TABLE / int(counts.sum()))


def as_dataset(
    inputs: Num[Tensor, "n ..."],
    labels: Int64[Tensor, "n"],
    weights: Float64[np.ndarray, "n"] | None,
    class_names: tuple[str, ...],
    validation_fraction: float,
    seed: int,
) -> Dataset:
    """Rows of weight 0 are as if they were not there. There is no test split, so the validation split stands in."""
    rows = Split(inputs, labels, None if weights is None else torch.tensor(weights, dtype=torch.float32))
    if rows.weights is not None:
        rows = rows.take(rows.weights.nonzero().flatten())
    if len(rows.labels.unique()) < 2:
        raise InputError(
            "y has one class only (counting rows of a weight above 0); a classifier needs at least two classes."
        )
    counts = torch.bincount(rows.labels, minlength=len(class_names)).tolist()
    lonely = [name for name, count in zip(class_names, counts, strict=True) if count == 1]
    if lonely and validation_fraction != 0:
        raise InputError(
            f"y has one row only of {listed(lonely)}; a validation_fraction needs at least two of every class."
        )
    train, val = _cut(rows, validation_fraction, seed)
    return Dataset("the given rows", train, val, val, class_names, small_crops(inputs.shape))


def _cut(rows: Split, fraction: float, seed: int) -> tuple[Split, Split]:
    if not 0 <= fraction < 1:
        raise InputError(f"validation_fraction is {fraction}; it must be 0 or lie between 0 and 1.")
    if fraction == 0:
        return rows, rows.take(torch.arange(0, len(rows), -(-len(rows) // SHOWN)))
    rest, taken = split_off(rows.labels, fraction, seed % 2**32)  # as many as numpy knows; a wrong one is refused later
    return rows.take(rest), rows.take(taken)
