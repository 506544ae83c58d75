"""Metrics of calibration, selective prediction (confidence against correctness) and separation of the classes (ROC AUC,
average precision), in float64."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

BINS = 15
MOST_RANKED = 10**8
"""Maximum examples × classes for ROC AUC and average precision; sorting more takes minutes."""


class Bins(NamedTuple):
    """Predictions grouped by confidence into equal-width bins ((m − 1)/M, m/M]."""

    size: Float[Tensor, "bins"]
    confidence: Float[Tensor, "bins"]
    """Mean confidence of each bin; NaN if it is empty."""
    accuracy: Float[Tensor, "bins"]
    """Share of correct answers in each bin; NaN if it is empty."""


def bin_index(confidence: Float[Tensor, "*n"], bins: int = BINS) -> Int64[Tensor, "*n"]:
    """Bin m, from 0, holds (m/M, (m + 1)/M]; 0 itself falls into the first.

    The edges are rounded like the confidences, so that a confidence of m/M lies on the edge. ceil(conf·M) would be
    wrong: the float32 numbers nearest to 1/15, …, 14/15 are slightly too large and would move up a bin.
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
    gaps = torch.where(size > 0, (accuracy - mean_confidence).abs(), 0.0)  # NaN confidences stay NaN
    return float((size * gaps).sum() / size.sum())


def classwise_calibration_error(beliefs: Float[Tensor, "n classes"], labels: Int64[Tensor, "n"]) -> float:
    """The ECE of each class's probability against the frequency of that class, averaged over the classes."""
    errors = [expected_calibration_error(beliefs[:, k], labels == k) for k in range(beliefs.shape[1])]
    return sum(errors) / len(errors)


def risk_coverage(confidence: Float[Tensor, "n"], correct: Bool[Tensor, "n"]) -> Float[Tensor, "n"]:
    """The error rate among the k most confident answers, for k = 1 … n; examples of equal confidence count with their
    mean error."""
    levels, group = torch.unique(-confidence.double(), return_inverse=True)
    size = torch.bincount(group, minlength=len(levels)).double()
    error = torch.bincount(group, (~correct).double(), len(levels)) / size
    errors = error.repeat_interleave(size.long())
    return errors.cumsum(0) / torch.arange(1, len(errors) + 1, dtype=torch.float64, device=errors.device)


def risk_at(
    coverage: Float[Tensor, "coverage"], confidence: Float[Tensor, "n"], correct: Bool[Tensor, "n"]
) -> Float[Tensor, "coverage"]:
    """The error rate among the ⌈coverage · n⌉ most confident answers."""
    risk = risk_coverage(confidence, correct)
    answered = (coverage.double() * len(risk) - 1e-9).ceil().long().clamp(min=1)  # 0.07 · 100 > 7 in floats
    return risk[answered - 1]


def area_under_risk_coverage(confidence: Float[Tensor, "n"], correct: Bool[Tensor, "n"]) -> float:
    """AURC: the mean of the risk–coverage curve."""
    return float(risk_coverage(confidence, correct).mean())


def correctness_auroc(confidence: Float[Tensor, "n"], correct: Bool[Tensor, "n"]) -> float | None:
    """Probability that a correct answer is more confident than a wrong one; None if all are correct or all wrong."""
    from sklearn.metrics import roc_auc_score  # takes a second

    if correct.all() or not correct.any():
        return None
    return float(roc_auc_score(correct.cpu().numpy(), confidence.cpu().numpy()))


# Scores of classes


def class_scores(log_beliefs: Float[Tensor, "n classes"], labels: Int64[Tensor, "n"]) -> dict[str, float | None]:
    """Accuracy, ECE, NLL, Brier score and separation of the classes, from any classifier's log-probabilities."""
    log_beliefs = log_beliefs.double()
    beliefs = log_beliefs.exp()
    confidence, answer = beliefs.max(-1)
    return {
        "accuracy": float((answer == labels).double().mean()),
        "ece": expected_calibration_error(confidence, answer == labels),
        "nll": -float(log_beliefs.gather(1, labels[:, None]).mean()),
        "brier": brier_score(beliefs, labels),
        **separation(beliefs, labels),
    }


def brier_score(beliefs: Float[Tensor, "n classes"], labels: Int64[Tensor, "n"]) -> float:
    truth = torch.nn.functional.one_hot(labels, beliefs.shape[1])
    return float((beliefs - truth).square().sum(-1).mean())


def separation(beliefs: Float[Tensor, "n classes"], labels: Int64[Tensor, "n"]) -> dict[str, float | None]:
    """ROC AUC, average precision and balanced accuracy.

    ROC AUC is the mean over classes of that class against the rest, which for two classes is the usual one. Average
    precision is that of the rarer of two classes (of the second if both are equally frequent), or the mean over more
    classes. Balanced accuracy is the mean recall. Classes without examples are left out. ROC AUC and average precision
    are None if fewer than two classes are left, or beyond MOST_RANKED numbers.
    """
    present = labels.unique()
    answer = beliefs.argmax(-1)
    recalls = torch.stack([(answer[labels == k] == k).double().mean() for k in present])
    found = {"roc_auc": None, "average_precision": None, "balanced_accuracy": float(recalls.mean())}
    if len(present) < 2 or beliefs.numel() > MOST_RANKED:
        return found
    curves = [_ranked(beliefs[:, k], labels == k) for k in present]
    auc, precision = torch.tensor(curves, dtype=torch.float64).T
    if beliefs.shape[1] == 2:
        precision = precision[0 if (labels == 0).sum() < (labels == 1).sum() else 1]
    return found | {"roc_auc": float(auc.mean()), "average_precision": float(precision.mean())}


def _ranked(score: Float[Tensor, "n"], positive: Bool[Tensor, "n"]) -> tuple[float, float]:
    """ROC AUC and average precision Σ (R_i − R_{i−1}) P_i; examples of equal score share a threshold."""
    levels, group = torch.unique(-score, return_inverse=True)  # from the highest score
    hits = torch.bincount(group, positive.double(), len(levels))
    misses = torch.bincount(group, (~positive).double(), len(levels))
    found, missed = hits.cumsum(0), misses.cumsum(0)
    auc = (misses * (found - hits / 2)).sum() / (found[-1] * missed[-1])
    return float(auc), float((hits * found / (found + missed)).sum() / found[-1])
