"""What is chosen on held-out data once the weights are: a temperature, and when to stop.

Temperature scaling (Guo et al. 2017) is one number that makes all beliefs softer or sharper. The held-out NLL is convex
in β = 1/T, so its minimum is where the slope changes sign, and bisection cannot miss it.

The paper stops once V < 0. A value that is a little off then stops too late or too soon, and where later steps are
worse than early ones no threshold helps but a limit does. So pairs of the two are tried on the held-out examples.
"""

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from ricnet.core.mdp import log_scores
from ricnet.core.trajectory import halting_step
from ricnet.evaluation.evaluate import Outcome

SOFTEST, SHARPEST = 1e-3, 1e3
"""Bounds of the search for β."""


@dataclass(frozen=True)
class TemperatureFit:
    temperature: float
    nll_before: float
    nll_after: float
    n: int
    found: bool
    """False where no finite temperature is best, as when no answer is wrong; it then stays at 1."""
    kept: bool = True
    """False where it was to be kept only if it helps, and it does not; it then stays at 1."""
    gain: float | None = None
    """What it takes off the NLL of examples it was not fitted on, and the standard error of that; None where nobody
    asked."""
    gain_error: float | None = None


def fit_if_it_helps(log_beliefs: Float[Tensor, "n classes"], labels: Int64[Tensor, "n"]) -> TemperatureFit:
    """A temperature that is kept only if it would help examples it has not seen: one fitted on every other example
    must lower the NLL of those between by more than a standard error, and the other way round."""
    fit = fit_temperature(log_beliefs, labels)
    halves = (slice(0, None, 2), slice(1, None, 2))
    if not fit.found or len(labels) < 4:
        return replace(fit, temperature=1.0, nll_after=fit.nll_before, kept=False)
    gain = torch.cat([_gain(log_beliefs, labels, *pair) for pair in (halves, halves[::-1])])
    mean, error = float(gain.mean()), float(gain.std() / math.sqrt(len(gain)))
    if mean > error:
        return replace(fit, gain=mean, gain_error=error)
    return replace(fit, temperature=1.0, nll_after=fit.nll_before, kept=False, gain=mean, gain_error=error)


def fit_temperature(log_beliefs: Float[Tensor, "n classes"], labels: Int64[Tensor, "n"]) -> TemperatureFit:
    log_beliefs = log_beliefs.double()
    low, high = math.log(SOFTEST), math.log(SHARPEST)
    found = _slope(log_beliefs, labels, SOFTEST) < 0 < _slope(log_beliefs, labels, SHARPEST)
    while found and high - low > 1e-12:
        middle = (low + high) / 2
        low, high = (middle, high) if _slope(log_beliefs, labels, math.exp(middle)) < 0 else (low, middle)
    inverse = math.exp((low + high) / 2) if found else 1.0
    before, after = (_nll(log_beliefs, labels, beta) for beta in (1.0, inverse))
    return TemperatureFit(1 / inverse, before, after, len(labels), found)


def _gain(
    log_beliefs: Float[Tensor, "n classes"], labels: Int64[Tensor, "n"], seen: slice, unseen: slice
) -> Float[Tensor, "m"]:
    """In log-score of each unseen example, by the temperature of the seen."""
    temperature = fit_temperature(log_beliefs[seen], labels[seen]).temperature
    before, truth = log_beliefs[unseen].double(), labels[unseen]
    return log_scores((before / temperature).log_softmax(-1), truth) - log_scores(before, truth)


def _slope(log_beliefs: Float[Tensor, "n classes"], labels: Int64[Tensor, "n"], beta: float) -> float:
    """d NLL / dβ = E_belief[log a] − log a_y, averaged; it rises with β."""
    sharpened = (beta * log_beliefs).softmax(-1)
    # A class that is impossible both ways contributes nothing, not 0 · −∞.
    expected = (sharpened * log_beliefs).nan_to_num(0.0).sum(-1)
    return float((expected - log_scores(log_beliefs, labels)).mean())


def _nll(log_beliefs: Float[Tensor, "n classes"], labels: Int64[Tensor, "n"], beta: float) -> float:
    return -float(log_scores((beta * log_beliefs).log_softmax(-1), labels).mean())


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
