from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from refusals import refusal
from ricnet.data import Augmentation, Dataset, Split, load
from ricnet.data.columns import Columns
from ricnet.data.dataset import (
    GivenSplits,
    balanced,
    copies_note,
    divisible,
    flip_labels,
    small_crops,
    split_off,
    take_fraction,
    uneven_note,
)

ROWS = Split(torch.arange(80.0).reshape(40, 2), torch.arange(40) % 2)


def test_rows_are_taken_with_their_weights() -> None:
    split = Split(torch.arange(4.0)[:, None], torch.tensor([0, 1, 0, 1]), torch.tensor([1.0, 2.0, 3.0, 4.0]))
    some = split.take(torch.tensor([3, 1]))
    assert (some.inputs.flatten().tolist(), some.labels.tolist(), some.weights.tolist()) == ([3, 1], [1, 1], [4, 2])
    assert Split(split.inputs, split.labels).take(torch.tensor([0])).weights is None


def test_balanced_classes_have_equal_totals_and_weights_of_1_on_average() -> None:
    split = balanced(Split(torch.zeros(6, 1), torch.tensor([0, 0, 0, 0, 0, 2])))
    assert split.weights.tolist() == pytest.approx([0.6] * 5 + [3])


TEXTS = ["one text", "another", "a third"]


@pytest.mark.parametrize(
    ("inputs", "texts", "unit"),
    [
        (torch.arange(6.0).reshape(3, 2), None, "rows"),
        (torch.arange(36).reshape(3, 3, 2, 2).to(torch.uint8), None, "images"),
        (torch.zeros(3, 2, dtype=torch.int32), TEXTS, "texts"),
    ],
)
def test_copies_of_training_rows_are_counted_and_stay(
    inputs: torch.Tensor, texts: list[str] | None, unit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = Split(inputs, torch.tensor([0, 1, 0]), texts=texts)
    train, val, test = (rows.take(torch.tensor(some)) for some in ([0, 0, 1], [2], [1, 2, 0, 1]))
    [said] = copies_note(Dataset("it", train, val, test, ("a", "b")))
    assert said.startswith(f"3 of 4 test {unit} are exact copies of training {unit}")
    [said] = copies_note(Dataset("it", train, train, test, ("a", "b")))
    assert f"3 of 4 test {unit} and 3 of 3 validation {unit}" in said
    assert copies_note(Dataset("it", train, val, val, ("a", "b"))) == ()
    [said] = copies_note(Dataset("it", train, val, test, ("a", "b"), columns=Columns("y", ())))
    assert ("in the columns that are read" in said) == (unit != "texts")  # columns that were left out may differ
    monkeypatch.setattr("ricnet.data.dataset.MOST_HASHED", 1)
    assert copies_note(Dataset("it", train, train, train, ("a", "b"))) == ()


def test_crops_are_as_small_as_the_images() -> None:
    shapes = {(50, 3, 32, 64): 4, (1, 1, 224, 224): 4, (50, 1, 16, 24): 2, (50, 16): 0}
    assert {shape: small_crops(shape).crop_padding for shape in shapes} == shapes


@given(st.lists(st.integers(2, 40), min_size=1, max_size=6), st.floats(0.01, 0.99), st.integers(0, 2**31))
def test_every_class_is_on_both_sides_and_no_row_is_lost(counts: list[int], fraction: float, seed: int) -> None:
    labels = torch.cat([torch.full((count,), label) for label, count in enumerate(counts)])
    rest, taken = split_off(labels, fraction, seed)
    assert torch.equal(torch.cat([rest, taken]).sort().values, torch.arange(len(labels)))
    for rows in (rest, taken):
        assert set(labels[rows].tolist()) == set(range(len(counts)))
    for label, count in enumerate(counts):
        assert abs((labels[taken] == label).sum().item() - fraction * count) <= 1


def test_the_split_follows_the_seed() -> None:
    first, again, other = (split_off(torch.arange(200) % 4, 0.25, seed)[1] for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert len(first) == 50


@pytest.mark.parametrize(
    ("labels", "fraction", "named"),
    [([0, 0, 7], 0.5, "Class 7"), ([0, 0, 1, 1], 0.0, "0.0"), ([0, 0, 1, 1], 1.0, "1.0"), ([0, 0, 1, 1], -1.0, "-1.0")],
)
def test_errors_name_data_that_cannot_be_split(labels: list[int], fraction: float, named: str) -> None:
    with refusal(named):
        split_off(torch.tensor(labels), fraction, 0)


def test_missing_splits_are_cut_and_given_ones_kept() -> None:
    given_test = Split(torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64))
    cut_both = GivenSplits(ROWS, ("a", "b")).dataset("it", 0.1)
    assert (len(cut_both.train), len(cut_both.val), len(cut_both.test)) == (27, 3, 10)
    kept = GivenSplits(ROWS, ("a", "b"), test=given_test).dataset("it", 0.1)
    assert (len(kept.train), len(kept.val), kept.test is given_test) == (36, 4, True)


def test_evaluated_data_is_not_split() -> None:
    rows = ROWS.take(torch.tensor([0, 1, 3]))
    whole = GivenSplits(rows, ("a", "b")).dataset("it", 0.1, undivided=True)
    assert (len(whole.train), len(whole.val), whole.input_shape) == (0, 0, (2,))
    assert torch.equal(whole.test.inputs, rows.inputs)
    own = GivenSplits(ROWS, ("a", "b"), test=rows).dataset("it", 0.1, undivided=True)
    assert (len(own.train), len(own.val), len(own.test)) == (40, 0, 3)
    alike = Split(torch.zeros(5, 1), torch.zeros(5, dtype=torch.int64))
    assert len(GivenSplits(alike, ("a",)).dataset("it", 0.1, undivided=True).test) == 5
    with refusal("it", "one class only", "'a'"):
        GivenSplits(alike, ("a",)).dataset("it", 0.1)


@pytest.mark.parametrize(("counts", "can"), [([3, 3], True), ([4, 2], False), ([5, 3, 0], False), ([9], False)])
def test_rows_are_divisible_where_dividing_them_works(counts: list[int], can: bool) -> None:
    labels, names = (
        torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts)),
        tuple("abc"[: len(counts)]),
    )
    assert divisible(labels, names) == can
    few = [f"{name!r} ({count})" for name, count in zip(names, counts, strict=True) if count < 3]
    with nullcontext() if can else refusal("it", *few):
        GivenSplits(Split(labels[:, None].float(), labels), names).dataset("it", 0.1)


