"""Choices made on validation data after training: temperature, halting rule, thresholds for a compute budget.

Validation sets are small, so every choice has a safe default (temperature 1, V < 0, with exits the whole network) and
at most five alternatives, fixed in advance. An alternative replaces the default only if

- the validation set has at least MIN_ROWS examples, of which the default gets at least MIN_MISTAKES wrong: a few
  mistakes dominate the mean log-score of an almost perfect network;
- its mean gain in log-score, with parameters cross-fitted over FOLDS folds, exceeds the one-sided Student quantile at
  LEVEL / number of alternatives (Bonferroni) times its standard error.

With exits, cheaper rules are tested for non-inferiority instead: one is taken if the one-sided 95 % bound on its loss
in log-score against the whole network is below MAX_LOSS. tests/evaluation/test_choices.py simulates both tests.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from ricnet.core.mdp import log_scores
from ricnet.core.trajectory import Temperature, halting_step
from ricnet.errors import RicnetError, counted, setting
from ricnet.evaluation.evaluate import Outcome, at_step

LEVEL = 0.1
"""Probability of replacing a default that is as good as every alternative."""
MIN_ROWS = 30
MIN_MISTAKES = 5
FOLDS = 5
MAX_LOSS = 0.01
"""Nats of log-score that a cheaper halting rule may lose."""


@dataclass(frozen=True)
class Gain:
    """Mean and standard error of the gain in log-score over the default, per example."""

    mean: float
    error: float
    n: int

    @classmethod
    def of(cls, gains: Float[Tensor, "n"]) -> "Gain":
        return cls(float(gains.mean()), float(gains.std()) / math.sqrt(len(gains)), len(gains))

    def is_shown(self, alternatives: int) -> bool:
        """Whether the gain is significantly above 0, as one of several alternatives."""
        return self.mean > self.error * student_t(self.n - 1, 1 - LEVEL / alternatives)

    @property
    def lower_bound(self) -> float:
        """One-sided 95 % confidence bound."""
        return self.mean - self.error * student_t(self.n - 1, 0.95)


def student_t(freedom: int, share: float) -> float:
    """Quantile of Student's t with this many degrees of freedom."""
    from scipy.special import stdtrit  # here, because a model that only predicts does not need scipy

    return float(stdtrit(freedom, share))


def best_alternative(gains: Sequence[Float[Tensor, "n"]]) -> tuple[int | None, Gain | None]:
    """Index and gain of the alternative with the largest mean gain among those that are significantly better than the
    default; (None, None) if there is none."""
    judged = [Gain.of(each) for each in gains]
    shown = [place for place, gain in enumerate(judged) if gain.is_shown(len(gains))]
    best = max(shown, key=lambda place: judged[place].mean, default=None)
    return best, None if best is None else judged[best]


def enough_to_choose(correct: Bool[Tensor, "n"]) -> bool:
    return len(correct) >= MIN_ROWS and int((~correct).sum()) >= MIN_MISTAKES


def folds(n: int) -> list[tuple[Int64[Tensor, "seen"], Int64[Tensor, "held_out"]]]:
    """Indices to fit on and indices held out, per fold; example i is held out in fold i mod FOLDS."""
    rows = torch.arange(n)
    return [(rows[rows % FOLDS != fold], rows[rows % FOLDS == fold]) for fold in range(FOLDS)]


def cross_fitted(
    n: int, measure: Callable[[Int64[Tensor, "seen"], Int64[Tensor, "held_out"]], Float[Tensor, "held_out"]]
) -> Float[Tensor, "n"]:
    """One number per example, measured with parameters that were fitted without the example's fold."""
    found = torch.empty(n, dtype=torch.float64)
    for seen, held_out in folds(n):
        found[held_out] = measure(seen, held_out)
    return found


# Temperature scaling (Guo et al. 2017): p ∝ a^β, β = 1/T. The NLL is convex in β, so bisection on its slope is exact.

MIN_BETA, MAX_BETA = 1e-3, 1e3
PRIOR_EXAMPLES = 20
"""Shrinkage of automatic temperatures: they are fitted as if this many more examples had been seen, on which the
default is calibrated."""


@dataclass(frozen=True)
class TemperatureFit:
    temperature: Temperature
    """One for all steps, or one per exit. With exits, the NLLs and the gain are means over exits."""
    nll_before: float
    nll_after: float
    n: int
    found: bool
    """False if no finite temperature minimises the NLL, for example if no answer is wrong; it then stays at 1."""
    kept: bool = True
    """False if temperature 1 was not replaced."""
    gain: float | None = None
    """Cross-fitted gain in log-score and its standard error; None if it was not measured."""
    gain_error: float | None = None


