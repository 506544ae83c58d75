"""Prediction sets: scores and quantiles by hand, coverage by exact enumeration and by simulation, MAPIE's sets."""

import itertools
import json
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ricnet.errors import RicnetError
from ricnet.evaluation.conformal import (
    LAC,
    Ranked,
    Score,
    SetRule,
    choose_raps,
    conformal_quantile,
    examples_needed,
    fit_sets,
    measure_sets,
    rank_classes,
    share_of,
)

SCORES = (LAC, Score("aps"), Score("raps", 0.1, 2))


def population(rng: np.random.Generator, n: int, classes: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """Overconfident beliefs, and labels."""
    logits = 1.5 * rng.normal(size=(n, classes))
    chances = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    labels = (chances.cumsum(1) < rng.random((n, 1))).sum(1).clip(max=classes - 1)
    beliefs = chances**2
    return beliefs / beliefs.sum(1, keepdims=True), labels


def fitted(beliefs: np.ndarray, labels: np.ndarray, coverage: float, score: Score = LAC, **how: object) -> SetRule:
    true = rank_classes(beliefs).of(labels)
    return fit_sets(true, Ranked(*(part[None] for part in true)), labels, beliefs.shape[1], coverage, score, **how)


def test_scores_by_hand() -> None:
    ranked = rank_classes(np.array([[0.2, 0.5, 0.3], [0.25, 0.5, 0.25]]))
    assert ranked.rank.tolist() == [[3, 1, 2], [2, 1, 3]]
    np.testing.assert_allclose(ranked.above, [[0.8, 0, 0.5], [0.5, 0, 0.75]])
    np.testing.assert_allclose(LAC.of(ranked)[0], [0.8, 0.5, 0.7])
    np.testing.assert_allclose(Score("aps").of(ranked)[0], [1, 0.5, 0.8])
    np.testing.assert_allclose(Score("raps", 0.1, 1).of(ranked)[0], [1.2, 0.5, 0.9])
    np.testing.assert_allclose(Score("raps", 0.1, 2).of(ranked)[0], [1.1, 0.5, 0.8])
    true = ranked.of(np.array([2, 0]))
    assert (true.rank.tolist(), true.probability.tolist()) == ([2, 2], [0.3, 0.25])


@pytest.mark.parametrize(("coverage", "needed"), [(0.5, 1), (0.9, 9), (0.95, 19), (0.99, 99), (0.55, 2), (0.999, 999)])
def test_the_examples_a_level_needs(coverage: float, needed: int) -> None:
    assert examples_needed(coverage) == needed
    scores = np.arange(needed, dtype=float)
    assert math.isfinite(conformal_quantile(scores, coverage))
    assert math.isinf(conformal_quantile(scores[1:], coverage))


def test_the_quantile_by_hand() -> None:
    scores = np.array([0.9, 0.1, 0.5, 0.3, 0.7])
    assert conformal_quantile(scores, 0.5) == 0.5  # the 3rd of 5
    assert conformal_quantile(scores, 0.51) == 0.7  # ⌈6 · 0.51⌉ = 4
    assert conformal_quantile(np.arange(99.0), 0.55) == 54  # the 55th; in floats 100 · 0.55 > 55
    assert conformal_quantile(np.arange(99.0), 0.95) == 94


@settings(max_examples=40)
@given(st.lists(st.integers(0, 3), min_size=2, max_size=6), st.sampled_from([0.3, 0.5, 0.6, 0.75]))
def test_coverage_over_all_orders_of_exchangeable_scores(values: list[int], coverage: float) -> None:
    """Each of the n + 1 scores is the new one equally often: an exact enumeration, ties included."""
    covered = sum(
        values[new] <= conformal_quantile(np.array(values[:new] + values[new + 1 :], float), coverage)
        for new in range(len(values))
    )
    assert Fraction(covered, len(values)) >= Fraction(str(coverage))
    if len(set(values)) == len(values):  # without ties at most 1 / (n + 1) more
        assert Fraction(covered, len(values)) < Fraction(str(coverage)) + Fraction(1, len(values))


@pytest.mark.parametrize("score", SCORES, ids=lambda score: score.name)
@pytest.mark.parametrize("per_class", [False, True])
def test_coverage_in_simulation(score: Score, per_class: bool) -> None:
    rng, coverage, found = np.random.default_rng(1), 0.8, []
    for _ in range(300):
        beliefs, labels = population(rng, 60 + 40)
        first, second = slice(60), slice(60, 100)
        rule = fitted(beliefs[first], labels[first], coverage, score, per_class=per_class)
        sets = rule.sets(beliefs[second])
        hits = sets[np.arange(40), labels[second]]
        found.append([hits[labels[second] == k].mean() for k in range(4)] if per_class else [hits.mean()])
    mean, error = np.nanmean(found, 0), np.nanstd(found, 0) / math.sqrt(300)
    assert (mean > coverage - 3 * error).all()
    if score.name == "lac" and not per_class:
        assert mean[0] < coverage + 1 / 61 + 3 * error[0]


@settings(max_examples=30)
@given(st.integers(0, 10_000), st.sampled_from(["lac", "aps", "raps"]), st.booleans())
def test_sets_are_those_of_a_plain_loop(seed: int, name: str, per_class: bool) -> None:
    rng = np.random.default_rng(seed)
    beliefs, labels = population(rng, 80)
    rule = fitted(beliefs[:60], labels[:60], 0.75, Score(name, 0.05, 1), per_class=per_class)

    def score(row: np.ndarray, k: int) -> float:
        order = sorted(range(4), key=lambda j: -row[j])
        place = order.index(k)
        total = sum(row[j] for j in order[: place + 1])
        return {"lac": 1 - row[k], "aps": total, "raps": total + 0.05 * max(0, place)}[name]

    def quantile(rows: list[int]) -> float:
        known = sorted(score(beliefs[i], labels[i]) for i in rows)
        place = math.ceil((len(known) + 1) * 0.75)
        return known[place - 1] if place <= len(known) else math.inf

    everyone = list(range(60))
    limits = [quantile([i for i in everyone if labels[i] == k or not per_class]) for k in range(4)]
    found = rule.sets(beliefs[60:])
    for i, k in itertools.product(range(20), range(4)):
        gap = score(beliefs[60 + i], k) - limits[k]
        assert found[i, k] == (gap <= 0) or abs(gap) < 1e-12


def test_sets_grow_with_coverage_and_need_not_be_empty() -> None:
    beliefs, labels = population(np.random.default_rng(0), 400)
    sets = [fitted(beliefs[:300], labels[:300], level).sets(beliefs[300:]) for level in (0.3, 0.6, 0.9)]
    assert (sets[0] <= sets[1]).all()
    assert (sets[1] <= sets[2]).all()
    assert not sets[0].any(1).all()
    some = fitted(beliefs[:300], labels[:300], 0.3).sets(beliefs[300:], allow_empty=False)
    assert some.any(1).all()
    np.testing.assert_array_equal(some.argmax(1)[some.sum(1) == 1], beliefs[300:].argmax(1)[some.sum(1) == 1])


def test_each_step_has_its_own_quantile() -> None:
    rng = np.random.default_rng(0)
    early, labels = population(rng, 100)
    late = 0.9 * np.eye(4)[labels] + 0.025
    at = Ranked(*(np.stack(pair) for pair in zip(*(rank_classes(b).of(labels) for b in (early, late)), strict=True)))
    stops = np.where(early.max(1) > 0.7, 1, 2)
    halted = Ranked(*(part[stops - 1, np.arange(100)] for part in at))
    rule = fit_sets(halted, at, labels, 4, 0.9)
    assert rule.step_quantiles == tuple((conformal_quantile(1 - at.probability[t], 0.9),) for t in range(2))
    assert rule.step_quantiles[1][0] == pytest.approx(0.075)
    assert rule.step_quantiles[1] < rule.quantiles < rule.step_quantiles[0]
    np.testing.assert_array_equal(rule.sets(late, step=2), np.eye(4, dtype=bool)[labels])
    assert rule.sets(early, step=2).sum() < rule.sets(early, step=1).sum()


def test_a_class_with_too_few_examples_is_in_every_set() -> None:
    beliefs, labels = population(np.random.default_rng(0), 200)
    rows = np.flatnonzero((labels != 3) | (np.cumsum(labels == 3) <= 5))
    rule = fitted(beliefs[rows], labels[rows], 0.9, per_class=True)
    assert [math.isinf(one) for one in rule.quantiles] == [False, False, False, True]
    assert rule.sets(beliefs)[:, 3].all()


def test_infinite_quantiles_are_null_in_json() -> None:
    rule = SetRule(0.9, Score("raps", 0.01, 2), (0.5, math.inf), ((0.7, math.inf), (0.5, 0.25)), 40, "V < 0")
    stored = json.loads(json.dumps(rule.to_json(), allow_nan=False))
    assert (stored["quantiles"], stored["step_quantiles"]) == ([0.5, None], [[0.7, None], [0.5, 0.25]])


@pytest.mark.parametrize("level", [0.0, 1.0, 1.5, -0.1, math.nan])
def test_levels_out_of_range_are_refused(level: float) -> None:
    beliefs, labels = population(np.random.default_rng(0), 30)
    with pytest.raises(RicnetError, match="between 0 and 1"):
        fitted(beliefs, labels, level)


def test_too_few_examples_are_refused_with_their_number() -> None:
    beliefs, labels = population(np.random.default_rng(0), 18)
    with pytest.raises(RicnetError, match=r"--coverage 0\.95 needs at least 19 calibration examples and there are 18"):
        fitted(beliefs, labels, 0.95)


def test_raps_is_chosen_for_small_sets() -> None:
    """Half the inputs are easy, with a tail of 29 unlikely classes; half are between two classes. APS fills the sets of
    easy inputs with the tail; a penalty beyond the second rank keeps it out."""
    rng, n = np.random.default_rng(0), 900
    easy = np.r_[0.8, np.full(29, 0.2 / 29)]
    hard = np.r_[0.5, 0.48, np.full(28, 0.02 / 28)]
    beliefs = np.where(rng.random((n, 1)) < 0.5, easy, hard)
    labels = np.where(beliefs[:, 0] == 0.8, 0, rng.integers(0, 2, n))
    score = choose_raps(beliefs[:300], labels[:300], 0.9)
    assert (score.free_ranks, score.penalty) == (2, 0.5)
    aps, raps = (
        fitted(beliefs[300:600], labels[300:600], 0.9, one).sets(beliefs[600:]) for one in (Score("aps"), score)
    )
    assert aps.sum(1).mean() > 10
    assert raps.sum(1).max() == 2
    assert raps[np.arange(300), labels[600:]].mean() > 0.9


def test_measured_coverage_by_hand() -> None:
    sets = np.array([[1, 0], [1, 1], [0, 0], [0, 1]], bool)
    beliefs = np.array([[0.9, 0.1], [0.6, 0.4], [0.5, 0.5], [0.2, 0.8]])
    found = measure_sets(sets, beliefs, np.array([0, 1, 1, 0]))
    assert (found.coverage.share, found.mean_size, found.empty, found.single) == (0.5, 1.0, 0.25, 0.5)
    assert [(share.share, size) for share, size in found.by_class] == [(0.5, 1.0), (0.5, 1.0)]
    assert [(top, share.share, size) for top, share, size in found.by_confidence] == [
        (0.5, 0, 0), (0.6, 1, 2), (0.8, 0, 1), (0.9, 1, 1)
    ]  # fmt: skip


def test_intervals_contain_the_true_share_as_often_as_they_say() -> None:
    from scipy import stats

    for n, p in itertools.product((5, 30), (0.05, 0.5, 0.9)):
        ends = [share_of(np.arange(n) < k) for k in range(n + 1)]
        weights = stats.binom.pmf(np.arange(n + 1), n, p)
        assert sum(w for w, end in zip(weights, ends, strict=True) if end.low <= p <= end.high) >= 0.95
    assert share_of(np.zeros(0, bool)).share is None


def test_sets_are_those_of_mapie() -> None:
    pytest.importorskip("mapie")
    from mapie.classification import SplitConformalClassifier
    from sklearn.base import BaseEstimator, ClassifierMixin

    class Given(ClassifierMixin, BaseEstimator):
        """The inputs are the beliefs."""

        def fit(self, x: np.ndarray, y: np.ndarray) -> "Given":
            self.classes_ = np.unique(y)
            return self

        def predict_proba(self, x: np.ndarray) -> np.ndarray:
            return x

        def predict(self, x: np.ndarray) -> np.ndarray:
            return x.argmax(1)

    beliefs, labels = population(np.random.default_rng(0), 700)
    known, new = slice(300), slice(300, 700)
    for coverage in (0.8, 0.9, 0.95):
        theirs = SplitConformalClassifier(
            Given().fit(beliefs, labels), confidence_level=coverage, conformity_score="lac", prefit=True, random_state=7
        ).conformalize(beliefs[known], labels[known])
        _, expected = theirs.predict_set(beliefs[new])
        found = fitted(beliefs[known], labels[known], coverage).sets(beliefs[new])
        np.testing.assert_array_equal(found, expected[:, :, 0])
