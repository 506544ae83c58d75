"""Run a method over a split, score the outcome (evaluation.json), and store its predictions (predictions.npz)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from ricnet.core.mdp import log_scores, normalized_return
from ricnet.core.trajectory import Temperature, Trajectory, doubt, doubt_before, halting_step
from ricnet.data import Split
from ricnet.distributed import ALONE, Processes
from ricnet.errors import RicnetError
from ricnet.evaluation import metrics
from ricnet.io import read_arrays
from ricnet.methods import Inference
from ricnet.methods.inference import InSteps

MIN_POOL, MAX_POOL = 512, 8192
POOL_NUMBERS = 2**20
"""Beliefs (examples × classes) per step and pool: 4 MB, with 20 steps and intermediate results some hundred MB."""


@dataclass(frozen=True)
class Outcome:
    """The trajectories of a split: beliefs at the halt, and a summary of the belief at each step."""

    log_beliefs: Float[Tensor, "n classes"]
    labels: Int64[Tensor, "n"]
    halt_step: Int64[Tensor, "n"]
    cell_evaluations: Int64[Tensor, "n"]
    step_scores: Float[Tensor, "steps n"]
    """log a_{t,y}."""
    step_confidence: Float[Tensor, "steps n"]
    step_correct: Bool[Tensor, "steps n"]
    step_entropy: Float[Tensor, "steps n"]
    """Entropy of the belief, in nats."""
    values: Float[Tensor, "steps n"] | None = None
    """V(s_{t+1}) at index t; None for a method without a value."""
    costs: Float[Tensor, "steps"] | None = None
    """With exits, the cumulative share of compute after each step."""
    step_doubt: Float[Tensor, "steps n"] | None = None
    """With exits and without a value: 1 − confidence, in more digits."""

    @property
    def continuation(self) -> Float[Tensor, "steps n"]:
        """The quantity that is compared with the halting threshold, as in a trajectory."""
        if self.values is not None:
            return self.values
        return doubt_before(1 - self.step_confidence if self.step_doubt is None else self.step_doubt)

    @property
    def cost(self) -> Float[Tensor, "n"] | None:
        """Share of compute of each example; None without exits."""
        return None if self.costs is None else self.costs[self.halt_step - 1]

    @classmethod
    def of(cls, path: Trajectory, labels: Int64[Tensor, "n"], max_steps: int | None = None) -> "Outcome":
        """Examples halt after `max_steps` at the latest; the summary includes later steps."""
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
            torch.tensor(path.costs, dtype=torch.float64) if path.costs else None,
            doubt(path.log_beliefs) if path.costs and path.values is None else None,
        )

    def take(self, rows: slice | Int64[Tensor, "some"]) -> "Outcome":
        """The outcome of some examples."""
        whole = ("log_beliefs", "costs")
        kept: dict[str, Any] = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in whole}
        some: dict[str, Any] = {name: part if part is None else part[..., rows] for name, part in kept.items()}
        return Outcome(self.log_beliefs[rows], **some, costs=self.costs)

    @classmethod
    def join(cls, parts: "list[Outcome]") -> "Outcome":
        """Concatenate examples: the first axis of the beliefs, the last of all else."""
        kept = [field.name for field in fields(cls) if getattr(parts[0], field.name) is not None]
        arrays = {name: [getattr(part, name).cpu() for part in parts] for name in kept if name != "costs"}
        joined = {name: torch.cat(pieces, 0 if name == "log_beliefs" else -1) for name, pieces in arrays.items()}
        return cls(**joined, costs=parts[0].costs)


@dataclass(frozen=True)
class Reading:
    """How trajectories are read: temperature and halting rule."""

    temperature: Temperature = 1.0
    halt_threshold: float | None = None
    """Halt if the value, or without one 1 − confidence, falls below this; None: the rule of the method."""
    max_steps: int | None = None
    """Maximum steps; None for all."""
    step: int | None = None
    """Halt after exactly this many steps; None: by the rule."""

    def read(self, path: Trajectory) -> Trajectory:
        """The trajectory with tempered beliefs and new halting steps; steps after the halt are kept."""
        path = path if self.temperature == 1 else path.tempered(self.temperature)
        halt = path.halt_step
        if self.halt_threshold is not None:
            halt = halting_step(path.continuation, self.halt_threshold)
        if self.step is not None:
            halt = torch.full_like(halt, self.step)
        return replace(path, halt_step=halt if self.max_steps is None else halt.clamp(max=self.max_steps))


AS_TRAINED = Reading()


def observe(
    method: Inference,
    model: nn.Module,
    split: Split,
    max_steps: int | None = None,
    reading: Reading = AS_TRAINED,
    processes: Processes = ALONE,
) -> Outcome:
    """Refine every example of a split, all steps, in eval mode."""
    return observe_each(method, model, split, [reading], max_steps, processes)[0]


@torch.no_grad()
def observe_each(
    method: Inference,
    model: nn.Module,
    split: Split,
    readings: Sequence[Reading],
    max_steps: int | None = None,
    processes: Processes = ALONE,
) -> list[Outcome]:
    """The outcome for each reading of the same trajectories. Several processes share the examples; the first of them
    returns the whole outcome."""
    draws = isinstance(method, InSteps) and method.draws  # each process then refines all, to draw the same numbers
    shared = processes.count > 1 and not draws and len(split) >= processes.count
    mine = processes.slice(len(split)) if shared else slice(0, len(split))
    was_training = model.training
    model.eval()
    device = next(model.parameters()).device
    rows = pool_size(int(split.labels.max()) + 1)
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
    """Examples to refine at a time, as many as memory allows for the beliefs of all steps."""
    return max(MIN_POOL, min(MAX_POOL, POOL_NUMBERS // classes))


def at_step(grid: Tensor, stops: Int64[Tensor, "n"]) -> Tensor:
    """The entry of each example at its own step."""
    return grid[stops - 1, torch.arange(grid.shape[1])]


# Scores


def scores_at(outcome: Outcome, halt_step: Int64[Tensor, "n"]) -> dict[str, float]:
    """Accuracy, ECE and NLL if each example stopped after this many steps."""
    correct = at_step(outcome.step_correct, halt_step)
    return {
        "accuracy": float(correct.double().mean()),
        "ece": metrics.expected_calibration_error(at_step(outcome.step_confidence, halt_step), correct),
        "nll": -float(at_step(outcome.step_scores, halt_step).double().mean()),
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
    return [
        {
            "step": step,
            **scores_at(outcome, torch.full_like(outcome.halt_step, step)),
            "mean_confidence": float(confidence.double().mean()),
            **({} if outcome.costs is None else {"cost": float(outcome.costs[step - 1])}),
        }
        for step, confidence in enumerate(outcome.step_confidence, 1)
    ]


def _reliability(confidence: Float[Tensor, "n"], correct: Bool[Tensor, "n"]) -> list[dict[str, float | int | None]]:
    """Size, accuracy and mean confidence of each bin; None for an empty bin."""
    size, mean_confidence, accuracy = metrics.bin_by_confidence(confidence, correct)
    return [
        {
            "lower": m / metrics.BINS,
            "upper": (m + 1) / metrics.BINS,
            "n": int(size[m]),
            "accuracy": _finite(accuracy[m]),
            "confidence": _finite(mean_confidence[m]),
        }
        for m in range(metrics.BINS)
    ]


def _finite(value: Float[Tensor, ""]) -> float | None:
    return None if value.isnan() else float(value)


def _halting(halt_step: Int64[Tensor, "n"], correct: Bool[Tensor, "n"], steps: int) -> list[dict[str, int]]:
    right, wrong = (torch.bincount(halt_step[some], minlength=steps + 1) for some in (correct, ~correct))
    return [{"step": s, "correct": int(right[s]), "wrong": int(wrong[s])} for s in range(1, steps + 1)]


# predictions.npz: outcomes of a run, to compute scores without model and data

GRIDS = ("step_scores", "step_confidence", "step_correct", "step_entropy", "step_doubt", "values")
"""Fields of an Outcome of shape (steps, n)."""
DTYPES = {"labels": "iu", "halt_step": "iu", "cell_evaluations": "iu", "step_correct": "b"}
"""Allowed numpy kinds of dtypes; all other fields are floats."""


def save_predictions(outcomes: Mapping[str, Outcome], path: Path) -> None:
    """Arrays named SPLIT_FIELD, for each field of an Outcome that is not None."""
    arrays: dict[str, Any] = {}
    for split, outcome in outcomes.items():
        kept = {field.name: getattr(outcome, field.name) for field in fields(outcome)}
        arrays |= {f"{split}_{name}": array.numpy() for name, array in kept.items() if array is not None}
    with path.open("wb") as file:
        np.savez_compressed(file, **arrays)


def read_predictions(folder: str | Path, split: Literal["val", "test"] = "test") -> Outcome:
    path = Path(folder) / "predictions.npz"
    if not path.is_file():
        kept = "an archive keeps no predictions; give the run's folder" if Path(folder).is_file() else "train it again"
        raise RicnetError(f"{folder} has no predictions.npz: {kept}.")
    try:
        stored, prefix = read_arrays(path), f"{split}_"
        arrays = {key.removeprefix(prefix): stored[key] for key in stored if key.startswith(prefix)}
        steps, n = arrays["step_scores"].shape
        for name, array in arrays.items():
            width = array.shape[-1:] if name == "log_beliefs" else ()
            shape = (steps,) if name == "costs" else (steps, n) if name in GRIDS else (n, *width)
            if array.shape != shape or array.dtype.kind not in DTYPES.get(name, "f"):
                raise ValueError(f"{name} does not fit the others")
        if n and not 1 <= arrays["halt_step"].min() <= arrays["halt_step"].max() <= steps:
            raise ValueError("a halting step is out of range")
        return Outcome(**{name: torch.from_numpy(array) for name, array in arrays.items()})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RicnetError(f"{path} is damaged: restore it, or delete the run and make it again.") from error


# Abstaining: "unsure" below a confidence

UNSURE = "unsure"


def select_validation(found: Outcome, threshold: float, max_steps: int | None = None) -> tuple[int, int]:
    """Number of examples whose confidence at the halt (or at `max_steps` if earlier) reaches the threshold, and how
    many of them are wrong."""
    stops = found.halt_step.clamp(max=max_steps or len(found.step_confidence))
    answered = at_step(found.step_confidence, stops) >= threshold
    return int(answered.sum()), int((answered & ~at_step(found.step_correct, stops)).sum())


def validation_sentence(folder: Path, threshold: float, max_steps: int | None) -> str:
    if not (folder / "predictions.npz").is_file():
        return f"Results of {threshold:g} on validation data are unknown: {folder.name} has no predictions.npz."
    kept = read_predictions(folder, "val")
    n, (answered, wrong) = len(kept.labels), select_validation(kept, threshold, max_steps)
    if not answered:
        return f"On validation data no confidence reached {threshold:g}: all {n:,} would be {UNSURE}."
    were = "was" if wrong == 1 else "were"
    return (
        f"On validation data {answered:,} of {n:,} answers had a confidence of {threshold:g} or more "
        f"(coverage {answered / n:.1%}), and {wrong:,} of them {were} wrong (risk {wrong / answered:.1%})."
    )
