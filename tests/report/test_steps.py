from dataclasses import replace

import numpy as np
import pytest

from ricnet.errors import RicnetError
from ricnet.report.runs import RunGroup
from ricnet.report.steps import halting_figure, mean_of, pooled_halts, steps_figure


def test_curves_are_means_over_seeds_with_the_mean_halt(systems: list[RunGroup]) -> None:
    ric, sl, _ = systems
    figure = steps_figure([ric, sl])
    scores, errors = figure.axes
    lines = {line.get_label(): line for line in (*scores.lines, *errors.lines)}
    for key in ("accuracy", "mean_confidence", "ece"):
        curves = [[entry[key] for entry in run.test["per_step"]] for run in ric.runs]
        np.testing.assert_allclose(lines[key].get_ydata(), np.mean(curves, axis=0))
    for ax, key in ((scores, "accuracy"), (errors, "ece")):
        halts = [line.get_xdata()[0] for line in ax.lines if line.get_linestyle() == ":"]
        assert halts == [pytest.approx(np.mean([run.test["mean_steps"] for run in ric.runs]))]
        assert mean_of(sl, key) in [line.get_ydata()[0] for line in ax.lines]
    assert (len(scores.collections), len(errors.collections)) == (2, 1)
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert texts == ["accuracy, ECE", "confidence", "mean halt", "SL (one step)"]


@pytest.mark.parametrize("change", [{"data": "svhn"}, {"label_noise": 0.4}])
def test_a_reference_of_another_task_is_no_reference(systems: list[RunGroup], change: dict[str, object]) -> None:
    ric, sl, _ = systems
    other = RunGroup("SL", (replace(sl.first, config={**sl.first.config, **change}),))
    assert len(steps_figure([ric, other]).axes[0].lines) == 3


def test_panels_of_a_row_make_room_for_each_other(systems: list[RunGroup]) -> None:
    """The second system errs more than the first, whose scale it shares."""
    ric, _, act = systems
    test = {**act.first.test, "per_step": [{**entry, "ece": 0.8} for entry in act.first.test["per_step"]]}
    worse = RunGroup("ACT", (replace(act.first, evaluation={"test": test}),))
    errors = steps_figure([ric, worse]).axes[2:]
    assert [ax.get_ylim()[0] for ax in errors] == [0, 0]
    assert all(ax.get_ylim()[1] > 0.8 for ax in errors)


def test_halts_are_pooled_over_seeds(systems: list[RunGroup]) -> None:
    ric = systems[0]
    (ax,) = halting_figure([ric]).axes
    right, wrong = ax.containers
    counts = np.sum([[entry["correct"] for entry in run.test["halting"]] for run in ric.runs], axis=0)
    assert [bar.get_height() for bar in right] == pytest.approx(100 * counts / counts.sum())
    assert sum(bar.get_height() for bar in wrong) == pytest.approx(-100)
    assert ax.get_legend().get_texts()[0].get_text() == f"right (n = {counts.sum():,})"
    assert sum(pooled_halts(ric, key)[1].sum() for key in ("correct", "wrong")) == 3 * 450


def test_halting_with_nothing_wrong(systems: list[RunGroup]) -> None:
    run = systems[0].first
    halting = [{**entry, "wrong": 0} for entry in run.test["halting"]]
    group = RunGroup("RIC", (replace(run, evaluation={"test": {**run.test, "halting": halting}}),))
    assert all(bar.get_height() == 0 for bar in halting_figure([group]).axes[0].containers[1])


def test_step_figures_need_steps(systems: list[RunGroup]) -> None:
    with pytest.raises(RicnetError, match="refines"):
        steps_figure(systems[1:2])
