"""Every metric by hand, and by other means: exact fractions, plain loops, scikit-learn.

Bins are the subtle part. A confidence belongs to bin m if (m − 1)/M < c ≤ m/M in exact arithmetic, with one exception:
the float nearest to m/M, which is what a computation that means m/M returns, counts as m/M even where it is larger.
"""

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss, roc_auc_score

from ricnet.core.trajectory import Trajectory
from ricnet.evaluation.evaluate import Outcome, report
from ricnet.evaluation.metrics import (
    area_under_risk_coverage,
    bin_index,
    classwise_calibration_error,
    correctness_auroc,
    expected_calibration_error,
    risk_at,
)

Real = np.float32 | np.float64


def means_edge(c: Real, edge: Fraction) -> bool:
    """No other number of the same precision is nearer to the edge."""
    one = type(c)(1)
    neighbours = [np.nextafter(c, -one), np.nextafter(c, 2 * one)]
    return all(abs(Fraction(float(c)) - edge) <= abs(Fraction(float(other)) - edge) for other in neighbours)


def exact_bin(c: Real, bins: int) -> int:
    edges = [Fraction(m, bins) for m in range(1, bins + 1)]
    return next(m for m, edge in enumerate(edges) if Fraction(float(c)) <= edge or means_edge(c, edge))


def exact_ece(confidence: Sequence[Real], right: Sequence[bool], bins: int = 15) -> Fraction:
    gaps: dict[int, Fraction] = {}
    for c, r in zip(confidence, right, strict=True):
        m = exact_bin(c, bins)
        gaps[m] = gaps.get(m, Fraction(0)) + r - Fraction(float(c))
    return sum((abs(gap) for gap in gaps.values()), Fraction(0)) / len(right)


def exact_aurc(confidence: Sequence[Real], right: Sequence[bool]) -> Fraction:
    """Mean over k of the risk among the k surest, expected over all orders of those equally sure."""
    total = Fraction(0)
    for k in range(1, len(right) + 1):
        threshold = sorted(confidence, reverse=True)[k - 1]
        above = [r for c, r in zip(confidence, right, strict=True) if c > threshold]
        level = [r for c, r in zip(confidence, right, strict=True) if c == threshold]
        errors = above.count(False) + Fraction(level.count(False), len(level)) * (k - len(above))
        total += errors / k
    return total / len(right)


def exact_auroc(confidence: Sequence[Real], right: Sequence[bool]) -> Fraction | None:
    """Over all pairs of a right and a wrong answer: is the right one surer? Equally sure counts half."""
    rights = [c for c, r in zip(confidence, right, strict=True) if r]
    wrongs = [c for c, r in zip(confidence, right, strict=True) if not r]
    if not rights or not wrongs:
        return None
    won = sum((Fraction(1) if a > b else Fraction(int(a == b), 2) for a in rights for b in wrongs), Fraction(0))
    return won / (len(rights) * len(wrongs))


def delicate(kind: type[Real], bins: int = 15) -> list[Real]:
    """0, 1, every edge as this precision has it, and the numbers next to them."""
    edges = [kind(m / bins) for m in range(bins + 1)]
    beside = [np.nextafter(e, kind(side)) for e in edges for side in (0, 1)]
    return [*edges, *beside]


def confidences(kind: type[Real]) -> st.SearchStrategy[Real]:
    width = 32 if kind is np.float32 else 64
    return st.sampled_from(delicate(kind)) | st.floats(0, 1, width=width).map(kind)


answers = st.sampled_from([np.float32, np.float64]).flatmap(
    lambda kind: st.lists(st.tuples(confidences(kind), st.booleans()), min_size=1, max_size=30)
)
"""Confidences of one precision, each with whether the answer was right."""


def tensors(rows: Sequence[tuple[Real, bool]]) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.from_numpy(np.array([c for c, _ in rows])), torch.tensor([r for _, r in rows])


