"""Student-t intervals and tests over seeds for given test examples, bootstrap over test examples for given networks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from scipy.special import stdtr, stdtrit

from ricnet.evaluation.evaluate import Outcome
from ricnet.evaluation.metrics import BINS, bin_index

LEVEL = 0.95
LOWER, UPPER = (1 - LEVEL) / 2, (1 + LEVEL) / 2
ROUNDING = 1e-12
"""Relative spread below which differences count as equal: 0.98 − 0.97 and 0.96 − 0.95 differ by 1e-17."""
RESAMPLES = 2000
CHUNK = 100
"""Resamples per chunk: 100 × 10,000 examples are 8 MB."""


@dataclass(frozen=True)
class Interval:
    mean: float
    half_width: float | None
    """None for a single seed."""
    n: int


@dataclass(frozen=True)
class Difference:
    mean: float
    half_width: float | None
    p_value: float | None
    """Two-sided p value; None for a single pair or if all pairs differ by the same amount."""
    n: int


@dataclass(frozen=True)
class Percentiles:
    low: float
    high: float


def mean_interval(samples: Sequence[float] | Float[np.ndarray, "n"]) -> Interval:
    """Mean and 95 % interval of Student's t, t·s/√n with n − 1 degrees of freedom."""
    values = np.asarray(samples, dtype=np.float64)
    n = len(values)
    half = float(stdtrit(n - 1, UPPER) * values.std(ddof=1) / np.sqrt(n)) if n > 1 else None
    return Interval(float(values.mean()), half, n)


def paired_difference(a: Sequence[float], b: Sequence[float]) -> Difference:
    """Mean of a − b over seeds with a paired t test."""
    gaps = [x - y for x, y in zip(a, b, strict=True)]
    found = mean_interval(gaps)
    if found.half_width is None:
        return Difference(found.mean, None, None, found.n)
    if np.ptp(gaps) <= ROUNDING * np.abs([*a, *b]).max():
        # Equal pairs: p = 1. Equal differences: t would be infinite, so there is no p.
        return Difference(found.mean, 0.0, None if any(gaps) else 1.0, found.n)
    error = found.half_width / float(stdtrit(found.n - 1, UPPER))
    p_value = 2 * float(stdtr(found.n - 1, -abs(found.mean) / error))
    return Difference(found.mean, found.half_width, p_value, found.n)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction, which bounds the family-wise error rate."""
    order = np.argsort(p_values)
    factors = len(p_values) - np.arange(len(p_values))
    corrected = np.empty(len(p_values))
    corrected[order] = np.minimum(1.0, np.maximum.accumulate(np.asarray(p_values)[order] * factors))
    return [float(p) for p in corrected]


def paired_bootstrap(
    a: Sequence[Outcome], b: Sequence[Outcome], resamples: int = RESAMPLES, seed: int = 0
) -> dict[str, Percentiles]:
    """95 % percentile intervals of metric(a) − metric(b), each averaged over its seeds, over resampled test examples.

    Both systems and all seeds use the same resamples. ECE is biased upwards for finite n, most where it is small, so
    that differences from a calibrated system are understated.
    """
    first = a[0].labels
    if any(not torch.equal(run.labels, first) for run in (*a, *b)):
        raise ValueError("predictions on different test examples cannot be paired")
    metrics_a, metrics_b = (_resampled_metrics(system, resamples, seed) for system in (a, b))
    return {
        name: Percentiles(*np.quantile(metrics_a[name] - metrics_b[name], [LOWER, UPPER]).tolist())
        for name in metrics_a
    }


def _resampled_metrics(
    system: Sequence[Outcome], resamples: int, seed: int
) -> dict[str, Float[np.ndarray, "resamples"]]:
    """Means over seeds. With w_i the count of example i, all sums are products of w with one matrix."""
    n = len(system[0].labels)
    means = sum(scores(run) for run in system) / len(system)
    columns = np.concatenate([means, *(_binned_gaps(run) for run in system)], axis=1)
    resampled = np.concatenate([counts @ columns / n for counts in _draw_counts(n, resamples, seed)])
    accuracy, nll, brier = resampled[:, :3].T
    ece = np.abs(resampled[:, 3:]).sum(axis=1) / len(system)
    return {"accuracy": accuracy, "ece": ece, "nll": nll, "brier": brier}


def _draw_counts(n: int, resamples: int, seed: int) -> Iterator[Float[np.ndarray, "chunk n"]]:
    """Counts of n examples in n draws with replacement, one row per resample."""
    rng = np.random.default_rng(seed)
    for start in range(0, resamples, CHUNK):
        rows = min(CHUNK, resamples - start)
        drawn = rng.integers(n, size=(rows, n)) + n * np.arange(rows)[:, None]
        yield np.bincount(drawn.ravel(), minlength=rows * n).reshape(rows, n).astype(np.float64)


def scores(run: Outcome) -> Float[np.ndarray, "n 3"]:
    """Correctness, −log a_y and Σ_k (a_k − [k = y])² of each example."""
    log_beliefs, labels = run.log_beliefs.double().numpy(), run.labels.numpy()
    rows = np.arange(len(labels))
    error = np.exp(log_beliefs)
    error[rows, labels] -= 1
    correct = log_beliefs.argmax(axis=1) == labels
    return np.stack([correct, -log_beliefs[rows, labels], (error**2).sum(axis=1)], axis=1)


def _binned_gaps(run: Outcome) -> Float[np.ndarray, "n bins"]:
    """[correct] − confidence in the column of the bin; n·ECE is the sum of absolute column sums."""
    log_beliefs = run.log_beliefs.double().numpy()
    confidence = np.exp(log_beliefs.max(axis=1))
    right, place = log_beliefs.argmax(axis=1) == run.labels.numpy(), bin_index(torch.from_numpy(confidence)).numpy()
    gaps = np.zeros((len(confidence), BINS))
    gaps[np.arange(len(confidence)), place] = right - confidence
    return gaps
