import re
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from made_runs import rewrite, rewrite_arrays
from ricnet.evaluation.evaluate import read_predictions
from ricnet.methods import ACT
from ricnet.report.examples import gallery_html
from ricnet.report.exits import budget_curves, budgeted_by, exit_means, exits_figure
from ricnet.report.page import page_html
from ricnet.report.pictures import pictures
from ricnet.report.runs import RunGroup, group_seeds, read_run, read_runs

MakeRun = Callable[..., Path]
STEPS = 20


def add_costs(run: Path) -> Path:
    """As if each step had been an exit: the twentieth part of the compute."""

    def change(evaluation: dict[str, Any]) -> None:
        test = evaluation["test"]
        halts = {entry["step"]: entry["correct"] + entry["wrong"] for entry in test["halting"]}
        test["mean_cost"] = sum(step * count for step, count in halts.items()) / STEPS / test["n"]
        test |= {"mean_cost_correct": 0.21, "mean_cost_wrong": 0.43}
        for entry in test["per_step"]:
            entry["cost"] = entry["step"] / STEPS

    rewrite(run / "evaluation.json", change)
    return run


@pytest.fixture
def leaver(make_run: MakeRun) -> RunGroup:
    return group_seeds([read_run(add_costs(make_run("leaver")))])[0]


def test_all_at_the_same_exit_are_the_numbers_of_each_step(leaver: RunGroup) -> None:
    costs, accuracy = exit_means(leaver, "accuracy")
    assert costs.tolist() == pytest.approx([step / STEPS for step in range(1, STEPS + 1)])
    assert accuracy.tolist() == [entry["accuracy"] for entry in leaver.first.test["per_step"]]


@pytest.mark.parametrize("key", ["accuracy", "nll", "ece"])
def test_the_curve_by_value_goes_from_the_first_exit_to_the_last(leaver: RunGroup, key: str) -> None:
    shares, curves = budget_curves(leaver, key)
    ends = [leaver.first.test["per_step"][place][key] for place in (0, -1)]
    assert shares[[0, -1]].tolist() == pytest.approx([1 / STEPS, 1])
    assert curves[0, [0, -1]].tolist() == pytest.approx(ends, abs=1e-6)


def test_the_curve_passes_where_the_run_stops_by_itself(leaver: RunGroup) -> None:
    """Its rule is a threshold too, V < 0, which lies between two of the curve's."""
    shares, curves = budget_curves(leaver, "nll")
    found = np.interp(leaver.first.test["mean_cost"], shares, curves[0])
    assert found == pytest.approx(leaver.first.test["nll"], abs=0.02)


def test_thresholds_come_from_validation_data(leaver: RunGroup) -> None:
    """Values that are higher by 50 there make each of its thresholds one by which no test example goes on."""
    values = read_predictions(leaver.first.path, "val").values
    assert values is not None
    rewrite_arrays(leaver.first.path / "predictions.npz", val_values=(values + 50).numpy())
    shares, curves = budget_curves(leaver, "accuracy")
    first, last = (leaver.first.test["per_step"][place]["accuracy"] for place in (0, -1))
    line = first + (last - first) * (shares - shares[0]) / (shares[-1] - shares[0])
    assert curves[0].tolist() == pytest.approx(line.tolist(), abs=1e-6)


def test_values_that_rise_again_leave_no_gap_in_the_curve(leaver: RunGroup) -> None:
    """Whoever does not leave at the first exit goes all the way; where a quarter does, it is those who gain most."""
    scores = read_predictions(leaver.first.path).step_scores.numpy()
    gain = scores[-1] - scores[0]
    values = np.full(scores.shape, 100.0, dtype=np.float32)
    values[1] = gain
    rewrite_arrays(leaver.first.path / "predictions.npz", val_values=values, test_values=values)
    shares, curves = budget_curves(leaver, "nll")
    goes = gain >= np.quantile(gain, 0.75)
    share = np.where(goes, 1, 1 / STEPS).mean()
    assert np.interp(share, shares, curves[0]) == pytest.approx(-np.where(goes, scores[-1], scores[0]).mean(), abs=0.01)


