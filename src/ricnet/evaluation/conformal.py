"""Split conformal prediction: sets of classes that contain the true class with a chosen probability, the coverage.

The guarantee P(true class ∈ set) ≥ coverage is an average over draws of calibration data and of a new example. Both
must be exchangeable, and calibration examples must not have been used for any other choice: epoch, temperature or
halting rule. Coverage measured on one test set, in one class or at one confidence may be lower.
"""

import math
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from ricnet.errors import RicnetError, require, setting

Beliefs = Float[np.ndarray, "n classes"]
Labels = Int[np.ndarray, "n"]
ScoreName = Literal["lac", "aps", "raps"]
PENALTIES = (0.0, 0.001, 0.01, 0.1, 0.5)
"""Candidates for the penalty of RAPS."""


class Ranked(NamedTuple):
    """Inputs of the scores for each class, as arrays of any shape."""

    probability: Float[np.ndarray, "*shape"]
    above: Float[np.ndarray, "*shape"]
    """Total probability of the classes that are more likely."""
    rank: Int[np.ndarray, "*shape"]
    """1 for the most likely class."""

    def of(self, labels: Labels) -> "Ranked":
        """The entries of the true classes; the last axis is that of the classes."""
        index = np.broadcast_to(labels[..., None], (*self.rank.shape[:-1], 1))
        return Ranked(*(np.take_along_axis(part, index, -1)[..., 0] for part in self))


def rank_classes(beliefs: Float[np.ndarray, "*batch classes"]) -> Ranked:
    """Equally likely classes are ranked in their order."""
    beliefs = beliefs.astype(np.float64)
    order = np.argsort(-beliefs, axis=-1, kind="stable")
    place = np.argsort(order, axis=-1)
    ordered = np.take_along_axis(beliefs, order, -1)
    above = np.cumsum(ordered, axis=-1) - ordered
    return Ranked(beliefs, np.take_along_axis(above, place, -1), place + 1)


@dataclass(frozen=True)
class Score:
    """How unusual a class is for an input; a set holds the classes with a low score.

    - lac: 1 − p. The smallest sets on average; easy inputs may get too small and hard ones too large sets (Sadinle et
      al. 2019).
    - aps: the total probability of the class and all more likely ones. Sets adapt to the input (Romano et al. 2020).
    - raps: aps, plus `penalty` for each rank beyond `free_ranks`. Smaller sets where there are many classes
      (Angelopoulos et al. 2021).
    """

    name: ScoreName = "lac"
    penalty: float = 0.0
    free_ranks: int = 1

    def __post_init__(self) -> None:
        require(self.name in ("lac", "aps", "raps"), "score", self.name, "lac, aps or raps")
        require(0 <= self.penalty < math.inf, "penalty", self.penalty, "0 or more")
        require(self.free_ranks >= 0, "free_ranks", self.free_ranks, "0 or more")

    def of(self, ranked: Ranked) -> Float[np.ndarray, "..."]:
        """The score of each class in `ranked`."""
        if self.name == "lac":
            return 1 - ranked.probability
        scores = ranked.above + ranked.probability
        if self.name == "raps":
            scores = scores + self.penalty * np.maximum(0, ranked.rank - self.free_ranks)
        return np.asarray(scores)


LAC = Score()


def examples_needed(coverage: float) -> int:
    """Least number of calibration examples for which a set may leave out a class: 19 for 0.95."""
    require_level("coverage", coverage)
    return math.ceil(1 / (1 - exact(coverage))) - 1


def require_level(name: str, level: float) -> None:
    require(0 < level < 1, name, level, "between 0 and 1, for example 0.95")


def exact(level: float) -> Fraction:
    """The decimal number that was written: 0.55 · 100 is 55, but 55.00000000000001 in floats."""
    return Fraction(str(float(level)))


def conformal_quantile(scores: Float[np.ndarray, "n"], coverage: float) -> float:
    """The ⌈(n + 1) · coverage⌉-th smallest score; infinity if n is smaller, so that every class is in the set."""
    require_level("coverage", coverage)
    place = math.ceil((len(scores) + 1) * exact(coverage))
    return float(np.partition(scores, place - 1)[place - 1]) if place <= len(scores) else math.inf


@dataclass(frozen=True)
class SetRule:
    """Rule that makes prediction sets of one coverage, for one halting rule."""

    coverage: float
    score: Score
    quantiles: tuple[float, ...]
    """Quantiles of the scores at the halt: one for all classes, or one per class. Infinity: too few calibration
    examples."""
    step_quantiles: tuple[tuple[float, ...], ...]
    """Quantiles for the belief after each step, of a model that makes all steps."""
    n: int
    """Calibration examples."""
    halting: str = ""
    """The halting rule and budget that the quantiles hold for."""

    @property
    def per_class(self) -> bool:
        return len(self.quantiles) > 1

    def sets(
        self, beliefs: Beliefs, step: int | None = None, allow_empty: bool = True
    ) -> Bool[np.ndarray, "n classes"]:
        """Membership of each class, for beliefs at the halt or after a step. Without `allow_empty` the most likely
        class is always in the set, which can only raise the coverage."""
        ranked = rank_classes(beliefs)
        limit = np.array(self.quantiles if step is None else self.step_quantiles[step - 1])
        found = self.score.of(ranked) <= limit
        return found if allow_empty else found | (ranked.rank == 1)

    def to_json(self) -> dict[str, Any]:
        """Infinity becomes null."""
        rule = asdict(self)
        steps = [[_finite(one) for one in step] for step in self.step_quantiles]
        return rule | {"quantiles": [_finite(one) for one in self.quantiles], "step_quantiles": steps}