def fit_temperature(log_beliefs: Float[Tensor, "n classes"], labels: Int64[Tensor, "n"]) -> TemperatureFit:
    """The temperature with the lowest NLL, as published: no test, no shrinkage."""
    beliefs = [log_beliefs.double()]
    beta = _best_beta(beliefs, _mean_scores(beliefs, labels))
    return _fit(beliefs, labels, (1 / beta if beta else 1.0,), found=beta is not None)


def fit_exit_temperatures(exits: Sequence[Float[Tensor, "n classes"]], labels: Int64[Tensor, "n"]) -> TemperatureFit:
    """One temperature per exit, each shrunk towards a common one."""
    beliefs = [each.double() for each in exits]
    return _fit(beliefs, labels, _per_exit(beliefs, labels), found=True)


def choose_temperature(log_beliefs: Float[Tensor, "n classes"], labels: Int64[Tensor, "n"]) -> TemperatureFit:
    """A temperature shrunk towards 1, or 1 if no gain is shown."""
    return _choose([log_beliefs.double()], labels, [_common])


def choose_exit_temperatures(exits: Sequence[Float[Tensor, "n classes"]], labels: Int64[Tensor, "n"]) -> TemperatureFit:
    """A common temperature, or one per exit shrunk towards it, or 1 if no gain is shown."""
    return _choose([each.double() for each in exits], labels, [_common, _per_exit])


Exits = Sequence[Tensor]
"""Log-beliefs (n, classes) after each exit; a single one without exits."""


def _choose(
    beliefs: Exits, labels: Int64[Tensor, "n"], alternatives: Sequence[Callable[[Exits, Tensor], tuple[float, ...]]]
) -> TemperatureFit:
    default = replace(_fit(beliefs, labels, (1.0,) * len(beliefs), found=True), kept=False)
    if not enough_to_choose(beliefs[-1].argmax(-1) == labels):
        return default

    def gains(find: Callable[[Exits, Tensor], tuple[float, ...]]) -> Float[Tensor, "n"]:
        def held_out_gains(seen: Tensor, held_out: Tensor) -> Tensor:
            found = find([each[seen] for each in beliefs], labels[seen])
            asked, truth = [each[held_out] for each in beliefs], labels[held_out]
            return _tempered_scores(asked, truth, found) - _tempered_scores(asked, truth, (1.0,) * len(asked))

        return cross_fitted(len(labels), held_out_gains)

    measured = [gains(find) for find in alternatives]
    best, gain = best_alternative(measured)
    if best is None or gain is None:
        shown = Gain.of(measured[0])
        return replace(default, gain=shown.mean, gain_error=shown.error)
    fit = _fit(beliefs, labels, alternatives[best](beliefs, labels), found=True)
    return replace(fit, gain=gain.mean, gain_error=gain.error)


def _fit(beliefs: Exits, labels: Int64[Tensor, "n"], temperatures: tuple[float, ...], found: bool) -> TemperatureFit:
    before, after = (
        -float(_tempered_scores(beliefs, labels, some).mean()) for some in ((1.0,) * len(beliefs), temperatures)
    )
    same = len(set(temperatures)) == 1
    return TemperatureFit(temperatures[0] if same else temperatures, before, after, len(labels), found)


def _tempered_scores(beliefs: Exits, labels: Int64[Tensor, "n"], temperatures: tuple[float, ...]) -> Float[Tensor, "n"]:
    """Log-score of each example, averaged over exits."""
    tempered = [(each / one).log_softmax(-1) for each, one in zip(beliefs, temperatures, strict=True)]
    return torch.stack([log_scores(each, labels) for each in tempered]).mean(0)


def _common(beliefs: Exits, labels: Int64[Tensor, "n"]) -> tuple[float, ...]:
    """One temperature for all exits, shrunk towards 1."""
    return (1 / _shrunk_beta(beliefs, labels, 1.0),) * len(beliefs)


def _per_exit(beliefs: Exits, labels: Int64[Tensor, "n"]) -> tuple[float, ...]:
    """One temperature per exit, shrunk towards the common one."""
    common = 1 / _common(beliefs, labels)[0]
    return tuple(1 / _shrunk_beta([each], labels, common) for each in beliefs)


def _shrunk_beta(beliefs: Exits, labels: Int64[Tensor, "n"], centre: float) -> float:
    """β with the lowest NLL on the data and PRIOR_EXAMPLES pseudo-examples, whose labels follow the beliefs at
    β = `centre`; `centre` if the beliefs are worse than uniform ones."""
    weight = PRIOR_EXAMPLES / len(labels)
    target = (_mean_scores(beliefs, labels) + weight * _expected_scores(beliefs, centre)) / (1 + weight)
    return _best_beta(beliefs, target) or centre


