import io
import math
from dataclasses import replace
from typing import Any

import numpy as np

from ricnet.report.curves import epoch_curves, trained, training_figure
from ricnet.report.figures import BLUE
from ricnet.report.runs import RunGroup


def with_metrics(group: RunGroup, *metrics: list[dict[str, Any]]) -> RunGroup:
    return RunGroup("RIC", tuple(replace(group.first, metrics=entries) for entries in metrics))


def test_one_line_a_system_and_a_dot_a_seed(systems: list[RunGroup]) -> None:
    figure = training_figure(systems)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["RIC", "SL", "ACT"]
    for ax, key in zip(figure.axes, ("accuracy", "ece", "nll"), strict=True):
        line, *dots = ax.lines[:4]
        curves = [[entry["val"][key] for entry in run.metrics] for run in systems[0].runs]
        np.testing.assert_allclose(line.get_ydata(), np.mean(curves, axis=0))
        assert [(dot.get_xdata()[0], dot.get_ydata()[0]) for dot in dots] == [(31, curve[30]) for curve in curves]
        assert {part.get_color() for part in (line, *dots)} == {BLUE}
        assert len(ax.collections) == 3


def test_a_mean_is_over_the_same_seeds_at_every_epoch(systems: list[RunGroup]) -> None:
    stopped = [{"epoch": 1, "val": {"accuracy": 0.5}}, {"epoch": 2, "val": {"accuracy": 0.7}}]
    whole = [*stopped, {"epoch": 3, "val": {"accuracy": 0.9}}]
    epochs, curves = epoch_curves(with_metrics(systems[0], stopped, whole, []), "accuracy")
    assert epochs.tolist() == [1, 2]
    assert curves.tolist() == [[0.5, 0.7], [0.5, 0.7]]


def test_missing_scores_are_left_out(systems: list[RunGroup]) -> None:
    metrics = [{"epoch": 1, "val": {"accuracy": 0.5, "ece": math.nan, "nll": None}}, {"epoch": 2}]
    accuracy, ece, nll = training_figure([with_metrics(systems[0], metrics)]).axes
    assert list(accuracy.lines[0].get_xdata()) == [1]
    assert not ece.lines
    assert not nll.lines


def test_what_is_too_large_to_draw_is_drawn_as_large_as_can_be(systems: list[RunGroup]) -> None:
    seeds = [[{"epoch": e, "val": {"nll": most if e == 2 else e}} for e in (1, 2, 3)] for most in (1e308, 1.7e308)]
    group = with_metrics(systems[0], *seeds)
    assert epoch_curves(group, "nll")[1].tolist() == 2 * [[1, 1e15, 3]]
    training_figure([group]).savefig(io.BytesIO())


def test_derived_runs_have_no_curves_of_their_own_and_change_no_colour(systems: list[RunGroup]) -> None:
    ric, sl, act = systems
    borrowed = replace(sl, runs=tuple(replace(run, derived_from="base") for run in sl.runs))
    assert trained([ric, borrowed, act]) == [ric, act]
    figure = training_figure([ric, borrowed, act])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["RIC", "ACT"]
    assert len(figure.axes[0].collections) == 2


def test_every_task_has_its_row(systems: list[RunGroup]) -> None:
    ric = systems[0]
    other = RunGroup("RIC, svhn", (replace(ric.first, config={**ric.first.config, "data": "svhn"}),))
    figure = training_figure([ric, other])
    assert [ax.get_title() for ax in figure.axes[::3]] == ["validation accuracy, digits", "validation accuracy, svhn"]
    assert len(figure.legends[0].get_texts()) == 1
