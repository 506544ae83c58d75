"""Compare new data with the calibration data: distributions of confidence, steps and answers, and with labels also
accuracy, calibration and coverage with intervals.

Guarantees need new examples exchangeable with the calibration examples. A difference makes that doubtful; no difference
does not prove it, because inputs can change without changing these summaries.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Num

from ricnet.errors import RicnetError, listing
from ricnet.evaluation.conformal import Share, share_of
from ricnet.evaluation.metrics import expected_calibration_error

LEVEL = 0.01
"""Probability of a false alarm over all comparisons."""
MODERATE, LARGE = 0.1, 0.25
"""Usual limits of the population stability index."""
BINS = 10
RESAMPLES = 500


@dataclass(frozen=True)
class Comparison:
    """One summary of new data against calibration data."""

    name: str
    stability: float
    """Population stability index: Σ (new − old) ln(new / old) over bins."""
    p_value: float
    """P-value of a two-sample test: Kolmogorov–Smirnov for confidence, χ² for counts."""
    old: float | None
    """Mean of the calibration data; None for classes."""
    new: float | None
    differs: bool
    """Whether the p-value is below the level, divided by the number of comparisons."""

    @property
    def size(self) -> str:
        return "large" if self.stability >= LARGE else "moderate" if self.stability >= MODERATE else "small"


def population_stability(old: Num[np.ndarray, "bins"], new: Num[np.ndarray, "bins"]) -> float:
    """Population stability index of counts per bin; half an example is added to each, so that an empty bin does not
    make it infinite."""
    p, q = ((counts + 0.5) / (counts.sum() + 0.5 * len(counts)) for counts in (old, new))
    return float(((q - p) * np.log(q / p)).sum())


def confidence_bins(
    old: Float[np.ndarray, "n"], new: Float[np.ndarray, "m"]
) -> tuple[Int[np.ndarray, "bins"], Int[np.ndarray, "bins"]]:
    """Counts between the tenths of the calibration data's confidences; equal tenths are merged."""
    edges = np.unique(np.quantile(old, np.arange(1, BINS) / BINS))
    old_counts, new_counts = (
        np.bincount(np.searchsorted(edges, each, side="left"), minlength=len(edges) + 1) for each in (old, new)
    )
    return old_counts, new_counts


def counts_p_value(old: Int[np.ndarray, "bins"], new: Int[np.ndarray, "bins"]) -> float:
    """χ² test that two vectors of counts come from one distribution. Bins with fewer than 10 examples are merged, from
    the rarest on, because χ² is inexact there."""
    from scipy.stats import chi2_contingency  # here, because it takes long to import

    table = np.stack([old, new])[:, np.argsort(old + new, kind="stable")]
    few = int((np.cumsum(table.sum(0)) < 10).sum()) + 1
    table = np.concatenate([table[:, :few].sum(1, keepdims=True), table[:, few:]], axis=1)
    table = table[:, table.sum(0) > 0]
    return float(chi2_contingency(table, correction=False).pvalue) if table.shape[1] > 1 else 1.0


@dataclass(frozen=True)
class Summary:
    """Quantities of some examples that are compared."""

    confidence: Float[np.ndarray, "n"]
    steps: Int[np.ndarray, "n"]
    """Steps made, or the exit taken."""
    answers: Int[np.ndarray, "n"]
    """Index of the answered class."""


def compare(old: Summary, new: Summary, classes: int, exits: bool = False) -> tuple[Comparison, ...]:
    from scipy.stats import ks_2samp

    if not len(old.steps) or not len(new.steps):
        raise RicnetError("there are no examples to compare: give at least one, and calibrate with at least one.")
    most = int(max(old.steps.max(), new.steps.max())) + 1
    counts = {
        "confidence": confidence_bins(old.confidence, new.confidence),
        "exit" if exits else "steps": tuple(np.bincount(each.steps, minlength=most) for each in (old, new)),
        "answer": tuple(np.bincount(each.answers, minlength=classes) for each in (old, new)),
    }
    means = [(old.confidence, new.confidence), (old.steps, new.steps), (None, None)]
    found = []
    for (name, (before, after)), (one, other) in zip(counts.items(), means, strict=True):
        ks = name == "confidence"
        p = float(ks_2samp(old.confidence, new.confidence).pvalue) if ks else counts_p_value(before, after)
        old_mean, new_mean = (None if each is None else float(each.mean()) for each in (one, other))
        differs = p < LEVEL / len(counts)
        found.append(Comparison(name, population_stability(before, after), p, old_mean, new_mean, differs))
    return tuple(found)


def verdict(comparisons: Sequence[Comparison], n: int) -> str:
    """One sentence on whether guarantees may still hold."""
    changed = [each for each in comparisons if each.differs]
    if not changed:
        return (
            f"No difference is shown on {n:,} new examples; guarantees still need data exchangeable with the "
            "calibration data, which this does not prove."
        )
    worst = max(changed, key=lambda each: each.stability)
    return (
        f"Guarantees are doubtful: {listing([each.name for each in changed])} of {n:,} new examples "
        f"{'differs' if len(changed) == 1 else 'differ'} from the calibration data (the difference of {worst.name} is "
        f"{worst.size}); calibrate again with labelled data of the new kind."
    )


# With labels


@dataclass(frozen=True)
class Interval:
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Labelled:
    """Scores of labelled examples with 95 % intervals."""

    accuracy: Share
    calibration_error: Interval
    """ECE, with an interval from resampled examples."""
    overconfidence: Interval
    """Mean confidence minus accuracy."""
    coverage: Mapping[float, Share]
    """Measured coverage of the prediction sets, for each chosen coverage."""


def judge(
    confidence: Float[np.ndarray, "n"], correct: Bool[np.ndarray, "n"], covered: Mapping[float, Bool[np.ndarray, "n"]]
) -> Labelled:
    """`covered` says for each chosen coverage which sets contain the true class."""
    n, gap = len(correct), confidence - correct
    half = 1.96 * float(gap.std(ddof=1)) / n**0.5 if n > 1 else 1.0
    mean = float(gap.mean())
    rows = np.random.default_rng(0).integers(n, size=(RESAMPLES, n))
    resampled = [_ece(confidence[each], correct[each]) for each in rows]
    low, high = np.quantile(resampled, [0.025, 0.975]).tolist()
    return Labelled(
        share_of(correct),
        Interval(_ece(confidence, correct), low, high),
        Interval(mean, mean - half, mean + half),
        {coverage: share_of(hits) for coverage, hits in covered.items()},
    )


def _ece(confidence: Float[np.ndarray, "n"], correct: Bool[np.ndarray, "n"]) -> float:
    return expected_calibration_error(torch.from_numpy(confidence), torch.from_numpy(correct))
