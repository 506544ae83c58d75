"""Run a method over a split and say how good it is: the numbers of evaluation.json."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from ricnet.core.mdp import log_scores, normalized_return
from ricnet.core.trajectory import Trajectory, halting_step
from ricnet.data import Split
from ricnet.distributed import ALONE, Processes
from ricnet.evaluation import metrics
from ricnet.methods import Method
from ricnet.methods.iterative import Iterative

MIN_POOL, MAX_POOL = 512, 8192
POOL_NUMBERS = 2**20
"""Of the beliefs at one step: 4 MB; with 20 steps and what is computed from them, some hundred."""


@dataclass(frozen=True)
class Outcome:
    """What is kept of the trajectories of a whole split: all beliefs at the halt, a summary of those at each step."""

    log_beliefs: Float[Tensor, "n classes"]
    labels: Int64[Tensor, "n"]
    halt_step: Int64[Tensor, "n"]
    cell_evaluations: Int64[Tensor, "n"]
    step_scores: Float[Tensor, "steps n"]
    """log a_{t,y}."""
    step_confidence: Float[Tensor, "steps n"]
    step_correct: Bool[Tensor, "steps n"]
    step_entropy: Float[Tensor, "steps n"]
    """Of the belief, in nats."""
    values: Float[Tensor, "steps n"] | None = None

    @classmethod
    def of(cls, path: Trajectory, labels: Int64[Tensor, "n"], max_steps: int | None = None) -> "Outcome":
        """`max_steps` is where all stop at the latest; what later steps would have made is kept all the same."""
        confidence, answer = path.log_beliefs.max(-1)
        halted = path if max_steps is None else path.until(max_steps)
        return cls(
            halted.final,
            labels,
            halted.halt_step,
            halted.cell_evaluations,
            log_scores(path.log_beliefs, labels),
            confidence.exp(),
            answer == labels,
            torch.special.entr(path.log_beliefs.exp()).sum(-1),
            path.values,
        )

    @classmethod
    def join(cls, parts: "list[Outcome]") -> "Outcome":
        """Examples are the last axis everywhere but in the beliefs."""
        kept = [field.name for field in fields(cls) if getattr(parts[0], field.name) is not None]
        arrays = {name: [getattr(part, name).cpu() for part in parts] for name in kept}
        return cls(**{name: torch.cat(pieces, 0 if name == "log_beliefs" else -1) for name, pieces in arrays.items()})


@dataclass(frozen=True)
class Reading:
    """How the steps that a network makes are read: where they end, and how sharp each belief is."""

    temperature: float = 1.0
    halt_threshold: float | None = None
    """Stop once the value falls below this; None leaves that to the method."""
    max_steps: int | None = None
    """Stop after so many steps at the latest; None for all that are made."""

    def read(self, path: Trajectory) -> Trajectory:
        """All steps are kept, those after the halt too."""
        halt = path.halt_step
        if self.halt_threshold is not None and path.values is not None:
            halt = halting_step(path.values, self.halt_threshold)
        path = replace(path, halt_step=halt if self.max_steps is None else halt.clamp(max=self.max_steps))
        return path if self.temperature == 1 else path.tempered(self.temperature)


AS_TRAINED = Reading()


def observe(
    method: Method[Any],
    model: nn.Module,
    split: Split,
    pool: int | None = None,
    max_steps: int | None = None,
    reading: Reading = AS_TRAINED,
    processes: Processes = ALONE,
) -> Outcome:
    """Refine every example of a split, all steps, in eval mode; so many at once as `pool` says."""
    return observe_each(method, model, split, [reading], pool, max_steps, processes)[0]


@torch.no_grad()
def observe_each(
    method: Method[Any],
    model: nn.Module,
    split: Split,
    readings: Sequence[Reading],
    pool: int | None = None,
    max_steps: int | None = None,
    processes: Processes = ALONE,
) -> list[Outcome]:
    """The same steps, read in several ways.

    Several processes share the work: each example is refined by one of them, and the first has the whole outcome.
    """
    draws = isinstance(method, Iterative) and method.draws  # then all do everything, to draw the same
    shared = processes.count > 1 and not draws and len(split) >= processes.count
    mine = processes.slice(len(split)) if shared else slice(0, len(split))
    was_training = model.training
    model.eval()
    device = next(model.parameters()).device
    rows = pool or pool_size(int(split.labels.max()) + 1)
    parts: list[list[Outcome]] = [[] for _ in readings]
    for start in range(mine.start, mine.stop, rows):
        some = slice(start, min(start + rows, mine.stop))
        inputs, labels = split.inputs[some].to(device), split.labels[some].to(device)
        path = method.refine(model, inputs, max_steps)
        for reading, part in zip(readings, parts, strict=True):
            part.append(Outcome.of(reading.read(path), labels, reading.max_steps))
    model.train(was_training)
    outcomes = [Outcome.join(part) for part in parts]
    return [Outcome.join(processes.gather(outcome)) for outcome in outcomes] if shared else outcomes


def pool_size(classes: int) -> int:
    """How many examples to refine together. A GPU wants thousands, but their beliefs at all steps must fit in it."""
    return max(MIN_POOL, min(MAX_POOL, POOL_NUMBERS // classes))


def summarize(outcome: Outcome) -> dict[str, float]:
    """The few numbers a validation round needs."""
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
    }


def report(outcome: Outcome) -> dict[str, Any]:
    """One split's entry in evaluation.json."""
    log_beliefs, labels = outcome.log_beliefs.double(), outcome.labels
    beliefs = log_beliefs.exp()
    confidence, answer = beliefs.max(-1)
    correct = answer == labels
    steps = outcome.halt_step.double()
    truth = torch.nn.functional.one_hot(labels, beliefs.shape[1])
    summary = summarize(outcome)
    return summary | {
        "ece_bins": metrics.BINS,
        "ece_classwise": metrics.classwise_calibration_error(beliefs, labels),
        "ece_signed": summary["mean_confidence"] - summary["accuracy"],
        "brier": float((beliefs - truth).square().sum(-1).mean()),
        "mean_steps_correct": _mean(steps[correct]),
        "mean_steps_wrong": _mean(steps[~correct]),
        "mean_cell_evaluations": float(outcome.cell_evaluations.double().mean()),
        "aurc": metrics.area_under_risk_coverage(confidence, correct),
        "auroc": metrics.correctness_auroc(confidence, correct),
        "n": len(labels),
        "per_step": _per_step(outcome),
        "reliability": _reliability(confidence, correct),
        "halting": _halting(outcome.halt_step, correct, len(outcome.step_scores)),
    }


def _mean(values: Float[Tensor, "n"]) -> float | None:
    return float(values.mean()) if len(values) else None


def _per_step(outcome: Outcome) -> list[dict[str, float | int]]:
    """Every example's belief after each step, as if none had halted before."""
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
