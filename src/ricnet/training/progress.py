"""What a person sees while a model trains: a bar with rate and time left; without a terminal, a line now and then."""

import time
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

SECONDS_BETWEEN_LINES = 15.0
LONG = 600.0
"""Seconds from which on a person would rather have been asked."""
SECONDS_TO_JUDGE, UPDATES_TO_JUDGE = 10.0, 3
"""After which the time a run takes is known well enough to speak of it."""


class ProgressBar:
    """Counts examples, be they images or rows; where training stands is written beside the bar."""

    def __init__(
        self,
        title: str,
        total: int,
        done: int,
        console: Console | None = None,
        unit: str = "images",
        faster: str | None = None,
    ) -> None:
        """`faster` is what a person who would wait long is told, once."""
        self.console = console or Console(stderr=True)
        self.title, self.total, self.start, self.unit, self.faster = title, total, done, unit, faster
        self.done, self.updates = done, 0
        self.began = self.last_line = time.monotonic()
        self.last_drawn = 0.0
        self.standing = ""
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=12),
            TextColumn("{task.fields[text]}", markup=False),
            TimeRemainingColumn(compact=True),
        )
        # An update may take longer than the half minute by which rich would judge the speed.
        self.bar = Progress(*columns, console=self.console, transient=True, speed_estimate_period=LONG)
        self.task = self.bar.add_task(title, total=total, completed=done, text="")

    def __enter__(self) -> "ProgressBar":
        if self.console.is_terminal:
            self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()

    def advance(self, done: int) -> None:
        """Called after each update; draws at most ten times a second."""
        now = time.monotonic()
        self.done, self.updates = done, self.updates + 1
        self._judge(now)
        if not self.console.is_terminal or (now - self.last_drawn < 0.1 and done < self.total):
            return
        self.last_drawn = now
        rate = (done - self.start) / max(now - self.began, 1e-9)
        self.bar.update(self.task, completed=done, text=f"{self.standing}{rate:,.0f} {self.unit}/s")

    def epoch(self, line: dict[str, Any], epochs: int) -> None:
        """Called with each line of metrics.jsonl."""
        val, place = line["val"], f"epoch {line['epoch']}/{epochs}"
        self.standing = f"{place}  val {val['accuracy']:.1%}  "
        last = line["epoch"] == epochs
        if not self.console.is_terminal and (last or time.monotonic() - self.last_line > SECONDS_BETWEEN_LINES):
            self.last_line = time.monotonic()
            rate = f"{line['images_per_second']:,.0f} {self.unit}/s"
            quality = f"val acc {val['accuracy']:.2%}  ECE {val['ece']:.3f}  {val['mean_steps']:.1f} steps"
            left = "" if last else f"  {duration(self._left(self.last_line))} left"
            self._print(f"{self.title}: {place}  {rate}  {quality}{left}")

    def _left(self, now: float) -> float:
        """Seconds, if it goes on as it has gone so far."""
        return (self.total - self.done) * (now - self.began) / max(self.done - self.start, 1)

    def _judge(self, now: float) -> None:
        waited = now - self.began
        if self.faster is None or waited < SECONDS_TO_JUDGE or self.updates < UPDATES_TO_JUDGE:
            return
        if (whole := waited + self._left(now)) > LONG:
            self._print(f"hint: this will take about {duration(whole)} on this CPU; {self.faster}.")
        self.faster = None

    def _print(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
