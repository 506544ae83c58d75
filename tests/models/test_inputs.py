from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import ricnet
from refusals import refusal
from ricnet.data import Columns, Dataset
from ricnet.data.columns import Category, Number
from ricnet.models.inputs import as_inputs, looks_raw
from ricnet.models.run import RunFolder


@pytest.fixture
def folder(finished: Callable[[str], RunFolder]) -> Path:
    return finished("ric").path


IMAGE = (1, 8, 8)
FILES, CELLS = "model.refine(model.read('photo.png'))", "model.refine(model.read('rows.csv'))"
COMPLEX = torch.ones(2, 3, dtype=torch.complex64)


def test_arrays_tensors_and_lists_are_taken() -> None:
    assert as_inputs(np.zeros((2, *IMAGE), np.uint8), IMAGE, False).shape == (2, *IMAGE)
    tensor = torch.zeros(3, 4)
    assert as_inputs(tensor, (4,), False) is tensor
    assert as_inputs([[1, 2], [3, 4]], (2,), False).tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("given", "shape", "of_table", "named"),
    [
        *((given, IMAGE, False, FILES) for given in ("0.png", Path("0.png"), ["0.png", "1.png"], None)),
        (Image.new("L", (8, 8)), IMAGE, False, FILES),
        *((given, (8,), True, CELLS) for given in ([{"age": 3}], {"age": 3}, [["red", 3.0]], np.array([{}]))),
        (np.zeros((2, 4)), (8,), True, CELLS),
        ([{"age": 3}], (8,), False, "(n, 8)"),  # a model of plain numbers is not sent to files
        (torch.zeros(2, 5), (4,), False, "(5,)"),
        (COMPLEX, (3,), False, "complex64"),
        (np.zeros(IMAGE, np.uint8), IMAGE, False, "x[None]"),
        (torch.zeros(2, *IMAGE), IMAGE, False, "uint8"),
    ],
)
def test_who_gives_something_else_is_told_what_to_give(
    given: Any, shape: tuple[int, ...], of_table: bool, named: str
) -> None:
    with refusal(named):
        as_inputs(given, shape, of_table)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e300])
def test_the_first_row_with_a_number_that_is_none_is_named(bad: float) -> None:
    rows = np.zeros((5, 3))
    rows[[2, 4], 1] = bad
    with refusal("row 2"):
        as_inputs(rows, (3,), False)
    with refusal("row 2", "model.refine"):
        as_inputs(rows, (3,), True)


HEIGHT, SHARE = Number("height", 170.0, 10.0, False), Number("share", 0.5, 0.3, False)


def test_cells_of_a_table_are_told_from_what_is_made_of_them(folder: Path, dataset: Dataset) -> None:
    columns, random = Columns("kind", (HEIGHT, SHARE)), torch.Generator().manual_seed(0)
    standard = torch.randn(1000, 2, generator=random)
    cells = standard * torch.tensor([10, 0.3]) + torch.tensor([170, 0.5])
    for raw in (cells, cells[:1].double()):
        assert looks_raw(raw, columns)
    outlier = torch.tensor([[150.0, 0.1], [0.3, 0.2]])  # 150 standard deviations, or centimetres
    others = (torch.tensor([[150.0, 3.0]]), torch.tensor([[1e4, 0.1]]))
    for inputs in (standard, standard[:0], standard.to(torch.int8), outlier, *others):
        assert not looks_raw(inputs, columns)
    for column in (replace(SHARE, flagged=True), Category("colour", ("blue", "red"), False)):  # two numbers each
        assert not looks_raw(torch.tensor([[170.0, 0.0, 1.0]]), Columns("kind", (HEIGHT, column)))
    four = Columns("kind", tuple(replace(HEIGHT, name=name) for name in "abcd"))
    model = replace(ricnet.load(folder), columns=four)
    with pytest.warns(UserWarning, match=r"model\.read\('rows\.csv'\)"):
        model.refine(torch.full((2, 4), 170.0))
    model.refine(dataset.test.inputs)
