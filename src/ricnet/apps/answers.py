"""Answers of a model as JSON, for `ric predict` and the server."""

from collections.abc import Sequence
from typing import Any

from ricnet.core.trajectory import Trajectory
from ricnet.errors import RicnetError
from ricnet.evaluation.evaluate import UNSURE


def answers(
    path: Trajectory,
    names: Sequence[str],
    class_names: Sequence[str],
    top: int = 1,
    abstain_below: float | None = None,
    trace: bool = False,
) -> list[dict[str, Any]]:
    """An entry for each input: the `top` classes at the halt, and with `trace` the beliefs after every step."""
    if path.final.isnan().any():
        raise RicnetError("the model's belief is NaN: the input is too far from the training data; check it.")
    best = path.final.exp().topk(min(top, len(class_names)))
    found = zip(names, best.values.tolist(), best.indices.tolist(), path.halt_step.tolist(), strict=True)
    costs = None if path.cost is None else path.cost.tolist()
    entries: list[dict[str, Any]] = []
    for row, (name, probabilities, classes, steps) in enumerate(found):
        ranked = [{"class": class_names[k], "probability": p} for p, k in zip(probabilities, classes, strict=True)]
        unsure = abstain_below is not None and probabilities[0] < abstain_below
        answer = UNSURE if unsure else class_names[classes[0]]
        entry = {"input": name, "answer": answer, "confidence": probabilities[0], "steps": steps, "top": ranked}
        entry |= {} if costs is None else {"cost": costs[row]}
        entries.append(entry | (_trace(path, row) if trace else {}))
    return entries


def _trace(path: Trajectory, row: int) -> dict[str, Any]:
    optional = {"values": path.values, "halt_probability": path.halt_probability}
    traced = {name: None if steps is None else steps[:, row].tolist() for name, steps in optional.items()}
    costs = {"costs": list(path.costs)} if path.costs else {}
    return {**costs, "beliefs": path.log_beliefs[:, row].exp().tolist(), **traced}
