"""What a person sees while a model trains: a bar with rate and time left; without a terminal, a line now and then."""

import time
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

SECONDS_BETWEEN_LINES = 15.0


class ProgressBar:
    """Counts examples, be they images or rows; where training stands is written beside the bar."""

    def __init__(self, title: str, total: int, done: int, console: Console | None = None, unit: str = "images") -> None:
        self.console = console or Console(stderr=True)
        self.title, self.total, self.start, self.unit = title, total, done, unit
        self.began = self.last_line = time.monotonic()
        self.last_drawn = 0.0
        self.standing = ""
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=12),
            TextColumn("{task.fields[text]}", markup=False),
            TimeRemainingColumn(compact=True),
        )
        self.bar = Progress(*columns, console=self.console, transient=True)
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
            text = f"{self.title}: {place}  {rate}  {quality}"
            self.console.print(text, highlight=False, markup=False, soft_wrap=True)
