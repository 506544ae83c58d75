import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from ricnet.evaluation.evaluate import Outcome
from ricnet.report.figures import band
from ricnet.report.statistics import holm, mean_interval, paired_bootstrap, paired_difference

SAMPLES = st.lists(st.integers(-1000, 1000).map(lambda k: k / 1000), min_size=2, max_size=9)


def predictions(log_beliefs: np.ndarray, labels: np.ndarray) -> Outcome:
    n = len(labels)
    ones, grid = torch.ones(n, dtype=torch.int64), torch.zeros(1, n)
    return Outcome(torch.from_numpy(log_beliefs), torch.from_numpy(labels), ones, ones, grid, grid, grid > 0, grid)


def random_predictions(rng: np.random.Generator, labels: np.ndarray, classes: int = 3) -> Outcome:
    beliefs = rng.dirichlet(np.ones(classes), size=len(labels))
    return predictions(np.log(beliefs).astype(np.float32), labels)


def two_class(confidence: np.ndarray, right: np.ndarray) -> Outcome:
    """Always answers class 0, with this confidence; the label says whether it is right."""
    return predictions(np.log(np.stack([confidence, 1 - confidence], axis=1)), np.where(right, 0, 1))


def test_interval_of_five_seeds_by_hand() -> None:
    """1, …, 5: s² = 2.5, t(4, 0.975) = 2.776."""
    found = mean_interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert (found.mean, found.n) == (3.0, 5)
    assert found.half_width == pytest.approx(2.776445 * math.sqrt(2.5 / 5), rel=1e-6)
    assert mean_interval([0.5]).half_width is None
    assert math.isnan(mean_interval([0.5, math.nan]).mean)


@given(SAMPLES)
def test_interval_is_scipys(samples: list[float]) -> None:
    found = mean_interval(samples)
    error = stats.sem(samples)
    expected = stats.t.ppf(0.975, len(samples) - 1) * error
    assert found.half_width == pytest.approx(expected, abs=1e-12)
    assert found.mean == pytest.approx(np.mean(samples), abs=1e-12)


def test_band_is_the_interval_at_each_point() -> None:
    curves = np.random.default_rng(0).normal(size=(4, 6))
    mean, half = band(curves)
    expected = [mean_interval(column) for column in curves.T]
    assert mean == pytest.approx([e.mean for e in expected])
    assert half == pytest.approx([e.half_width for e in expected])
    nan = math.nan  # missing values are left out
    mean, half = band(np.array([[1.0, 1.0, nan], [2.0, nan, nan], [4.0, nan, nan]]))
    assert mean[:2] == pytest.approx([7 / 3, 1])
    assert half[0] == pytest.approx(mean_interval([1.0, 2.0, 4.0]).half_width)
    assert np.isnan(half[1:]).all()
    assert np.isnan(mean[2])


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 500)), min_size=2, max_size=8))
def test_paired_difference_is_scipys(pairs: list[tuple[int, int]]) -> None:
    a, b = [x / 500 for x, _ in pairs], [y / 500 for _, y in pairs]
    if len({x - y for x, y in pairs}) == 1:
        return  # scipy divides 0 by 0
    found, expected = paired_difference(a, b), stats.ttest_rel(a, b)
    low, high = expected.confidence_interval(0.95)
    assert found.p_value == pytest.approx(expected.pvalue, abs=1e-9)
    assert (found.mean - found.half_width, found.mean + found.half_width) == pytest.approx((low, high), abs=1e-9)


def test_pairs_that_all_differ_alike() -> None:
    assert paired_difference([0.5, 0.25], [0.5, 0.25]).p_value == 1
    assert paired_difference([0.5, 0.75], [0.25, 0.5]).p_value is None
    one_more_right = paired_difference([k / 449 for k in (440, 433, 437)], [k / 449 for k in (439, 432, 436)])
    assert (one_more_right.p_value, one_more_right.n) == (None, 3)  # though the floats differ in their last digits
    assert one_more_right.mean == pytest.approx(1 / 449)
    assert math.isnan(paired_difference([0.5, math.nan, 0.5], [0.25, 0.25, 0.25]).p_value)
    single = paired_difference([0.5], [0.25])
    assert (single.mean, single.half_width, single.p_value, single.n) == (0.25, None, None, 1)
    with pytest.raises(ValueError, match="shorter"):
        paired_difference([0.1, 0.2], [0.1])


