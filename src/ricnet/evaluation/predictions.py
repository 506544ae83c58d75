"""predictions.npz: the outcomes of a run, from which any score can be computed again without the model or the data."""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from ricnet.errors import RicnetError
from ricnet.evaluation.outcome import Outcome
from ricnet.io import read_arrays

GRIDS = ("step_scores", "step_confidence", "step_correct", "step_entropy", "step_doubt", "values")
"""Fields of an Outcome of shape (steps, n)."""
DTYPES = {"labels": "iu", "halt_step": "iu", "cell_evaluations": "iu", "step_correct": "b"}
"""Allowed numpy kinds of dtypes; all other fields are floats."""


def save_predictions(outcomes: Mapping[str, Outcome], path: Path) -> None:
    """Arrays named SPLIT_FIELD, for each field of an Outcome that is not None."""
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


# Abstaining: "unsure" below a confidence

UNSURE = "unsure"


def select_validation(found: Outcome, threshold: float, max_steps: int | None = None) -> tuple[int, int]:
    """Number of examples whose confidence at the halt (or at `max_steps` if earlier) reaches the threshold, and how
    many of them are wrong."""
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
