"""Run a method over a split, say how good it is (evaluation.json), and keep what it answered: every prediction
(predictions.npz), so that any number can be recomputed and any two runs compared without the model or the data, and a
few examples worth looking at (examples.npz)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64, Integer, Num
from torch import Tensor, nn

from ricnet.core.mdp import log_scores, normalized_return
from ricnet.core.trajectory import Temperature, Trajectory, asked_before, doubt, halting_step
from ricnet.data import Split
from ricnet.distributed import ALONE, Processes
from ricnet.errors import RicnetError
from ricnet.evaluation import metrics
from ricnet.io import read_arrays
from ricnet.methods import Asked
from ricnet.methods.inference import InSteps

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
    """V(s_{t+1}) at index t; None for a method without a value."""
    costs: Float[Tensor, "steps"] | None = None
    """With exits, the share of compute that each step has cost by its end."""
    step_doubt: Float[Tensor, "steps n"] | None = None
    """With exits and without a value: 1 − the confidence, in more digits."""

    @property
    def continuation(self) -> Float[Tensor, "steps n"]:
        """As a trajectory's: what a threshold is held against."""
        if self.values is not None:
            return self.values
        return asked_before(1 - self.step_confidence if self.step_doubt is None else self.step_doubt)

    @property
    def cost(self) -> Float[Tensor, "n"] | None:
        """The share that each example has cost; None without exits."""
        return None if self.costs is None else self.costs[self.halt_step - 1]

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
            torch.tensor(path.costs, dtype=torch.float64) if path.costs else None,
            doubt(path.log_beliefs) if path.costs and path.values is None else None,
        )

    def take(self, rows: slice | Int64[Tensor, "some"]) -> "Outcome":
        """Of some of the examples."""
        whole = ("log_beliefs", "costs")
        kept: dict[str, Any] = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in whole}
        some: dict[str, Any] = {name: part if part is None else part[..., rows] for name, part in kept.items()}
        return Outcome(self.log_beliefs[rows], **some, costs=self.costs)

    @classmethod
    def join(cls, parts: "list[Outcome]") -> "Outcome":
        """Examples are the last axis everywhere but in the beliefs; what a step costs is the same for all."""
        kept = [field.name for field in fields(cls) if getattr(parts[0], field.name) is not None]
        arrays = {name: [getattr(part, name).cpu() for part in parts] for name in kept if name != "costs"}
        joined = {name: torch.cat(pieces, 0 if name == "log_beliefs" else -1) for name, pieces in arrays.items()}
        return cls(**joined, costs=parts[0].costs)


@dataclass(frozen=True)
class Reading:
    """How the steps that a network makes are read: where they end, and how sharp each belief is."""

    temperature: Temperature = 1.0
    halt_threshold: float | None = None
    """Stop once the value, or without one the doubt, falls below this; None leaves that to the method."""
    max_steps: int | None = None
    """Stop after so many steps at the latest; None for all that are made."""
    step: int | None = None
    """Stop after exactly so many steps; None leaves that to the rule."""

    def read(self, path: Trajectory) -> Trajectory:
        """All steps are kept, those after the halt too."""
        path = path if self.temperature == 1 else path.tempered(self.temperature)
        halt = path.halt_step
        if self.halt_threshold is not None:
            halt = halting_step(path.continuation, self.halt_threshold)
        if self.step is not None:
            halt = torch.full_like(halt, self.step)
        return replace(path, halt_step=halt if self.max_steps is None else halt.clamp(max=self.max_steps))


AS_TRAINED = Reading()


def observe(
    method: Asked,
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
    method: Asked,
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
    draws = isinstance(method, InSteps) and method.draws  # then all do everything, to draw the same
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
        **({} if outcome.cost is None else {"mean_cost": float(outcome.cost.mean())}),
    }


