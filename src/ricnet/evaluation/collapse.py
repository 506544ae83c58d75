"""Training that collapses: accuracy on the training data falls, or the value loss jumps, and the run may go on.

Both are read from the lines of metrics.jsonl, so that runs of any age are judged alike.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from ricnet.io import is_finite

DROP = 10
"""Points of training accuracy below the best so far; more is a collapse."""
JUMP = 5
"""Times the median value loss; more is a collapse."""
STANDARD_ERRORS = 4
"""Of the difference of two accuracies, which it must exceed too. That is less than DROP from 800 training rows on."""
FIRST_UPDATES = 20
"""Epochs that end within so many updates are not compared by accuracy: a table of 100 rows makes one update an epoch,
and the accuracies of its first ones rise and fall by 30 points."""
WINDOW = 20
"""Epochs before the present one that the median is taken over; until there are so many, there is none."""

Collapse = dict[str, Any]
"""Value and reference: accuracy and best_accuracy, value_loss and median_value_loss, or all four."""


class CollapseWatch:
    """Is shown the line of each epoch, in order; resuming means to show it the lines so far."""

    def __init__(self, rows: int | None = None) -> None:
        """`rows` of training data, if known: accuracies of few differ by chance."""
        self.rows = rows
        self.collapsed = self.begins = False
        """Whether the last epoch was a collapse, and the one before it was none."""
        self.best = 0.0
        self.value_losses: dict[int, float] = {}
        """Of the last epochs, by their number: an archived run may not have kept them all."""

    def see(self, line: Mapping[str, Any]) -> Collapse:
        """What makes this epoch a collapse; empty if nothing does."""
        accuracy, value_loss = (_number(line.get("train"), name) for name in ("accuracy", "value_loss"))
        update = _number(line, "update")
        begun = update is None or update > FIRST_UPDATES
        found = self._fallen(accuracy if begun else None) | self._jumped(line["epoch"], value_loss)
        self.begins, self.collapsed = bool(found) and not self.collapsed, bool(found)
        return found

    def _fallen(self, accuracy: float | None) -> Collapse:
        if accuracy is None:
            return {}
        self.best = max(self.best, accuracy)
        points = round(100 * (self.best - accuracy), 6)  # 0.4 - 0.3 is more than 0.1
        fallen = points > DROP and points > 100 * STANDARD_ERRORS * self._standard_error(accuracy)
        return {"accuracy": accuracy, "best_accuracy": self.best} if fallen else {}

    def _standard_error(self, accuracy: float) -> float:
        """Of the difference between this accuracy and the best, as if of different rows."""
        variance = sum(max(0.0, share * (1 - share)) for share in (accuracy, self.best))
        return math.sqrt(variance / self.rows) if self.rows else 0.0

    def _jumped(self, epoch: int, loss: float | None) -> Collapse:
        if loss is None:
            return {}
        self.value_losses = {past: own for past, own in self.value_losses.items() if past >= epoch - WINDOW}
        usual = median(self.value_losses.values()) if self.value_losses and epoch > WINDOW else None
        self.value_losses[epoch] = loss
        return {"value_loss": loss, "median_value_loss": usual} if usual is not None and loss > JUMP * usual else {}


def _number(entry: object, name: str) -> float | None:
    """None where it was not measured, or the file was damaged."""
    value = entry.get(name) if isinstance(entry, Mapping) else None
    return float(value) if is_finite(value) else None  # type: ignore[arg-type]


def collapses(lines: Iterable[Mapping[str, Any]], rows: int | None = None) -> list[Collapse]:
    """Of a whole run: one entry for each epoch that is a collapse, with its `epoch`."""
    watch = CollapseWatch(rows)
    seen = ((line["epoch"], watch.see(line)) for line in lines)
    return [{"epoch": epoch, **found} for epoch, found in seen if found]


def words(collapse: Collapse) -> str:
    """What happened in one epoch."""
    parts = []
    if "accuracy" in collapse:
        accuracy, best = collapse["accuracy"], collapse["best_accuracy"]
        parts.append(f"training accuracy {100 * accuracy:.1f} %, {100 * (best - accuracy):.1f} points below its best")
    if "value_loss" in collapse:
        loss, usual = collapse["value_loss"], collapse["median_value_loss"]
        parts.append(f"value loss {loss:.3g}, median of {WINDOW} epochs {usual:.3g}")
    return "; ".join(parts)


def summary(found: Sequence[Collapse]) -> str:
    """All collapses of a run: in which epochs, and the worst of either kind."""
    epochs = [int(each["epoch"]) for each in found]
    when = f"epoch {epochs[0]}" if len(epochs) == 1 else f"{len(epochs)} epochs from {epochs[0]} to {epochs[-1]}"
    drops = [each for each in found if "accuracy" in each]
    jumps = [each for each in found if "value_loss" in each]
    worst: Collapse = {}
    if drops:
        fields = max(drops, key=lambda each: each["best_accuracy"] - each["accuracy"])
        worst |= {name: fields[name] for name in ("accuracy", "best_accuracy")}
    if jumps:
        fields = max(jumps, key=lambda each: each["value_loss"] - JUMP * each["median_value_loss"])
        worst |= {name: fields[name] for name in ("value_loss", "median_value_loss")}
    return f"{when}: {'worst ' * (len(epochs) > 1)}{words(worst)}"
