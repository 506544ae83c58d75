"""A few examples worth looking at: answered at once, answered on second thought, answered wrongly."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from ricnet.core.mdp import log_scores
from ricnet.data import Split
from ricnet.evaluation.evaluate import Outcome
from ricnet.methods import Method


def pick_rows(outcome: Outcome, each: int = 2) -> Int64[Tensor, "m"]:
    """Up to `each` of: right with fewest steps, right with most gained after the first step, wrong and most sure."""
    confidence, answer = outcome.log_beliefs.double().max(-1)
    right = answer == outcome.labels
    gain = log_scores(outcome.log_beliefs, outcome.labels) - outcome.step_scores[0]
    quick = _first(-outcome.halt_step.double(), right, each)
    slow = _first(gain.double(), right & (outcome.halt_step > 1), each)
    wrong = _first(confidence, ~right, each)
    return torch.tensor(list(dict.fromkeys([*quick, *slow, *wrong])), dtype=torch.int64)


def _first(merit: Float[Tensor, "n"], eligible: Bool[Tensor, "n"], count: int) -> list[int]:
    """Rows of highest merit, the earlier of equals first."""
    order = torch.where(eligible, merit, -torch.inf).argsort(descending=True, stable=True)
    return order[: min(count, int(eligible.sum()))].tolist()


@torch.no_grad()
def save_examples(method: Method[Any], model: nn.Module, split: Split, outcome: Outcome, path: Path) -> None:
    chosen = split.take(pick_rows(outcome))
    device = next(model.parameters()).device
    trajectory = method.refine(model.eval(), chosen.inputs.to(device))
    arrays: dict[str, Tensor] = {
        "x": chosen.inputs,
        "y": chosen.labels,
        "log_beliefs": trajectory.log_beliefs,
        "halt_step": trajectory.halt_step,
    }
    if trajectory.values is not None:
        arrays["values"] = trajectory.values
    plain: dict[str, Any] = {name: array.cpu().numpy() for name, array in arrays.items()}
    with path.open("wb") as file:
        np.savez_compressed(file, **plain)
