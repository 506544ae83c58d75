from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from ricnet.errors import RicnetError
from ricnet.training.inputs import as_inputs

IMAGE = (1, 8, 8)


def test_arrays_tensors_and_lists_are_taken() -> None:
    assert as_inputs(np.zeros((2, *IMAGE), np.uint8), IMAGE, False).shape == (2, *IMAGE)
    tensor = torch.zeros(3, 4)
    assert as_inputs(tensor, (4,), False) is tensor
    assert as_inputs([[1, 2], [3, 4]], (2,), False).tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize("given", ["0.png", Path("0.png"), ["0.png", "1.png"], Image.new("L", (8, 8)), None])
def test_who_gives_files_is_told_how_they_are_read(given: Any) -> None:
    with pytest.raises(RicnetError, match=r"model\.refine\(model\.read\('photo\.png'\)\)\.$"):
        as_inputs(given, IMAGE, False)


@pytest.mark.parametrize("given", [[{"age": 3}], {"age": 3}, [["red", 3.0]], np.zeros((2, 4)), np.array([{}])])
def test_who_gives_cells_is_told_how_tables_are_read(given: Any) -> None:
    with pytest.raises(RicnetError, match=r"model\.refine\(model\.read\('rows\.csv'\)\)\.$"):
        as_inputs(given, (8,), True)


def test_a_model_of_plain_numbers_is_not_sent_to_files() -> None:
    with pytest.raises(RicnetError, match=r"an array of shape \(n, 8\), not something of type list of dict\.$"):
        as_inputs([{"age": 3}], (8,), False)


def test_one_input_alone_is_no_batch() -> None:
    with pytest.raises(RicnetError, match=r"not \(8, 8\); one input alone is a batch of one: x\[None\]"):
        as_inputs(np.zeros(IMAGE, np.uint8), IMAGE, False)


def test_real_pixels_are_refused() -> None:
    with pytest.raises(RicnetError, match=r"uint8 from 0 to 255, not torch\.float32"):
        as_inputs(torch.zeros(2, *IMAGE), IMAGE, False)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e300])
def test_the_first_row_with_a_number_that_is_none_is_named(bad: float) -> None:
    rows = np.zeros((5, 3))
    rows[[2, 4], 1] = bad
    with pytest.raises(RicnetError, match=r"^row 2 of the inputs has a number .*drop the row\.$"):
        as_inputs(rows, (3,), False)
    with pytest.raises(RicnetError, match=r"gaps of a table are filled by model\.refine"):
        as_inputs(rows, (3,), True)
