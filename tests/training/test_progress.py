import io

import pytest
from rich.console import Console

from ricnet.training.console import ProgressBar, duration

VAL = {"accuracy": 0.5, "ece": 0.1, "mean_steps": 2.0}


class Clock:
    """A second hand that a test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr("ricnet.training.console.time.monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def said(clock: Clock, updates: int, seconds: float, faster: str | None = "less is faster") -> str:
    """What is printed in the first updates of a hundred, each of which takes so many seconds."""
    console = Console(file=io.StringIO(), width=80)
    with ProgressBar("ric on photos", 1000, 0, console, faster=faster) as bar:
        for update in range(1, updates + 1):
            clock.now += seconds
            bar.advance(10 * update)
    return str(console.file.getvalue()).strip()  # type: ignore[attr-defined]


def test_who_would_wait_long_is_told_once_what_is_faster(clock: Clock) -> None:
    assert said(clock, 20, 7.2) == "hint: this will take about 12 minutes on this CPU; less is faster."
    assert said(clock, 2, 30) == ""  # the first updates say little
    assert said(clock, 9, 1) == ""
    assert said(clock, 20, 6) == ""
    assert said(clock, 20, 7.2, None) == ""


def test_lines_say_how_long_it_will_take(clock: Clock) -> None:
    console = Console(file=io.StringIO(), width=80)
    with ProgressBar("ric on photos", 1000, 200, console) as bar:
        for epoch in (3, 10):
            clock.now += 20
            bar.advance(100 * epoch)
            bar.epoch({"epoch": epoch, "val": VAL, "images_per_second": 5.0}, 10)
    first, last = console.file.getvalue().split("\n")[:2]  # type: ignore[attr-defined]
    assert first.endswith("2.0 steps  2 minutes left")
    assert last.endswith("2.0 steps")


def test_a_terminal_shows_the_time_left_even_where_updates_are_slow(clock: Clock) -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True, get_time=lambda: clock.now)
    bar = ProgressBar("ric on photos", 1000, 0, console)
    for update in (1, 2, 3):
        clock.now += 40
        bar.advance(10 * update)
    assert bar.bar.tasks[0].time_remaining == 97 * 40


def test_durations_are_read_at_a_glance() -> None:
    assert [duration(seconds) for seconds in (40.0, 100.0, 750.0, 9000.0)] == [
        *("40 seconds", "2 minutes", "12 minutes", "2.5 hours"),
    ]
