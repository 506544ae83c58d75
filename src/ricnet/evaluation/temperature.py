"""Temperature scaling (Guo et al. 2017): one number, fitted on held-out data, that makes all beliefs softer or sharper.

The held-out NLL is convex in β = 1/T, so its minimum is where the slope changes sign, and bisection cannot miss it.
"""

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from ricnet.core.mdp import log_scores

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
