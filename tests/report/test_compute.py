from dataclasses import replace

import numpy as np
import pytest

from ricnet.report.compute import compute_figure
from ricnet.report.runs import RunGroup


def mean(group: RunGroup, key: str) -> float:
    return float(np.mean([run.test[key] for run in group.runs]))


def test_curves_are_forced_answers_and_markers_are_halts(systems: list[RunGroup]) -> None:
    (ax,) = compute_figure(systems).axes
    curve, halt, level, one_pass, *_ = ax.lines
    ric, sl, _ = systems
    assert list(curve.get_xdata()) == list(range(1, 21))
    forced = np.mean([[entry["accuracy"] for entry in run.test["per_step"]] for run in ric.runs], axis=0)
    np.testing.assert_allclose(curve.get_ydata(), forced)
    place = (halt.get_xdata()[0], halt.get_ydata()[0])
    assert place == pytest.approx((mean(ric, "mean_cell_evaluations"), mean(ric, "accuracy")))
    assert place[0] > mean(ric, "mean_steps")
    assert level.get_ydata()[0] == one_pass.get_ydata()[0] == pytest.approx(mean(sl, "accuracy"))
    assert one_pass.get_xdata()[0] == 1
    assert halt.get_marker() != one_pass.get_marker()
    assert (ax.get_xscale(), ax.get_xlabel()) == ("log", "steps computed")


def test_an_axis_of_near_accuracies_has_no_digits_to_fill_up(systems: list[RunGroup]) -> None:
    run = systems[0].first
    per_step = [{**entry, "accuracy": 0.991 + 0.00004 * entry["step"]} for entry in run.test["per_step"]]
    test = {**run.test, "accuracy": 0.9912, "per_step": per_step}
    (ax,) = compute_figure([RunGroup("RIC", (replace(run, evaluation={"test": test}),))]).axes
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert "99.1 %" in labels
    assert not [label for label in labels if "." in label and label.endswith("0 %")]


def test_runs_that_did_not_count_evaluations_show_their_steps(systems: list[RunGroup]) -> None:
    run = systems[0].first
    test = {key: value for key, value in run.test.items() if key != "mean_cell_evaluations"}
    group = RunGroup("RIC", (replace(run, evaluation={"test": test}),))
    assert compute_figure([group]).axes[0].lines[1].get_xdata()[0] == pytest.approx(run.test["mean_steps"])
