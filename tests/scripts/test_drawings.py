"""Figures of the documentation: beliefs by step, scores by seconds, concepts."""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from filmstrip import FRAMES, filmstrip_figure, frames
from pace import between, pace_figure
from ricnet.evaluation.examples import Examples
from ricnet.report.figures import BLUE, VERMILLION
from ricnet.report.runs import RunGroup, RunRecord


@given(st.integers(1, 300))
def test_a_strip_begins_at_the_start_and_ends_at_the_halt(halt: int) -> None:
    shown = frames(halt)
    assert (shown[0], shown[1], shown[-1]) == (0, 1, halt)
    assert shown == sorted(set(shown))
    assert len(shown) == min(FRAMES, halt + 1)


def test_bars_are_the_beliefs_of_their_step(ric: RunRecord) -> None:
    examples = ric.examples
    _, *panels = filmstrip_figure(examples, [str(k) for k in range(10)], [0]).axes
    shown = frames(int(examples.halt_step[0]))
    np.testing.assert_allclose([bar.get_width() for bar in panels[0].patches], 0.1)
    for ax, step in zip(panels[1:], shown[1:], strict=True):
        widths = [bar.get_width() for bar in ax.patches]
        np.testing.assert_allclose(widths, np.exp(examples.log_beliefs[step - 1, 0]), rtol=1e-6)


def test_the_last_panel_says_what_it_answered_and_why_it_stopped(ric: RunRecord) -> None:
    examples = ric.examples
    right = examples.answers == examples.labels
    for row, mark, shade in ((int(right.argmax()), "✓", BLUE), (int((~right).argmax()), "✗", VERMILLION)):
        last = filmstrip_figure(examples, [f"class {k}" for k in range(10)], [row]).axes[-1]
        halt, answer = examples.halt_step[row], examples.answers[row]
        assert last.get_title().startswith(f"{mark} class {answer}\n")
        assert last.get_title().endswith(f"step {halt}")
        assert last.title.get_color() == shade
        assert last.get_xlabel().endswith(": stops")
        assert "−" in last.get_xlabel()


def test_of_many_classes_the_most_believed_have_bars() -> None:
    belief = np.full((2, 1, 40), 0.005)
    belief[:, 0, [3, 30]] = 0.405
    image, log_beliefs = np.zeros((1, 3, 8, 8), np.uint8), np.log(belief).astype(np.float32)
    many = Examples(image, np.array([3]), log_beliefs, None, np.array([2]), np.array([0]))
    first = filmstrip_figure(many, [f"c{k}" for k in range(40)], [0]).axes[1]
    names = [tick.get_text() for tick in first.get_yticklabels()]
    assert len(names) == 10
    assert {"c3", "c30"} < set(names)


def test_scores_stand_at_their_seconds(ric: RunRecord) -> None:
    """Two epochs of 10 updates of 100 images: 2 and 3 seconds for the first seed, 4 and 8 for the second."""
    scores = ({"accuracy": 0.5, "ece": 0.2, "nll": 1.0}, {"accuracy": 0.9, "ece": 0.1, "nll": 0.4})
    lines = [{"epoch": k, "update": 10 * k, "val": val} for k, val in enumerate(scores, 1)]
    changes = {"config": ric.config | {"optimization": {"batch_size": 100}}}
    changes |= {"evaluation": ric.evaluation | {"selected_epoch": 2}}
    seeds = [
        replace(ric, **changes, metrics=[{**a, "images_per_second": r} for a, r in zip(lines, rates, strict=True)])
        for rates in ((500.0, 1000.0), (250.0, 250.0))
    ]
    figure = pace_figure([RunGroup("RIC", tuple(seeds))])
    for ax, key in zip(figure.axes, ("accuracy", "ece", "nll"), strict=True):
        curve, *dots = ax.lines
        np.testing.assert_allclose(curve.get_xdata(), [3.0, 5.5])
        np.testing.assert_allclose(curve.get_ydata(), [entry[key] for entry in scores])
        assert [dot.get_xdata()[0] for dot in dots] == [3.0, 8.0]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["RIC", "validation"]


def test_seeds_that_measured_at_other_epochs_are_joined_by_lines() -> None:
    nan = np.nan
    curves = np.array([[0.0, nan, 0.4, nan], [nan, 0.1, nan, 0.3], [nan, nan, nan, nan]])
    expected = [[0.0, 0.2, 0.4, nan], [nan, 0.1, 0.2, 0.3], [nan, nan, nan, nan]]
    np.testing.assert_allclose(between(np.array([1, 2, 3, 4]), curves), expected)
