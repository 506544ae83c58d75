"""What a model answered to every example, kept with its run: so that any number can be recomputed and any two runs
compared example by example, without the model or the data."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float, Integer

from ricnet.errors import RicnetError
from ricnet.evaluation.evaluate import Outcome
from ricnet.io import read_arrays


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
