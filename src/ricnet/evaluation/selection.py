"""Can the confidence tell right answers from wrong ones? Selective prediction, whatever the calibration."""

import torch
from jaxtyping import Bool, Float
from sklearn.metrics import roc_auc_score
from torch import Tensor


def area_under_risk_coverage(confidence: Float[Tensor, "n"], correct: Bool[Tensor, "n"]) -> float:
    """AURC: the error rate among the k most confident answers, averaged over k = 1 … n.

    Equal confidences are told apart by nothing, so each counts with its group's mean error.
    """
    levels, group = torch.unique(-confidence.double(), return_inverse=True)
    size = torch.bincount(group, minlength=len(levels)).double()
    error = torch.bincount(group, (~correct).double(), len(levels)) / size
    errors = error.repeat_interleave(size.long())
    coverage = torch.arange(1, len(errors) + 1, dtype=torch.float64, device=errors.device)
    return float((errors.cumsum(0) / coverage).mean())


def correctness_auroc(confidence: Float[Tensor, "n"], correct: Bool[Tensor, "n"]) -> float | None:
    """How often a right answer is more confident than a wrong one; None where all are right or all wrong."""
    if correct.all() or not correct.any():
        return None
    return float(roc_auc_score(correct.cpu().numpy(), confidence.cpu().numpy()))
