"""Rules for when to stop, applied afterwards to what a run believed at every step.

A rule's cost is counted in evaluations of the recurrent cell. The value is asked of the next thought, so a stop by it
costs one evaluation more than its steps; confidence and entropy are read off the belief and cost nothing more.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Integer

from ricnet.errors import RicnetError
from ricnet.evaluation.metrics import expected_calibration_error
from ricnet.evaluation.predictions import Predictions

HaltStep = Integer[np.ndarray, "n"]


@dataclass(frozen=True)
class Rule:
    name: str
    halt: Callable[[Predictions, float], HaltStep]
    """How many steps each example takes, given the threshold."""
    low: float
    high: float
    """Thresholds at which it stops as early and as late as it can."""
    asks_ahead: bool = False


def first_stop(stops: Bool[np.ndarray, "steps n"]) -> HaltStep:
    """The number of steps after which each example stops; all of them where nothing makes it stop."""
    return np.where(stops.any(0), stops.argmax(0), len(stops) - 1) + 1


def by_value(run: Predictions, threshold: float) -> HaltStep:
    """V(s_{n+1}) below the threshold stops after n steps; V(s_1) is never asked."""
    if run.values is None:
        raise RicnetError("this run has no value function to halt by; use a run of the method ric.")
    never = np.zeros_like(run.values[:1], dtype=bool)
    return first_stop(np.concatenate([run.values[1:] < threshold, never]))


def by_confidence(run: Predictions, threshold: float) -> HaltStep:
    return first_stop(run.step_confidence >= threshold)


def by_entropy(run: Predictions, threshold: float) -> HaltStep:
    return first_stop(run.step_entropy <= threshold)


def by_count(run: Predictions, threshold: float) -> HaltStep:
    """A fixed number of steps. A part of a step is taken by that share of the examples, evenly spread."""
    steps, n = run.step_scores.shape
    whole = int(min(max(threshold, 1), steps))
    extra = np.diff(np.floor(np.arange(n + 1) * (threshold - whole))) > 0
    halt: HaltStep = np.minimum(whole + extra, steps)
    return halt


VALUE = Rule("value", by_value, 1e6, -1e6, asks_ahead=True)
CONFIDENCE = Rule("confidence", by_confidence, 0.0, 2.0)
ENTROPY = Rule("entropy", by_entropy, 1e6, -1.0)
COUNT = Rule("fixed number of steps", by_count, 1.0, 1e6)
RULES = (VALUE, CONFIDENCE, ENTROPY, COUNT)


def cost(rule: Rule, run: Predictions, halt: HaltStep) -> float:
    """Mean evaluations of the cell."""
    return float((halt + (rule.asks_ahead & (halt < len(run.step_scores)))).mean())


def threshold_for(rule: Rule, run: Predictions, budget: float) -> float:
    """The threshold at which the rule's mean cost comes nearest to the budget, from below; by bisection.

    Cost rises from `low` to `high` whatever the rule, for a stricter threshold never stops an example earlier.
    """
    early, late = rule.low, rule.high
    for _ in range(100):
        middle = (early + late) / 2
        early, late = (middle, late) if cost(rule, run, rule.halt(run, middle)) <= budget else (early, middle)
    return early


def judge(run: Predictions, halt: HaltStep) -> dict[str, float | None]:
    """What the answers are worth when each example stops after its `halt` steps."""
    at = halt - 1, np.arange(len(halt))
    correct, confidence = run.step_correct[at], run.step_confidence[at]  # in its own precision, as the bins' edges
    return {
        "accuracy": float(correct.mean()),
        "nll": -float(run.step_scores[at].astype(np.float64).mean()),
        "ece": expected_calibration_error(torch.from_numpy(confidence), torch.from_numpy(correct)),
        "steps": float(halt.mean()),
        "steps_right": _mean(halt[correct]),
        "steps_wrong": _mean(halt[~correct]),
    }


def _mean(values: Float[np.ndarray, "n"] | HaltStep) -> float | None:
    return float(values.mean()) if len(values) else None
