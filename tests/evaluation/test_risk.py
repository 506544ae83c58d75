"""Risk control: bounds by hand and against other formulas, and violations in simulation of many calibrations."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, stats

from ricnet.errors import RicnetError
from ricnet.evaluation.risk import (
    Answers,
    Loss,
    abstention_thresholds,
    binomial_p_value,
    control_abstention,
    control_exits,
    examples_needed,
    fixed_sequence,
    hoeffding_bentkus_p_value,
    last_accepted,
    losses,
    require_examples,
    upper_bound,
)


def test_bounds_by_hand() -> None:
    assert binomial_p_value(0, 10, 0.1) == pytest.approx(0.9**10)
    assert binomial_p_value(1, 10, 0.1) == pytest.approx(0.9**10 + 10 * 0.1 * 0.9**9)
    assert upper_bound(0, 10, 0.05) == pytest.approx(1 - 0.05 ** (1 / 10))
    assert upper_bound(10, 10, 0.05) == 1
    assert binomial_p_value(0, 0, 0.1) == 1
    assert hoeffding_bentkus_p_value(0.0, 10, 0.1) == pytest.approx(0.9**10)  # Hoeffding's part; Bentkus' is e times it
    assert hoeffding_bentkus_p_value(0.3, 10, 0.1) == 1


@given(st.integers(1, 200), st.floats(0.01, 0.5), st.floats(0.01, 0.3), st.data())
def test_the_p_value_and_the_bound_say_the_same(n: int, limit: float, delta: float, data: st.DataObject) -> None:
    k = data.draw(st.integers(0, n))
    bound = upper_bound(k, n, delta)
    if abs(bound - limit) > 1e-9:
        assert (binomial_p_value(k, n, limit) <= delta) == (bound <= limit)
    if k < n:  # an independent way to the bound
        solved = optimize.brentq(lambda risk: stats.binom.cdf(k, n, risk) - delta, 1e-12, 1 - 1e-12)
        assert bound == pytest.approx(solved, abs=1e-8)


@given(st.integers(1, 100), st.floats(0.02, 0.5), st.floats(0, 1))
def test_hoeffding_bentkus_written_out(n: int, limit: float, mean: float) -> None:
    a = min(mean, limit)
    h = (a * math.log(a / limit) if a else 0) + (1 - a) * math.log((1 - a) / (1 - limit))
    chances = [math.comb(n, k) * limit**k * (1 - limit) ** (n - k) for k in range(math.ceil(n * mean - 1e-9) + 1)]
    expected = min(1, math.exp(-n * h), math.e * sum(chances))
    assert hoeffding_bentkus_p_value(mean, n, limit) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("limit", "probability", "needed"), [(0.01, 0.95, 299), (0.05, 0.95, 59), (0.5, 0.75, 2)])
def test_the_examples_a_limit_needs(limit: float, probability: float, needed: int) -> None:
    assert examples_needed(limit, probability) == needed
    assert binomial_p_value(0, needed, limit) <= 1 - probability + 1e-12 < binomial_p_value(0, needed - 1, limit)
    require_examples(needed, "max_loss", limit, probability)
    with pytest.raises(RicnetError, match=f"--max-loss {limit} with --probability {probability} needs at least"):
        require_examples(needed - 1, "max_loss", limit, probability)


def test_testing_stops_at_the_first_failure() -> None:
    assert fixed_sequence([0.01, 0.05, 0.2, 0.001], 0.05) == 2
    assert fixed_sequence([0.2, 0.0], 0.05) == 0
    assert fixed_sequence([0.0, 0.0], 0.05) == 2
    assert fixed_sequence([math.nan], 0.05) == 0


def answers_of(early: list[int], whole: list[int], labels: list[int]) -> Answers:
    answer = np.array([early, whole])
    brier = np.array([[0.5, 0.2, 1.4, 0.0], [0.1, 0.4, 0.4, 0.0]])
    return Answers(answer, brier, np.array(labels))


def test_losses_by_hand() -> None:
    answers = answers_of([0, 1, 2, 3], [1, 1, 1, 3], [1, 0, 2, 3])
    stops = np.array([1, 1, 1, 2])
    expected: dict[Loss, list[float]] = {"lost": [1, 0, 0, 0], "changed": [1, 0, 1, 0], "brier": [0.4, 0, 1, 0]}
    for loss, wanted in expected.items():
        assert losses(answers, stops, loss) == pytest.approx(wanted)
    assert losses(answers, np.array([2, 2, 2, 2]), "changed").sum() == 0


def simulated(rng: np.random.Generator, n: int) -> tuple[Answers, np.ndarray]:
    """Four steps that get better, and a value that falls faster for easy examples."""
    hardness = rng.random(n)
    right = rng.random((4, n)) < 1 - hardness * np.array([[0.5], [0.3], [0.18], [0.15]])
    labels = rng.integers(0, 3, n)
    answer = np.where(right, labels, (labels + 1) % 3)
    value = hardness * np.array([[1.0], [0.6], [0.3]]) + 0.1 * rng.random((3, n))
    return Answers(answer, np.where(right, 0.1, 1.9), labels), value


def stops_at(value: np.ndarray, threshold: float) -> np.ndarray:
    stopped = value < threshold
    return np.where(stopped.any(0), stopped.argmax(0) + 1, 4)


THRESHOLDS = (0.02, 0.05, 0.08, 0.12, 0.16, 0.2, 0.3, 0.4, 0.6, 1.2)


# Limits just below the risk of a candidate, so that a test without a margin would accept it half of the time.
@pytest.mark.parametrize(("loss", "limit"), [("lost", 0.028), ("changed", 0.12), ("brier", 0.13)])
def test_exits_exceed_their_loss_as_rarely_as_promised(loss: Loss, limit: float) -> None:
    rng, delta, trials = np.random.default_rng(0), 0.1, 400
    everyone, value = simulated(rng, 200_000)
    risks = {t: losses(everyone, stops_at(value, t), loss).mean() for t in THRESHOLDS}
    assert risks[THRESHOLDS[0]] < limit < risks[THRESHOLDS[-1]]
    violations, taken = 0, []
    for _ in range(trials):
        rows = rng.integers(200_000, size=400)
        some = Answers(everyone.answer[:, rows], everyone.brier[:, rows], everyone.labels[rows])
        stops = [stops_at(value[:, rows], t) for t in THRESHOLDS]
        best = last_accepted(control_exits(some, stops, THRESHOLDS, limit, 1 - delta, loss))
        violations += best is not None and risks[best.threshold] > limit
        taken.append(0.0 if best is None else best.threshold)
    assert violations / trials <= delta + 2 * math.sqrt(delta * (1 - delta) / trials)
    assert np.mean(taken) > 0.05  # some examples leave early


def test_abstention_exceeds_its_error_as_rarely_as_promised() -> None:
    rng, delta, trials, limit = np.random.default_rng(0), 0.1, 500, 0.05
    confidence = rng.beta(12, 1, 100_000)
    wrong = rng.random(100_000) > confidence
    violations, answered = 0, []
    for _ in range(trials):
        rows, other = rng.integers(100_000, size=(2, 500))
        thresholds = abstention_thresholds(confidence[other], 500, limit, 1 - delta)
        best = last_accepted(control_abstention(confidence[rows], wrong[rows], thresholds, limit, 1 - delta))
        if best is not None:
            violations += wrong[confidence >= best.threshold].mean() > limit
            answered.append((confidence >= best.threshold).mean())
    assert violations / trials <= delta + 2 * math.sqrt(delta * (1 - delta) / trials)
    assert len(answered) > 0.8 * trials
    assert np.mean(answered) > 0.2


def test_the_least_favourable_risk_is_tested_at_its_level() -> None:
    """A single candidate exactly at the limit passes with probability just below δ: the test is not too strict."""
    passes = sum(stats.binom.pmf(k, 400, 0.05) for k in range(401) if binomial_p_value(k, 400, 0.05) <= 0.1)
    assert 0.06 < passes <= 0.1


def test_abstention_by_hand() -> None:
    confidence = np.repeat([0.9, 0.6], 50)
    wrong = np.arange(100) >= 90
    strict, lenient = control_abstention(confidence, wrong, (0.9, 0.0), 0.1, 0.95)
    assert (strict.n, strict.risk, strict.accepted) == (50, 0.0, True)
    assert strict.p_value == pytest.approx(0.9**50)
    assert (lenient.n, lenient.risk, lenient.accepted) == (100, 0.1, False)
    assert last_accepted((strict, lenient)) == strict
    assert last_accepted((lenient,)) is None
    assert control_abstention(confidence, wrong, (0.95,), 0.1)[0].risk is None


def test_thresholds_answer_ever_more_and_at_last_all() -> None:
    found = abstention_thresholds(np.linspace(0.5, 1, 1000), 600, 0.1, 0.95)
    assert list(found) == sorted(found, reverse=True)
    assert found[-1] == 0
    needed = examples_needed(0.1, 0.95)
    assert np.mean(np.linspace(0.5, 1, 1000) >= found[0]) == pytest.approx(2 * needed / 600, abs=0.002)
    assert abstention_thresholds(np.zeros(0), 600, 0.1) == (0.0,)


@pytest.mark.parametrize(("limit", "probability"), [(0.0, 0.9), (1.0, 0.9), (0.1, 1.0), (math.nan, 0.9)])
def test_limits_out_of_range_are_refused(limit: float, probability: float) -> None:
    answers = answers_of([0, 1, 2, 3], [1, 1, 1, 3], [1, 0, 2, 3])
    with pytest.raises(RicnetError, match="is out of range"):
        control_exits(answers, [], [], limit, probability)
