"""Collapses of training, found in the lines of metrics.jsonl: training accuracy falls, or the value loss jumps."""

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from ricnet.io import is_finite

DROP = 10
"""Maximum fall of training accuracy below the best so far, in points."""
JUMP = 5
"""Maximum ratio of the value loss to its median."""
STANDARD_ERRORS = 4
"""A fall must also exceed this many standard errors of the difference; from 800 training rows on, DROP is more."""
FIRST_UPDATES = 20
"""Updates before accuracies are compared: with one update per epoch, as for 100 rows, the first accuracies vary by 30
points."""
WINDOW = 20
"""Number of epochs before the current one for the median; before that there is none."""

Collapse = dict[str, Any]
"""Value and reference: accuracy and best_accuracy, value_loss and median_value_loss, or all four."""


class CollapseWatch:
    """Reads the line of each epoch, in order; a resumed run first shows it the lines so far."""

    def __init__(self, rows: int | None = None) -> None:
        """`rows`: training rows, for the standard error of accuracies, if known."""
        self.rows = rows
        self.collapsed = self.begins = False
        """Whether the last epoch was a collapse, and whether it was the first in a row."""
        self.best = 0.0
        self.value_losses: dict[int, float] = {}
        """By epoch, because archived runs may lack some."""

    def see(self, line: Mapping[str, Any]) -> Collapse:
        """The collapse in this epoch; empty if there is none."""
        accuracy, value_loss = (_number(line.get("train"), name) for name in ("accuracy", "value_loss"))
        update = _number(line, "update")
        found = {} if update is not None and update <= FIRST_UPDATES else self._fallen(accuracy)
        found |= self._jumped(line["epoch"], value_loss)
        self.begins, self.collapsed = bool(found) and not self.collapsed, bool(found)
        return found

    def _fallen(self, accuracy: float | None) -> Collapse:
        if accuracy is None:
            return {}
        self.best = max(self.best, accuracy)
        points = round(100 * (self.best - accuracy), 6)  # 0.4 - 0.3 > 0.1 in floats
        variance = sum(max(0.0, share * (1 - share)) for share in (accuracy, self.best))
        error = math.sqrt(variance / self.rows) if self.rows else 0.0  # of a difference between independent rows
        fallen = points > DROP and points > 100 * STANDARD_ERRORS * error
        return {"accuracy": accuracy, "best_accuracy": self.best} if fallen else {}

    def _jumped(self, epoch: int, loss: float | None) -> Collapse:
        if loss is None:
            return {}
        self.value_losses = {past: own for past, own in self.value_losses.items() if past >= epoch - WINDOW}
        usual = median(self.value_losses.values()) if self.value_losses and epoch > WINDOW else None
        self.value_losses[epoch] = loss
        return {"value_loss": loss, "median_value_loss": usual} if usual is not None and loss > JUMP * usual else {}


def _number(entry: object, name: str) -> float | None:
    """None if it was not measured or is not a finite number."""
    value = entry.get(name) if isinstance(entry, Mapping) else None
    return float(value) if is_finite(value) else None  # type: ignore[arg-type]


def collapses(lines: Iterable[Mapping[str, Any]], rows: int | None = None) -> list[Collapse]:
    """The collapses of a whole run, each with its `epoch`."""
    watch = CollapseWatch(rows)
    seen = ((line["epoch"], watch.see(line)) for line in lines)
    return [{"epoch": epoch, **found} for epoch, found in seen if found]


def words(collapse: Collapse) -> str:
    """Description of one collapse."""
    parts = []
    if "accuracy" in collapse:
        accuracy, best = collapse["accuracy"], collapse["best_accuracy"]
        parts.append(f"training accuracy {100 * accuracy:.1f} %, {100 * (best - accuracy):.1f} points below its best")
    if "value_loss" in collapse:
        loss, usual = collapse["value_loss"], collapse["median_value_loss"]
        parts.append(f"value loss {loss:.3g}, median of {WINDOW} epochs {usual:.3g}")
    return "; ".join(parts)


def summary(found: Sequence[Collapse]) -> str:
    """The epochs of all collapses of a run, and the worst of each kind."""
    epochs = [int(each["epoch"]) for each in found]
    when = f"epoch {epochs[0]}" if len(epochs) == 1 else f"{len(epochs)} epochs from {epochs[0]} to {epochs[-1]}"
    worst: Collapse = {}
    for low, high, share in (("accuracy", "best_accuracy", 1), ("median_value_loss", "value_loss", JUMP)):
        if of_kind := [each for each in found if low in each]:
            most = max(of_kind, key=lambda each: each[high] - share * each[low])
            worst |= {low: most[low], high: most[high]}
    return f"{when}: {'worst ' * (len(epochs) > 1)}{words(worst)}"
