"""All the figures of a report, each with its words: one list that the page shows and `save_figures` writes."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from ricnet.report.compute import compute_figure
from ricnet.report.curves import trained, training_figure
from ricnet.report.figures import cuts_bands, house_style
from ricnet.report.refinement import refinement_figure
from ricnet.report.reliability import reliability_figure
from ricnet.report.risk import risk_figure, with_predictions
from ricnet.report.runs import RunGroup, RunRecord, group_seeds
from ricnet.report.steps import halting_figure, looks_ahead, mean_of, steps_figure
from ricnet.report.thumbnails import BARS
from ricnet.report.words import listing
from ricnet.training.console import rule_words


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
    return [path for picture in pictures(group_seeds(runs)) for path in _save(picture, folder)]


def pictures(groups: Sequence[RunGroup]) -> list[Picture]:
    """Every figure these systems have the data for."""
    found = [_refinement(group) for group in speakers(groups)[:1]]
    found += [_calibration(groups), *_selective(groups)]
    if any(group.first.iterative for group in groups):
        found += [_compute(groups), _steps(groups), _halting(groups)]
    if trained(groups):
        found.append(_training(groups))
    return found


def speakers(groups: Sequence[RunGroup]) -> list[RunGroup]:
    """Systems that can show how a belief is refined, those that know what they still expect to gain first."""
    shown = {
        group.label: run.examples
        for group in groups
        if (run := group.first).iterative and run.examples is not None and len(run.examples.labels)
    }
    speakers = [group for group in groups if group.label in shown]
    return sorted(speakers, key=lambda group: shown[group.label].values is None)


def _refinement(group: RunGroup) -> Picture:
    run = group.first
    threshold = f"{run.halt_threshold:g}" if run.halt_threshold else "zero"
    stops = f"it stops {rule_words(run.rule)}" if run.rule else f"once it is less than {threshold}, it stops"
    below = f" Below the belief is the value V, the gain still expected: {stops}."
    has_value = run.examples is not None and run.examples.values is not None
    in_bars = f" {BARS}" if run.examples is not None and run.examples.are_rows else ""
    return Picture(
        name="refinement-" + re.sub(r"[^a-z0-9]+", "-", group.label.lower()).strip("-"),
        section="refinement",
        figure=refinement_figure(run),
        alt=f"The belief of {group.label} about a few test examples, step by step, and where it stops.",
        caption=f"{group.label}: the belief starts evenly spread over all classes (grey) and moves to the true class "
        "(blue) or to its strongest rival (orange); the vertical line is where the classifier stops, and the pale "
        "part is what it would have gone on to believe. The first steps are drawn wider."
        f"{below if has_value else ''}{in_bars} Chosen from the run's stored "
        "test examples: right answers from the fewest steps to the most, and a wrong one where there is any.",
    )


def _calibration(groups: Sequence[RunGroup]) -> Picture:
    errors = listing([f"{group.label} {mean_of(group, 'ece'):.3f}" for group in groups])
    return Picture(
        name="reliability",
        section="calibration",
        figure=reliability_figure(groups),
        alt=f"Reliability diagram and histogram of confidence. Expected calibration error: {errors}.",
        caption="Test answers sorted into bins by confidence: a bar as high as the diagonal means that answers given "
        "with that confidence are right just as often; below it the classifier is too sure, above it too modest. "
        "The small bars show how many answers each bin holds."
        f"{_seeds_words(groups, ' Each bin is the mean over the seeds that have answers in it.')}",
    )


def _selective(groups: Sequence[RunGroup]) -> list[Picture]:
    """None where no run kept its answers."""
    kept, missing = with_predictions(groups)
    if not kept:
        return []
    names = listing([run.label for run in missing]) if missing else ""
    left_out = f" Left out for want of a predictions.npz: {names}; train again to include them." if missing else ""
    figure = risk_figure(groups)
    picture = Picture(
        name="risk",
        section="selection",
        figure=figure,
        alt=f"Share of errors among the answered by share answered: {listing([group.label for group in kept])}.",
        caption="If only the surest answers are given and the rest are left to somebody else: how many of those given "
        "are wrong. At 100 % it answers everything; the lower a curve stays, the better its confidence tells right "
        f"from wrong.{_bands(kept, figure)}{left_out}",
    )
    return [picture]


def _compute(groups: Sequence[RunGroup]) -> Picture:
    points = [
        f"{group.label} {100 * mean_of(group, 'accuracy'):.1f} % after {mean_of(group, 'mean_steps'):.1f}"
        for group in groups
    ]
    one_pass = " A system of one pass is a point, its level drawn on for comparison."
    ahead = [group.label for group in groups if looks_ahead(group)]
    one_more = f" For {listing(ahead)}, the step whose value says stop is computed too, and counted." if ahead else ""
    figure = compute_figure(groups)
    return Picture(
        name="compute",
        section="steps",
        figure=figure,
        alt=f"Test accuracy by steps computed. They stop at: {listing(points)} steps.",
        caption="What accuracy costs. A curve is the whole test set made to answer after 1, 2, 3 … steps; the marker "
        f"is where the system stops, example by example: the mean number of steps it computes.{one_more}"
        f"{one_pass if not all(group.first.iterative for group in groups) else ''}{_bands(groups, figure)}",
    )


def _steps(groups: Sequence[RunGroup]) -> Picture:
    at_once = "" if all(group.first.iterative for group in groups) else "; grey lines are systems that answer at once"
    halts = [f"{group.label} {mean_of(group, 'mean_steps'):.1f}" for group in groups if group.first.iterative]
    figure = steps_figure(groups)
    return Picture(
        name="steps",
        section="steps",
        figure=figure,
        alt=f"Accuracy, confidence and calibration error by refinement step. Mean halting step: {listing(halts)}.",
        caption="The whole test set, made to answer after each step: what one more step adds in accuracy and "
        "confidence, and what it does to the calibration error. The dotted line is the mean step at which the "
        f"classifier stops{at_once}.{_bands(groups, figure)}",
    )


def _halting(groups: Sequence[RunGroup]) -> Picture:
    return Picture(
        name="halting",
        section="steps",
        figure=halting_figure(groups),
        alt="How many steps were taken before answers that proved right and before answers that proved wrong.",
        caption="How many steps the classifier took, for answers that proved right (upwards) and wrong (downwards), "
        "each in per cent of its own number; triangles mark the means."
        f"{_seeds_words(groups, ' The answers of all seeds are counted together.')}",
    )


def _training(groups: Sequence[RunGroup]) -> Picture:
    one, many = "a dot marks the epoch whose weights were kept", "dots mark the epochs whose weights each seed kept"
    shown, figure = trained(groups), training_figure(groups)
    borrowers = [group.label for group in groups if group.first.derived_from]
    left_out = f" Not trained, but read out of the weights of another: {listing(borrowers)}." if borrowers else ""
    return Picture(
        name="training",
        section="training",
        figure=figure,
        alt=f"Validation accuracy, ECE and NLL by epoch: {listing([group.label for group in shown])}.",
        caption=f"The validation set after every epoch; {_seeds_words(shown, many) or one}.{_bands(shown, figure)}"
        f"{left_out}",
    )


def _bands(groups: Sequence[RunGroup], figure: Figure) -> str:
    cut = " A band that reaches the edge of its panel goes on beyond it." if cuts_bands(figure) else ""
    return _seeds_words(groups, f" Curves are means over seeds, bands their 95 % Student-t intervals.{cut}")


def _seeds_words(groups: Sequence[RunGroup], words: str) -> str:
    return words if any(len(group.runs) > 1 for group in groups) else ""


def _save(picture: Picture, folder: Path) -> list[Path]:
    png, pdf = folder / f"{picture.name}.png", folder / f"{picture.name}.pdf"
    with house_style():
        picture.figure.savefig(png, dpi=200)
        picture.figure.savefig(pdf, metadata={"CreationDate": None})  # the same run gives the same bytes
    return [png, pdf]
