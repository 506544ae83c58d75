"""Comparison of new data with calibration data, and scores with intervals."""

import math

import numpy as np
import pytest

from ricnet.errors import RicnetError
from ricnet.evaluation.shift import (
    Summary,
    compare,
    confidence_bins,
    counts_p_value,
    judge,
    population_stability,
    verdict,
)


def summary(rng: np.random.Generator, n: int, sure: float = 6.0, harder: float = 0.0) -> Summary:
    confidence = rng.beta(sure, 1, n)
    return Summary(confidence, 1 + rng.binomial(5, 0.3 + harder, n), rng.integers(0, 4, n))


def test_the_stability_index_by_hand() -> None:
    assert population_stability(np.array([5, 5]), np.array([50, 50])) == pytest.approx(0)
    p, q = np.array([30.5, 10.5]) / 41, np.array([10.5, 30.5]) / 41
    expected = (q[0] - p[0]) * math.log(q[0] / p[0]) + (q[1] - p[1]) * math.log(q[1] / p[1])
    assert population_stability(np.array([30, 10]), np.array([10, 30])) == pytest.approx(expected)
    assert math.isfinite(population_stability(np.array([10, 0]), np.array([0, 10])))


def test_bins_are_tenths_of_the_old_confidences() -> None:
    old, new = confidence_bins(np.arange(1.0, 101), np.array([0.5, 10.9, 50.0, 200.0, 200.0]))
    assert old.tolist() == [10] * 10
    assert new.sum() == 5
    assert new[[0, 9]].tolist() == [2, 2]
    same, _ = confidence_bins(np.ones(50), np.ones(3))  # all equal: one edge
    assert same.tolist() == [50, 0]


def test_the_test_of_counts_merges_rare_bins() -> None:
    assert counts_p_value(np.array([50, 50]), np.array([50, 50])) == pytest.approx(1)
    assert counts_p_value(np.array([100, 0]), np.array([0, 100])) < 1e-20
    assert counts_p_value(np.array([100, 1, 0, 0]), np.array([100, 0, 1, 0])) == pytest.approx(1)
    assert counts_p_value(np.array([7]), np.array([9])) == 1
    assert counts_p_value(np.array([3, 0]), np.array([0, 3])) == 1  # too few to say
    assert counts_p_value(np.array([100, 0]), np.array([100, 9])) == 1  # 9 join the next bin, 10 do not
    assert counts_p_value(np.array([100, 0]), np.array([100, 10])) < 0.01


def test_false_alarms_have_the_given_rate() -> None:
    rng = np.random.default_rng(0)
    alarms = sum(any(c.differs for c in compare(summary(rng, 200), summary(rng, 150), 4)) for _ in range(500))
    assert alarms / 500 <= 0.01 + 2 * math.sqrt(0.01 * 0.99 / 500)


def test_shifted_data_is_noticed_and_named() -> None:
    rng = np.random.default_rng(0)
    found = compare(summary(rng, 300), summary(rng, 200, sure=2.0, harder=0.2), 4)
    assert [each.name for each in found] == ["confidence", "steps", "answer"]
    assert [each.differs for each in found] == [True, True, False]
    assert found[0].size == "large"
    assert found[0].new < found[0].old
    words = verdict(found, 200)
    assert "Guarantees are doubtful: confidence and steps of 200 new examples differ" in words
    worst = max(found, key=lambda each: each.stability)
    assert f"(the difference of {worst.name} is {worst.size})" in words
    same = compare(summary(rng, 300), summary(rng, 200), 4, exits=True)
    assert same[1].name == "exit"
    assert "which this does not prove" in verdict(same, 200)


def test_no_examples_are_refused() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(RicnetError, match="no examples to compare"):
        compare(summary(rng, 300), summary(rng, 0), 4)


def test_scores_with_intervals() -> None:
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.6, 1, 400)
    correct = rng.random(400) < confidence - 0.1
    covered = np.arange(400) >= 8
    found = judge(confidence, correct, {0.95: covered})
    assert found.accuracy.share == correct.mean()
    assert found.accuracy.low < 0.7 < found.accuracy.high
    assert found.overconfidence.value == pytest.approx(confidence.mean() - correct.mean())
    assert found.overconfidence.low < 0.1 < found.overconfidence.high
    half = 1.96 * (confidence - correct).std(ddof=1) / 20
    assert found.overconfidence.high - found.overconfidence.value == pytest.approx(half)
    assert found.calibration_error.low <= found.calibration_error.value <= found.calibration_error.high
    assert found.coverage[0.95].share == 0.98
    assert found.coverage[0.95].low < 0.98 < found.coverage[0.95].high
