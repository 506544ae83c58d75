"""What is chosen on held-out data once the weights are: a temperature, and when to stop.

Temperature scaling (Guo et al. 2017) is one number that makes all beliefs softer or sharper. The held-out NLL is convex
in β = 1/T, so its minimum is where the slope changes sign, and bisection cannot miss it. With exits each has its own.

The paper stops once V < 0. A value that is a little off then stops too late or too soon, and where later steps are
worse than early ones no threshold helps but a limit does. So pairs of the two are tried on the held-out examples.

With exits a threshold decides how much is computed: there is one for every budget, a mean share of compute. It is one
on the value or, where there is none, on how much is in doubt.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from ricnet.core.mdp import log_scores
from ricnet.core.trajectory import Temperature, halting_step
from ricnet.errors import RicnetError, counted, setting
from ricnet.evaluation.evaluate import Outcome

SOFTEST, SHARPEST = 1e-3, 1e3
"""Bounds of the search for β."""
FEWEST = 30
"""Examples, below which no temperature is kept that nobody asked for."""


@dataclass(frozen=True)
class TemperatureFit:
    temperature: Temperature
    """Of all steps; with exits one for each step, and the numbers below are means over the steps."""
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
    return _kept_if_it_helps(fit_temperature(log_beliefs, labels), [log_beliefs], labels)


def fit_exits(
    steps: Sequence[Float[Tensor, "n classes"]], labels: Int64[Tensor, "n"], if_it_helps: bool
) -> TemperatureFit:
    """A temperature for the beliefs after each step, of all examples, whichever of them will leave there: so that it
    serves every budget. Whether they help is asked of all together."""
    best = [_best_temperature(log_beliefs.double(), labels) for log_beliefs in steps]
    each = tuple(temperature or 1.0 for temperature in best)
    before, after = (
        sum(_nll(beliefs.double(), labels, 1 / one) for beliefs, one in zip(steps, some, strict=True)) / len(steps)
        for some in ((1.0,) * len(steps), each)
    )
    fit = TemperatureFit(each, before, after, len(labels), any(best))
    return _kept_if_it_helps(fit, steps, labels) if if_it_helps else fit


def _kept_if_it_helps(
    fit: TemperatureFit, steps: Sequence[Float[Tensor, "n classes"]], labels: Int64[Tensor, "n"]
) -> TemperatureFit:
    halves = (slice(0, None, 2), slice(1, None, 2))
    left = replace(fit, temperature=1.0, nll_after=fit.nll_before, kept=False)
    if not fit.found or len(labels) < FEWEST:
        return left
    gains = [torch.cat([_gain(each, labels, *pair) for pair in (halves, halves[::-1])]) for each in steps]
    gain = torch.stack(gains).mean(0)
    mean, error = float(gain.mean()), float(gain.std() / math.sqrt(len(gain)))
    return replace(fit if mean > error else left, gain=mean, gain_error=error)


def fit_temperature(log_beliefs: Float[Tensor, "n classes"], labels: Int64[Tensor, "n"]) -> TemperatureFit:
    log_beliefs = log_beliefs.double()
    best = _best_temperature(log_beliefs, labels)
    before, after = (_nll(log_beliefs, labels, 1 / temperature) for temperature in (1.0, best or 1.0))
    return TemperatureFit(best or 1.0, before, after, len(labels), best is not None)


def _best_temperature(log_beliefs: Float[Tensor, "n classes"], labels: Int64[Tensor, "n"]) -> float | None:
    """None where no finite one is best."""
    low, high = math.log(SOFTEST), math.log(SHARPEST)
    if not _slope(log_beliefs, labels, SOFTEST) < 0 < _slope(log_beliefs, labels, SHARPEST):
        return None
    while high - low > 1e-12:
        middle = (low + high) / 2
        low, high = (middle, high) if _slope(log_beliefs, labels, math.exp(middle)) < 0 else (low, middle)
    return 1 / math.exp((low + high) / 2)


def _gain(
    log_beliefs: Float[Tensor, "n classes"], labels: Int64[Tensor, "n"], seen: slice, unseen: slice
) -> Float[Tensor, "m"]:
    """In log-score of each unseen example, by the temperature of the seen."""
    temperature = _best_temperature(log_beliefs[seen].double(), labels[seen]) or 1.0
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
FEW_TO_HALT = 30
"""Examples, below which a rule when to stop has to help those it was not chosen on. Drawn at random from CIFAR-10's
validation data, 22 gave a ResNet-18 of 8 steps rules with a test NLL of .268 on average, and so .243, which V < 0 has
too."""
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
    """The single step with the lowest NLL, and what that is: without a budget the choice is never above it."""
    best_step_nll: float
    n: int
    mean_cost: float | None = None
    """With exits, the mean share of compute, of this rule and of the one before."""
    cost_before: float | None = None
    budget: float | None = None
    """What `mean_cost` was to stay within; None where nobody asked."""
    by_confidence: bool = False
    """Whether the threshold is one on the doubt, 1 − confidence, for there is no value."""


def choose_halt_if_it_helps(outcome: Outcome, budget: float | None = None) -> HaltChoice:
    """`choose_halt`; but of few examples the best of many rules is the luckiest. There V < 0 stays unless one chosen on
    every other example lowers the NLL of those between by more than a standard error, and the other way round. A budget
    that was asked for needs a threshold all the same."""
    steps, n = outcome.step_scores.shape
    if budget is None and n < 2:
        return _described(outcome, 0.0, steps)
    if budget is None and n < FEW_TO_HALT:
        halves = [outcome.take(slice(first, None, 2)) for first in (0, 1)]
        gain = torch.cat([_halt_gain(*pair) for pair in (halves, halves[::-1])])
        if not float(gain.mean()) > float(gain.std()) / math.sqrt(n):
            return _described(outcome, 0.0, steps)
    return choose_halt(outcome, budget)


def _halt_gain(seen: Outcome, unseen: Outcome) -> Float[Tensor, "m"]:
    """In log-score of each unseen example, by the rule of the seen instead of V < 0."""
    rule, rows, scores = choose_halt(seen), torch.arange(len(unseen.labels)), unseen.step_scores.double()
    chosen = halting_step(unseen.continuation, rule.halt_threshold).clamp(max=rule.max_steps)
    return scores[chosen - 1, rows] - scores[halting_step(unseen.continuation) - 1, rows]


def choose_halt(outcome: Outcome, budget: float | None = None) -> HaltChoice:
    """Of the rules that are no worse than the best single step and about as good as the best rule: V < 0 if it is among
    them, else the one with fewest steps. About as good: the mean difference, example by example, is within one standard
    error of it. Differences that four digits do not show are none.

    With exits: of those rules the one with least work; with a budget, the threshold that spends it."""
    nll = -outcome.step_scores.double()
    steps, n = nll.shape
    never = _below(outcome.continuation)
    thresholds: tuple[float, ...] = (never, *(one for one in THRESHOLDS if one > never))
    if outcome.costs is not None:
        points = operating_points(outcome)
        if budget is not None:
            return replace(_described(outcome, point_within(points, budget).halt_threshold, steps), budget=budget)
        thresholds = tuple(point.halt_threshold for point in points)
    rules: list[tuple[float, int, Tensor]] = []
    for threshold in thresholds:
        halt = halting_step(outcome.continuation, threshold)
        rules += [(threshold, most, halt.clamp(max=most)) for most in range(1, steps + 1)]

    def losses(stops: Tensor) -> Float[Tensor, "n"]:
        return nll[stops - 1, torch.arange(n)]

    least = losses(min(rules, key=lambda rule: float(losses(rule[2]).mean()))[2])

    def about_as_good(stops: Tensor) -> bool:
        excess = losses(stops) - least
        error = float(excess.std()) / math.sqrt(n) if n > 1 else 0.0
        return float(excess.mean()) <= 1.000001 * max(error, ALIKE)  # one example that differs is exactly one error

    limit, work = float(nll.mean(1).min()) + ALIKE, outcome.costs
    good = [rule for rule in rules if float(losses(rule[2]).mean()) <= limit and about_as_good(rule[2])]
    if work is None:
        work = torch.arange(1.0, steps + 1, dtype=torch.float64)
        good = [rule for rule in good if rule[:2] == (max(never, 0.0), steps)] or good
    threshold, most, _ = min(good, key=lambda rule: (float(work[rule[2] - 1].mean()), float(losses(rule[2]).mean())))
    return _described(outcome, threshold, most)


def _below(values: Float[Tensor, "*any"]) -> float:
    """A threshold by which nobody stops."""
    return math.floor(float(values.min())) - 1.0


def _described(outcome: Outcome, threshold: float, most: int) -> HaltChoice:
    """What a rule is worth beside the one it takes the place of."""
    nll, costs = -outcome.step_scores.double(), outcome.costs
    stops, before = halting_step(outcome.continuation, threshold).clamp(max=most), outcome.halt_step
    rows = torch.arange(nll.shape[1])
    mean_steps = float(stops.double().mean())
    by_step = nll.mean(1)
    return HaltChoice(
        threshold,
        most,
        float(nll[stops - 1, rows].mean()),
        mean_steps,
        mean_steps < most,
        float(nll[before - 1, rows].mean()),
        float(before.double().mean()),
        int(by_step.argmin()) + 1,
        float(by_step.min()),
        len(rows),
        None if costs is None else float(costs[stops - 1].mean()),
        None if costs is None else float(costs[before - 1].mean()),
        by_confidence=outcome.values is None,
    )


GRID = 40
"""Budgets that thresholds are kept for: every 1/40 of compute, from what the first exit costs."""
ROUNDING = 1e-9
"""What a mean of shares may lie above a budget by."""


@dataclass(frozen=True)
class OperatingPoint:
    """A threshold, and what comes of it on held-out data."""

    halt_threshold: float
    mean_cost: float
    """The mean share of compute."""
    accuracy: float
    nll: float


def operating_points(outcome: Outcome) -> tuple[OperatingPoint, ...]:
    """For each budget of the grid the threshold that spends most of it, from the first exit for all to all the way.

    Who has stopped after n steps has had a value below the threshold until then. So example i goes on from step n
    where the lowest of its values so far, m_{n,i}, is not below it, and going on costs c_{n+1} − c_n: the mean share
    is c_1 + Σ_{n,i} (c_{n+1} − c_n) 1[m_{n,i} ≥ threshold] / N, which falls at each m_{n,i} and nowhere else.
    """
    assert outcome.costs is not None
    lowest = outcome.continuation[1:].cummin(0).values
    levels, place = lowest.unique(return_inverse=True)  # from low to high
    prices = outcome.costs.diff()[:, None].expand_as(lowest).flatten() / lowest.shape[1]
    spent = outcome.costs[0] + torch.bincount(place.flatten(), prices, len(levels)).flip(0).cumsum(0).flip(0)
    between = levels[:-1] / 2 + levels[1:] / 2
    between = torch.where(between > levels[:-1], between, levels[1:])  # the next number may be the nearest there is
    thresholds = [_below(levels), *between.tolist(), math.floor(float(levels[-1])) + 1.0]
    spent = torch.cat([spent, outcome.costs[:1]])  # by each of them, from most to least
    budgets = [float(outcome.costs[0]), *(share / GRID for share in range(1, GRID + 1))]
    within = [int((spent > budget + ROUNDING).sum()) for budget in budgets if budget >= budgets[0]]
    return tuple(_point(outcome, thresholds[first]) for first in dict.fromkeys(within))


def _point(outcome: Outcome, threshold: float) -> OperatingPoint:
    assert outcome.costs is not None
    stops = halting_step(outcome.continuation, threshold) - 1
    rows = torch.arange(len(stops))
    right, score = outcome.step_correct[stops, rows].double(), outcome.step_scores[stops, rows].double()
    return OperatingPoint(threshold, float(outcome.costs[stops].mean()), float(right.mean()), -float(score.mean()))


def point_within(points: Sequence[OperatingPoint], budget: float) -> OperatingPoint:
    """The one that spends most of a budget."""
    require_affordable(budget, min(point.mean_cost for point in points))
    return max((point for point in points if point.mean_cost <= budget + ROUNDING), key=lambda point: point.mean_cost)


def require_affordable(budget: float, first_exit: float) -> None:
    if not first_exit <= budget + ROUNDING <= 1 + 2 * ROUNDING:
        least = math.ceil(1000 * first_exit) / 1000
        raise RicnetError(
            f"{setting('budget', budget)} is out of range: it must be from {least:g}, what the first exit costs, to 1, "
            "the whole network."
        )


def shortfall(mean_cost: float, budget: float) -> str | None:
    """What is to be said of a budget that no threshold comes near."""
    if budget - mean_cost <= 2 / GRID:
        return None
    return (
        f"of the budget of {budget:g} only {mean_cost:.3f} is spent: on validation data too many values are tied for a "
        "threshold between"
    )


# What was fitted, in words


def chosen_words(evaluation: Mapping[str, Any]) -> list[str]:
    """Of evaluation.json; none where nothing was to be chosen."""
    fitted = evaluation.get("fitted") or {}
    found = []
    if fit := fitted.get("calibration"):
        found.append(_temperature_words(fit))
    if rule := fitted.get("halting"):
        found.append(_halt_words(rule))
    return found


def rule_words(rule: Mapping[str, Any]) -> str:
    """after 1 step; or: once V < 0.01, after 12 steps at the latest; or: once it is 93 % sure, after …

    A threshold that no validation example got to still holds: another example may."""
    most, threshold = counted(rule["max_steps"], "step"), rule["halt_threshold"]
    by_confidence = rule.get("by_confidence", False)
    if rule["max_steps"] == 1 or (by_confidence and threshold <= 0):  # doubt is never below zero
        return f"after {most}"
    once = f"it is {100 * (1 - threshold):.3g} % sure" if by_confidence else f"V < {threshold:g}"
    nobody = "" if rule["reached"] else " (no validation example got there)"
    return f"once {once}{nobody}, after {most} at the latest"


def _halt_words(rule: Mapping[str, Any]) -> str:
    now, before = f"in {rule['mean_steps']:.1f} steps", f"in {rule['steps_before']:.1f} steps"
    if rule.get("mean_cost") is not None:
        now, before = (f"for {rule[name]:.3f} of compute" for name in ("mean_cost", "cost_before"))
    all_the_way = "all the way" if rule.get("by_confidence") else "V < 0"
    budget = "" if rule.get("budget") is None else f" for a budget of {rule['budget']:g}"
    here, default = f"{rule['nll']:.4f} there {now}", f"{rule['nll_before']:.4f} there {before}"
    by_default = "" if here == default else f"{all_the_way}: {rule['nll_before']:.4f} {before}; "
    words = (
        f"stops {rule_words(rule)}, chosen{budget} on {rule['n']:,} validation examples: "
        f"NLL {here} ({by_default}"
        f"best single step, {rule['best_step']}: {rule['best_step_nll']:.4f})"
    )
    told = None if rule.get("budget") is None else shortfall(rule["mean_cost"], rule["budget"])
    return f"{words}; {told}" if told else words


def _temperature_words(fit: Mapping[str, Any]) -> str:
    """With exits all that is said of NLL is a mean over them."""
    if not fit["found"]:
        return (
            f"temperature left at 1: on {fit['n']:,} validation examples no finite one is best (is none of them wrong?)"
        )
    if not fit["kept"]:
        if fit["gain"] is None:
            return f"temperature left at 1: {fit['n']:,} validation examples are too few to fit another"
        change = f"NLL changes by {-fit['gain']:+.4f} ± {fit['gain_error']:.4f} on examples it was not fitted on"
        return f"temperature left at 1: on {fit['n']:,} validation examples another shows no gain ({change})"
    change = f"validation NLL {fit['nll_before']:.4f} → {fit['nll_after']:.4f}"
    found = fit["temperature"]
    if isinstance(found, float):
        return f"temperature {found:.3f}, fitted on {fit['n']:,} validation examples: {change}"
    each = ", ".join(f"{one:.2f}" for one in found)
    return f"temperatures {each}, one an exit, fitted on {fit['n']:,} validation examples: mean {change}"