def _finite(quantile: float) -> float | None:
    return quantile if math.isfinite(quantile) else None


def fit_sets(
    at_halt: Ranked,
    at_steps: Ranked,
    labels: Labels,
    classes: int,
    coverage: float,
    score: Score = LAC,
    per_class: bool = False,
    halting: str = "",
) -> SetRule:
    """The rule for a coverage, from the true classes of calibration examples at their halt (n,) and after each step
    (steps, n). With `per_class` the coverage holds within each class (Mondrian); a class with fewer than
    `examples_needed` examples is then in every set."""
    needed = examples_needed(coverage)
    if len(labels) < needed:
        raise RicnetError(
            f"{setting('coverage', coverage)} needs at least {needed:,} calibration examples and there are "
            f"{len(labels):,}: calibrate with more, or lower the coverage."
        )
    groups = [labels == k for k in range(classes)] if per_class else [np.ones(len(labels), bool)]

    def quantiles(scores: Float[np.ndarray, "n"]) -> tuple[float, ...]:
        return tuple(conformal_quantile(scores[group], coverage) for group in groups)

    steps = tuple(quantiles(row) for row in score.of(at_steps))
    return SetRule(coverage, score, quantiles(score.of(at_halt)), steps, len(labels), halting)


def choose_raps(beliefs: Beliefs, labels: Labels, coverage: float) -> Score:
    """RAPS with the penalty that gives the smallest sets on these examples, which must not be those of calibration.
    Ranks are free up to the conformal quantile of the true class's rank."""
    ranked = rank_classes(beliefs)
    true = ranked.of(labels)
    free = conformal_quantile(true.rank.astype(np.float64), coverage)
    free_ranks = beliefs.shape[1] if math.isinf(free) else int(free)

    def mean_size(penalty: float) -> float:
        score = Score("raps", penalty, free_ranks)
        return float((score.of(ranked) <= conformal_quantile(score.of(true), coverage)).sum(1).mean())

    return Score("raps", min(PENALTIES, key=mean_size), free_ranks)


# Measured coverage


@dataclass(frozen=True)
class Share:
    """A share of n examples with its exact 95 % confidence interval (Clopper and Pearson)."""

    share: float | None
    """None if there are no examples."""
    low: float
    high: float
    n: int


def share_of(hits: Bool[np.ndarray, "n"], confidence: float = 0.95) -> Share:
    n, found, tail = len(hits), int(hits.sum()), (1 - confidence) / 2
    low = beta_quantile(tail, found, n - found + 1) if found else 0.0
    high = beta_quantile(1 - tail, found + 1, n - found) if found < n else 1.0
    return Share(found / n if n else None, low, high, n)


def beta_quantile(share: float, a: int, b: int) -> float:
    from scipy import stats  # here, because it takes as long to import as half of torch

    return float(stats.beta.ppf(share, a, b))


@dataclass(frozen=True)
class SetReport:
    """Coverage and size of sets on labelled data: measured, not guaranteed."""

    coverage: Share
    mean_size: float
    empty: float
    """Share of empty sets."""
    single: float
    """Share of sets with one class."""
    by_class: tuple[tuple[Share, float | None], ...]
    """Coverage and mean set size of the examples of each class."""
    by_confidence: tuple[tuple[float, Share, float | None], ...]
    """The same for each fifth of the examples, from the least confident on: its highest confidence, coverage and mean
    set size."""


def measure_sets(sets: Bool[np.ndarray, "n classes"], beliefs: Beliefs, labels: Labels) -> SetReport:
    hits, sizes = sets[np.arange(len(labels)), labels], sets.sum(1)
    confidence = beliefs.max(1)

    def part(rows: Any) -> tuple[Share, float | None]:
        return share_of(hits[rows]), float(sizes[rows].mean()) if len(sizes[rows]) else None

    fifths = [rows for rows in np.array_split(np.argsort(confidence, kind="stable"), 5) if len(rows)]
    return SetReport(
        share_of(hits),
        float(sizes.mean()),
        float((sizes == 0).mean()),
        float((sizes == 1).mean()),
        tuple(part(labels == k) for k in range(sets.shape[1])),
        tuple((float(confidence[rows].max()), *part(rows)) for rows in fifths),
    )
