"""The one list of numbers that tables show of a run: where each is found, how it is written, and what is better."""

import math
from dataclasses import dataclass

from ricnet.report.runs import RunRecord


@dataclass(frozen=True)
class Metric:
    name: str
    """In evaluation.json."""
    title: str
    digits: int = 3
    merit: int = 0
    """+1 where more is better, −1 where less is, 0 where there is nothing to win, as with training accuracy."""
    scale: int = 1
    """100 where it is shown in per cent."""
    split: str = "test"
    """"run" for what is no score of a split but an attribute of the run."""

    @property
    def key(self) -> str:
        """Its name in a CSV."""
        return self.name if self.split in ("test", "run") else f"{self.split}_{self.name}"

    @property
    def heading(self) -> str:
        return f"{self.title} (%)" if self.scale == 100 else self.title

    def of(self, run: RunRecord) -> float | None:
        """None where the run has not measured it."""
        value = getattr(run, self.name) if self.split == "run" else run.evaluation.get(self.split, {}).get(self.name)
        return None if value is None else float(value)

    def write(
        self, mean: float | None, half_width: float | None = None, *, signed: bool = False, unit: bool = False
    ) -> str:
        """Mean ± half-width; the mean alone where one seed gives no interval, a dash where there is no number."""
        if mean is None or math.isnan(mean):
            return "–"
        rounded = round(self.scale * mean, self.digits) + 0.0  # no number is written as −0
        sign = "+" if signed and rounded else ""
        text = f"{rounded:{sign},.{self.digits}f}".replace("-", "−")
        return text + self.write_half(half_width) + (" %" if unit and self.scale == 100 else "")

    def write_half(self, half_width: float | None) -> str:
        if half_width is None or math.isnan(half_width):
            return ""
        return f" ± {self.scale * half_width:,.{self.digits}f}"


ACCURACY = Metric("accuracy", "Test accuracy", 2, merit=1, scale=100)
ECE = Metric("ece", "ECE", merit=-1)
ECE_SIGNED = Metric("ece_signed", "Confidence less accuracy")
NLL = Metric("nll", "NLL", merit=-1)
BRIER = Metric("brier", "Brier", merit=-1)
STEPS = Metric("mean_steps", "Mean steps", 1)
CELLS = Metric("mean_cell_evaluations", "Cell evaluations", 1)
TRAIN_ACCURACY = Metric("accuracy", "Train accuracy", 2, scale=100, split="train")
SECONDS = Metric("seconds", "Run seconds", 0, split="run")
"""Of the whole course, measuring each epoch included."""
TRAINING_SECONDS = Metric("training_seconds", "Training seconds", 0, split="run")
"""Of the updates alone."""
RATE = Metric("images_per_second", "Images/s", 0, split="run")

SYSTEM_METRICS = (TRAIN_ACCURACY, ACCURACY, ECE, NLL, BRIER, STEPS)
"""Of a system, averaged over its seeds; differences are tested in those that have a merit."""
RUN_METRICS = (ACCURACY, ECE, NLL, BRIER, STEPS, TRAIN_ACCURACY, SECONDS)
