"""Saying "unsure" instead of guessing: what a least confidence for an answer was worth on validation data."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float

from ricnet.evaluation.predictions import Predictions, read_predictions

UNSURE = "unsure"


@dataclass(frozen=True)
class Selection:
    """How many examples got an answer, and how many of the answers were wrong."""

    n: int
    answered: int
    wrong: int

    @property
    def coverage(self) -> float:
        return self.answered / self.n

    @property
    def risk(self) -> float | None:
        """None where there was no answer to be wrong."""
        return self.wrong / self.answered if self.answered else None


def select(confidence: Float[np.ndarray, "n"], correct: Bool[np.ndarray, "n"], threshold: float) -> Selection:
    answered = confidence >= threshold
    return Selection(len(confidence), int(answered.sum()), int((answered & ~correct).sum()))


def select_validation(found: Predictions, threshold: float, max_steps: int | None) -> Selection:
    """Each example at its own halt, or at `max_steps` if that comes first."""
    last = np.minimum(found.halt_step, max_steps or len(found.step_confidence)) - 1
    rows = np.arange(len(last))
    return select(found.step_confidence[last, rows], found.step_correct[last, rows], threshold)


def validation_sentence(folder: Path, threshold: float, max_steps: int | None) -> str:
    if not (folder / "predictions.npz").is_file():
        return f"What {threshold:g} was worth on validation data is not known: {folder.name} has no predictions.npz."
    chosen = select_validation(read_predictions(folder, "val"), threshold, max_steps)
    if chosen.risk is None:
        return f"On validation data no confidence reached {threshold:g}: all {chosen.n:,} would be {UNSURE}."
    were = "was" if chosen.wrong == 1 else "were"
    return (
        f"On validation data {chosen.answered:,} of {chosen.n:,} answers had a confidence of {threshold:g} or more "
        f"(coverage {chosen.coverage:.1%}), and {chosen.wrong:,} of them {were} wrong (risk {chosen.risk:.1%})."
    )