def _best_beta(beliefs: Exits, target: float) -> float | None:
    """The β at which d NLL / dβ = E_belief(β)[log a] − `target` changes sign; None if it does not."""
    low, high = math.log(MIN_BETA), math.log(MAX_BETA)
    if not _expected_scores(beliefs, MIN_BETA) < target < _expected_scores(beliefs, MAX_BETA):
        return None
    while high - low > 1e-7:
        middle = (low + high) / 2
        low, high = (middle, high) if _expected_scores(beliefs, math.exp(middle)) < target else (low, middle)
    return math.exp((low + high) / 2)


def _mean_scores(beliefs: Exits, labels: Int64[Tensor, "n"]) -> float:
    return sum(float(log_scores(each, labels).mean()) for each in beliefs) / len(beliefs)


def _expected_scores(beliefs: Exits, beta: float) -> float:
    """E[log a] under p ∝ a^β, averaged over examples and exits. It rises with β. A class of probability 0 contributes
    0, not 0 · −∞."""
    means = [((beta * each).softmax(-1) * each).nan_to_num(0.0).sum(-1).mean() for each in beliefs]
    return float(sum(means)) / len(beliefs)


def calibrated_scores(log_beliefs: Float[Tensor, "n classes"], labels: Int64[Tensor, "n"]) -> Float[Tensor, "n"]:
    """Log-scores after a cross-fitted temperature, which corrects over-confidence."""
    beliefs = log_beliefs.double()

    def scores(seen: Tensor, held_out: Tensor) -> Tensor:
        beta = _shrunk_beta([beliefs[seen]], labels[seen], 1.0)
        return log_scores((beta * beliefs[held_out]).log_softmax(-1), labels[held_out])

    return cross_fitted(len(labels), scores)


def is_as_good(scores: Float[Tensor, "n"], best: Float[Tensor, "n"]) -> bool:
    """Whether the mean of `scores` is at most one standard error of the paired difference below that of `best`."""
    lost = Gain.of(best - scores)
    return not lost.mean > lost.error


# Halting without exits

NEVER = -1e9
"""A threshold below every value: all steps are made."""
THRESHOLDS = (-0.1, 0.03, 0.1)
"""Alternatives to V < 0, in nats. The other two of the five alternatives are all steps and a single step."""


@dataclass(frozen=True)
class HaltChoice:
    halt_threshold: float
    max_steps: int
    nll: float
    mean_steps: float
    reached: bool
    """Whether the value of any validation example falls below the threshold; else all make `max_steps`."""
    nll_before: float
    """NLL of the default: V < 0, with exits the whole network."""
    steps_before: float
    n: int
    kept: bool = True
    """False if the default was not replaced."""
    gain: float | None = None
    """Gain in log-score over the default and its standard error; None if nothing was compared."""
    gain_error: float | None = None
    mean_cost: float | None = None
    """With exits, the mean share of compute of this rule."""
    budget: float | None = None
    """The user's budget, if the rule was chosen for one."""
    by_confidence: bool = False
    """Whether the threshold is on 1 − confidence, for methods without a value."""


def choose_halt(outcome: Outcome) -> HaltChoice:
    """V < 0, unless another threshold, all steps or a single step is shown to be better."""
    steps = len(outcome.step_scores)
    default = replace(_described(outcome, 0.0, steps), kept=False)
    if steps == 1 or not enough_to_choose(at_step(outcome.step_correct, outcome.halt_step)):
        return default
    rules = [(NEVER, steps), (0.0, 1), *((one, steps) for one in THRESHOLDS)]
    before = at_step(outcome.step_scores, outcome.halt_step).double()
    gains = [at_step(outcome.step_scores, _stops(outcome, *rule)).double() - before for rule in rules]
    best, gain = best_alternative(gains)
    if best is None or gain is None:
        return default
    return replace(_described(outcome, *rules[best]), gain=gain.mean, gain_error=gain.error)


def _stops(outcome: Outcome, threshold: float, most: int) -> Int64[Tensor, "n"]:
    """The step after which each example halts."""
    return halting_step(outcome.continuation, threshold).clamp(max=most)


