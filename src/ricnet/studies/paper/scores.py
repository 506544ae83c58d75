"""What the tables say of a run, and how each number is written: one list, from which every table takes its columns."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ricnet.studies.paper.typesetting import write_interval


@dataclass(frozen=True)
class Score:
    title: str
    of: Callable[[Any], float | None]
    """Of a finished run, or of whatever else a table has a line for."""
    factor: int = 1
    digits: int = 3
    merit: int = 0
    """1 where more is better, −1 where less is, 0 where there is nothing to win: a higher training accuracy is none."""

    def write(self, mean: float | None, half_width: float | None = None) -> str:
        return write_interval(mean, half_width, self.digits, self.factor)


SCORES = {
    "train accuracy": Score("train acc., %", lambda run: run.evaluation["train"]["accuracy"], 100, 2),
    "val accuracy": Score("val. acc., %", lambda run: run.evaluation["val"]["accuracy"], 100, 2, 1),
    "val nll": Score("val. NLL", lambda run: run.evaluation["val"]["nll"], merit=-1),
    "test accuracy": Score("test acc., %", lambda run: run.test["accuracy"], 100, 2, 1),
    "test ece": Score("test ECE", lambda run: run.test["ece"], merit=-1),
    "test ece signed": Score("conf. − acc.", lambda run: run.test["ece_signed"]),
    "test nll": Score("test NLL", lambda run: run.test["nll"], merit=-1),
    "mean steps": Score("mean steps", lambda run: run.test["mean_steps"], digits=1),
}
