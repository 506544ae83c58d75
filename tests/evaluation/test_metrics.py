"""Every metric by hand, and by other means: exact fractions, plain loops, scikit-learn.

Bins are the subtle part. A confidence belongs to bin m if (m − 1)/M < c ≤ m/M in exact arithmetic, with one exception:
the float nearest to m/M, which is what a computation that means m/M returns, counts as m/M even where it is larger.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    balanced_accuracy_score,
    brier_score_loss,
    log_loss,
    roc_auc_score,
)

from ricnet.core.trajectory import Trajectory
from ricnet.evaluation.evaluate import Outcome, report
from ricnet.evaluation.metrics import (
    CollapseWatch,
    area_under_risk_coverage,
    bin_index,
    class_scores,
    classwise_calibration_error,
    collapses,
    correctness_auroc,
    expected_calibration_error,
    measured_rows,
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
    """Mean over k of the risk among the k most confident, averaged over all orders of ties."""
    total = Fraction(0)
    for k in range(1, len(right) + 1):
        threshold = sorted(confidence, reverse=True)[k - 1]
        above = [r for c, r in zip(confidence, right, strict=True) if c > threshold]
        level = [r for c, r in zip(confidence, right, strict=True) if c == threshold]
        errors = above.count(False) + Fraction(level.count(False), len(level)) * (k - len(above))
        total += errors / k
    return total / len(right)


def exact_auroc(confidence: Sequence[Real], right: Sequence[bool]) -> Fraction | None:
    """Share of pairs of a right and a wrong answer in which the right one is more confident; ties count half."""
    rights = [c for c, r in zip(confidence, right, strict=True) if r]
    wrongs = [c for c, r in zip(confidence, right, strict=True) if not r]
    if not rights or not wrongs:
        return None
    won = sum((Fraction(1) if a > b else Fraction(int(a == b), 2) for a in rights for b in wrongs), Fraction(0))
    return won / (len(rights) * len(wrongs))


def delicate(kind: type[Real], bins: int = 15) -> list[Real]:
    """0, 1, every bin edge in this precision, and the adjacent floats."""
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


def test_separation_agrees_with_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    for classes, share in ((2, 0.1), (2, 0.7), (4, 0.1)):
        p = np.array([share] + [(1 - share) / (classes - 1)] * (classes - 1))
        labels = rng.choice(classes, 200, p=p)
        beliefs = np.exp(rng.normal(size=(200, classes)) + np.eye(classes)[labels]).round(1) + 0.1  # with ties
        log_beliefs = torch.from_numpy(beliefs / beliefs.sum(1, keepdims=True)).log()
        found, beliefs = class_scores(log_beliefs, torch.from_numpy(labels)), log_beliefs.exp().numpy()
        one_hot = np.eye(classes)[labels]
        assert found["roc_auc"] == pytest.approx(roc_auc_score(one_hot, beliefs, average="macro"))
        each = average_precision_score(one_hot, beliefs, average=None)
        rarer = int(one_hot.sum(0).argmin())
        assert found["average_precision"] == pytest.approx(each[rarer] if classes == 2 else each.mean())
        assert found["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(labels, beliefs.argmax(1)))
        assert found["brier"] == pytest.approx(((beliefs - one_hot) ** 2).sum(1).mean())
        assert found["nll"] == pytest.approx(log_loss(labels, beliefs))
    one = class_scores(log_beliefs, torch.zeros(200, dtype=torch.int64))
    assert (one["roc_auc"], one["average_precision"]) == (None, None)


def lines(accuracy: Sequence[float] = (), value_loss: Sequence[float] = (), first: int = 1) -> list[dict[str, Any]]:
    """One line per epoch, with the given metrics."""
    columns = {name: column for name, column in (("accuracy", accuracy), ("value_loss", value_loss)) if column}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return [{"epoch": epoch, "train": row} for epoch, row in enumerate(rows, start=first)]


def epochs(*given: Any) -> list[float]:
    return [each["epoch"] for each in collapses(lines(*given))]


@pytest.mark.parametrize("best", [0.2, 0.4, 0.787, 1.0])
def test_more_than_ten_points_below_the_best_training_accuracy(best: float) -> None:
    """0.4 - 0.3 is more than 0.1 in floating point, and is ten points all the same."""
    assert epochs([best, best - 0.1]) == []
    assert epochs([best, best - 0.1001]) == [2]


def test_the_best_is_of_all_epochs_and_of_this_run_alone() -> None:
    assert epochs([0.3, 0.95, 0.9, 0.86, 0.84, 0.6, 0.96]) == [5, 6]
    assert epochs([0.95, 0.86, 0.77, 0.86]) == [3]
    assert epochs([0.1, 0.1, 0.1]) == []


def test_the_first_twenty_updates_set_no_best_and_are_no_collapse() -> None:
    """A small table has one update per epoch, and its first accuracies vary much."""
    accuracy = [0.9, 0.4, *[0.6] * 17, 0.86, 0.75, 0.8, 0.69]
    slow = [line | {"update": line["epoch"]} for line in lines(accuracy)]
    assert [each["epoch"] for each in collapses(slow)] == [23]
    fast = [line | {"update": 21 * line["epoch"]} for line in lines([0.9, 0.4])]
    assert [each["epoch"] for each in collapses(fast)] == [2]


@pytest.mark.parametrize(("rows", "fallen"), [(100, 0.55), (128, 0.58), (20_000, 0.6999)])
def test_accuracies_of_few_rows_must_also_differ_by_four_standard_errors(rows: int, fallen: float) -> None:
    """√((.8·.2 + .55·.45) / 100) = .0638, four of which are .255; of 20,000 rows .016, which decides nothing."""
    four = 4 * ((0.16 + fallen * (1 - fallen)) / rows) ** 0.5
    assert [each["epoch"] for each in collapses(lines([0.8, fallen]), rows)] == ([2] if 0.8 - fallen > four else [])
    assert (0.8 - fallen > four) == (rows == 20_000)
    assert [each["epoch"] for each in collapses(lines([0.8, fallen - 0.02]), rows)] == [2]
    assert [each["epoch"] for each in collapses(lines([0.8, fallen]))] == [2]  # the number of rows is unknown


def test_a_value_loss_of_more_than_five_times_its_median() -> None:
    steady = [1.0, 3.0] * 10  # median 2, mean 2; sorted, the tenth and the eleventh are 1 and 3
    assert epochs([], [*steady, 10.0]) == []
    assert epochs([], [*steady, 10.01]) == [21]


def test_a_value_loss_of_less_than_a_hundredth_is_no_jump() -> None:
    assert epochs([], [*[0.0008] * 20, 0.009]) == []
    assert epochs([], [*[0.0008] * 20, 0.011]) == [21]


def test_the_median_is_no_mean() -> None:
    assert epochs([], [*[1.0] * 15, *[4.0] * 5, 5.5]) == [21]  # mean 1.75


def test_the_median_is_of_the_twenty_epochs_before() -> None:
    """Nothing is judged before WINDOW epochs; older ones leave the window, and the current one is not in it."""
    assert epochs([], [*[1.0] * 19, 6.0]) == []
    assert epochs([], [*[1.0] * 20, 6.0]) == [21]
    forgotten = [*[100.0] * 11, *[1.0] * 9]  # median 100 now, 1 after one more
    assert epochs([], [*forgotten, 1.0, 6.0]) == []  # ten of each: 50.5
    assert epochs([], [*forgotten, 1.0, 1.0, 6.0]) == [23]
    assert epochs([], [*[1.0] * 10, *[2.0] * 10, 7.6]) == [21]  # of the twenty alone 1.5; with its own 2


def test_a_jump_that_lasts_is_reported_until_it_is_the_rule() -> None:
    found = epochs([], [*[1.0] * 20, *[9.0] * 15])
    assert found == [*range(21, 31)]  # at epoch 31 half of the window are jumps: median 5


def test_both_kinds_of_collapse_are_one_entry_with_references() -> None:
    found = collapses(lines([*[0.8] * 20, 0.3], [*[2.0] * 20, 11.0]))
    assert found == [{"epoch": 21, "accuracy": 0.3, "best_accuracy": 0.8, "value_loss": 11.0, "median_value_loss": 2.0}]


def test_archived_curves_keep_some_epochs_only() -> None:
    """The window is of twenty epochs, not of twenty lines."""
    thinned = [{"epoch": epoch, "train": {"value_loss": loss}} for epoch, loss in ((1, 90), (20, 80), (39, 1), (41, 9))]
    assert collapses(thinned) == [{"epoch": 41, "value_loss": 9, "median_value_loss": 1}]
    assert collapses([thinned[0], thinned[-1]]) == []  # the twenty epochs before are missing


def test_missing_measurements_are_ignored() -> None:
    train = ({}, None, 3, {"accuracy": None, "value_loss": "x"})
    odd: list[Any] = [{}, *({"train": each, "update": "many"} for each in train)]
    assert collapses({"epoch": epoch, **line} for epoch, line in enumerate(odd, start=30)) == []
    assert epochs([0.9, 0.5]) == [2]  # also for a method without a value


def test_a_resumed_watch_goes_on_where_it_stopped() -> None:
    whole = lines([*[0.9] * 22, 0.5, 0.5, 0.9, 0.7], [*[1.0] * 22, 8.0, 1.0, 1.0, 1.0])
    for stop in range(len(whole)):
        watch = CollapseWatch()
        for line in whole[:stop]:
            watch.see(line)
        rest = [(line["epoch"], bool(watch.see(line))) for line in whole[stop:]]
        expected = [(23, True), (24, True), (25, False), (26, True)]
        assert rest[-4:] == expected[-len(rest) :][-4:]


def test_on_a_cpu_training_accuracy_is_that_of_every_tenth_batch() -> None:
    """A fall of 15 points is beyond 4 standard errors with 900 rows, not with the 90 that are measured on a CPU."""
    epochs = lines([0.85, 0.70])
    assert collapses(epochs, measured_rows(900, "cuda"))
    assert not collapses(epochs, measured_rows(900, "cpu"))
    assert collapses([line | {"measured_rows": 900} for line in epochs], measured_rows(900, "cpu"))
