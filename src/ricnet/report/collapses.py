"""Alarms of a training: epochs in which it collapsed or its value loss jumped. Epochs with the lowest validation NLL so
far have none."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ricnet.evaluation.metrics import WINDOW, Collapse
from ricnet.io import is_finite


def alarms(found: Iterable[Collapse], lines: Iterable[Mapping[str, Any]]) -> tuple[Collapse, ...]:
    """The collapses in epochs whose validation NLL is not the lowest so far. `lines` are those of metrics.jsonl."""
    lowest, lowest_epochs = math.inf, set()
    for line in lines:
        nll = validation_nll(line)
        lowest_epochs |= {line["epoch"]} if nll <= lowest else set()
        lowest = min(lowest, nll)
    return tuple(each for each in found if each["epoch"] not in lowest_epochs)


def validation_nll(line: Mapping[str, Any]) -> float:
    """Validation NLL of an epoch; NaN if it was not measured."""
    nll = val.get("nll") if isinstance(val := line.get("val"), Mapping) else None
    return float(nll) if is_finite(nll) else math.nan


def alarm_words(found: Sequence[Collapse]) -> str:
    """Description of the alarms: a clause for falls of training accuracy, and one for jumps of the value loss."""
    clauses = {"training collapsed": _falls(found), "the value loss jumped": _jumps(found)}
    return "; ".join(f"{what} in {words}" for what, words in clauses.items() if words)


def _falls(found: Sequence[Collapse]) -> str:
    """Epochs in which training accuracy fell, and the largest fall; empty if there are none."""
    falls = [each for each in found if "accuracy" in each]
    if not falls:
        return ""
    worst = max(falls, key=lambda each: each["best_accuracy"] - each["accuracy"])
    accuracy, best = worst["accuracy"], worst["best_accuracy"]
    size = f"training accuracy {100 * accuracy:.1f} %, {100 * (best - accuracy):.1f} points below its best"
    return f"{_epochs(falls, worst)}: {size}"


def _jumps(found: Sequence[Collapse]) -> str:
    """Epochs in which the value loss jumped, and the largest jump; empty if there are none."""
    jumps = [each for each in found if "value_loss" in each]
    if not jumps:
        return ""
    worst = max(jumps, key=lambda each: each["value_loss"] / each["median_value_loss"])
    size = f"to {worst['value_loss']:.3g}, from a median of {worst['median_value_loss']:.3g}"
    return f"{_epochs(jumps, worst)}: {size} in the {WINDOW} epochs before"


def _epochs(found: Sequence[Collapse], worst: Collapse) -> str:
    if len(found) == 1:
        return f"epoch {worst['epoch']}"
    first, last = found[0]["epoch"], found[-1]["epoch"]
    return f"{len(found)} epochs between {first} and {last}, the largest in epoch {worst['epoch']}"
