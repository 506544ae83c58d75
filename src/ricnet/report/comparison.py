"""All metrics, and the comparison of systems: means over seeds, paired differences, intervals and verdicts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from ricnet.errors import RicnetError, listing
from ricnet.evaluation.evaluate import Outcome
from ricnet.io import MARK, TABLE, short
from ricnet.report.runs import Baseline, RunGroup, RunRecord, Task, baselines, by_task, judged_words
from ricnet.report.statistics import (
    Difference,
    Interval,
    Percentiles,
    holm,
    mean_interval,
    paired_bootstrap,
    paired_difference,
    scores,
)


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

    def of_baseline(self, baseline: Baseline) -> float | None:
        value = baseline.scores.get(self.name) if self.split in ("test", "run") else None
        return None if value is None else float(value)

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

SYSTEM_METRICS = (TRAIN_ACCURACY, ACCURACY, ECE, NLL, BRIER, STEPS, COST)
"""Shown for systems; differences are tested for those with a merit."""
RUN_METRICS = (ACCURACY, ECE, NLL, BRIER, STEPS, COST, TRAIN_ACCURACY, SECONDS)


def shown(metrics: Sequence[Metric], runs: Sequence[RunRecord]) -> list[Metric]:
    """Metrics of a table of these runs: share of compute only if a run has exits."""
    return [metric for metric in metrics if metric is not COST or any(COST.of(run) is not None for run in runs)]


ENOUGH_SEEDS = 5
ALPHA = 0.05
TOLERANCE = 1e-3
"""Tolerance in nats between the NLL of predictions.npz and that of evaluation.json."""


@dataclass(frozen=True)
class Summary:
    group: RunGroup
    intervals: dict[str, Interval]
    """By metric key."""

    @property
    def label(self) -> str:
        return short(self.group.label, TABLE)

    @property
    def task(self) -> Task:
        return self.group.task

    @property
    def data(self) -> str:
        return short(self.group.first.data_label, TABLE)


@dataclass(frozen=True)
class Contrast:
    """Difference of a system from the reference in one metric."""

    system: Summary
    reference: Summary
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
    systems: tuple[Summary, ...]
    """In the order given."""
    contrasts: tuple[Contrast, ...] = ()

    @property
    def baselines(self) -> list[Baseline]:
        return baselines(run for system in self.systems for run in system.group.runs)

    @property
    def tests(self) -> int:
        return sum(contrast.p_corrected is not None for contrast in self.contrasts)

    def is_better(self, system: Summary, metric: Metric) -> bool:
        """Whether the verdict is better than the reference."""
        return any(c.system is system and c.metric is metric and c.verdict == "better" for c in self.contrasts)


def summarize(groups: Sequence[RunGroup]) -> Comparison:
    """Means and intervals, without differences."""
    return Comparison(
        tuple(Summary(group, {metric.key: interval_of(group, metric) for metric in SYSTEM_METRICS}) for group in groups)
    )


def compare(groups: Sequence[RunGroup], reference: str | None = None) -> Comparison:
    """Means and, on each data set, differences from the reference: the system of that name, else the first."""
    summary = summarize(groups)
    contrasts = [contrast for rivals in by_task(summary.systems) for contrast in _contrasts(rivals, reference)]
    return replace(summary, contrasts=_correct(contrasts))


def compare_as_far_as_possible(groups: Sequence[RunGroup], reference: str | None = None) -> tuple[Comparison, str]:
    """Compare; if runs cannot be paired, return the means alone and the reason."""
    try:
        return compare(groups, reference), ""
    except RicnetError as error:
        return summarize(groups), f"Differences are not tested. {error}"


def has_seeds(groups: Sequence[RunGroup]) -> bool:
    """Whether a system has several seeds."""
    return any(len(group.runs) > 1 for group in groups)


def ranking(comparison: Comparison) -> list[str]:
    """One line per data set. Means that round to the same number share a rank."""
    return [
        f"Ranks on {rivals[0].data} by mean {judged_words('test accuracy', rivals[0].group.runs)}: "
        f"{_order(rivals, ACCURACY)}. "
        f"By mean ECE: {_order(rivals, ECE)}."
        for rivals in by_task(comparison.systems)
        if len(rivals) > 1
    ]


def interval_of(group: RunGroup, metric: Metric) -> Interval:
    return mean_interval(_samples(group, metric))


def _samples(group: RunGroup, metric: Metric) -> list[float]:
    measured = [metric.of(run) for run in group.runs]
    return [math.nan if value is None else float(value) for value in measured]


def _contrasts(rivals: Sequence[Summary], name: str | None) -> list[Contrast]:
    reference = _find_reference(rivals, name)
    others = [system for system in rivals if system is not reference]
    for system in others:
        _check_seeds(system.group, reference.group)
    if not others:
        return []
    base = _read_all(reference.group)
    return [contrast for system in others for contrast in _contrast(system, reference, base)]


def _contrast(system: Summary, reference: Summary, base: Sequence[Outcome]) -> list[Contrast]:
    own = _read_all(system.group)
    _check_labels(system.group, own, reference.group, base)
    examples = paired_bootstrap(own, base)
    return [
        Contrast(
            system,
            reference,
            metric,
            paired_difference(_samples(system.group, metric), _samples(reference.group, metric)),
            examples[metric.name],
        )
        for metric in SYSTEM_METRICS
        if metric.merit
    ]


def _correct(contrasts: Sequence[Contrast]) -> tuple[Contrast, ...]:
    """Holm's correction over all tests of the comparison."""
    corrected = iter(holm([c.seeds.p_value for c in contrasts if c.seeds.p_value is not None]))
    return tuple(c if c.seeds.p_value is None else replace(c, p_corrected=next(corrected)) for c in contrasts)


