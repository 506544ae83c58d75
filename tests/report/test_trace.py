import numpy as np
import pytest
from rich.console import Console

from ricnet.report.examples import leading_classes, trace_lines

BELIEF = np.array(
    [[0.5, 0.3, 0.1, 0.1], [0.2, 0.7, 0.06, 0.04], [0.1, 0.87, 0.02, 0.01], [0.05, 0.92, 0.02, 0.01]],
    dtype=np.float32,
)
VALUES = np.array([1.2, 0.4, 0.1, -0.02], dtype=np.float32)
NAMES = ["cat", "dog", "[red]owl", "a\x1b[31m very long name"]


def lines_of(values: np.ndarray | None, halt: int, top: int = 3, width: int = 80) -> list[str]:
    console = Console(width=width, no_color=True)
    with console.capture() as captured:
        console.print(trace_lines(np.log(BELIEF), values, halt, NAMES, top))
    return [line.rstrip() for line in captured.get().splitlines()]


def test_a_line_a_step_and_the_halt_marked() -> None:
    header, *steps, note = lines_of(VALUES, 3)
    assert "█ dog" in header
    assert [line.split()[0] for line in steps] == ["1", "2", "3", "4"]
    assert [("◀ stops" in line) for line in steps] == [False, False, True, False]
    assert "0.870" in steps[2]
    assert note.startswith("V:")


def test_the_value_beside_a_step_is_asked_after_it() -> None:
    steps = lines_of(VALUES, 3)[1:5]
    assert "+0.400" in steps[0]
    assert "-0.020" in steps[2]
    assert "+" not in steps[3]


def test_out_of_steps() -> None:
    assert "◀ last step" in lines_of(np.abs(VALUES), 4)[4]


def test_methods_without_a_value() -> None:
    lines = lines_of(None, 2)
    assert len(lines) == 5
    assert " V" not in lines[0]
    assert "◀ stops" in lines[2]


@pytest.mark.parametrize("top", [1, 3, 5])
def test_it_fits_eighty_columns_and_cuts_nothing(top: int) -> None:
    lines = lines_of(VALUES, 3, top)
    assert max(map(len, lines)) <= 80
    assert all("…" not in line for line in lines[1:])
    assert "\x1b" not in "".join(lines)


def test_bars_are_as_long_as_the_belief() -> None:
    step = lines_of(VALUES, 3)[3]
    shown = [step.count(shade) for shade in "█▓▒·"]
    width = sum(shown)
    assert shown[0] == pytest.approx(0.87 * width, abs=1)
    assert width == max(len(line.split()[1]) for line in lines_of(VALUES, 3)[1:5])


def test_the_answer_leads_and_early_favourites_follow() -> None:
    assert leading_classes(BELIEF, halt_step=3, top=2) == [1, 0]
    assert leading_classes(BELIEF, halt_step=1, top=9) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("each", "titles", "first"), [(1, ["exit", "compute"], "2 35 %"), (2, ["step", "exit", "compute"], "2 1 35 %")]
)
def test_with_exits_a_line_says_which_it_was_and_what_it_had_cost(each: int, titles: list[str], first: str) -> None:
    console = Console(width=80, no_color=True)
    with console.capture() as captured:
        console.print(trace_lines(np.log(BELIEF), VALUES, 3, NAMES, 3, (0.2, 0.35, 0.7, 1.0), each))
    header, *steps, note = (line.rstrip() for line in captured.get().splitlines())
    assert header.split()[: len(titles)] == titles
    assert " ".join(steps[1].split()).startswith(first)
    assert [("◀ leaves" in line) for line in steps] == [False, False, True, False]
    assert "leaves" in note
    assert max(map(len, steps)) <= 80


def test_all_the_way_is_the_last_exit() -> None:
    console = Console(width=80, no_color=True)
    with console.capture() as captured:
        console.print(trace_lines(np.log(BELIEF), None, 4, NAMES, 3, (0.2, 0.35, 0.7, 1.0)))
    assert captured.get().rstrip().endswith("◀ last exit")
