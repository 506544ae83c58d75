"""A few examples worth looking at: answered at once, answered after long thought, answered wrongly."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor, nn

from ricnet.data import Split
from ricnet.evaluation.evaluate import Outcome
from ricnet.methods import Method


def pick_rows(outcome: Outcome, each: int = 2) -> Int64[Tensor, "m"]:
    """Up to `each` of: right with fewest steps, right with most steps, wrong with most confidence."""
    confidence, answer = outcome.log_beliefs.max(-1)
    right = answer == outcome.labels
    steps = outcome.halt_step.float()
    quick = torch.where(right, -steps, -torch.inf).argsort(descending=True, stable=True)[:each]
    slow = torch.where(right, steps, -torch.inf).argsort(descending=True, stable=True)[:each]
    wrong = torch.where(right, -torch.inf, confidence.double()).argsort(descending=True, stable=True)[:each]
    candidates = [*quick[right[quick]], *slow[right[slow]], *wrong[~right[wrong]]]
    return torch.tensor(list(dict.fromkeys(int(row) for row in candidates)), dtype=torch.int64)


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
