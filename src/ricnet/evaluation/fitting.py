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
FEWEST = 30
"""Examples, below which no temperature is kept that nobody asked for."""


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
    must lower the NLL of those between by more than a standard error, and the other way round. Of very few examples
    none is kept: of nine, calibrated perfectly, one in seven would be, and it does great harm."""
    fit = fit_temperature(log_beliefs, labels)
    halves = (slice(0, None, 2), slice(1, None, 2))
    if not fit.found or len(labels) < FEWEST:
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
ALIKE = 5e-5
"""A difference of NLL that four digits do not show."""


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
    """Of the rules that are no worse than the best single step and about as good as the best rule: V < 0 if it is among
    them, else the one with fewest steps. About as good: the mean difference, example by example, is within one standard
    error of it. Differences that four digits do not show are none."""
    assert outcome.values is not None
    nll = -outcome.step_scores.double()
    steps, n = nll.shape
    never = math.floor(float(outcome.values.min())) - 1.0
    rules: list[tuple[float, int, Tensor]] = []
    for threshold in (never, *(one for one in THRESHOLDS if one > never)):
        halt = halting_step(outcome.values, threshold)
        rules += [(threshold, most, halt.clamp(max=most)) for most in range(1, steps + 1)]

    def losses(stops: Tensor) -> Float[Tensor, "n"]:
        return nll[stops - 1, torch.arange(n)]

    least = losses(min(rules, key=lambda rule: float(losses(rule[2]).mean()))[2])

    def about_as_good(stops: Tensor) -> bool:
        excess = losses(stops) - least
        error = float(excess.std()) / math.sqrt(n) if n > 1 else 0.0
        return float(excess.mean()) <= 1.000001 * max(error, ALIKE)  # one example that differs is exactly one error

    by_step = nll.mean(1)
    allowed = [rule for rule in rules if float(losses(rule[2]).mean()) <= float(by_step.min()) + ALIKE]
    good = [rule for rule in allowed if about_as_good(rule[2])]
    usual = [rule for rule in good if rule[:2] == (max(never, 0.0), steps)]
    threshold, most, stops = min(
        usual or good, key=lambda rule: (float(rule[2].double().mean()), float(losses(rule[2]).mean()))
    )
    mean_steps = float(stops.double().mean())
    return HaltChoice(
        threshold,
        most,
        float(losses(stops).mean()),
        mean_steps,
        mean_steps < most,
        float(losses(outcome.halt_step).mean()),
        float(outcome.halt_step.double().mean()),
        int(by_step.argmin()) + 1,
        float(by_step.min()),
        n,
    )
