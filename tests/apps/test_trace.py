import numpy as np
import pytest
from rich.console import Console

from ricnet.apps.commands.predict import TIME_UP, leading_classes, trace_lines

BELIEF = np.array(
    [[0.5, 0.3, 0.1, 0.1], [0.2, 0.7, 0.06, 0.04], [0.1, 0.87, 0.02, 0.01], [0.05, 0.92, 0.02, 0.01]],
    dtype=np.float32,
)
VALUES = [1.2, 0.4, 0.1, -0.02]
NAMES = ["cat", "dog", "[red]owl", "a\x1b[31m very long name"]


COSTS = (0.2, 0.35, 0.7, 1.0)


def lines_of(
    values: list[float] | None,
    halt: int,
    top: int = 3,
    costs: tuple[float, ...] = (),
    each: int = 1,
    end: str = "last step",
    threshold: float = 0.0,
) -> list[str]:
    console = Console(width=80, no_color=True)
    with console.capture() as captured:
        console.print(trace_lines(BELIEF, values, halt, NAMES, top, costs, each, end, threshold))
    return [line.rstrip() for line in captured.get().splitlines()]


def test_one_line_per_step_with_the_halt_and_the_value() -> None:
    header, *steps, note = lines_of(VALUES, 3)
    assert "█ dog" in header
    assert [line.split()[0] for line in steps] == ["1", "2", "3", "4"]
    assert [("◀ stops" in line) for line in steps] == [False, False, True, False]
    assert "0.870" in steps[2]
    assert note.startswith("V:")
    assert "below 0," in note
    assert ("+0.400" in steps[0], "-0.020" in steps[2], "+" in steps[3]) == (True, True, False)
    bars = [steps[2].count(shade) for shade in "█▓▒·"]
    assert bars[0] == pytest.approx(0.87 * sum(bars), abs=1)
    assert sum(bars) == max(len(line.split()[1]) for line in steps)


def test_the_note_names_the_threshold() -> None:
    assert lines_of(VALUES, 3, threshold=-0.0123)[-1] == "V: the gain expected from going on; below -0.0123, it stops."
    assert lines_of(VALUES, 3, costs=COSTS, threshold=0.277)[-1].endswith("looking further; below 0.277, it leaves.")


def test_out_of_steps_and_methods_without_a_value() -> None:
    assert "◀ last step" in lines_of([abs(value) for value in VALUES], 4)[4]
    lines = lines_of(None, 2)
    assert len(lines) == 5
    assert " V" not in lines[0]
    assert "◀ stops" in lines[2]


@pytest.mark.parametrize("costs", [(), COSTS])
def test_names_are_whole_where_they_fit(costs: tuple[float, ...]) -> None:
    names = ["automobile", "helicopter", "rhinoceros", "truck"]
    console = Console(width=80, no_color=True)
    with console.capture() as captured:
        console.print(trace_lines(BELIEF, VALUES, 3, names, 3, costs))
    header, *steps, _ = captured.get().splitlines()
    assert all(name in header for name in names[:3])
    assert max(map(len, steps)) <= 80


@pytest.mark.parametrize("top", [1, 3, 5])
def test_it_fits_eighty_columns_and_cuts_nothing(top: int) -> None:
    lines = lines_of(VALUES, 3, top)
    assert max(map(len, lines)) <= 80
    assert all("…" not in line for line in lines[1:])
    assert "\x1b" not in "".join(lines)


def test_the_answer_leads_and_early_favourites_follow() -> None:
    assert leading_classes(BELIEF, halt_step=3, top=2) == [1, 0]
    assert leading_classes(BELIEF, halt_step=1, top=9) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("each", "titles", "second"), [(1, ["exit", "compute"], "2 35 %"), (2, ["step", "exit", "compute"], "2 1 35 %")]
)
def test_with_exits_a_line_names_exit_and_cost(each: int, titles: list[str], second: str) -> None:
    header, *steps, note = lines_of(VALUES, 3, costs=COSTS, each=each)
    assert header.split()[: len(titles)] == titles
    assert " ".join(steps[1].split()).startswith(second)
    assert [("◀ leaves" in line) for line in steps] == [False, False, True, False]
    assert "leaves" in note
    assert max(map(len, steps)) <= 80
    assert "◀ last exit" in lines_of(None, 4, costs=COSTS, each=each, end="last exit")[-1]


@pytest.mark.parametrize("costs", [(), COSTS])
def test_a_time_limit_is_named_for_every_method(costs: tuple[float, ...]) -> None:
    assert "◀ time's up" in lines_of(None, 4, costs=costs, end=TIME_UP)[-1]
    assert max(map(len, lines_of(VALUES, 4, costs=costs, end=TIME_UP))) <= 80
