"""The study of guarantees: its simulations decide as the package does, and its runs are resumable."""

from pathlib import Path

import numpy as np
import pytest

import study_guarantees
from ricnet.evaluation import risk
from ricnet.evaluation.conformal import Ranked, Score, fit_sets, measure_sets, rank_classes
from ricnet.models.guarantees import Calibration
from study_guarantees import (
    DELTA,
    EXITS,
    LIMITS,
    LOSSES,
    accepted,
    draws,
    exit_p_values,
    judge,
    judge_abstention,
    judge_exits,
    judge_sets,
    train,
)

N, CLASSES, STEPS = 300, 4, 3


@pytest.fixture
def population() -> Calibration:
    """Beliefs that get better with every step."""
    rng = np.random.default_rng(0)
    labels = rng.integers(CLASSES, size=N)
    logits = rng.normal(size=(STEPS, N, CLASSES)) + 3 * np.arange(1, STEPS + 1)[:, None, None] * np.eye(CLASSES)[labels]
    beliefs = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    true = rank_classes(beliefs).of(labels)
    brier = (beliefs**2).sum(-1) - 2 * true.probability + 1
    sure = beliefs.max(-1)
    costs = np.array([0.3, 0.6, 1.0])
    answer, continuation = beliefs.argmax(-1), np.concatenate([np.ones((1, N)), 1 - sure[:-1]])
    return Calibration(labels, np.full(N, STEPS), *true, answer, sure, brier, continuation, costs)


def beliefs_of(population: Calibration) -> np.ndarray:
    rest = (1 - population.probability[0]) / (CLASSES - 1)
    made = np.repeat(rest[:, None], CLASSES, 1)
    made[np.arange(N), population.labels] = population.probability[0]
    return made


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("limit", [*LIMITS, 0.1])
def test_exits_are_accepted_as_by_the_package(population: Calibration, loss: risk.Loss, limit: float) -> None:
    thresholds = [0.0, 0.01, 0.1, 0.3, 1.0]
    stops = [population.stops_at(each) for each in thresholds]
    drawn = draws(N, 20, 1000)
    losses = np.stack([risk.losses(population.answers, each, loss) for each in stops])
    found = accepted(exit_p_values(drawn @ losses.T / 1000, 1000, limit, loss))
    for times, number in zip(drawn.astype(int), found, strict=True):
        rows = np.repeat(np.arange(N), times)
        answers = risk.Answers(population.answer[:, rows], population.brier[:, rows], population.labels[rows])
        tested = risk.control_exits(answers, [each[rows] for each in stops], thresholds, limit, 1 - DELTA, loss)
        assert sum(each.accepted for each in tested) == number


def test_exits_cost_at_least_what_known_risks_would(population: Calibration) -> None:
    for row in judge_exits(population, [0.0, 0.01, 0.1, 0.3, 1.0], calibrations=50, examples=1000):
        assert 0.3 <= row["compute_known"] <= 1
        assert row["compute"] >= row["compute_plain"] - 1e-12
        assert row["violations"] <= row["violations_plain"]


def test_abstention_is_judged_as_by_the_package(population: Calibration) -> None:
    beliefs = beliefs_of(population)
    confidence, wrong = beliefs.max(1), beliefs.argmax(1) != population.labels
    row = judge_abstention(beliefs, beliefs, population.labels, calibrations=1, examples=500)[-1]
    rows = np.repeat(np.arange(N), draws(N, 1, 500)[0].astype(int))
    thresholds = risk.abstention_thresholds(confidence, 500, row["limit"], 1 - DELTA)
    chosen = risk.last_accepted(risk.control_abstention(confidence[rows], wrong[rows], thresholds, row["limit"]))
    assert row["answered"] == pytest.approx(0.0 if chosen is None else (confidence >= chosen.threshold).mean())


def test_sets_are_those_of_the_package(population: Calibration) -> None:
    beliefs, labels = beliefs_of(population), population.labels
    found = judge_sets(beliefs, labels, beliefs, labels, splits=1)[0]
    order = np.random.default_rng(0).permutation(N)
    half, rest = order[: N // 2], order[N // 2 :]
    ranked = rank_classes(beliefs[half]).of(labels[half])
    at_steps = Ranked(*(part[None] for part in ranked))
    rule = fit_sets(ranked, at_steps, labels[half], CLASSES, found["level"], Score(found["score"]))
    measured = measure_sets(rule.sets(beliefs[rest], allow_empty=False), beliefs[rest], labels[rest])
    assert (found["coverage"], found["size"]) == (measured.coverage.share, measured.mean_size)


def test_runs_are_trained_once_and_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"SEEDS": 1, "SPLITS": 2, "CALIBRATIONS": 2, "EXITS": {"Anytime": EXITS["Anytime"]}}
    for name, value in sizes.items():
        monkeypatch.setattr(study_guarantees, name, value)
    monkeypatch.setattr(study_guarantees, "TRAINED", ("digits",))
    for _ in range(2):
        for data in ("digits", "exits"):
            train(tmp_path, data, None, epochs=1)
    entry = judge(tmp_path)
    assert [run["system"] for run in entry["sets"]] == ["RIC", "SL"]
    assert entry["exits"][0]["population"] == 898
    assert len(entry["exits"][0]["rows"]) == 9
