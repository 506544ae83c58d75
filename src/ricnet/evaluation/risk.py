"""Risk control: early exits that lose at most a chosen amount against the whole network, and abstention that keeps the
error among the answered low, each with a chosen probability over draws of the calibration data.

Candidates are fixed before the calibration data is seen and tested in their order. A candidate is accepted if the
p-value of "its risk is above the limit" is at most δ, until the first that is not (fixed-sequence testing), so the
probability of accepting any candidate above the limit is at most δ. The guarantee needs calibration examples that were
not used for any other choice and are exchangeable with later ones.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Int

from ricnet.errors import RicnetError, require, setting
from ricnet.evaluation.conformal import beta_quantile, exact, require_level

Loss = Literal["lost", "changed", "brier"]
"""lost: the whole network is right and the early answer is wrong. changed: the answers differ. brier: the increase of
the Brier score, counted as 0 where it falls."""
MOST_BRIER = 2.0
"""Largest Brier score, the squared distance between belief and truth."""


def binomial_p_value(losses: int, n: int, limit: float) -> float:
    """P-value of "the risk is above `limit`" for losses of 0 or 1; at most δ if and only if `upper_bound` is at most
    the limit."""
    return _binomial_cdf(losses, n, limit) if n else 1.0


def upper_bound(losses: int, n: int, delta: float) -> float:
    """The risk is below this with probability 1 − δ (Clopper and Pearson, one-sided, exact)."""
    return beta_quantile(1 - delta, losses + 1, n - losses) if losses < n else 1.0


def hoeffding_bentkus_p_value(mean: float, n: int, limit: float) -> float:
    """P-value of the same hypothesis for losses in [0, 1] with this mean (Bates et al. 2021, Proposition 3)."""
    if not n or limit <= 0:
        return 1.0
    from scipy.special import rel_entr  # here, because it takes long to import

    low = min(mean, limit)
    divergence = float(rel_entr(low, limit) + rel_entr(1 - low, 1 - limit))
    bentkus = math.e * _binomial_cdf(math.ceil(n * mean - 1e-9), n, limit)
    return min(1.0, math.exp(-n * divergence), bentkus)


def _binomial_cdf(successes: int, n: int, chance: float) -> float:
    from scipy import stats  # here, because it takes as long to import as half of torch

    return float(stats.binom.cdf(successes, n, chance))


def examples_needed(limit: float, probability: float) -> int:
    """Least number of examples, all without loss, that show a risk of at most `limit`: 299 for 0.01 and 0.95."""
    require_level("probability", probability)
    delta = float(1 - exact(probability))
    return math.ceil(math.log(delta) / math.log1p(-limit) - 1e-12)


def fixed_sequence(p_values: Sequence[float], delta: float) -> int:
    """Number of candidates accepted before the first that is not."""
    rejected = [place for place, p_value in enumerate(p_values) if not p_value <= delta]
    return rejected[0] if rejected else len(p_values)


# Early exits


@dataclass(frozen=True)
class Answers:
    """Answers to labelled examples after each step."""

    answer: Int[np.ndarray, "steps n"]
    brier: Float[np.ndarray, "steps n"]
    labels: Int[np.ndarray, "n"]


def losses(answers: Answers, stops: Int[np.ndarray, "n"], loss: Loss) -> Float[np.ndarray, "n"]:
    """The loss of each example that stops after `stops` steps, against the last step."""
    rows = np.arange(len(stops))
    early, whole = answers.answer[stops - 1, rows], answers.answer[-1]
    if loss == "changed":
        return np.asarray(early != whole, np.float64)
    if loss == "lost":
        return np.asarray((whole == answers.labels) & (early != answers.labels), np.float64)
    return np.asarray(np.maximum(0.0, answers.brier[stops - 1, rows].astype(np.float64) - answers.brier[-1]))


@dataclass(frozen=True)
class Tested:
    """A candidate and its result on the calibration data."""

    threshold: float
    p_value: float
    risk: float | None
    """Measured on the calibration data; None if no example counts."""
    n: int
    """Examples that count: all for exits, the answered ones for abstention."""
    accepted: bool


def control_exits(
    answers: Answers,
    stops: Sequence[Int[np.ndarray, "n"]],
    thresholds: Sequence[float],
    max_loss: float,
    probability: float = 0.95,
    loss: Loss = "lost",
) -> tuple[Tested, ...]:
    """Test thresholds in their order, from expensive to cheap; `stops` are the steps after which the examples stop for
    each. The cheapest accepted one loses at most `max_loss` against all steps, with this probability."""
    _require_limits("max_loss", max_loss, probability)
    n, measured = len(answers.labels), [losses(answers, each, loss) for each in stops]
    if loss == "brier":
        scaled = [float(each.mean()) / MOST_BRIER if n else 1.0 for each in measured]
        p_values = [hoeffding_bentkus_p_value(each, n, max_loss / MOST_BRIER) for each in scaled]
    else:
        p_values = [binomial_p_value(int(each.sum()), n, max_loss) for each in measured]
    risks = [float(each.mean()) if n else None for each in measured]
    return _tested(thresholds, p_values, risks, [n] * len(thresholds), probability)


def _tested(
    thresholds: Sequence[float],
    p_values: Sequence[float],
    risks: Sequence[float | None],
    counts: Sequence[int],
    probability: float,
) -> tuple[Tested, ...]:
    accepted = fixed_sequence(p_values, float(1 - exact(probability)))
    rows = zip(thresholds, p_values, risks, counts, strict=True)
    return tuple(Tested(*row, accepted=place < accepted) for place, row in enumerate(rows))


def _require_limits(name: str, limit: float, probability: float) -> None:
    require(0 < limit < 1, name, limit, "between 0 and 1, for example 0.01")
    require_level("probability", probability)


# Abstention


def abstention_thresholds(
    confidence: Float[np.ndarray, "m"], n: int, max_error: float, probability: float = 0.95, most: int = 20
) -> tuple[float, ...]:
    """Candidates from the confidences of other data, such as validation data: descending thresholds, at which more and
    more of it is answered. The first answers about twice as many of n calibration examples as a test without mistakes
    needs, the last answers all."""
    _require_limits("max_error", max_error, probability)
    first = min(1.0, 2 * examples_needed(max_error, probability) / max(n, 1))
    shares = np.linspace(first, 1.0, most)
    found = np.quantile(confidence, 1 - shares, method="lower") if len(confidence) else np.zeros(1)
    return tuple(dict.fromkeys([*found[:-1].tolist(), 0.0]))


def control_abstention(
    confidence: Float[np.ndarray, "n"],
    wrong: Bool[np.ndarray, "n"],
    thresholds: Sequence[float],
    max_error: float,
    probability: float = 0.95,
) -> tuple[Tested, ...]:
    """Test confidence thresholds in their order, from strict to lenient. With the last accepted one the share of wrong
    answers among the answered is at most `max_error`, with this probability. Given how many calibration examples are
    answered, the number of wrong ones is binomial, so the test is exact."""
    _require_limits("max_error", max_error, probability)
    answered = [confidence >= threshold for threshold in thresholds]
    counts, mistakes = [int(each.sum()) for each in answered], [int((each & wrong).sum()) for each in answered]
    p_values = [binomial_p_value(k, n, max_error) for k, n in zip(mistakes, counts, strict=True)]
    risks = [k / n if n else None for k, n in zip(mistakes, counts, strict=True)]
    return _tested(thresholds, p_values, risks, counts, probability)


def last_accepted(tested: Sequence[Tested]) -> Tested | None:
    return next((each for each in reversed(tested) if each.accepted), None)


def require_examples(n: int, name: str, limit: float, probability: float) -> None:
    """Raise if no result on n calibration examples could show the limit."""
    _require_limits(name, limit, probability)
    needed = examples_needed(limit, probability)
    if n < needed:
        raise RicnetError(
            f"{setting(name, limit)} with {setting('probability', probability)} needs at least {needed:,} calibration "
            f"examples and there are {n:,}: calibrate with more, or raise the limit."
        )
