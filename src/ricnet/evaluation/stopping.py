"""When to stop, chosen on held-out data: a threshold of the value, and a largest number of steps.

The paper stops once V < 0. A value that is a little off then stops too late or too soon, and where later steps are
worse than early ones no threshold helps but a limit does. So pairs of the two are tried on the held-out examples.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ricnet.core.trajectory import halting_step
from ricnet.evaluation.evaluate import Outcome

THRESHOLDS = (-0.1, -0.03, -0.01, 0.0, 0.01, 0.03, 0.1, 0.3)
"""Nats that are still expected. Below all of them comes one under every value seen, by which nobody stops."""
DIGITS = 4
"""Of an NLL; rules that are alike in them are told apart by their steps."""


@dataclass(frozen=True)
class HaltChoice:
    halt_threshold: float
    max_steps: int
    nll: float
    mean_steps: float
    reached: bool
    """Whether the value of any held-out example falls below the threshold; else all make `max_steps`."""
    nll_before: float
    """Of the rule it takes the place of, V < 0 and all steps."""
    steps_before: float
    best_step: int
    """The single step with the lowest NLL, and what that is: the choice is never above it."""
    best_step_nll: float
    n: int


def choose_halt(outcome: Outcome) -> HaltChoice:
    """The rule of lowest NLL among those no worse than the best single step; of equals the one with fewest steps."""
    assert outcome.values is not None
    nll = -outcome.step_scores.double()
    steps, n = nll.shape
    by_step = nll.mean(1)
    best = int(by_step.argmin())
    never = math.floor(float(outcome.values.min())) - 1.0
    rules = []
    for threshold in (never, *(one for one in THRESHOLDS if one > never)):
        halt = halting_step(outcome.values, threshold)
        for most in range(1, steps + 1):
            stops = halt.clamp(max=most)
            mean_steps = float(stops.double().mean())
            rules.append((_mean_nll(nll, stops), mean_steps, threshold, most, mean_steps < most))
    allowed = [rule for rule in rules if rule[0] <= float(by_step[best]) + 1e-12]
    score, mean_steps, threshold, most, reached = min(allowed, key=lambda rule: (round(rule[0], DIGITS), *rule[1:]))
    return HaltChoice(
        threshold,
        most,
        score,
        mean_steps,
        reached,
        _mean_nll(nll, outcome.halt_step),
        float(outcome.halt_step.double().mean()),
        best + 1,
        float(by_step[best]),
        n,
    )


def _mean_nll(nll: Float[Tensor, "steps n"], halt_step: Tensor) -> float:
    return float(nll[halt_step - 1, torch.arange(nll.shape[1])].mean())
