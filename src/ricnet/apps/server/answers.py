"""What is said of each input of a request."""

from collections.abc import Sequence
from typing import Any

import torch

from ricnet.apps.server.limits import Refusal
from ricnet.core.trajectory import Trajectory


def answers(
    path: Trajectory, names: Sequence[str], class_names: Sequence[str], top: int, trace: bool
) -> list[dict[str, Any]]:
    """As `ric predict --json` says it."""
    final = path.final
    if not torch.isfinite(final).all():
        raise Refusal(422, "the model has no answer to numbers this far from those it was trained on.")
    best = final.exp().topk(min(top, len(class_names)))
    entries: list[dict[str, Any]] = []
    for name, beliefs, classes, steps in zip(
        names, best.values.tolist(), best.indices.tolist(), path.halt_step.tolist(), strict=True
    ):
        ranked = [{"class": class_names[k], "probability": p} for p, k in zip(beliefs, classes, strict=True)]
        said = {"answer": class_names[classes[0]], "confidence": beliefs[0], "steps": steps, "top": ranked}
        entries.append({"input": name, **said})
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
