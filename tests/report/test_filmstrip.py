import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from filmstrip import FRAMES, filmstrip_figure, frames
from ricnet.evaluation.evaluate import Examples
from ricnet.report.figures import BLUE, VERMILLION
from ricnet.report.runs import RunGroup


@pytest.fixture
def examples(systems: list[RunGroup]) -> Examples:
    found = systems[0].first.examples
    assert found is not None
    return found


@given(st.integers(1, 300))
def test_a_strip_begins_at_the_start_and_ends_at_the_halt(halt: int) -> None:
    shown = frames(halt)
    assert (shown[0], shown[1], shown[-1]) == (0, 1, halt)
    assert shown == sorted(set(shown))
    assert len(shown) == min(FRAMES, halt + 1)


def test_bars_are_the_beliefs_of_their_step(examples: Examples) -> None:
    figure = filmstrip_figure(examples, [str(k) for k in range(10)], [0])
    _, *panels = figure.axes
    shown = frames(int(examples.halt_step[0]))
    assert len(panels) == len(shown)
    np.testing.assert_allclose([bar.get_width() for bar in panels[0].patches], 0.1)
    for ax, step in list(zip(panels, shown, strict=True))[1:]:
        widths = [bar.get_width() for bar in ax.patches]
        np.testing.assert_allclose(widths, np.exp(examples.log_beliefs[step - 1, 0]), rtol=1e-6)


def test_the_last_panel_says_what_it_answered_and_why_it_stopped(examples: Examples) -> None:
    right = examples.answers == examples.labels
    for row, mark, shade in ((int(right.argmax()), "✓", BLUE), (int((~right).argmax()), "✗", VERMILLION)):
        last = filmstrip_figure(examples, [f"class {k}" for k in range(10)], [row]).axes[-1]
        halt, answer = examples.halt_step[row], examples.answers[row]
        assert last.get_title().startswith(f"{mark} class {answer}\n")
        assert last.get_title().endswith(f"step {halt}")
        assert last.title.get_color() == shade
        if halt < len(examples.log_beliefs):
            assert last.get_xlabel().endswith(": stops")
            assert "−" in last.get_xlabel()


def test_of_many_classes_the_most_believed_have_bars() -> None:
    belief = np.full((2, 1, 40), 0.005)
    belief[:, 0, [3, 30]] = 0.405
    many = Examples(
        np.zeros((1, 3, 8, 8), np.uint8), np.array([3]), np.log(belief).astype(np.float32), None, np.array([2])
    )
    first = filmstrip_figure(many, [f"c{k}" for k in range(40)], [0]).axes[1]
    names = [tick.get_text() for tick in first.get_yticklabels()]
    assert len(names) == 10
    assert {"c3", "c30"} < set(names)
