"""A few examples worth looking at: easy, hard, wrong, and taken for what they are taken for most."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from ricnet.core.mdp import log_scores
from ricnet.core.trajectory import Trajectory
from ricnet.data import Split
from ricnet.evaluation.evaluate import AS_TRAINED, Outcome, Reading
from ricnet.methods import Method

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
        "x": chosen.inputs[rows],
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
