import numpy as np
import pytest
import torch

from refusals import refusal
from ricnet.apps.estimator_inputs import (
    SHOWN,
    InputError,
    as_dataset,
    as_inputs,
    example_weights,
    pixel_scale,
    usual_fraction,
)
from ricnet.training.recipes import LARGE_TABLE


@pytest.mark.parametrize(
    ("array", "scale"),
    [
        (np.zeros((2, 3)), None),
        (np.full((2, 3, 3), 1.0), 255.0),
        (np.full((2, 3, 3), 1.5), 1.0),
        (np.full((2, 3, 3), True), 255.0),
        (np.full((2, 3, 3), 1, np.uint8), 1.0),
        (np.full((2, 3, 3), 1, np.int64), 1.0),
    ],
)
def test_how_bright_a_pixel_is_meant_to_be(array: np.ndarray, scale: float | None) -> None:
    assert pixel_scale(array) == scale


def test_channels_come_first_inside() -> None:
    colour = np.random.default_rng(0).integers(0, 256, (2, 4, 5, 3)).astype(np.uint8)
    inputs = as_inputs(colour, 1.0)
    assert inputs.shape == (2, 3, 4, 5)
    assert inputs[1, 2, 3, 4] == colour[1, 3, 4, 2]
    assert torch.equal(as_inputs(colour / 255, 255.0), inputs)
    assert as_inputs(colour[..., 0], 1.0).shape == (2, 1, 4, 5)
    with refusal("last", kind=InputError):
        as_inputs(np.zeros((2, 3, 32, 32)), 1.0)


def test_fractions_are_refused_where_pixels_were_fitted() -> None:
    for fractions in (np.full((2, 3, 3), 0.5), np.ones((2, 3, 3)), np.full((2, 3, 3), True)):
        with refusal("255", kind=InputError):
            as_inputs(fractions, 1.0)
    assert not as_inputs(np.zeros((2, 3, 3)), 1.0).any()
    assert as_inputs(np.ones((2, 3, 3), np.uint8), 1.0).all()


@pytest.mark.parametrize("shape", [(0, 8, 8), (0, 8, 8, 3), (2, 0, 8)])
def test_no_image_is_too_few(shape: tuple[int, ...]) -> None:
    for array in (np.zeros(shape), np.zeros(shape, np.uint8)):
        with refusal("no pixels", kind=InputError):
            pixel_scale(array)
        for scale in (1.0, 255.0):
            with refusal("no pixels", kind=InputError):
                as_inputs(array, scale)


def test_tables_become_float32_and_too_large_numbers_are_refused() -> None:
    assert as_inputs(np.arange(6).reshape(2, 3), None).dtype == torch.float32
    with pytest.raises(ValueError, match="infinity or a value too large"):
        as_inputs(np.full((2, 2), 1e300), None)


def test_weights_of_row_and_class_are_multiplied() -> None:
    labels = np.array(["a", "a", "a", "b"])
    assert example_weights(None, None, labels) is None
    by_both = example_weights([1, 2, 3, 4], {"a": 10, "b": 1}, labels)
    np.testing.assert_array_equal(by_both, [10, 20, 30, 4])
    balanced = example_weights(None, "balanced", labels)
    np.testing.assert_allclose(balanced, [4 / 6, 4 / 6, 4 / 6, 4 / 2])  # n / (classes · rows of the class)
    with pytest.raises(ValueError, match=r"[Nn]egative"):
        example_weights([1, 2, 3, -4], None, labels)


def rows(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(count, dtype=torch.float32)[:, None], torch.arange(count) % 2


def test_without_validation_rows_all_are_learned_from() -> None:
    dataset = as_dataset(*rows(10), None, ("a", "b"), 0.0, 0)
    assert len(dataset.train) == len(dataset.val) == 10
    assert dataset.train.weights is None
    assert len(as_dataset(*rows(2 * SHOWN + 1), None, ("a", "b"), 0.0, 0).val) <= SHOWN


def test_validation_rows_are_stratified_seeded_and_keep_their_weights() -> None:
    weights = np.arange(1, 41, dtype=float)
    parts = [as_dataset(*rows(40), weights, ("a", "b"), 0.25, seed) for seed in (0, 0, 1)]
    assert [len(part.train) for part in parts] == [30, 30, 30]
    assert parts[0].val.labels.sum() == 5
    assert torch.equal(parts[0].val.inputs, parts[1].val.inputs)
    assert not torch.equal(parts[0].val.inputs, parts[2].val.inputs)
    for split in (parts[0].train, parts[0].val):
        assert split.weights is not None
        assert torch.equal(split.weights, split.inputs[:, 0] + 1)


def test_images_may_be_shifted_a_little_tables_not() -> None:
    images = torch.zeros(4, 1, 16, 20, dtype=torch.uint8)
    assert as_dataset(images, torch.tensor([0, 1, 0, 1]), None, ("a", "b"), 0.0, 0).augmentation.crop_padding == 2
    assert as_dataset(*rows(4), None, ("a", "b"), 0.0, 0).augmentation.crop_padding == 0


def test_one_class_is_not_enough_nor_two_of_which_one_has_no_weight() -> None:
    inputs, labels = rows(4)
    with refusal("one class", kind=ValueError):
        as_dataset(inputs, torch.zeros_like(labels), None, ("a",), 0.0, 0)
    with refusal("one class"):
        as_dataset(inputs, labels, np.array([1.0, 0, 1, 0]), ("a", "b"), 0.0, 0)
    inputs, labels, names = rows(5)[0], torch.tensor([0, 0, 1, 2, 2]), ("ant", "bee", "cow")
    with refusal("bee", "validation_fraction", kind=InputError):  # a class of one row cannot be divided
        as_dataset(inputs, labels, None, names, 0.4, 0)
    assert len(as_dataset(inputs, labels, None, names, 0.0, 0).train) == 5


@pytest.mark.parametrize(
    ("rows", "is_table", "has_exits", "fraction"),
    [
        (49, True, True, 0.0),
        (50, True, False, 0.15),
        (50, False, False, 0.0),
        (50, False, True, 0.15),
        (LARGE_TABLE - 1, True, False, 0.15),
        (LARGE_TABLE, True, False, 0.15),
        (4 * LARGE_TABLE, True, False, 0.0375),
        (LARGE_TABLE, True, True, 0.15),
    ],
)
def test_rows_are_kept_aside_where_something_is_chosen_by_them(
    rows: int, is_table: bool, has_exits: bool, fraction: float
) -> None:
    labels = np.arange(rows) % 2
    assert usual_fraction(labels, None, is_table, has_exits) == fraction
    lonely = np.where(np.arange(rows) == 0, 2, labels)  # of which none can be kept aside
    assert usual_fraction(lonely, None, is_table, has_exits) == 0
    weights = np.r_[0.0, np.ones(rows)]  # a row of weight 0 does not count
    assert usual_fraction(np.r_[2, labels], weights, is_table, has_exits) == fraction
