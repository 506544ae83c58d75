"""All metrics, and the comparison of systems: means over seeds, paired differences, intervals and verdicts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from ricnet.errors import RicnetError, listing
from ricnet.evaluation.evaluate import Outcome
from ricnet.io import MARK
from ricnet.report import statistics
from ricnet.report.runs import Baseline, RunGroup, RunRecord, baselines, by_task
from ricnet.report.statistics import Difference, Interval, Percentiles


@dataclass(frozen=True)
class Metric:
    name: str
    """Key in evaluation.json."""
    title: str
    digits: int = 3
    merit: int = 0
    """+1 if more is better, −1 if less is better, 0 for metrics without a best value."""
    scale: int = 1
    """100 for percentages."""
    split: str = "test"
    """Split, or "run" for an attribute of the run."""

    @property
    def key(self) -> str:
        """Name in CSV files."""
        return self.name if self.split in ("test", "run") else f"{self.split}_{self.name}"

    @property
    def heading(self) -> str:
        return f"{self.title} (%)" if self.scale == 100 else self.title

    def of(self, run: RunRecord) -> float | None:
        """None if not measured."""
        split = run.judged_on if self.split == "test" else self.split
        value = getattr(run, self.name) if split == "run" else run.evaluation.get(split, {}).get(self.name)
        return None if value is None else float(value)

    def of_baseline(self, baseline: Baseline) -> float:
        """NaN if not measured."""
        value = baseline.scores.get(self.name) if self.split in ("test", "run") else None
        return math.nan if value is None else float(value)

    def write(
        self, mean: float | int | None, half_width: float | None = None, *, signed: bool = False, unit: bool = False
    ) -> str:
        """Mean ± half-width; the mean alone without an interval, a dash without a number."""
        if mean is None or math.isnan(mean):
            return "–"
        rounded = round(self.scale * mean, self.digits) + 0.0  # avoids −0
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
RETURN = Metric("normalized_return", "Normalised return")
CONFIDENCE = Metric("mean_confidence", "Mean confidence", 2, scale=100)
STEPS = Metric("mean_steps", "Mean steps", 1)
CELLS = Metric("mean_cell_evaluations", "Cell evaluations", 1)
COST = Metric("mean_cost", "Share of compute")
"""Share of the whole network's compute; only with exits."""
AURC = Metric("aurc", "AURC", 4)
AUROC_CORRECTNESS = Metric("auroc_correctness", "AUROC of being right")
ROC_AUC = Metric("roc_auc", "ROC AUC")
AVERAGE_PRECISION = Metric("average_precision", "Average precision")
BALANCED_ACCURACY = Metric("balanced_accuracy", "Balanced accuracy", 2, scale=100)
BASE_RATE = Metric("base_rate", "Base rate", 2, scale=100)
"""Accuracy of the commonest training class."""
EXAMPLES = Metric("n", "Examples", 0)

METRICS = (
    *(ACCURACY, BASE_RATE, BALANCED_ACCURACY, ROC_AUC, AVERAGE_PRECISION, ECE, ECE_SIGNED, NLL, BRIER, RETURN),
    *(CONFIDENCE, STEPS, CELLS, COST, AURC, AUROC_CORRECTNESS, EXAMPLES),
)
"""All metrics of a split."""

TRAIN_ACCURACY = Metric("accuracy", "Train accuracy", 2, scale=100, split="train")
SECONDS = Metric("seconds", "Run seconds", 0, split="run")
"""With evaluation after each epoch."""
TRAINING_SECONDS = Metric("training_seconds", "Training seconds", 0, split="run")
"""Updates only."""
RATE = Metric("images_per_second", "Images/s", 0, split="run")

RESULTS = (ACCURACY, ECE, NLL, BRIER, STEPS, COST, TRAIN_ACCURACY, SECONDS)
"""Columns of a table of results; differences are tested for those with a merit."""
ENOUGH_SEEDS = 5
ALPHA = 0.05
TOLERANCE = 1e-3
"""Tolerance in nats between the NLL of predictions.npz and that of evaluation.json."""


@dataclass(frozen=True)
class Contrast:
    """Difference of a system from the reference in one metric."""

    system: RunGroup
    reference: RunGroup
    metric: Metric
    seeds: Difference
    examples: Percentiles
    p_corrected: float | None = None

    @property
    def verdict(self) -> str:
        if self.seeds.n < ENOUGH_SEEDS:
            return f"too few seeds ({self.seeds.n})"
        same_side = self.examples.low > 0 if self.seeds.mean > 0 else self.examples.high < 0
        if self.p_corrected is None or not (self.p_corrected < ALPHA and same_side):
            return "no difference shown"
        return "better" if self.metric.merit * self.seeds.mean > 0 else "worse"