def test_holm_by_hand() -> None:
    """Sorted: .005·4, .01·3, .03·2, .04·1, and none below the one before it."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1, 1]
    assert holm([0.02]) == [0.02]
    assert holm([]) == []


def loop_metrics(run: Outcome, rows: list[int]) -> dict[str, float]:
    """Metrics of some rows, with repeats, in plain Python."""
    bins: dict[int, list[float]] = {}
    totals = dict.fromkeys(("accuracy", "nll", "brier"), 0.0)
    for i in rows:
        belief = [math.exp(x) for x in run.log_beliefs[i].tolist()]
        label, confidence = int(run.labels[i]), max(belief)
        right = belief.index(confidence) == label
        m = next(m for m in range(1, 16) if confidence <= m / 15)
        bins.setdefault(m, []).append(right - confidence)
        totals["accuracy"] += right
        totals["nll"] -= float(run.log_beliefs[i, label])
        totals["brier"] += sum((p - (k == label)) ** 2 for k, p in enumerate(belief))
    ece = sum(abs(sum(gaps)) for gaps in bins.values())
    return {name: total / len(rows) for name, total in {**totals, "ece": ece}.items()}


def test_bootstrap_is_the_plain_loop() -> None:
    rng = np.random.default_rng(3)
    labels = rng.integers(3, size=25)
    a, b = ([random_predictions(rng, labels) for _ in range(2)] for _ in range(2))
    resamples = 130  # more than one chunk, and no multiple of it
    draws = np.random.default_rng(7).integers(25, size=(resamples, 25)).tolist()
    differences: dict[str, list[float]] = {}
    for rows in draws:
        own, base = ([loop_metrics(run, rows) for run in system] for system in (a, b))
        for name in own[0]:
            gap = sum(m[name] for m in own) / 2 - sum(m[name] for m in base) / 2
            differences.setdefault(name, []).append(gap)
    found = paired_bootstrap(a, b, resamples, seed=7)
    assert set(found) == {"accuracy", "ece", "nll", "brier"}
    for name, gaps in differences.items():
        expected = stats.scoreatpercentile(gaps, [2.5, 97.5])
        assert (found[name].low, found[name].high) == pytest.approx(tuple(expected), abs=1e-9), name


def test_bootstrap_covers_the_truth() -> None:
    """Right with probability .8 and .7, the second never without the first: the true difference is .1."""
    rng = np.random.default_rng(0)
    labels, sides = np.zeros(200, dtype=int), np.log([[0.25, 0.75], [0.75, 0.25]])
    covered, middles = [], []
    for _ in range(200):
        luck = rng.random(200)
        a, b = (predictions(sides[(luck < p).astype(int)], labels) for p in (0.8, 0.7))
        found = paired_bootstrap([a], [b], resamples=200)["accuracy"]
        covered.append(found.low <= 0.1 <= found.high)
        middles.append((found.low + found.high) / 2)
    assert 0.89 <= np.mean(covered) <= 0.985
    assert np.mean(middles) == pytest.approx(0.1, abs=4 * np.std(middles) / math.sqrt(200))


def test_an_interval_of_ece_is_of_what_n_examples_measure() -> None:
    """As the docstring says, for a calibrated and an overconfident system, with 15 bins and n = 150."""
    rng = np.random.default_rng(0)
    differences, intervals = [], []
    for _ in range(100):
        confidence = rng.uniform(0.5, 1, size=150)
        right = rng.random(150) < confidence
        pair = [two_class(confidence, right), two_class(0.9 + 0.09 * confidence, right)]
        own, base = (loop_metrics(run, list(range(150)))["ece"] for run in pair)
        differences.append(own - base)
        intervals.append(paired_bootstrap(pair[:1], pair[1:], 100)["ece"])
    expected = np.mean(differences)
    assert np.mean([i.low <= expected <= i.high for i in intervals]) > 0.85
    assert np.mean([(i.low + i.high) / 2 - d for i, d in zip(intervals, differences, strict=True)]) > 0


def test_bootstrap_repeats_itself_and_refuses_other_examples() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=30)
    a, b = ([random_predictions(rng, labels)] for _ in range(2))
    assert paired_bootstrap(a, b, 40) == paired_bootstrap(a, b, 40)
    assert all((p.low, p.high) == (0, 0) for p in paired_bootstrap(a, a, 40).values())
    with pytest.raises(ValueError, match="examples"):
        paired_bootstrap(a, [random_predictions(rng, 2 - labels)], 40)
