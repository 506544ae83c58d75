from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from made_runs import rewrite_arrays
from refusals import refusal
from ricnet.evaluation.evaluate import Outcome, read_predictions, save_predictions
from ricnet_paper import ITEMS
from ricnet_paper.fig5_adaptive import split_by_difficulty
from ricnet_paper.scales import Scale

from .conftest import MakeRuns, draw, pick, texts_of

FIG5 = ITEMS["fig5"]


def answers(scores: list[list[float]] | np.ndarray, halt: list[int]) -> Outcome:
    grid = torch.tensor(scores, dtype=torch.float32)
    n = grid.shape[1]
    return Outcome(
        labels=torch.zeros(n, dtype=torch.int64),
        log_beliefs=torch.full((n, 10), -np.log(10)),
        halt_step=torch.tensor(halt),
        cell_evaluations=torch.tensor(halt),
        step_scores=grid,
        step_confidence=grid.exp(),
        step_correct=grid > -1,
        step_entropy=-grid,
    )


def test_difficulty_is_the_mean_score_at_the_halt_of_the_other_seeds() -> None:
    first = answers([[-1, -2, -3], [-9, -9, -9]], [1, 1, 1])  # steps after the halt do not count
    second = answers([[-9, -9, -9], [-6, -2, -0.5]], [2, 2, 2])
    third = answers([[-2, -5, -1], [-9, -9, -9]], [1, 1, 1])
    parts = [{name: part.tolist() for name, part in own.items()} for own in split_by_difficulty([first, second, third])]
    assert parts == [
        {"easy": [2], "intermediate": [1], "hard": [0]},  # −4, −3.5, −0.75
        {"easy": [0], "intermediate": [2], "hard": [1]},  # −1.5, −3.5, −2
        {"easy": [2], "intermediate": [1], "hard": [0]},  # −3.5, −2, −1.75
    ]
    (alone,) = split_by_difficulty([answers([[-1, -3, -2]], [1, 1, 1])])  # by its own scores
    assert {name: part.tolist() for name, part in alone.items()} == {"easy": [0], "intermediate": [2], "hard": [1]}


def test_luck_does_not_bend_the_curves(scale: Scale, make_runs: MakeRuns) -> None:
    """Independent scores of the seeds: no third is better than another except by chance."""
    runs = make_runs(FIG5.experiments(scale))
    (found,) = runs.values()
    rng, n = np.random.default_rng(0), 3000
    for run in found:
        lucky = answers(-rng.exponential(size=(20, n)), [20] * n)
        save_predictions({"test": lucky}, run.path / "predictions.npz")
    rows = FIG5.tabulate(scale, runs)
    ends = [pick(rows, quantity="return", difficulty=name)["mean"].iloc[-1] for name in ("easy", "hard")]
    assert abs(ends[0] - ends[1]) < 0.05  # split by the mean of all three: 0.5


def test_returns_by_hand(scale: Scale, make_runs: MakeRuns) -> None:
    runs = make_runs(FIG5.experiments(scale))
    (one,) = FIG5.experiments(scale)
    rows = FIG5.tabulate(scale, runs)
    every = [read_predictions(run.path) for run in runs[one]]
    final = [own.log_beliefs[np.arange(90), own.labels].numpy() for own in every]
    hard = [np.argsort((final[i] + final[j]) / 2)[:30] for i, j in ((1, 2), (0, 2), (0, 1))]
    split = list(zip(every, hard, strict=True))
    expected = [
        np.mean([1 + float(own.step_scores[t, part].mean()) / np.log(10) for own, part in split]) for t in range(20)
    ]
    curve = pick(rows, quantity="return", difficulty="hard")
    np.testing.assert_allclose(curve["mean"], [0, *expected], rtol=1e-6)
    assert curve["step"].tolist() == list(range(21))
    (halt,) = pick(rows, quantity="halt of part", difficulty="hard")["mean"]
    assert halt == pytest.approx(np.mean([own.halt_step.numpy()[part].mean() for own, part in split]))
    (mean_halt,) = pick(rows, quantity="halt")["mean"]
    assert mean_halt == pytest.approx(np.mean([run.test["mean_steps"] for run in runs[one]]))


def test_halting_in_shares_of_each_outcome(scale: Scale, make_runs: MakeRuns, tmp_path: Path) -> None:
    runs = make_runs(FIG5.experiments(scale))
    (one,) = FIG5.experiments(scale)
    spotless = {**runs[one][0].test, "halting": [{"step": t, "correct": 1, "wrong": 0} for t in range(1, 21)]}
    runs[one][0] = replace(runs[one][0], evaluation={"test": spotless})
    rows = pick(FIG5.tabulate(scale, runs), quantity="halting")
    for outcome, seeds in (("right", 3), ("wrong", 2)):
        own = pick(rows, outcome=outcome)
        assert own["mean"].sum() == pytest.approx(1)
        assert set(own["n"]) == {seeds}
    figure = draw(FIG5, scale, runs, tmp_path)
    right, wrong = figure.axes[1].containers
    assert sum(bar.get_height() for bar in right) == pytest.approx(100)
    assert sum(bar.get_height() for bar in wrong) == pytest.approx(-100)
    lines = [line.get_xdata()[0] for line in figure.axes[2].lines if line.get_linestyle() == ":"]
    assert lines == [pytest.approx(np.mean([run.test["mean_steps"] for run in runs[one]]))]
    assert "3 seeds, test n = 90" in texts_of(figure)


def test_the_rule_is_told(scale: Scale, make_runs: MakeRuns, tmp_path: Path) -> None:
    asked = FIG5.experiments(scale)
    assert "in the other seeds" in texts_of(draw(FIG5, scale, make_runs(asked), tmp_path))
    text = texts_of(draw(FIG5, scale, make_runs(asked, only=1), tmp_path))
    assert "A single seed has no interval" in text
    assert "in the only seed" in text


def test_runs_of_other_test_examples_or_without_predictions_are_refused(scale: Scale, make_runs: MakeRuns) -> None:
    runs = make_runs(FIG5.experiments(scale))
    (found,) = runs.values()
    path = found[1].path / "predictions.npz"
    rewrite_arrays(path, test_labels=np.load(path)["test_labels"][::-1])
    with refusal("test examples"):
        FIG5.tabulate(scale, runs)
    path.unlink()
    with refusal(path.parent, "predictions.npz"):
        FIG5.tabulate(scale, runs)
