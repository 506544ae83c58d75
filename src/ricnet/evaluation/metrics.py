"""Metrics of calibration, selective prediction (confidence against correctness) and separation of the classes (ROC AUC,
average precision), in float64; and collapses of training, found in the lines of metrics.jsonl."""

import math
from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from ricnet.io import is_finite

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
    return None if correct.all() or not correct.any() else _ranked(confidence, correct)[0]


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


# Collapses of training: training accuracy falls, or the value loss jumps

MEASURE_EVERY = 10
"""On a CPU, updates per measurement of a method's diagnostics, training accuracy among them."""
DROP = 10
"""Maximum fall of training accuracy below the best so far, in points."""
JUMP = 5
"""Maximum ratio of the value loss to its median."""
SMALL_VALUE_LOSS = 0.01
"""A jump must also exceed this. For a reward in nats it is a root-mean-square error of 0.1 nat, which changes a
probability by a tenth."""
DROP_ERRORS = 4
"""A fall must also exceed this many standard errors of the difference. From 800 training rows on that is less than
DROP."""
FIRST_UPDATES = 20
"""Updates before accuracies are compared: with one update per epoch, as for 100 rows, the first accuracies vary by 30
points."""
WINDOW = 20
"""The median is that of this many epochs before the current one; the first 20 epochs are not checked for jumps."""

Collapse = dict[str, Any]
"""Value and reference: accuracy and best_accuracy, value_loss and median_value_loss, or all four."""


class CollapseWatch:
    """Finds collapses in the lines of the epochs, in order; a resumed run first passes the lines of earlier epochs."""

    def __init__(self, rows: int | None = None) -> None:
        """`rows`: training rows measured per epoch, for the standard error; used for lines without `measured_rows`
        (earlier versions)."""
        self.rows = rows
        self.best = 0.0
        self.value_losses: dict[int, float] = {}
        """By epoch, because archived runs may lack some."""

    def see(self, line: Mapping[str, Any]) -> Collapse:
        """The collapse in this epoch; empty if there is none."""
        accuracy, value_loss = (_number(line.get("train"), name) for name in ("accuracy", "value_loss"))
        update = _number(line, "update")
        rows = _number(line, "measured_rows") or self.rows
        found = {} if update is not None and update <= FIRST_UPDATES else self._fallen(accuracy, rows)
        return found | self._jumped(line["epoch"], value_loss)

    def _fallen(self, accuracy: float | None, rows: int | float | None) -> Collapse:
        if accuracy is None:
            return {}
        self.best = max(self.best, accuracy)
        points = round(100 * (self.best - accuracy), 6)  # 0.4 - 0.3 > 0.1 in floats
        variance = sum(max(0.0, share * (1 - share)) for share in (accuracy, self.best))
        error = math.sqrt(variance / rows) if rows else 0.0  # of a difference between independent rows
        fallen = points > DROP and points > 100 * DROP_ERRORS * error
        return {"accuracy": accuracy, "best_accuracy": self.best} if fallen else {}

    def _jumped(self, epoch: int, loss: float | None) -> Collapse:
        if loss is None:
            return {}
        self.value_losses = {past: own for past, own in self.value_losses.items() if past >= epoch - WINDOW}
        usual = median(self.value_losses.values()) if self.value_losses and epoch > WINDOW else None
        self.value_losses[epoch] = loss
        jumped = usual is not None and loss > max(JUMP * usual, SMALL_VALUE_LOSS)
        return {"value_loss": loss, "median_value_loss": usual} if jumped else {}


def _number(entry: object, name: str) -> float | None:
    """None if it was not measured or is not a finite number."""
    value = entry.get(name) if isinstance(entry, Mapping) else None
    return float(value) if is_finite(value) else None


def measured_rows(rows: int, device: str) -> int:
    """Lower bound of the training rows measured per epoch, for runs that did not store it."""
    return math.ceil(rows / MEASURE_EVERY) if device == "cpu" else rows


def collapses(lines: Iterable[Mapping[str, Any]], rows: int | None = None) -> list[Collapse]:
    """The collapses of a whole run, each with its `epoch`."""
    watch = CollapseWatch(rows)
    seen = ((line["epoch"], watch.see(line)) for line in lines)
    return [{"epoch": epoch, **found} for epoch, found in seen if found]
