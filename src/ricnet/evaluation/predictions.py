"""What a model answered, kept with its run: every prediction, so that any number can be recomputed and any two runs
compared without the model or the data; and a few examples worth looking at: easy, hard, wrong, often mistaken.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64, Integer, Num
from torch import Tensor, nn

from ricnet.core.mdp import log_scores
from ricnet.core.trajectory import Trajectory
from ricnet.data import Split
from ricnet.errors import RicnetError
from ricnet.evaluation.evaluate import AS_TRAINED, Outcome, Reading
from ricnet.io import read_arrays
from ricnet.methods import Method


def save_predictions(outcomes: Mapping[str, Outcome], path: Path) -> None:
    """Arrays named SPLIT_FIELD, for each field of an Outcome that the method has."""
    arrays: dict[str, Any] = {}
    for split, outcome in outcomes.items():
        kept = {field.name: getattr(outcome, field.name) for field in fields(outcome)}
        arrays |= {f"{split}_{name}": array.numpy() for name, array in kept.items() if array is not None}
    with path.open("wb") as file:
        np.savez_compressed(file, **arrays)


@dataclass(frozen=True)
class Predictions:
    labels: Integer[np.ndarray, "n"]
    log_beliefs: Float[np.ndarray, "n classes"]
    """At each example's halt."""
    halt_step: Integer[np.ndarray, "n"]
    cell_evaluations: Integer[np.ndarray, "n"]
    step_scores: Float[np.ndarray, "steps n"]
    """log a_{t,y}."""
    step_confidence: Float[np.ndarray, "steps n"]
    step_correct: Bool[np.ndarray, "steps n"]
    step_entropy: Float[np.ndarray, "steps n"]
    """Of the belief, in nats."""
    values: Float[np.ndarray, "steps n"] | None = None
    """V(s_{t+1}) at index t; None for a method without a value."""

    def __post_init__(self) -> None:
        steps, n = self.step_scores.shape
        rows = (self.labels, self.log_beliefs, self.halt_step, self.cell_evaluations)
        grids = (self.step_confidence, self.step_correct, self.step_entropy, self.values)
        if any(len(row) != n for row in rows) or any(grid is not None and grid.shape != (steps, n) for grid in grids):
            raise ValueError("its arrays do not fit together")
        if any(array is not None and array.dtype.kind not in "biuf" for array in (*rows, *grids, self.step_scores)):
            raise ValueError("its arrays are no numbers")
        if n and not (1 <= self.halt_step.min() <= self.halt_step.max() <= steps):
            raise ValueError("a halting step is out of range")


def read_predictions(folder: str | Path, split: Literal["val", "test"] = "test") -> Predictions:
    path = Path(folder) / "predictions.npz"
    if not path.is_file():
        raise RicnetError(f"{folder} has no predictions.npz: it is of an older ricnet; train the run again.")
    try:
        stored, prefix = read_arrays(path), f"{split}_"
        return Predictions(**{key.removeprefix(prefix): stored[key] for key in stored if key.startswith(prefix)})
    except (OSError, ValueError, TypeError) as error:
        raise RicnetError(f"{path} is damaged: restore it, or delete the run and make it again.") from error


KINDS = ("easy", "hard", "wrong", "confused")
"""A stored example's kind is a place here."""
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
    method: Method[Any], model: nn.Module, split: Split, outcome: Outcome, path: Path, reading: Reading = AS_TRAINED
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
    return {name: array.cpu().numpy() for name, array in arrays.items()}


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
    kind: Integer[np.ndarray, "m"] | None = None
    """A place in KINDS; None in files of older versions, which did not say."""

    @property
    def are_rows(self) -> bool:
        """Rows of numbers, rather than images."""
        return self.inputs.ndim == 2

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
    values, kind = arrays.get("values"), arrays.get("kind")
    if width != classes or not len(arrays["x"]) == len(labels) == len(halt) == rows:
        raise ValueError("its arrays do not fit together")
    if values is not None and (values.shape != (steps, rows) or not np.isfinite(values).all()):
        raise ValueError("its values do not fit its beliefs")
    if rows and (labels.min() < 0 or labels.max() >= classes or halt.min() < 1 or halt.max() > steps):
        raise ValueError("a label or a halting step is out of range")
    if not _can_be_shown(arrays["x"]) or not np.isfinite(np.exp(beliefs)).all():
        raise ValueError("its inputs or beliefs are no numbers that can be shown")
    if kind is not None and (kind.shape != labels.shape or not np.isin(kind, range(len(KINDS))).all()):
        raise ValueError("its kinds do not fit its examples")
    return Examples(arrays["x"], labels, beliefs, values, halt, kind)


def _can_be_shown(inputs: np.ndarray) -> bool:
    """Rows of features, or images of bytes in grey or colour."""
    if inputs.ndim == 2:
        return inputs.dtype.kind in "biuf"
    return inputs.ndim == 4 and inputs.dtype == np.uint8 and inputs.shape[1] in (1, 3) and inputs.size > 0
