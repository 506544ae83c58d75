import torch

from ricnet.data import Split
from ricnet.data.dataset import small_crops


def test_rows_are_taken_with_their_weights() -> None:
    split = Split(torch.arange(4.0)[:, None], torch.tensor([0, 1, 0, 1]), torch.tensor([1.0, 2.0, 3.0, 4.0]))
    some = split.take(torch.tensor([3, 1]))
    assert some.inputs.flatten().tolist() == [3, 1]
    assert some.weights is not None
    assert some.weights.tolist() == [4, 2]
    assert Split(split.inputs, split.labels).take(torch.tensor([0])).weights is None


def test_crops_are_as_small_as_the_images() -> None:
    assert small_crops((50, 3, 32, 64)).crop_padding == small_crops((1, 1, 224, 224)).crop_padding == 4
    assert small_crops((50, 1, 16, 24)).crop_padding == 2
    assert small_crops((50, 16)).crop_padding == 0
