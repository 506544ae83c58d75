"""Scores of an outcome, and a split's entry in evaluation.json."""

import math
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from ricnet.core.mdp import log_scores, normalized_return
from ricnet.evaluation import metrics
from ricnet.evaluation.outcome import Outcome as Outcome
from ricnet.evaluation.predictions import read_predictions as read_predictions


def scores_at(outcome: Outcome, halt_step: Int64[Tensor, "n"]) -> dict[str, float]:
    """Accuracy, ECE and NLL if each example stopped after this many steps."""
    at = halt_step - 1, torch.arange(len(halt_step))
    correct = outcome.step_correct[at]
    return {
        "accuracy": float(correct.double().mean()),
        "ece": metrics.expected_calibration_error(outcome.step_confidence[at], correct),
        "nll": -float(outcome.step_scores[at].double().mean()),
    }


def summarize(outcome: Outcome) -> dict[str, float]:
    """The scores of a validation round."""
    log_beliefs, labels = outcome.log_beliefs.double(), outcome.labels
    confidence, answer = log_beliefs.max(-1)
    score = log_scores(log_beliefs, labels)
    correct = answer == labels
    return {
        "accuracy": float(correct.double().mean()),
        "ece": metrics.expected_calibration_error(confidence.exp(), correct),
        "nll": -float(score.mean()),
        "mean_confidence": float(confidence.exp().mean()),
        "normalized_return": float(normalized_return(score, log_beliefs.shape[1]).mean()),
        "mean_steps": float(outcome.halt_step.double().mean()),
        **({} if outcome.cost is None else {"mean_cost": float(outcome.cost.mean())}),
    }


def report(outcome: Outcome) -> dict[str, Any]:
    """One split's entry in evaluation.json."""
    log_beliefs, labels = outcome.log_beliefs.double(), outcome.labels
    beliefs = log_beliefs.exp()
    confidence, answer = beliefs.max(-1)
    correct = answer == labels
    steps, cost = outcome.halt_step.double(), outcome.cost
    entry: dict[str, Any] = summarize(outcome)
    if cost is not None:
        entry |= {"mean_cost_correct": _mean(cost[correct]), "mean_cost_wrong": _mean(cost[~correct])}
    return entry | {
        "ece_bins": metrics.BINS,
        "ece_classwise": metrics.classwise_calibration_error(beliefs, labels),
        "ece_signed": entry["mean_confidence"] - entry["accuracy"],
        "ece_signed_error": _standard_error(confidence - correct.double()),
        "brier": metrics.brier_score(beliefs, labels),
        "mean_steps_correct": _mean(steps[correct]),
        "mean_steps_wrong": _mean(steps[~correct]),
        "mean_cell_evaluations": float(outcome.cell_evaluations.double().mean()),
        "aurc": metrics.area_under_risk_coverage(confidence, correct),
        "auroc_correctness": metrics.correctness_auroc(confidence, correct),
        **metrics.separation(beliefs, labels),
        "n": len(labels),
        "per_step": _per_step(outcome),
        "reliability": _reliability(confidence, correct),
        "halting": _halting(outcome.halt_step, correct, len(outcome.step_scores)),
    }


def _mean(values: Float[Tensor, "n"]) -> float | None:
    return float(values.mean()) if len(values) else None


def _standard_error(values: Float[Tensor, "n"]) -> float | None:
    """Standard error of the mean; None for a single value."""
    return float(values.std()) / math.sqrt(len(values)) if len(values) > 1 else None


def _per_step(outcome: Outcome) -> list[dict[str, float | int]]:
    """Scores of all examples after each step, without halting; with exits also the share of compute so far."""
    rows: list[dict[str, float | int]] = []
    for step, (scores, confidence, correct) in enumerate(
        zip(outcome.step_scores.double(), outcome.step_confidence, outcome.step_correct, strict=True), 1
    ):
        rows.append(
            {
                "step": step,
                "accuracy": float(correct.double().mean()),
                "ece": metrics.expected_calibration_error(confidence, correct),
                "nll": -float(scores.mean()),
                "mean_confidence": float(confidence.double().mean()),
                **({} if outcome.costs is None else {"cost": float(outcome.costs[step - 1])}),
            }
        )
    return rows


def _reliability(confidence: Float[Tensor, "n"], correct: Bool[Tensor, "n"]) -> list[dict[str, float | int | None]]:
    bins = metrics.bin_by_confidence(confidence, correct)
    return [
        {
            "lower": m / metrics.BINS,
            "upper": (m + 1) / metrics.BINS,
            "n": int(bins.size[m]),
            "accuracy": _finite(bins.accuracy[m]),
            "confidence": _finite(bins.confidence[m]),
        }
        for m in range(metrics.BINS)
    ]


def _halting(halt_step: Int64[Tensor, "n"], correct: Bool[Tensor, "n"], steps: int) -> list[dict[str, int]]:
    right = torch.bincount(halt_step[correct], minlength=steps + 1)
    wrong = torch.bincount(halt_step[~correct], minlength=steps + 1)
    return [{"step": s, "correct": int(right[s]), "wrong": int(wrong[s])} for s in range(1, steps + 1)]


def _finite(value: Float[Tensor, ""]) -> float | None:
    return None if math.isnan(value) else float(value)