def _find_reference(rivals: Sequence[Summary], name: str | None) -> Summary:
    if name is None:
        return rivals[0]
    for system in rivals:
        if name in (system.group.label, system.group.label.removesuffix(MARK), system.group.first.method):
            return system
    labels = listing([system.group.label for system in rivals])
    raise RicnetError(f"No system on {rivals[0].data} is called {name}: choose {labels} as reference.")


def _check_seeds(group: RunGroup, reference: RunGroup) -> None:
    if group.seeds != reference.seeds:
        raise RicnetError(
            f"{_with_seeds(group)} and {_with_seeds(reference)} cannot be paired: train the missing seeds or leave "
            "the others out."
        )


def _with_seeds(group: RunGroup) -> str:
    seeds = "seeds" if len(group.seeds) > 1 else "seed"
    return f"{group.label} ({seeds} {listing([str(seed) for seed in group.seeds])}, {group.first.path} …)"


def _check_labels(group: RunGroup, own: Sequence[Outcome], reference: RunGroup, base: Sequence[Outcome]) -> None:
    for run, predictions in zip((*reference.runs, *group.runs), (*base, *own), strict=True):
        if not torch.equal(predictions.labels, base[0].labels):
            raise RicnetError(
                f"{run.path} and {reference.first.path} were tested on different examples and cannot be paired: "
                "train both on the same data."
            )


def _read_all(group: RunGroup) -> list[Outcome]:
    return [_read(run) for run in group.runs]


def _read(run: RunRecord) -> Outcome:
    """Test predictions, checked against evaluation.json."""
    predictions = run.predictions()
    nll = float(scores(predictions)[:, 1].mean())
    if abs(nll - run.test["nll"]) > TOLERANCE:
        raise RicnetError(
            f"{run.path / 'predictions.npz'} has NLL {nll:.4f} where evaluation.json says {run.test['nll']:.4f}: "
            "the files belong to different runs; train this one again."
        )
    return predictions


def _order(rivals: Sequence[Summary], metric: Metric) -> str:
    """For example: 1 RIC; 2 SL; 2 ACT; 4 PonderNet."""
    merits = [metric.merit * round(metric.scale * s.intervals[metric.key].mean, metric.digits) for s in rivals]
    ranks = [1 + sum(other > merit for other in merits) for merit in merits]
    ordered = sorted(zip(ranks, rivals, strict=True), key=lambda ranked: ranked[0])
    return "; ".join(f"{rank} {system.label}" for rank, system in ordered)
