"""Check the inputs of a model: shape, type, finite numbers, and cells of a table that were not standardised."""

from typing import Any

import numpy as np
import torch
from jaxtyping import Num
from torch import Tensor

from ricnet.data import Columns
from ricnet.data.columns import Number
from ricnet.errors import RicnetError

READ = "model.refine(model.read({!r}))"
"""How files become inputs, for messages."""
RAW = f"the inputs look like raw table cells, but the model reads standardised ones: {READ.format('rows.csv')}."
NEAR, FAR = 5, 30
"""Standard deviations from the mean: within NEAR lie most cells, beyond FAR almost none."""


def as_inputs(given: Any, input_shape: tuple[int, ...], is_table: bool) -> Num[Tensor, "batch ..."]:
    """A checked tensor; `is_table` says that the model was trained on a table."""
    inputs = _as_tensor(given, input_shape, is_table)
    if tuple(inputs.shape[1:]) != input_shape:
        raise RicnetError(
            f"the model reads inputs of shape {input_shape}, not {tuple(inputs.shape[1:])}"
            f"{_other_shape(inputs, input_shape, is_table)}."
        )
    if len(input_shape) == 3 and inputs.dtype != torch.uint8:
        raise RicnetError(f"the model reads images as uint8 from 0 to 255, not {inputs.dtype}; convert them.")
    if inputs.dtype.is_complex:
        raise RicnetError(f"the model reads real numbers, not {inputs.dtype}; convert them.")
    if inputs.dtype.is_floating_point:
        _require_finite(inputs, is_table)
    return inputs


def looks_raw(inputs: Num[Tensor, "batch width"], columns: Columns) -> bool:
    """Whether inputs look like raw cells: some column is beyond FAR in all rows, where standardised cells would be
    outliers, and all columns are near the mean of their training cells. Only if each column is one number."""
    cells = inputs.float()
    if not len(cells) or not (cells.abs() > FAR).all(0).any():
        return False
    numbers = [column for column in columns.inputs if isinstance(column, Number)]
    if len(numbers) < columns.width:
        return False
    mean, std = torch.tensor([(column.mean, column.std) for column in numbers], device=cells.device).T
    return bool(((cells - mean).abs().mean(0) <= NEAR * std).all())


def _as_tensor(given: Any, input_shape: tuple[int, ...], is_table: bool) -> Tensor:
    if isinstance(given, np.ndarray) and not given.flags.writeable:  # torch warns of read-only arrays
        given = given.copy()
    try:
        inputs = torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        numbers = f"an array of shape (n, {', '.join(map(str, input_shape))})"
        how = _from_files(input_shape, is_table)
        raise RicnetError(f"the model reads {numbers}, not {_kind(given)}{how}.") from error
    return inputs


def _kind(given: Any) -> str:
    several = isinstance(given, list | tuple) and len(given) > 0
    name = f"{type(given).__name__} of {type(given[0]).__name__}" if several else type(given).__name__
    return f"something of type {name}"


def _from_files(input_shape: tuple[int, ...], is_table: bool) -> str:
    if len(input_shape) == 3:
        return f"; for image files: {READ.format('photo.png')}"
    return f"; for rows of a table: {READ.format('rows.csv')}" if is_table else ""


def _other_shape(inputs: Tensor, input_shape: tuple[int, ...], is_table: bool) -> str:
    if tuple(inputs.shape) == input_shape:
        return "; for a single input give a batch of one: x[None]"
    if is_table:
        return f"; a column becomes one or more numbers, so read the table with {READ.format('rows.csv')}"
    return _from_files(input_shape, is_table)


def _require_finite(inputs: Num[Tensor, "batch ..."], is_table: bool) -> None:
    """Checked in single precision, as the network computes."""
    finite = inputs.float().isfinite()
    if finite.all():
        return
    row = int(finite.flatten(1).all(1).logical_not().nonzero()[0])
    how = f"{READ.format('rows.csv')} fills gaps of a table" if is_table else "fill it or drop the row"
    raise RicnetError(f"row {row} of the inputs has a number that is missing (NaN), infinite or too large; {how}.")