@pytest.mark.parametrize("bins", [1, 2, 10, 15, 20, 25, 49])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_bins_at_and_beside_every_edge(kind: type[Real], bins: int) -> None:
    """ceil(c·M) fails here: at all 14 edges in float32, after 11/15 and at 7/25 and 14/25 in float64."""
    values = delicate(kind, bins)
    expected = [exact_bin(c, bins) for c in values]
    assert bin_index(torch.from_numpy(np.array(values)), bins).tolist() == expected
    assert expected[: bins + 1] == [0, *range(bins)]


@given(answers)
def test_calibration_risk_and_ranking_are_exact(rows: list[tuple[Real, bool]]) -> None:
    (confidence, correct), columns = tensors(rows), list(zip(*rows, strict=True))
    ece, aurc = float(exact_ece(*columns)), float(exact_aurc(*columns))
    assert expected_calibration_error(confidence, correct) == pytest.approx(ece, abs=1e-12)
    assert area_under_risk_coverage(confidence, correct) == pytest.approx(aurc, abs=1e-12)
    auroc, found = exact_auroc(*columns), correctness_auroc(confidence, correct)
    assert found is None if auroc is None else found == pytest.approx(float(auroc), abs=1e-12)
    everywhere = risk_at(torch.arange(1, len(correct) + 1).double() / len(correct), confidence, correct)
    assert float(everywhere.mean()) == pytest.approx(aurc)  # the mean risk
    assert float(everywhere[-1]) == pytest.approx(1 - float(correct.double().mean()))


def test_metrics_by_hand() -> None:
    """Five bins: (0.4, 0.6] holds 0.5 and 0.6, one right; (0.8, 1] holds 0.9 and 1.0, both right. Two classes,
    p = (0.7, 0.3) twice, labels 0 and 1: each class is true half the time, gaps 0.2 and 0.2. Sorted by confidence:
    right, wrong, right → risks 0, 1/2, 1/3."""
    confidence = torch.tensor([0.5, 0.6, 0.9, 1.0], dtype=torch.float64)
    correct = torch.tensor([True, False, True, True])
    ece = 0.5 * abs(0.5 - 0.55) + 0.5 * abs(1 - 0.95)
    assert expected_calibration_error(confidence, correct, bins=5) == pytest.approx(ece)
    beliefs = torch.tensor([[0.7, 0.3], [0.7, 0.3]])
    assert classwise_calibration_error(beliefs, torch.tensor([0, 1])) == pytest.approx(0.2)
    aurc = area_under_risk_coverage(torch.tensor([0.2, 0.9, 0.5]), torch.tensor([True, True, False]))
    assert aurc == pytest.approx((0 + 1 / 2 + 1 / 3) / 3)
    ranked = torch.tensor([0.9, 0.8, 0.7, 0.6]), torch.tensor([True, False, True, False])
    assert correctness_auroc(*ranked) == pytest.approx(0.75)
    assert risk_at(torch.tensor([0.25, 0.5, 0.75, 1]), *ranked).tolist() == [0, 1 / 2, 1 / 3, 1 / 2]
    assert risk_at(torch.tensor([0.01, 0.26, 0.74]), *ranked).tolist() == [0, 1 / 2, 1 / 3]


def test_equally_sure_answers_share_their_error_and_a_share_that_floats_call_a_little_more_is_no_more() -> None:
    risk = risk_at(torch.tensor([0.33, 0.66, 1]), torch.ones(3), torch.tensor([True, False, True]))
    assert risk.tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3])
    sureness, correct = -torch.arange(100.0), torch.arange(100) != 7
    assert 0.07 * 100 > 7
    assert risk_at(torch.tensor([0.07], dtype=torch.float64), sureness, correct).tolist() == [0]


@pytest.mark.parametrize("right", [True, False])
def test_all_right_and_all_wrong(right: bool) -> None:
    rows = [(c, right) for c in delicate(np.float64)]
    confidence, correct = tensors(rows)
    mean = math.fsum(float(c) for c, _ in rows) / len(rows)
    assert expected_calibration_error(confidence, correct) == pytest.approx(abs(right - mean))
    assert area_under_risk_coverage(confidence, correct) == 1 - right
    assert correctness_auroc(confidence, correct) is None


