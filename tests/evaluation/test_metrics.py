from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ricnet.evaluation import metrics
from ricnet.evaluation.metrics import area_under_risk_coverage, correctness_auroc, risk_at


def test_ece_by_hand() -> None:
    """Five bins: (0.4, 0.6] holds 0.5 and 0.6, one right; (0.8, 1] holds 0.9 and 1.0, both right."""
    confidence = torch.tensor([0.5, 0.6, 0.9, 1.0], dtype=torch.float64)
    correct = torch.tensor([True, False, True, True])
    expected = 0.5 * abs(0.5 - 0.55) + 0.5 * abs(1 - 0.95)
    assert metrics.expected_calibration_error(confidence, correct, bins=5) == pytest.approx(expected)


def test_bin_edges_belong_to_the_bin_below_and_zero_to_the_first() -> None:
    edges = torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0])
    assert metrics.bin_index(edges, bins=4).tolist() == [0, 0, 1, 2, 3]
    assert metrics.bin_index(torch.nextafter(edges[:4], torch.ones(4)), bins=4).tolist() == [0, 1, 2, 3]


@given(st.lists(st.tuples(st.integers(0, 1024), st.booleans()), min_size=1, max_size=40), st.sampled_from([2, 8, 15]))
def test_ece_agrees_with_exact_arithmetic(rows: list[tuple[int, bool]], bins: int) -> None:
    """Confidences are multiples of 1/1024, so their bins and gaps can be computed in fractions."""
    members: dict[int, list[tuple[Fraction, bool]]] = {}
    for numerator, right in rows:
        c = Fraction(numerator, 1024)
        m = next(m for m in range(bins) if c <= Fraction(m + 1, bins))
        members.setdefault(m, []).append((c, right))
    expected = sum(abs(sum(r for _, r in group) - sum(c for c, _ in group)) for group in members.values()) / len(rows)
    confidence = torch.tensor([n / 1024 for n, _ in rows], dtype=torch.float64)
    correct = torch.tensor([r for _, r in rows])
    assert metrics.expected_calibration_error(confidence, correct, bins) == pytest.approx(float(expected))


def test_perfect_calibration_in_the_limit_and_default_bin_count() -> None:
    confidence = torch.rand(200_000).double()
    correct = torch.rand(200_000).double() < confidence
    assert metrics.BINS == 15
    assert metrics.expected_calibration_error(confidence, correct) < 0.01


def test_classwise_by_hand() -> None:
    """Two classes, p = (0.7, 0.3) twice, labels 0 and 1: each class is true half the time, gaps 0.2 and 0.2."""
    beliefs = torch.tensor([[0.7, 0.3], [0.7, 0.3]])
    assert metrics.classwise_calibration_error(beliefs, torch.tensor([0, 1])) == pytest.approx(0.2)


def test_aurc_by_hand() -> None:
    """Sorted by confidence: right, wrong, right → risks 0, 1/2, 1/3."""
    value = area_under_risk_coverage(torch.tensor([0.2, 0.9, 0.5]), torch.tensor([True, True, False]))
    assert value == pytest.approx((0 + 1 / 2 + 1 / 3) / 3)


@given(st.lists(st.tuples(st.sampled_from([0.3, 0.6, 0.9]), st.booleans()), min_size=1, max_size=20), st.randoms())
def test_aurc_does_not_depend_on_the_order_of_ties(rows: list[tuple[float, bool]], random: object) -> None:
    shuffled = list(rows)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    values = [area_under_risk_coverage(*(torch.tensor(c) for c in zip(*r, strict=True))) for r in (rows, shuffled)]
    assert values[0] == pytest.approx(values[1])


def test_auroc_by_hand_and_where_it_has_no_meaning() -> None:
    confidence = torch.tensor([0.9, 0.8, 0.7, 0.6])
    assert correctness_auroc(confidence, torch.tensor([True, False, True, False])) == pytest.approx(0.75)
    assert correctness_auroc(confidence, torch.ones(4, dtype=torch.bool)) is None
    assert correctness_auroc(confidence, torch.zeros(4, dtype=torch.bool)) is None


SURENESS = torch.tensor([0.6, 0.9, 0.8, 0.7])
CORRECT = torch.tensor([False, True, False, True])


def test_risk_by_hand() -> None:
    """The surest first: right, wrong, right, wrong."""
    assert risk_at(torch.tensor([0.25, 0.5, 0.75, 1]), SURENESS, CORRECT).tolist() == [0, 1 / 2, 1 / 3, 1 / 2]
    assert risk_at(torch.tensor([0.01, 0.26, 0.74]), SURENESS, CORRECT).tolist() == [0, 1 / 2, 1 / 3]


def test_equally_sure_answers_share_their_error() -> None:
    risk = risk_at(torch.tensor([0.33, 0.66, 1]), torch.ones(3), torch.tensor([True, False, True]))
    assert risk.tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3])


def test_a_share_that_floats_call_a_little_more_is_no_more() -> None:
    sureness, correct = -torch.arange(100.0), torch.arange(100) != 7
    assert 0.07 * 100 > 7
    assert risk_at(torch.tensor([0.07], dtype=torch.float64), sureness, correct).tolist() == [0]


@given(st.lists(st.tuples(st.sampled_from([0.3, 0.5, 0.7, 0.9]), st.booleans()), min_size=1, max_size=40))
def test_the_mean_risk_is_the_aurc(answers: list[tuple[float, bool]]) -> None:
    sureness, correct = (torch.tensor(column) for column in zip(*answers, strict=True))
    everywhere = risk_at(torch.arange(1, len(correct) + 1).double() / len(correct), sureness, correct)
    assert float(everywhere.mean()) == pytest.approx(area_under_risk_coverage(sureness, correct))
    assert float(everywhere[-1]) == pytest.approx(1 - float(correct.double().mean()))
