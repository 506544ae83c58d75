"""Do the probabilities mean what they say (calibration), and do they tell right answers from wrong ones (selective
prediction)? Everything here works on plain vectors, in float64."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from sklearn.metrics import roc_auc_score
from torch import Tensor

BINS = 15


class Bins(NamedTuple):
    """Predictions grouped by confidence into equal-width bins ((m − 1)/M, m/M]."""

    size: Float[Tensor, "bins"]
    confidence: Float[Tensor, "bins"]
    """Mean confidence of each bin; NaN where it is empty."""
    accuracy: Float[Tensor, "bins"]
    """Share of right answers in each bin; NaN where it is empty."""


def bin_index(confidence: Float[Tensor, "*n"], bins: int = BINS) -> Int64[Tensor, "*n"]:
    """Bin m, from 0, holds (m/M, (m + 1)/M]; 0 itself falls into the first.

    The edges are rounded as the confidences are, so that a confidence that means m/M lies on the edge. ceil(conf·M)
    would not do: the float32 numbers nearest to 1/15, …, 14/15 are all a little too large and would move up a bin.
    """
    edges = torch.arange(1, bins, dtype=torch.float64, device=confidence.device) / bins
    return torch.bucketize(confidence.contiguous(), edges.to(confidence.dtype))


def bin_by_confidence(confidence: Float[Tensor, "n"], correct: Bool[Tensor, "n"], bins: int = BINS) -> Bins:
    index = bin_index(confidence, bins)
    size = torch.bincount(index, minlength=bins).double()
    total_confidence = torch.bincount(index, confidence.double(), bins)
    total_correct = torch.bincount(index, correct.double(), bins)
    return Bins(size, total_confidence / size, total_correct / size)


def expected_calibration_error(confidence: Float[Tensor, "n"], correct: Bool[Tensor, "n"], bins: int = BINS) -> float:
    """ECE of Section 2: Σ_m |B_m|/n · |acc(B_m) − conf(B_m)|."""
    size, mean_confidence, accuracy = bin_by_confidence(confidence, correct, bins)
    gaps = torch.where(size > 0, (accuracy - mean_confidence).abs(), 0.0)  # a NaN of the network's own stays NaN
    return float((size * gaps).sum() / size.sum())


def classwise_calibration_error(beliefs: Float[Tensor, "n classes"], labels: Int64[Tensor, "n"]) -> float:
    """The same asked of each class's probability against how often that class is true, averaged over the classes."""
    errors = [expected_calibration_error(beliefs[:, k], labels == k) for k in range(beliefs.shape[1])]
    return sum(errors) / len(errors)


def risk_coverage(confidence: Float[Tensor, "n"], correct: Bool[Tensor, "n"]) -> Float[Tensor, "n"]:
    """The error rate among the k most confident answers, for k = 1 … n.

    Equal confidences are told apart by nothing, so each counts with its group's mean error.
    """
    levels, group = torch.unique(-confidence.double(), return_inverse=True)
    size = torch.bincount(group, minlength=len(levels)).double()
    error = torch.bincount(group, (~correct).double(), len(levels)) / size
    errors = error.repeat_interleave(size.long())
    return errors.cumsum(0) / torch.arange(1, len(errors) + 1, dtype=torch.float64, device=errors.device)


def risk_at(
    coverage: Float[Tensor, "coverage"], confidence: Float[Tensor, "n"], correct: Bool[Tensor, "n"]
) -> Float[Tensor, "coverage"]:
    """The share of errors among the ⌈coverage · n⌉ most confident answers."""
    risk = risk_coverage(confidence, correct)
    answered = (coverage.double() * len(risk) - 1e-9).ceil().long().clamp(min=1)  # 0.07 · 100 is a little more than 7
    return risk[answered - 1]


def area_under_risk_coverage(confidence: Float[Tensor, "n"], correct: Bool[Tensor, "n"]) -> float:
    """AURC: the mean of the risk–coverage curve."""
    return float(risk_coverage(confidence, correct).mean())


def correctness_auroc(confidence: Float[Tensor, "n"], correct: Bool[Tensor, "n"]) -> float | None:
    """How often a right answer is more confident than a wrong one; None where all are right or all wrong."""
    if correct.all() or not correct.any():
        return None
    return float(roc_auc_score(correct.cpu().numpy(), confidence.cpu().numpy()))
