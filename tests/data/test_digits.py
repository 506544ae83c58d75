import numpy as np
import torch
from sklearn.datasets import load_digits

from ricnet.data import Augmentation, load


def test_digits_need_no_file_and_keep_their_values() -> None:
    digits = load("digits")
    assert digits.input_shape == (1, 8, 8)
    assert digits.class_names == tuple("0123456789")
    assert digits.augmentation == Augmentation()
    splits = [digits.train, digits.val, digits.test]
    assert [len(split) for split in splits] == [1213, 135, 449]
    seen = np.sort(torch.cat([split.inputs for split in splits]).flatten(1).numpy().astype(int).sum(1))
    assert np.array_equal(seen, np.sort(np.rint(load_digits().data * 255 / 16).astype(int).sum(1)))


def test_the_splits_are_the_same_every_time() -> None:
    assert torch.equal(load("digits").val.inputs, load("digits").val.inputs)