def report(outcome: Outcome) -> dict[str, Any]:
    """One split's entry in evaluation.json."""
    log_beliefs, labels = outcome.log_beliefs.double(), outcome.labels
    beliefs = log_beliefs.exp()
    confidence, answer = beliefs.max(-1)
    correct = answer == labels
    steps, cost = outcome.halt_step.double(), outcome.cost
    summary = summarize(outcome)
    compute = (
        {} if cost is None else {"mean_cost_correct": _mean(cost[correct]), "mean_cost_wrong": _mean(cost[~correct])}
    )
    return (
        summary
        | compute
        | {
            "ece_bins": metrics.BINS,
            "ece_classwise": metrics.classwise_calibration_error(beliefs, labels),
            "ece_signed": summary["mean_confidence"] - summary["accuracy"],
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
    )


def _mean(values: Float[Tensor, "n"]) -> float | None:
    return float(values.mean()) if len(values) else None


def _standard_error(values: Float[Tensor, "n"]) -> float | None:
    """Standard error of the mean; None for a single value."""
    return float(values.std()) / math.sqrt(len(values)) if len(values) > 1 else None


def _per_step(outcome: Outcome) -> list[dict[str, float | int]]:
    """Every example's belief after each step, as if none had halted before; with exits also what it costs to get so
    far."""
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


# Every prediction, kept with its run

GRIDS = ("step_scores", "step_confidence", "step_correct", "step_entropy", "step_doubt", "values")
"""What an Outcome has of each example at each step."""
DTYPES = {"labels": "iu", "halt_step": "iu", "cell_evaluations": "iu", "step_correct": "b"}
"""Kinds of numbers as numpy calls them; all others are real."""


def save_predictions(outcomes: Mapping[str, Outcome], path: Path) -> None:
    """Arrays named SPLIT_FIELD, for each field of an Outcome that the method has."""
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


# A few examples worth looking at: easy, hard, wrong, often mistaken

KINDS = ("easy", "hard", "wrong", "confused")
"""A stored example's kind is a place here."""
LONGEST_TEXT = 1_000
"""Characters of a text that are kept for people to read."""
PAIRS, OF_A_PAIR = 3, 2
"""Kinds of mistakes that have examples, and how many each."""


def pick_rows(outcome: Outcome, each: int = 4) -> dict[str, list[int]]:
    """Up to `each` of every kind.

    Easy: right with fewest steps, the surest of equals. Hard: right with most gained after the first step, or least
    sure where there is but one step. Wrong: the surest. Confused: others of the commonest mistakes, a class taken for
    a certain other one. The hard are chosen before the easy, so that a gain tells the two apart.
    """
    confidence, answer = outcome.log_beliefs.double().max(-1)
    right = answer == outcome.labels
    gain = log_scores(outcome.log_beliefs, outcome.labels) - outcome.step_scores[0]
    one_pass = len(outcome.step_scores) == 1
    hardness, eligible = (-confidence, right) if one_pass else (gain.double(), right & (outcome.halt_step > 1))
    hard = _first(hardness, eligible, min(each, int(right.sum()) // 2))
    easy = _first(confidence.exp() - outcome.halt_step, _without(right, hard), each)
    wrong = _first(confidence, ~right, each)
    confused = _confused(outcome.labels, answer, confidence, _without(~right, wrong))
    return dict(zip(KINDS, (easy, hard, wrong, confused), strict=True))


def _confused(
    labels: Int64[Tensor, "n"], answer: Int64[Tensor, "n"], confidence: Float[Tensor, "n"], eligible: Bool[Tensor, "n"]
) -> list[int]:
    """The surest of the commonest pairs of a class and an answer."""
    pair = labels * (int(answer.max()) + 1) + answer
    pairs, counts = pair[eligible].unique(return_counts=True)
    commonest = pairs[counts.argsort(descending=True, stable=True)[:PAIRS]]
    return [row for one in commonest for row in _first(confidence, eligible & (pair == one), OF_A_PAIR)]


def _without(eligible: Bool[Tensor, "n"], rows: list[int]) -> Bool[Tensor, "n"]:
    rest = eligible.clone()
    rest[rows] = False
    return rest


def _first(merit: Float[Tensor, "n"], eligible: Bool[Tensor, "n"], count: int) -> list[int]:
    """Rows of highest merit, the earlier of equals first."""
    order = torch.where(eligible, merit, -torch.inf).argsort(descending=True, stable=True)
    return order[: min(count, int(eligible.sum()))].tolist()


@torch.no_grad()
def save_examples(
    method: Asked, model: nn.Module, split: Split, outcome: Outcome, path: Path, reading: Reading = AS_TRAINED
) -> None:
    """`reading` as in `observe`.

    The chosen are refined again, for an outcome keeps no beliefs on the way, and sorted by what they are this time: a
    method that draws at random (RIC with sampled feedback, PonderNet with sampled halting) need not answer the same.
    """
    chosen = split.take(_flat(pick_rows(outcome)))
    device = next(model.parameters()).device
    trajectory = reading.read(method.refine(model.eval(), chosen.inputs.to(device)))
    with path.open("wb") as file:
        np.savez_compressed(file, **_arrays(chosen, trajectory))


def _arrays(chosen: Split, trajectory: Trajectory) -> dict[str, Any]:
    kinds = pick_rows(Outcome.join([Outcome.of(trajectory, chosen.labels.to(trajectory.log_beliefs.device))]))
    rows = _flat(kinds)
    arrays = {
        "x": (chosen.inputs if chosen.shown is None else chosen.shown)[rows],
        "y": chosen.labels[rows],
        "kind": torch.tensor([code for code, kind in enumerate(KINDS) for _ in kinds[kind]], dtype=torch.int64),
        "log_beliefs": trajectory.log_beliefs[:, rows],
        "halt_step": trajectory.halt_step[rows],
    }
    if trajectory.values is not None:
        arrays["values"] = trajectory.values[:, rows]
    kept: dict[str, Any] = {name: array.cpu().numpy() for name, array in arrays.items()}
    if chosen.texts is not None:
        kept["text"] = np.array([chosen.texts[row][:LONGEST_TEXT] for row in rows.tolist()], dtype=np.str_)
    return kept


def _flat(kinds: dict[str, list[int]]) -> Int64[Tensor, "m"]:
    return torch.tensor([row for kind in KINDS for row in kinds[kind]], dtype=torch.int64)


@dataclass(frozen=True)
class Examples:
    """A few test examples with everything the classifier believed about them on its way to an answer."""

    inputs: Num[np.ndarray, "m ..."]
    labels: Integer[np.ndarray, "m"]
    log_beliefs: Float[np.ndarray, "steps m classes"]
    values: Float[np.ndarray, "steps m"] | None
    """values[n] is asked after n steps; the first from n = 1 on below the threshold ends the refinement there."""
    halt_step: Integer[np.ndarray, "m"]
    kind: Integer[np.ndarray, "m"]
    """A place in KINDS."""
    texts: list[str] | None = None
    """What token ids were made of; None of other data."""

    @property
    def are_rows(self) -> bool:
        """Rows of numbers, rather than images or texts."""
        return self.inputs.ndim == 2 and self.texts is None

    @property
    def answers(self) -> Integer[np.ndarray, "m"]:
        final = self.log_beliefs[self.halt_step - 1, np.arange(len(self.labels))]
        return np.asarray(final.argmax(axis=-1))


def read_examples(path: Path, classes: int) -> Examples | None:
    if not path.is_file():
        return None
    try:
        return _checked_examples(read_arrays(path), classes)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RicnetError(f"{path} cannot be used ({error}): delete it for a report without examples.") from error


def _checked_examples(arrays: Mapping[str, np.ndarray], classes: int) -> Examples:
    beliefs, labels, halt = arrays["log_beliefs"], arrays["y"], arrays["halt_step"]
    steps, rows, width = beliefs.shape
    if beliefs.dtype.kind != "f" or not all(one.ndim == 1 and one.dtype.kind in "iu" for one in (labels, halt)):
        raise ValueError("its arrays are of strange types")
    values, kind = arrays.get("values"), arrays["kind"]
    if width != classes or not len(arrays["x"]) == len(labels) == len(halt) == rows:
        raise ValueError("its arrays do not fit together")
    if values is not None and (values.shape != (steps, rows) or not np.isfinite(values).all()):
        raise ValueError("its values do not fit its beliefs")
    if rows and (labels.min() < 0 or labels.max() >= classes or halt.min() < 1 or halt.max() > steps):
        raise ValueError("a label or a halting step is out of range")
    if not _can_be_shown(arrays["x"]) or not np.isfinite(np.exp(beliefs)).all():
        raise ValueError("its inputs or beliefs are no numbers that can be shown")
    if kind.shape != labels.shape or not np.isin(kind, range(len(KINDS))).all():
        raise ValueError("its kinds do not fit its examples")
    texts = arrays.get("text")
    if texts is not None and (texts.dtype.kind != "U" or texts.shape != labels.shape):
        raise ValueError("its texts do not fit its examples")
    return Examples(arrays["x"], labels, beliefs, values, halt, kind, None if texts is None else texts.tolist())


def _can_be_shown(inputs: np.ndarray) -> bool:
    """Rows of features, or images of bytes in grey or colour."""
    if inputs.ndim == 2:
        return inputs.dtype.kind in "biuf"
    return inputs.ndim == 4 and inputs.dtype == np.uint8 and inputs.shape[1] in (1, 3) and inputs.size > 0


# Saying "unsure" instead of guessing

UNSURE = "unsure"


def select_validation(found: Outcome, threshold: float, max_steps: int | None = None) -> tuple[int, int]:
    """How many examples are answered where an answer needs this confidence, and how many of the answers are wrong;
    each example at its own halt, or at `max_steps` if that comes first."""
    last = found.halt_step.clamp(max=max_steps or len(found.step_confidence)) - 1
    rows = torch.arange(len(last))
    answered = found.step_confidence[last, rows] >= threshold
    return int(answered.sum()), int((answered & ~found.step_correct[last, rows]).sum())


def validation_sentence(folder: Path, threshold: float, max_steps: int | None) -> str:
    if not (folder / "predictions.npz").is_file():
        return f"What {threshold:g} was worth on validation data is not known: {folder.name} has no predictions.npz."
    kept = read_predictions(folder, "val")
    n, (answered, wrong) = len(kept.labels), select_validation(kept, threshold, max_steps)
    if not answered:
        return f"On validation data no confidence reached {threshold:g}: all {n:,} would be {UNSURE}."
    were = "was" if wrong == 1 else "were"
    return (
        f"On validation data {answered:,} of {n:,} answers had a confidence of {threshold:g} or more "
        f"(coverage {answered / n:.1%}), and {wrong:,} of them {were} wrong (risk {wrong / answered:.1%})."
    )