def _described(outcome: Outcome, threshold: float, most: int, budget: float | None = None) -> HaltChoice:
    """A halting rule with its results and those of the default on the validation data."""
    costs, steps = outcome.costs, len(outcome.step_scores)
    stops = _stops(outcome, threshold, most)
    before = outcome.halt_step if costs is None else torch.full_like(stops, steps)
    mean_steps = float(stops.double().mean())
    return HaltChoice(
        threshold,
        most,
        -float(at_step(outcome.step_scores, stops).double().mean()),
        mean_steps,
        mean_steps < most,
        -float(at_step(outcome.step_scores, before).double().mean()),
        float(before.double().mean()),
        len(stops),
        mean_cost=None if costs is None else float(costs[stops - 1].mean()),
        budget=budget,
        by_confidence=outcome.values is None,
    )


# Operating points of a network with exits: halting thresholds for budgets, which are mean shares of compute

GRID = 40
"""Thresholds are stored for the budgets k/40, from the cost of the first exit to 1."""
ROUNDING = 1e-9


@dataclass(frozen=True)
class OperatingPoint:
    """A threshold and its results on validation data."""

    halt_threshold: float
    mean_cost: float
    """The mean share of compute."""
    accuracy: float
    nll: float


def operating_points(outcome: Outcome) -> tuple[OperatingPoint, ...]:
    """For each budget of the grid, the threshold that spends as much of it as possible. At the lowest budget all
    examples leave at the first exit, at the highest all are computed by the whole network.

    Example i continues after step n if the lowest of its values so far, m_{n,i}, is not below the threshold, and that
    costs c_{n+1} − c_n. So the mean share is c_1 + Σ_{n,i} (c_{n+1} − c_n) 1[m_{n,i} ≥ threshold] / N: it falls at each
    m_{n,i} and nowhere else.
    """
    assert outcome.costs is not None
    lowest = outcome.continuation[1:].cummin(0).values
    levels, place = lowest.unique(return_inverse=True)  # from low to high
    prices = outcome.costs.diff()[:, None].expand_as(lowest).flatten() / lowest.shape[1]
    spent = outcome.costs[0] + torch.bincount(place.flatten(), prices, len(levels)).flip(0).cumsum(0).flip(0)
    between = levels[:-1] / 2 + levels[1:] / 2
    between = torch.where(between > levels[:-1], between, levels[1:])  # adjacent floats have no midpoint
    thresholds = [below(levels), *between.tolist(), math.floor(float(levels[-1])) + 1.0]
    spent = torch.cat([spent, outcome.costs[:1]])  # mean share of compute per threshold, falling
    budgets = [float(outcome.costs[0]), *(share / GRID for share in range(1, GRID + 1))]
    within = [int((spent > budget + ROUNDING).sum()) for budget in budgets if budget >= budgets[0]]
    return tuple(_point(outcome, thresholds[first]) for first in dict.fromkeys(within))


def _point(outcome: Outcome, threshold: float) -> OperatingPoint:
    assert outcome.costs is not None
    stops = halting_step(outcome.continuation, threshold)
    right, score = at_step(outcome.step_correct, stops).double(), at_step(outcome.step_scores, stops).double()
    return OperatingPoint(threshold, float(outcome.costs[stops - 1].mean()), float(right.mean()), -float(score.mean()))


def point_within(points: Sequence[OperatingPoint], budget: float) -> OperatingPoint:
    """The most expensive operating point within a budget."""
    require_affordable(budget, min(point.mean_cost for point in points))
    return max((point for point in points if point.mean_cost <= budget + ROUNDING), key=lambda point: point.mean_cost)


def require_affordable(budget: float, first_exit: float) -> None:
    if not first_exit <= budget + ROUNDING <= 1 + 2 * ROUNDING:
        least = math.ceil(1000 * first_exit) / 1000
        raise RicnetError(
            f"{setting('budget', budget)} is out of range: it must be from {least:g} (the first exit) to 1 (the whole "
            "network)."
        )


def shortfall(mean_cost: float, budget: float) -> str | None:
    """A clause for the user if no threshold comes near the budget."""
    if budget - mean_cost <= 2 / GRID:
        return None
    return (
        f"only {mean_cost:.3f} of the budget of {budget:g} is spent, because many validation examples have equal "
        "values and no threshold separates them"
    )


def below(values: Float[Tensor, "*any"]) -> float:
    """A threshold below all values: no example stops early."""
    return math.floor(float(values.min())) - 1.0


# Halting with exits: a budget, or the cheapest rule that is not worse

SHARES = (0.8, 0.6, 0.4, 0.2, 0.0)
"""Costs of the cheaper rules, in the order they are tried: 0 is the cost of the first exit, 1 that of the network."""


