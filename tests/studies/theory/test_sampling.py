import math

import pytest
import torch

from ricnet.studies.theory.sampling import compare, compare_pairs


def test_deviation_is_in_standard_errors_of_the_mean() -> None:
    samples = torch.tensor([[1.0], [2.0], [3.0], [6.0]], dtype=torch.float64)
    found = compare(samples, torch.tensor([2.0], dtype=torch.float64))
    error = math.sqrt((4 + 1 + 0 + 9) / 3) / 2
    assert found.sampled.item() == 3
    assert found.standard_error.item() == pytest.approx(error)
    assert found.largest == pytest.approx(1 / error)
    assert found.holds
    assert not compare(samples, torch.tensor([-2.0], dtype=torch.float64)).holds


def test_pairs_count_only_what_their_expectations_leave() -> None:
    expected = torch.tensor([[0.0], [100.0]], dtype=torch.float64)
    found = compare_pairs(expected + torch.tensor([[0.5], [1.5]], dtype=torch.float64), expected)
    assert found.deviation.item() == pytest.approx(1 / (math.sqrt(0.5) / math.sqrt(2)))


def test_nothing_holds_that_is_not_a_number() -> None:
    assert not compare(torch.tensor([[1.0], [math.nan]]), torch.tensor([1.0])).holds
