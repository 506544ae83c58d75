from contextlib import nullcontext

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ricnet.data.dataset import Parts, Split, divisible, split_off, uneven_note
from ricnet.errors import RicnetError


@given(
    counts=st.lists(st.integers(2, 40), min_size=1, max_size=6),
    fraction=st.floats(0.01, 0.99),
    seed=st.integers(0, 2**31),
)
def test_every_class_is_on_both_sides_and_no_row_is_lost(counts: list[int], fraction: float, seed: int) -> None:
    labels = torch.cat([torch.full((count,), label) for label, count in enumerate(counts)])
    rest, taken = split_off(labels, fraction, seed)
    assert torch.equal(torch.cat([rest, taken]).sort().values, torch.arange(len(labels)))
    for rows in (rest, taken):
        assert set(labels[rows].tolist()) == set(range(len(counts)))
    for label, count in enumerate(counts):
        assert abs((labels[taken] == label).sum().item() - fraction * count) <= 1


def test_the_split_follows_the_seed() -> None:
    labels = torch.arange(200) % 4
    first, again, other = (split_off(labels, 0.25, seed)[1] for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert len(first) == 50


def test_a_class_with_one_row_is_refused_by_its_number() -> None:
    with pytest.raises(RicnetError, match="Class 7"):
        split_off(torch.tensor([0, 0, 7]), 0.5, 0)


@pytest.mark.parametrize("fraction", [0.0, 1.0, -1.0])
def test_a_fraction_outside_its_range_is_quoted(fraction: float) -> None:
    with pytest.raises(RicnetError, match=str(fraction)):
        split_off(torch.tensor([0, 0, 1, 1]), fraction, 0)


def test_parts_cut_what_is_missing_and_keep_what_is_given() -> None:
    rows = Split(torch.arange(80.0).reshape(40, 2), torch.arange(40) % 2)
    given_test = Split(torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64))
    cut_both = Parts(rows, ("a", "b")).dataset("it", 0.1)
    assert (len(cut_both.train), len(cut_both.val), len(cut_both.test)) == (27, 3, 10)
    kept = Parts(rows, ("a", "b"), test=given_test).dataset("it", 0.1)
    assert (len(kept.train), len(kept.val)) == (36, 4)
    assert kept.test is given_test


def test_what_is_only_measured_is_not_divided() -> None:
    rows = Split(torch.arange(3.0)[:, None], torch.tensor([0, 1, 1]))
    whole = Parts(rows, ("a", "b")).dataset("it", 0.1, undivided=True)
    assert (len(whole.train), len(whole.val), whole.input_shape) == (0, 0, (1,))
    assert torch.equal(whole.test.inputs, rows.inputs)
    own = Parts(rows.take(torch.tensor([0, 1, 2, 0])), ("a", "b"), test=rows).dataset("it", 0.1, undivided=True)
    assert (len(own.train), len(own.val), len(own.test)) == (4, 0, 3)


def test_one_class_can_be_measured_but_not_learned() -> None:
    rows = Split(torch.arange(5.0)[:, None], torch.zeros(5, dtype=torch.int64))
    assert len(Parts(rows, ("a",)).dataset("it", 0.1, undivided=True).test) == 5
    with pytest.raises(RicnetError, match="it has one class only, 'a'; a classifier needs at least two"):
        Parts(rows, ("a",)).dataset("it", 0.1)


def test_parts_say_how_many_examples_a_class_needs() -> None:
    rows = Split(torch.zeros(6, 2), torch.tensor([0, 0, 0, 0, 1, 1]))
    with pytest.raises(RicnetError, match=r"at least 3 .*'rare' \(2\)"):
        Parts(rows, ("common", "rare")).dataset("it", 0.1)


@pytest.mark.parametrize(("counts", "can"), [([3, 3], True), ([4, 2], False), ([5, 3, 0], False), ([9], False)])
def test_rows_are_divisible_where_dividing_them_works(counts: list[int], can: bool) -> None:
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    names = tuple("abc"[: len(counts)])
    assert divisible(labels, names) == can
    with nullcontext() if can else pytest.raises(RicnetError):
        Parts(Split(labels[:, None].float(), labels), names).dataset("it", 0.1)


def test_a_class_three_times_as_large_as_another_is_reported() -> None:
    assert uneven_note(torch.tensor([0, 0, 1]), ("cat", "dog")) == ()
    [note] = uneven_note(torch.tensor([0, 1, 1, 1]), ("cat", "dog"))
    assert "3 examples of 'dog' but 1 of 'cat'; always answering 'dog' would be right for 75%" in note
