"""What is said of each input of a request."""

from collections.abc import Sequence
from typing import Any

import torch

from ricnet.apps.server.limits import Refusal
from ricnet.core.trajectory import Trajectory


def answers(path: Trajectory, class_names: Sequence[str], trace: bool) -> list[dict[str, Any]]:
    """As `ric predict --json` says it, with all classes."""
    final = path.final
    if not torch.isfinite(final).all():
        raise Refusal(422, "the model has no answer to numbers this far from those it was trained on.")
    best, beliefs, steps = final.argmax(-1).tolist(), final.exp().tolist(), path.halt_step.tolist()
    entries: list[dict[str, Any]] = [
        {
            "answer": class_names[k],
            "confidence": belief[k],
            "steps": n,
            "probabilities": dict(zip(class_names, belief, strict=True)),
        }
        for k, belief, n in zip(best, beliefs, steps, strict=True)
    ]
    if trace:
        for row, entry in enumerate(entries):
            entry.update(_trace(path, row))
    return entries


def _trace(path: Trajectory, row: int) -> dict[str, Any]:
    return {
        "beliefs": path.log_beliefs[:, row].exp().tolist(),
        "values": None if path.values is None else path.values[:, row].tolist(),
        "halt_probability": None if path.halt_probability is None else path.halt_probability[:, row].tolist(),
    }
