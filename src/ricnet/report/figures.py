"""All the figures of a report, each with its words: one list that the page shows and `save_figures` writes."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from ricnet.report.curves import training_figure
from ricnet.report.refinement import refinement_figure
from ricnet.report.reliability import reliability_figure
from ricnet.report.runs import RunRecord
from ricnet.report.steps import halting_figure, steps_figure
from ricnet.report.style import house_style
from ricnet.report.words import listing


@dataclass(frozen=True)
class Picture:
    name: str
    """The name of its file, without the ending."""
    section: str
    figure: Figure
    alt: str
    caption: str


def save_figures(runs: Sequence[RunRecord], folder: Path) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    return [path for picture in pictures(runs) for path in _save(picture, folder)]


def pictures(runs: Sequence[RunRecord]) -> list[Picture]:
    """Every figure these runs have the data for."""
    found = [_refinement(run) for run in _speakers(runs)]
    found.append(_calibration(runs))
    if any(run.iterative for run in runs):
        found += [_steps(runs), _halting(runs)]
    if any(run.metrics for run in runs):
        found.append(_training(runs))
    return found


def _speakers(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """Other seeds refine alike: the first run of each method on each data set speaks for the rest."""
    first: dict[tuple[str, str], RunRecord] = {}
    for run in runs:
        if run.iterative and run.examples is not None and len(run.examples.labels):
            first.setdefault((run.method, run.data_name), run)
    return list(first.values())


def _refinement(run: RunRecord) -> Picture:
    below = " Below the belief is the value V, the gain still expected: once it falls below zero, the classifier stops."
    has_value = run.examples is not None and run.examples.values is not None
    return Picture(
        name="refinement-" + re.sub(r"[^a-z0-9]+", "-", run.label.lower()).strip("-"),
        section="refinement",
        figure=refinement_figure(run),
        alt=f"The belief of {run.label} about a few test examples, step by step, and where it stops.",
        caption=f"{run.label}: the belief starts evenly spread over all classes (grey) and moves to the true class "
        "(blue) or to its strongest rival (orange); the vertical line is where the classifier stops, and the pale "
        "part is what it would have gone on to believe. The first steps are drawn wider."
        f"{below if has_value else ''} Chosen from the run's stored "
        "test examples: right answers from the fewest steps to the most, and a wrong one where there is any.",
    )


def _calibration(runs: Sequence[RunRecord]) -> Picture:
    errors = listing([f"{run.label} {run.test['ece']:.3f}" for run in runs])
    return Picture(
        name="reliability",
        section="calibration",
        figure=reliability_figure(runs),
        alt=f"Reliability diagram and histogram of confidence. Expected calibration error: {errors}.",
        caption="Test answers sorted into bins by confidence: a bar as high as the diagonal means that answers given "
        "with that confidence are right just as often; below it the classifier is too sure, above it too modest. "
        "The small bars show how many answers each bin holds.",
    )


def _steps(runs: Sequence[RunRecord]) -> Picture:
    at_once = "; grey lines are classifiers that answer at once" if not all(run.iterative for run in runs) else ""
    halts = listing([f"{run.label} {run.test['mean_steps']:.1f}" for run in runs if run.iterative])
    return Picture(
        name="steps",
        section="steps",
        figure=steps_figure(runs),
        alt=f"Accuracy, confidence and calibration error by refinement step. Mean halting step: {halts}.",
        caption="The whole test set, made to answer after each step: what one more step adds in accuracy and "
        "confidence, and what it does to the calibration error. The dotted line is the mean step at which the "
        f"classifier stops by itself{at_once}.",
    )


def _halting(runs: Sequence[RunRecord]) -> Picture:
    return Picture(
        name="halting",
        section="steps",
        figure=halting_figure(runs),
        alt="How many steps were taken before answers that proved right and before answers that proved wrong.",
        caption="How many steps the classifier took, for answers that proved right (upwards) and wrong (downwards), "
        "each in per cent of its own number; triangles mark the means.",
    )


def _training(runs: Sequence[RunRecord]) -> Picture:
    return Picture(
        name="training",
        section="training",
        figure=training_figure(runs),
        alt=f"Validation accuracy, ECE and NLL by epoch: {listing([run.label for run in runs])}.",
        caption="The validation set after every epoch; a dot marks the epoch whose weights were kept.",
    )


def _save(picture: Picture, folder: Path) -> list[Path]:
    png, pdf = folder / f"{picture.name}.png", folder / f"{picture.name}.pdf"
    with house_style():
        picture.figure.savefig(png, dpi=200)
        picture.figure.savefig(pdf, metadata={"CreationDate": None})  # the same run gives the same bytes
    return [png, pdf]