def test_seeds_meet_at_the_same_shares(make_run: MakeRun) -> None:
    [group] = group_seeds(read_runs([add_costs(make_run(f"seed{seed}", seed=seed)) for seed in range(2)]))
    shares, curves = budget_curves(group, "nll")
    assert curves.shape == (2, len(shares))


def test_the_curve_of_supervised_learning_goes_by_its_confidence(leaver: RunGroup) -> None:
    """The same beliefs without their values."""
    rewrite(leaver.first.path / "config.json", lambda entry: entry["config"].update(method={"name": "supervised"}))
    with np.load(leaver.first.path / "predictions.npz") as stored:
        kept = {name: array for name, array in stored.items() if not name.endswith("_values")}
    np.savez(leaver.first.path / "predictions.npz", **kept)
    [group] = group_seeds([read_run(leaver.first.path)])
    assert budgeted_by(group.first) == "confidence"
    shares, curves = budget_curves(group, "accuracy")
    ends = [group.first.test["per_step"][place]["accuracy"] for place in (0, -1)]
    assert shares[[0, -1]].tolist() == pytest.approx([1 / STEPS, 1])
    assert curves[0, [0, -1]].tolist() == pytest.approx(ends, abs=1e-6)
    test = read_predictions(leaver.first.path)
    doubt, scores, confidence = 1 - test.step_confidence[0].numpy(), test.step_scores.numpy(), test.step_confidence
    confidence[1:] = 0  # whoever does not leave at the first exit goes all the way
    same = {f"{split}_step_confidence": confidence.numpy() for split in ("val", "test")}
    rewrite_arrays(leaver.first.path / "predictions.npz", **same)
    goes = doubt >= np.quantile(doubt, 0.75)
    share, nll = np.where(goes, 1, 1 / STEPS).mean(), -np.where(goes, scores[-1], scores[0]).mean()
    assert np.interp(share, *(part.flatten() for part in budget_curves(group, "nll"))) == pytest.approx(nll, abs=0.01)
    labels = [text.get_text() for text in exits_figure([group]).legends[0].get_texts()]
    assert "each by its confidence" in labels


def test_a_method_of_ones_own_that_takes_a_budget_has_a_curve_too(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ACT, "takes_budget", True)
    assert budgeted_by(read_run(add_costs(make_run("act", "act")))) == "confidence"


def test_a_system_without_a_value_has_its_exits_alone(make_run: MakeRun) -> None:
    group = group_seeds([read_run(add_costs(make_run("act", "act")))])[0]
    assert len(budget_curves(group, "nll")[1]) == 0
    assert len(exits_figure([group]).axes[0].lines) == 2


def test_the_curve_takes_the_place_of_the_one_over_steps(leaver: RunGroup, systems: list[RunGroup]) -> None:
    assert not any(run.has_exits for group in systems for run in group.runs)
    names = [picture.name for picture in pictures([leaver])]
    assert ("exits" in names, "compute" in names) == (True, False)


def test_the_gallery_goes_from_the_first_exit_to_the_last(leaver: RunGroup) -> None:
    headings = re.findall(r"<h4>(.*?) <span", gallery_html([leaver]))
    examples = leaver.first.examples
    assert examples is not None
    steps = sorted(set(examples.halt_step.tolist()))
    named = {1: "First exit", STEPS: "All the way"}
    assert headings == [named.get(step, f"Exit {step}") for step in steps]


def test_a_card_says_what_it_took(leaver: RunGroup) -> None:
    examples = leaver.first.examples
    assert examples is not None
    html = gallery_html([leaver])
    for step in examples.halt_step.tolist():
        assert f"after {step} step{'s' * (step > 1)}, {5 * step} % of compute" in html


def test_the_page_says_how_much_of_the_network_it_took(leaver: RunGroup) -> None:
    mean = f"{100 * leaver.first.test['mean_cost']:.0f}"
    words = unescape(page_html([leaver])).replace("\N{NO-BREAK SPACE}", " ")
    assert f"Its mean share of compute is {mean} % (21 % when right, 43 % when wrong)." in words