def test_a_network_that_answers_nan_is_not_called_calibrated() -> None:
    confidence = torch.tensor([math.nan, 0.5])
    assert math.isnan(expected_calibration_error(confidence, torch.tensor([True, False])))


@st.composite
def beliefs(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Rows of whole numbers made to sum to one: ties, certainty and bin edges are common; classes may be missing."""
    classes = draw(st.integers(2, 5))
    row = st.lists(st.integers(0, 5), min_size=classes, max_size=classes).filter(any)
    counts = np.array(draw(st.lists(row, min_size=1, max_size=20)), dtype=np.float64)
    labels = draw(st.lists(st.integers(0, classes - 1), min_size=len(counts), max_size=len(counts)))
    return counts / counts.sum(axis=1, keepdims=True), np.array(labels)


@given(beliefs())
def test_classwise_ece(case: tuple[np.ndarray, np.ndarray]) -> None:
    rows, labels = case
    each = [exact_ece(list(column), (labels == k).tolist()) for k, column in enumerate(rows.T)]
    found = classwise_calibration_error(torch.from_numpy(rows), torch.from_numpy(labels))
    assert found == pytest.approx(float(sum(each) / len(each)), abs=1e-12)


def evaluate(rows: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    path = Trajectory(torch.from_numpy(rows).log().unsqueeze(0), torch.ones(len(rows), dtype=torch.int64))
    return report(Outcome.of(path, torch.from_numpy(labels)))


@given(beliefs())
def test_proper_scores_of_the_whole_report(case: tuple[np.ndarray, np.ndarray]) -> None:
    """Softened a little, so that scikit-learn's log loss, which clips zeros, is the same as ours."""
    rows, labels = case
    rows = 0.99 * rows + 0.01 / rows.shape[1]
    entry, classes = evaluate(rows, labels), list(range(rows.shape[1]))
    assert entry["nll"] == pytest.approx(log_loss(labels, rows, labels=classes), abs=1e-9)
    loops = [sum((p - (k == y)) ** 2 for k, p in enumerate(row)) for row, y in zip(rows.tolist(), labels, strict=True)]
    assert entry["brier"] == pytest.approx(sum(loops) / len(loops), abs=1e-9)
    if len(classes) == 2:  # scikit-learn's is half of it there
        halved = brier_score_loss(labels, rows[:, 1], labels=classes, pos_label=1)
        assert entry["brier"] == pytest.approx(2 * halved, abs=1e-9)


def test_whole_report_on_many_random_beliefs() -> None:
    """A thousand examples of five classes of which one never occurs; float32 as a network gives it."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(1000, 5)).astype(np.float32) * 2
    labels = np.where(rng.random(1000) < 0.6, logits[:, :4].argmax(axis=1), rng.integers(4, size=1000))
    rows = torch.log_softmax(torch.from_numpy(logits), -1).double().exp().numpy()
    rows = rows / rows.sum(axis=1, keepdims=True)
    entry, confidence, right = evaluate(rows, labels), rows.max(axis=1), rows.argmax(axis=1) == labels
    assert entry["accuracy"] == pytest.approx(accuracy_score(labels, rows.argmax(axis=1)))
    assert entry["ece"] == pytest.approx(float(exact_ece(list(confidence), right.tolist())), abs=1e-9)
    assert entry["nll"] == pytest.approx(log_loss(labels, rows, labels=range(5)), abs=1e-9)
    assert entry["auroc_correctness"] == pytest.approx(roc_auc_score(right, confidence), abs=1e-9)
    order = np.argsort(-confidence)
    risks = [1 - right[order[:k]].mean() for k in range(1, 1001)]
    assert entry["aurc"] == pytest.approx(np.mean(risks), abs=1e-9)
    each = [exact_ece(list(rows[:, k]), (labels == k).tolist()) for k in range(5)]
    assert entry["ece_classwise"] == pytest.approx(float(sum(each)) / 5, abs=1e-9)