def test_a_note_names_uneven_classes() -> None:
    counts = torch.tensor([1000, 500, *[1] * 8, *[2] * 4])
    labels = torch.repeat_interleave(torch.arange(len(counts)), counts)
    with refusal("12 of 14 classes", "16 of 1,516 examples", "'c' (1)", "and 7 more", "'other'"):
        GivenSplits(Split(labels[:, None].float(), labels), tuple("abcdefghijklmn")).dataset("it", 0.1)


def test_a_class_three_times_as_large_as_another_is_reported() -> None:
    assert uneven_note(torch.tensor([0, 0, 1]), ("cat", "dog")) == ()
    [note] = uneven_note(torch.tensor([0, 1, 1, 1]), ("cat", "dog"))
    assert all(fact in note for fact in ("3 examples of 'dog'", "1 of 'cat'", "75%"))


def test_just_this_share_of_train_and_validation_labels_is_wrong_and_the_test_is_clean() -> None:
    clean, noisy = load("digits"), load("digits", label_noise=0.4)
    kept = clean.train.labels.clone()
    for name in ("train", "val"):
        before, after = getattr(clean, name), getattr(noisy, name)
        assert int((before.labels != after.labels).sum()) == round(0.4 * len(before))
        assert torch.equal(before.inputs, after.inputs)
    assert torch.equal(clean.test.labels, noisy.test.labels)
    assert torch.equal(flip_labels(clean, 0.4).train.labels, noisy.train.labels)  # the same rows every time
    assert torch.equal(clean.train.labels, kept)
    assert flip_labels(clean, 0.0) is clean


def test_every_other_class_is_alike_likely() -> None:
    clean, noisy = load("digits"), load("digits", label_noise=0.9)
    shift = (noisy.train.labels - clean.train.labels)[clean.train.labels != noisy.train.labels] % 10
    counts = torch.bincount(shift, minlength=10)
    assert counts[0] == 0
    assert counts[1:].min() > 0.6 * counts[1:].float().mean()


@pytest.mark.parametrize(
    ("name", "share"), [("label_noise", -0.1), ("label_noise", 1.0), ("train_fraction", 0.0), ("train_fraction", 1.1)]
)
def test_a_share_out_of_range_is_refused(name: str, share: float) -> None:
    with refusal(name, share):
        load("digits", **{name: share})


def test_shares_of_the_training_rows_are_nested_and_stratified() -> None:
    """The 10 % are among the 25 %, and so on; validation and test rows stay, whichever labels are flipped."""
    whole = load("digits", label_noise=0.2)
    rows = replace(whole, train=replace(whole.train, inputs=torch.arange(len(whole.train))))
    before = set[int]()
    for share in (0.1, 0.25, 0.5, 1.0):
        part, numbers = load("digits", label_noise=0.2, train_fraction=share), take_fraction(rows, share).train.inputs
        assert len(numbers) == len(part.train) == round(share * len(whole.train))
        assert torch.equal(part.train.inputs, whole.train.inputs[numbers])
        assert torch.equal(part.train.labels, whole.train.labels[numbers])
        counts, all_counts = (torch.bincount(each.train.labels, minlength=10) for each in (part, whole))
        assert (counts - share * all_counts).abs().max() <= 1
        for name in ("val", "test"):
            kept, own = getattr(part, name), getattr(whole, name)
            assert torch.equal(kept.inputs, own.inputs)
            assert torch.equal(kept.labels, own.labels)
        assert before < set(numbers.tolist())
        before = set(numbers.tolist())


def test_the_smallest_share_has_every_class() -> None:
    labels = torch.tensor([0] * 96 + [1] * 3 + [2])
    split = Split(torch.zeros(100, 1), labels)
    dataset = Dataset("it", split, split, split, ("a", "b", "c"))
    for share, counts in ((0.001, [1, 1, 1]), (0.1, [8, 1, 1]), (0.5, [48, 1, 1]), (0.6, [57, 2, 1])):
        assert torch.bincount(take_fraction(dataset, share).train.labels).tolist() == counts
    assert take_fraction(dataset, 1.0) is dataset


def test_digits_need_no_file_and_are_split_the_same_every_time() -> None:
    digits = load("digits")
    assert (digits.input_shape, digits.class_names) == ((1, 8, 8), tuple("0123456789"))
    assert digits.augmentation == Augmentation()
    splits = [digits.train, digits.val, digits.test]
    assert [len(split) for split in splits] == [1213, 135, 449]
    seen = np.sort(torch.cat([split.inputs for split in splits]).flatten(1).numpy().astype(int).sum(1))
    assert np.array_equal(seen, np.sort(np.rint(load_digits().data * 255 / 16).astype(int).sum(1)))
    assert torch.equal(digits.val.inputs, load("digits").val.inputs)