def choose_exit(outcome: Outcome, budget: float | None = None) -> HaltChoice:
    """The threshold for a budget. Without a budget, the cheapest rule that is shown to lose less than MAX_LOSS, or the
    whole network if there is none. Rules are tested from expensive to cheap until the first that fails (fixed-sequence
    testing), so the probability of a wrong claim is at most 5 %."""
    assert outcome.costs is not None
    points, steps = operating_points(outcome), len(outcome.step_scores)
    if budget is not None:
        return _described(outcome, point_within(points, budget).halt_threshold, steps, budget)
    never = below(outcome.continuation) if outcome.values is None else NEVER  # 1 − confidence is never below 0
    whole = replace(_described(outcome, never, steps), kept=False)
    if not enough_to_choose(outcome.step_correct[-1]):
        return whole
    chosen, first = whole, float(outcome.costs[0])
    for share in SHARES:
        asked = first + share * (1 - first)
        gain = Gain.of(_exit_gains(outcome, asked))
        if gain.lower_bound < -MAX_LOSS:
            break
        rule = _described(outcome, point_within(points, asked).halt_threshold, steps)
        chosen = replace(rule, gain=gain.mean, gain_error=gain.error)
    return chosen


def _exit_gains(outcome: Outcome, budget: float) -> Float[Tensor, "n"]:
    """Log-score with the cross-fitted threshold for a budget, minus that of the whole network."""

    def gains(seen: Tensor, held_out: Tensor) -> Tensor:
        threshold = point_within(operating_points(outcome.take(seen)), budget).halt_threshold
        asked = outcome.take(held_out)
        stops = halting_step(asked.continuation, threshold)
        return (at_step(asked.step_scores, stops) - asked.step_scores[-1]).double()

    return cross_fitted(len(outcome.labels), gains)


# Sentences about the choices, from evaluation.json


def _unchanged(*choices: Mapping[str, Any]) -> bool:
    return not any(choice.get("kept", True) for choice in choices)


def chosen_words(evaluation: Mapping[str, Any]) -> list[str]:
    """One sentence per choice that was made, or one for both if neither changed anything."""
    fitted = evaluation.get("fitted") or {}
    fit, rule = fitted.get("calibration"), fitted.get("halting")
    if fit and rule and fit["n"] == rule.get("n") and rule.get("mean_cost") is None and _unchanged(fit, rule):
        return [f"kept temperature 1 and halting V < 0: no gain shown on {fit['n']:,} validation examples"]
    words = {"calibration": _temperature_words, "halting": _halt_words}
    return [say(fitted[name]) for name, say in words.items() if fitted.get(name)]


def rule_words(rule: Mapping[str, Any]) -> str:
    """For example "after 1 step", "at V < 0.01, at most 12 steps" or "at 93 % confidence, at most 12 steps"."""
    most, threshold = counted(rule["max_steps"], "step"), rule["halt_threshold"]
    by_confidence = rule.get("by_confidence", False)
    if rule["max_steps"] == 1 or (by_confidence and threshold <= 0):  # 1 − confidence is never below 0
        return f"after {most}"
    if threshold == NEVER:
        return f"after all {most}"
    at = f"{100 * (1 - threshold):.3g} % confidence" if by_confidence else f"V < {threshold:g}"
    return f"at {at}, at most {most}"


def _halt_words(rule: Mapping[str, Any]) -> str:
    where, cost, budget = f"on {rule['n']:,} validation examples", rule.get("mean_cost"), rule.get("budget")
    if not rule.get("kept", True) and cost is None:
        return f"halting: V < 0; no better rule is shown to help {where}"
    if not rule.get("kept", True):
        return f"halting: the whole network; no cheaper rule is shown to lose less than {MAX_LOSS} NLL {where}"
    work = "" if cost is None else f"{cost:.3f} of compute, "
    before = f"{rule['nll_before']:.4f} → " if budget is None else ""
    words = f"halting: {rule_words(rule)}; {work}NLL {before}{rule['nll']:.4f} {where}"
    told = None if budget is None else shortfall(rule["mean_cost"], budget)
    return f"{words}; {told}" if told else words


def _temperature_words(fit: Mapping[str, Any]) -> str:
    where, found = f"{fit['n']:,} validation examples", fit["temperature"]
    if not fit["found"]:
        return f"temperature 1: no finite temperature minimises the NLL on {where}"
    if not fit["kept"] and fit["gain"] is None:
        return f"temperature 1: {where}, or the mistakes among them, are too few to fit another"
    if not fit["kept"]:
        return f"temperature 1: no other is shown to help on {where}"
    change = f"NLL {fit['nll_before']:.4f} → {fit['nll_after']:.4f} on {where}"
    if isinstance(found, float):
        return f"temperature {found:.3f}: {change}"
    return f"temperatures {', '.join(f'{one:.2f}' for one in found)} per exit: mean {change}"
