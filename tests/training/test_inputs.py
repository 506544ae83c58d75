from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from ricnet.data.columns import Category, Columns, Number
from ricnet.errors import RicnetError
from ricnet.training.classifier import as_inputs, looks_raw

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


def test_complex_numbers_are_refused() -> None:
    with pytest.raises(RicnetError, match=r"real numbers, not torch\.complex64"):
        as_inputs(torch.ones(2, 3, dtype=torch.complex64), (3,), False)


def number(mean: float, std: float, flagged: bool = False) -> Number:
    return Number("a number", float(mean), float(std), flagged)


HEIGHT, SHARE = number(170, 10), number(0.5, 0.3)


def test_cells_of_a_table_are_told_from_what_is_made_of_them() -> None:
    columns, random = Columns("kind", (HEIGHT, SHARE)), torch.Generator().manual_seed(0)
    standard = torch.randn(1000, 2, generator=random)
    cells = standard * torch.tensor([10, 0.3]) + torch.tensor([170, 0.5])
    assert looks_raw(cells, columns)
    assert looks_raw(cells[:1].double(), columns)
    assert not looks_raw(standard, columns)
    assert not looks_raw(standard[:0], columns)
    assert not looks_raw(standard.to(torch.int8), columns)


def test_an_outlier_is_no_cell() -> None:
    outlier = torch.tensor([[150.0, 0.1], [0.3, 0.2]])  # 150 standard deviations, or centimetres
    assert not looks_raw(outlier, Columns("kind", (HEIGHT, SHARE)))
    assert not looks_raw(torch.tensor([[150.0, 3.0]]), Columns("kind", (HEIGHT, SHARE)))
    assert not looks_raw(torch.tensor([[1e4, 0.1]]), Columns("kind", (HEIGHT, SHARE)))


def test_columns_of_several_numbers_each_cannot_be_mistaken_for_cells() -> None:
    for column in (number(0, 1, flagged=True), Category("colour", ("blue", "red"), False)):
        assert not looks_raw(torch.tensor([[170.0, 0.0, 1.0]]), Columns("kind", (HEIGHT, column)))


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
