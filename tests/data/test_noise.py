import pytest
import torch

from ricnet.data import load
from ricnet.data.dataset import flip_labels
from ricnet.errors import RicnetError


def test_just_this_share_of_train_and_validation_labels_is_wrong_and_the_test_is_clean() -> None:
    clean, noisy = load("digits"), load("digits", label_noise=0.4)
    for name in ("train", "val"):
        before, after = getattr(clean, name), getattr(noisy, name)
        assert int((before.labels != after.labels).sum()) == round(0.4 * len(before))
        assert torch.equal(before.inputs, after.inputs)
    assert torch.equal(clean.test.labels, noisy.test.labels)


def test_every_other_class_is_alike_likely() -> None:
    clean, noisy = load("digits"), load("digits", label_noise=0.9)
    changed = clean.train.labels != noisy.train.labels
    shift = (noisy.train.labels - clean.train.labels)[changed] % 10
    counts = torch.bincount(shift, minlength=10)
    assert counts[0] == 0
    assert counts[1:].min() > 0.6 * counts[1:].float().mean()


def test_the_same_rows_are_flipped_every_time_and_the_original_is_left_alone() -> None:
    clean = load("digits")
    kept = clean.train.labels.clone()
    assert torch.equal(flip_labels(clean, 0.3).train.labels, flip_labels(clean, 0.3).train.labels)
    assert torch.equal(clean.train.labels, kept)
    assert flip_labels(clean, 0.0) is clean


@pytest.mark.parametrize("share", [-0.1, 1.0])
def test_a_share_out_of_range_is_refused(share: float) -> None:
    with pytest.raises(RicnetError, match="--label-noise"):
        load("digits", label_noise=share)