@dataclass(frozen=True)
class Comparison:
    systems: tuple[RunGroup, ...]
    """Systems in the order given."""
    contrasts: tuple[Contrast, ...] = ()
    note: str = ""
    """The reason if differences are not tested."""

    @property
    def runs(self) -> list[RunRecord]:
        return [run for system in self.systems for run in system.runs]

    @property
    def has_seeds(self) -> bool:
        """Whether a system has several seeds."""
        return len(self.runs) > len(self.systems)

    @property
    def metrics(self) -> list[Metric]:
        """Columns of the table: share of compute only if a run has exits."""
        return [
            metric for metric in RESULTS if metric is not COST or any(COST.of(run) is not None for run in self.runs)
        ]

    @property
    def baselines(self) -> list[Baseline]:
        return baselines(self.runs)

    def is_better(self, system: RunGroup | Baseline, metric: Metric) -> bool:
        """Whether the verdict is better than the reference."""
        return any(c.system is system and c.metric is metric and c.verdict == "better" for c in self.contrasts)


def results(groups: Sequence[RunGroup]) -> Comparison:
    """Compare systems of several seeds; of single runs nothing is tested."""
    single = Comparison(tuple(groups))
    return compare(groups) if single.has_seeds else single


def compare(groups: Sequence[RunGroup], reference: str | None = None) -> Comparison:
    """Compare systems on each data set with the reference: the system of that name, else the first."""
    try:
        contrasts = [contrast for rivals in by_task(groups) for contrast in _contrasts(rivals, reference)]
    except RicnetError as error:  # runs that cannot be paired
        return Comparison(tuple(groups), note=f"Differences are not tested. {error}")
    p_values = iter(statistics.holm([c.seeds.p_value for c in contrasts if c.seeds.p_value is not None]))
    corrected = (c if c.seeds.p_value is None else replace(c, p_corrected=next(p_values)) for c in contrasts)
    return Comparison(tuple(groups), tuple(corrected))


def interval_of(group: RunGroup, metric: Metric) -> Interval:
    return statistics.mean_interval(_samples(group, metric))


def _samples(group: RunGroup, metric: Metric) -> list[float]:
    return [math.nan if (value := metric.of(run)) is None else value for run in group.runs]


def _contrasts(rivals: Sequence[RunGroup], name: str | None) -> list[Contrast]:
    named = (g for g in rivals if name in (g.label, g.label.removesuffix(MARK), g.first.method))
    reference = next(named, rivals[0])
    others = [system for system in rivals if system is not reference]
    for system in others:
        if system.seeds != reference.seeds:
            raise RicnetError(
                f"{_with_seeds(system)} and {_with_seeds(reference)} cannot be paired: train the missing seeds or "
                "leave the others out."
            )
    base = _predictions(reference, reference) if others else []
    return [contrast for system in others for contrast in _contrast(system, reference, base)]


def _with_seeds(group: RunGroup) -> str:
    seeds = "seeds" if len(group.seeds) > 1 else "seed"
    return f"{group.label} ({seeds} {listing([str(seed) for seed in group.seeds])}, {group.first.path} …)"


def _contrast(system: RunGroup, reference: RunGroup, base: Sequence[Outcome]) -> list[Contrast]:
    examples = statistics.paired_bootstrap(_predictions(system, reference), base)
    return [
        Contrast(
            system,
            reference,
            metric,
            statistics.paired_difference(_samples(system, metric), _samples(reference, metric)),
            examples[metric.name],
        )
        for metric in RESULTS
        if metric.merit
    ]


def _predictions(group: RunGroup, reference: RunGroup) -> list[Outcome]:
    """Test predictions of each seed, checked against evaluation.json and the examples of the reference."""
    labels = reference.first.predictions().labels
    found = []
    for run in group.runs:
        predictions = run.predictions()
        nll = float(statistics.scores(predictions)[:, 1].mean())
        if abs(nll - run.test["nll"]) > TOLERANCE:
            raise RicnetError(
                f"{run.path / 'predictions.npz'} has NLL {nll:.4f} where evaluation.json says {run.test['nll']:.4f}: "
                "the files belong to different runs; train this one again."
            )
        if not torch.equal(predictions.labels, labels):
            raise RicnetError(
                f"{run.path} and {reference.first.path} were tested on different examples and cannot be paired: "
                "train both on the same data."
            )
        found.append(predictions)
    return found
