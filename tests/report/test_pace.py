from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pace import pace_figure
from ricnet.report.runs import RunGroup, RunRecord


@pytest.fixture
def timed(systems: list[RunGroup]) -> RunRecord:
    """Two epochs of 10 updates of 100 images, at 500 and at 1000 images a second."""
    lines: list[dict[str, Any]] = [
        {"epoch": 1, "update": 10, "images_per_second": 500.0, "val": {"accuracy": 0.5, "ece": 0.2, "nll": 1.0}},
        {"epoch": 2, "update": 20, "images_per_second": 1000.0, "val": {"accuracy": 0.9, "ece": 0.1, "nll": 0.4}},
    ]
    run = systems[0].first
    evaluation = run.evaluation | {"selected_epoch": 2}
    config = run.config | {"optimization": {"batch_size": 100}}
    return replace(run, metrics=lines, config=config, evaluation=evaluation)


def test_the_clock_counts_updates_alone(timed: RunRecord) -> None:
    assert timed.clock == {1: 2.0, 2: 3.0}
    assert timed.training_seconds == 3.0
    assert timed.images_per_second == 750.0


def test_a_batch_is_no_larger_than_the_data(timed: RunRecord) -> None:
    rows = timed.data | {"rows": {"train": 50}}
    assert replace(timed, data=rows).clock == {1: 1.0, 2: 1.5}


def test_a_run_that_does_not_say_its_rows_has_no_clock(timed: RunRecord) -> None:
    """Found by fuzzing."""
    without = {name: entry for name, entry in timed.data.items() if name != "rows"}
    assert replace(timed, data=without).clock == {}


def test_weights_of_another_run_took_no_time(timed: RunRecord) -> None:
    derived = replace(timed, derived_from="ric-seed0")
    assert derived.training_seconds is None
    assert derived.images_per_second is None


def test_without_rates_the_whole_run_is_what_is_known(systems: list[RunGroup]) -> None:
    run = systems[0].first
    assert run.clock == {}
    assert run.training_seconds == 61.0
    assert run.images_per_second is None


def test_scores_stand_at_their_seconds(timed: RunRecord) -> None:
    slower = replace(timed, metrics=[entry | {"images_per_second": 250.0} for entry in timed.metrics])
    figure = pace_figure([RunGroup("RIC", (timed, slower))])
    for ax, key in zip(figure.axes, ("accuracy", "ece", "nll"), strict=True):
        curve, *dots = ax.lines
        np.testing.assert_allclose(curve.get_xdata(), [3.0, 5.5])  # means of 2 and 4, of 3 and 8
        np.testing.assert_allclose(curve.get_ydata(), [entry["val"][key] for entry in timed.metrics])
        assert [dot.get_xdata()[0] for dot in dots] == [3.0, 8.0]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["RIC", "validation"]
