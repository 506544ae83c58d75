"""examples.npz: a few test examples of a run, easy, hard, wrong or often confused, with the belief at every step."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
from ricnet.methods import Inference

KINDS = ("easy", "hard", "wrong", "confused")
"""A stored kind is an index into this."""
LONGEST_TEXT = 1_000
"""Characters kept of a text."""
PAIRS, OF_A_PAIR = 3, 2
"""Maximum pairs of class and wrong answer that have examples, and examples of each."""


def pick_rows(outcome: Outcome, each: int = 4) -> dict[str, list[int]]:
    """Up to `each` rows of every kind.

    Easy: correct with the fewest steps, then the highest confidence. Hard: correct with the largest gain after the
    first step; with a single step, the lowest confidence. Wrong: the highest confidence. Confused: others of the most
    frequent pairs of class and wrong answer. Hard examples are chosen before easy ones.
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
    """The most confident rows of the most frequent pairs of class and answer."""
    pair = labels * (int(answer.max()) + 1) + answer
    pairs, counts = pair[eligible].unique(return_counts=True)
    commonest = pairs[counts.argsort(descending=True, stable=True)[:PAIRS]]
    return [row for one in commonest for row in _first(confidence, eligible & (pair == one), OF_A_PAIR)]


def _without(eligible: Bool[Tensor, "n"], rows: list[int]) -> Bool[Tensor, "n"]:
    rest = eligible.clone()
    rest[rows] = False
    return rest


def _first(merit: Float[Tensor, "n"], eligible: Bool[Tensor, "n"], count: int) -> list[int]:
    """Rows of highest merit, ties in their order."""
    order = torch.where(eligible, merit, -torch.inf).argsort(descending=True, stable=True)
    return order[: min(count, int(eligible.sum()))].tolist()


@torch.no_grad()
def save_examples(
    method: Inference, model: nn.Module, split: Split, outcome: Outcome, path: Path, reading: Reading = AS_TRAINED
) -> None:
    """Refine a few examples of a split again, because an outcome has no beliefs before the halt, and store them. Their
    kinds are those of the new answers, which may differ if the method samples."""
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
    return torch.tensor([row for rows in kinds.values() for row in rows], dtype=torch.int64)


@dataclass(frozen=True)
class Examples:
    """A few test examples with the belief after every step."""

    inputs: Num[np.ndarray, "m ..."]
    labels: Integer[np.ndarray, "m"]
    log_beliefs: Float[np.ndarray, "steps m classes"]
    values: Float[np.ndarray, "steps m"] | None
    """values[n] is computed after n steps; an example halts at the first n ≥ 1 with a value below the threshold."""
    halt_step: Integer[np.ndarray, "m"]
    kind: Integer[np.ndarray, "m"]
    """Index into KINDS."""
    texts: list[str] | None = None
    """The original texts of token ids; None for other data."""

    @property
    def are_rows(self) -> bool:
        """Rows of a table, not images or texts."""
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
    inputs, beliefs = arrays["x"], arrays["log_beliefs"]
    integers = [arrays[name] for name in ("y", "halt_step", "kind")]
    values, texts = arrays.get("values"), arrays.get("text")
    steps, rows, width = beliefs.shape
    limits = (range(classes), range(1, steps + 1), range(len(KINDS)))
    fits = (
        (len(inputs), width, beliefs.dtype.kind) == (rows, classes, "f")
        and all(each.shape == (rows,) and each.dtype.kind in "iu" for each in integers)
        and all(np.isin(each, limit).all() for each, limit in zip(integers, limits, strict=True))
        and (_can_be_shown(inputs) and bool(np.isfinite(np.exp(beliefs)).all()))
        and (values is None or (values.shape == (steps, rows) and bool(np.isfinite(values).all())))
        and (texts is None or (texts.shape == (rows,) and texts.dtype.kind == "U"))
    )
    if not fits:
        raise ValueError("its arrays do not fit together")
    labels, halt, kind = integers
    return Examples(inputs, labels, beliefs, values, halt, kind, None if texts is None else texts.tolist())


def _can_be_shown(inputs: np.ndarray) -> bool:
    """Rows of numbers, or uint8 images in grey or colour."""
    if inputs.ndim == 2:
        return inputs.dtype.kind in "biuf"
    return inputs.ndim == 4 and inputs.dtype == np.uint8 and inputs.shape[1] in (1, 3) and inputs.size > 0
