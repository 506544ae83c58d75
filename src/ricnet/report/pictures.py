"""The figures of a report with alternative text and caption, for the page and for `ric report --figures`.

A figure has one panel per system, or one panel per data set with all systems. Curves are means over seeds with 95 %
intervals.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Integer
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, NullLocator

from ricnet.errors import listing
from ricnet.evaluation.choices import rule_words
from ricnet.evaluation.metrics import risk_at
from ricnet.io import FIGURE, short
from ricnet.report import figures
from ricnet.report.comparison import CELLS, STEPS
from ricnet.report.examples import input_words, refinement_figure
from ricnet.report.exits import budgeted_by, exits_figure
from ricnet.report.runs import RunGroup, RunRecord, by_task, group_seeds, judged_words
from ricnet.report.statistics import mean_interval


@dataclass(frozen=True)
class Picture:
    name: str
    """File name without suffix."""
    section: str
    figure: Figure
    alt: str
    caption: str


def save_figures(runs: Sequence[RunRecord], folder: Path) -> list[Path]:
    """Every figure as PNG and PDF."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for picture in pictures(group_seeds(runs)):
        png, pdf = folder / f"{picture.name}.png", folder / f"{picture.name}.pdf"
        with figures.house_style():
            picture.figure.savefig(png, dpi=200)
            picture.figure.savefig(pdf, metadata={"CreationDate": None})  # equal runs give equal bytes
        written += [png, pdf]
    return written


def pictures(groups: Sequence[RunGroup]) -> list[Picture]:
    """All figures for which these systems have data."""
    found = [_refinement(group) for group in with_examples(groups)[:1]]
    found += [_calibration(groups), *_selective(groups)]
    leaving = [group for group in groups if all(run.has_exits for run in group.runs)]
    if leaving:
        found.append(_exits(leaving))
    if any(group.first.iterative for group in groups):
        found += [_compute(groups)] if len(leaving) < len(groups) else []
        found += [_steps(groups), _halting(groups)]
    if trained(groups):
        found.append(_training(groups))
    return found


def with_examples(groups: Sequence[RunGroup]) -> list[RunGroup]:
    """Iterative systems with stored examples, those with a value function first."""
    able = [g for g in groups if g.first.iterative and g.first.examples is not None and len(g.first.examples.labels)]
    return sorted(able, key=lambda group: group.first.examples is None or group.first.examples.values is None)


def mean_of(group: RunGroup, key: str) -> float:
    """Mean over seeds of a number of the test set; NaN if missing."""
    return float(np.mean(np.array([run.test[key] for run in group.runs], dtype=np.float64)))


def step_curves(group: RunGroup, key: str) -> tuple[Integer[np.ndarray, "steps"], Float[np.ndarray, "seeds steps"]]:
    """A score of the whole test set after each step."""
    tables = [run.test["per_step"] for run in group.runs]
    steps = np.array([entry["step"] for entry in tables[0]])
    return steps, np.array([[entry[key] for entry in table] for table in tables], dtype=np.float64)


def steps_computed(group: RunGroup) -> float:
    """Mean cell evaluations, or mean steps for older runs. Halting by the value needs one evaluation more than steps,
    because the value reads the next thought."""
    counted = all(CELLS.of(run) is not None for run in group.runs)
    return mean_of(group, (CELLS if counted else STEPS).name)


def _mean_steps(group: RunGroup) -> str:
    return STEPS.write(mean_of(group, STEPS.name))


def looks_ahead(group: RunGroup) -> bool:
    return steps_computed(group) > mean_of(group, "mean_steps")


def iterative(groups: Sequence[RunGroup]) -> list[RunGroup]:
    return [group for group in groups if group.first.iterative]


def _band_words(groups: Sequence[RunGroup], figure: Figure) -> str:
    cut = " Bands are cut at the edge of a panel." if figures.cuts_bands(figure) else ""
    return _seeds_words(groups, f" Curves are means over seeds, bands their 95 % Student-t intervals.{cut}")


def _seeds_words(groups: Sequence[RunGroup], words: str) -> str:
    return words if any(len(group.runs) > 1 for group in groups) else ""


# How a belief is refined


def _refinement(group: RunGroup) -> Picture:
    run = group.first
    threshold = f"{run.halt_threshold:g}" if run.halt_threshold else "zero"
    stops = f"it stops {rule_words(run.rule)}" if run.rule else f"it stops once V is less than {threshold}"
    below = f" Below: the value V, the gain that it still expects; {stops}."
    has_value = run.examples is not None and run.examples.values is not None
    inputs = f" {words}" if (words := input_words(run)) else ""
    return Picture(
        name="refinement-" + re.sub(r"[^a-z0-9]+", "-", group.label.lower()).strip("-"),
        section="refinement",
        figure=refinement_figure(run),
        alt=f"The belief of {group.label} about a few test examples, step by step, and where it stops.",
        caption=f"{group.label}: the belief starts uniform over all classes (grey) and moves to the true class (blue) "
        "or to its strongest rival (orange). The vertical line marks where the classifier stops; the pale part shows "
        f"later steps. The first steps are drawn wider.{below if has_value else ''}{inputs} Selected from the stored "
        "test examples: right answers from the fewest steps to the most, and a wrong one if there is any.",
    )


# Reliability diagrams


def _calibration(groups: Sequence[RunGroup]) -> Picture:
    errors = listing([f"{group.label} {mean_of(group, 'ece'):.3f}" for group in groups])
    return Picture(
        name="reliability",
        section="calibration",
        figure=reliability_figure(groups),
        alt=f"Reliability diagram and histogram of confidence. Expected calibration error: {errors}.",
        caption="Test answers in bins of confidence. A bar at the diagonal: confidence equals accuracy; a bar "
        "below it means overconfidence, above it underconfidence. The small bars show the share of answers per bin."
        f"{_seeds_words(groups, ' Each bin is the mean over the seeds with answers in it.')}",
    )


@figures.styled
def reliability_figure(groups: Sequence[RunGroup]) -> Figure:
    """One panel per system: reliability diagram and confidence histogram, averaged over seeds."""
    look = figures.looks(groups)
    figure, panels = figures.panel_grid(len(groups), heights=(2.1, 0.7))
    for group, (diagram, histogram) in zip(groups, panels, strict=True):
        shade, bins = look[group.label].colour, group.first.test["reliability"]
        lower, upper = (np.array([entry[end] for entry in bins], dtype=np.float64) for end in ("lower", "upper"))
        accuracy, confidence = (over_seeds(group, key) for key in ("accuracy", "confidence"))
        figures.draw_reliability(diagram, lower, upper, accuracy, confidence, shade)
        diagram.set(ylim=(0, 1.2), title=short(group.label, FIGURE))
        diagram.text(0.02, 0.99, _facts(group), transform=diagram.transAxes, va="top", fontsize=7)
        counts = np.array([[entry["n"] for entry in run.test["reliability"]] for run in group.runs])
        shares = 100 * (counts / counts.sum(axis=1, keepdims=True)).mean(axis=0)
        histogram.bar(lower, shares, upper - lower, align="edge", color=shade, alpha=0.8)
        histogram.set_xlabel("confidence")
    figures.label_rows(panels, "accuracy", "share, %")
    handles = [Patch(facecolor=figures.FAINT, label="accuracy"), *figures.reliability_handles()]
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    return figure


def over_seeds(group: RunGroup, key: str) -> Float[np.ndarray, "bins"]:
    """Mean of each bin over the seeds with answers in it; NaN if there are none."""
    bins = [[entry[key] if entry["n"] else np.nan for entry in run.test["reliability"]] for run in group.runs]
    return figures.band(np.array(bins, dtype=np.float64))[0]


def _facts(group: RunGroup) -> str:
    test, ece = group.first.test, mean_interval([run.test["ece"] for run in group.runs])
    interval = "" if ece.half_width is None else f" ± {ece.half_width:.3f}"
    seeds = "" if ece.n == 1 else f", {ece.n} seeds"
    return f"ECE {ece.mean:.3f}{interval} ({test['ece_bins']} bins)\nn = {test['n']:,}{seeds}"


# Risk and coverage

COVERAGE = np.arange(1, 201) / 200


def _selective(groups: Sequence[RunGroup]) -> list[Picture]:
    """Empty if no run has predictions.npz."""
    kept, missing = with_predictions(groups)
    if not kept:
        return []
    names = listing([run.label for run in missing]) if missing else ""
    left_out = f" Left out without predictions.npz: {names}; train again to include them." if missing else ""
    figure = risk_figure(groups)
    picture = Picture(
        name="risk",
        section="selection",
        figure=figure,
        alt=f"Share of errors among the answered by share answered: {listing([group.label for group in kept])}.",
        caption="Error rate if only the most confident answers are given. At 100 % every example is answered; a lower "
        f"curve means that confidence separates right from wrong answers better.{_band_words(kept, figure)}{left_out}",
    )
    return [picture]


@figures.styled
def risk_figure(groups: Sequence[RunGroup]) -> Figure:
    """One panel per data set, for runs with predictions.npz."""
    look, shown = figures.looks(groups), with_predictions(groups)[0]
    columns = by_task(shown)
    figure, panels = figures.overlay_grid(len(columns))
    for ax, alike in zip(panels, columns, strict=True):
        for group in alike:
            risks = np.stack([risk_of(run) for run in group.runs])
            figures.draw_band(ax, COVERAGE, risks, look[group.label].colour, look[group.label].dash, ceiling=1.0)
        ax.set(title=figures.task_title(alike[0]), xlabel="answered, most confident first", xlim=(0, 1), ylim=(0, None))
        ax.xaxis.set_major_formatter(figures.percent_ticks())
        ax.yaxis.set_major_formatter(figures.percent_ticks())
        ax.set_ylabel("errors among the answered")
    figures.legend_below(figure, [look[group.label] for group in shown])
    return figure


def with_predictions(groups: Sequence[RunGroup]) -> tuple[list[RunGroup], list[RunRecord]]:
    """The groups with only their runs that have predictions.npz, and the other runs."""
    missing = [run for group in groups for run in group.runs if not run.has_predictions]
    kept = [replace(group, runs=tuple(run for run in group.runs if run.has_predictions)) for group in groups]
    return [group for group in kept if group.runs], missing


def risk_of(run: RunRecord) -> Float[np.ndarray, "coverage"]:
    """Error rate among the most confident answers, for each share in `COVERAGE`."""
    found = run.predictions()
    sureness, answer = found.log_beliefs.max(dim=1)
    return risk_at(torch.from_numpy(COVERAGE), sureness, answer == found.labels).numpy()


# Early exits


def _exits(groups: Sequence[RunGroup]) -> Picture:
    points = [
        f"{group.label} {100 * mean_of(group, 'accuracy'):.1f} % for {100 * mean_of(group, 'mean_cost'):.0f} %"
        for group in groups
    ]
    known = {budgeted_by(run) for group in groups for run in group.runs}
    rules = {"value": "its value falls below a threshold", "confidence": "its confidence rises above a threshold"}
    where = " or ".join(words for rule, words in rules.items() if rule in known)
    each = f" Solid: each example leaves where {where}; the thresholds come from validation data."
    figure = exits_figure(groups)
    return Picture(
        name="exits",
        section="steps",
        figure=figure,
        alt=f"Accuracy, NLL and ECE by the share of compute. They stop at: {listing(points)}.",
        caption="Scores by share of compute (multiply-adds of the whole network). Dotted: all examples leave at the "
        f"same exit, one stroke per exit.{each if where else ''} The dot marks the run as it "
        f"stops.{_band_words(groups, figure)}",
    )


# Accuracy by steps computed

STEP_TICKS = (1, 2, 5, 10, 20, 50, 100, 200, 500)


def _compute(groups: Sequence[RunGroup]) -> Picture:
    points = [f"{group.label} {100 * mean_of(group, 'accuracy'):.1f} % after {_mean_steps(group)}" for group in groups]
    one_pass = " A system with one pass is a point, with a line at its accuracy."
    ahead = [group.label for group in groups if looks_ahead(group)]
    one_more = f" For {listing(ahead)} this includes the step whose value stops it." if ahead else ""
    figure = compute_figure(groups)
    return Picture(
        name="compute",
        section="steps",
        figure=figure,
        alt=f"Test accuracy by steps computed. They stop at: {listing(points)} steps.",
        caption="Accuracy of the whole test set after 1, 2, 3 … steps. The marker shows the system as it stops, at the "
        f"mean number of steps computed.{one_more}"
        f"{one_pass if not all(group.first.iterative for group in groups) else ''}{_band_words(groups, figure)}",
    )


@figures.styled
def compute_figure(groups: Sequence[RunGroup]) -> Figure:
    """One panel per data set with a logarithmic axis of steps; systems with one pass are a point and a level line."""
    look, columns = figures.looks(groups), by_task(groups)
    figure, panels = figures.overlay_grid(len(columns))
    for ax, alike in zip(panels, columns, strict=True):
        for group in alike:
            own = look[group.label]
            if group.first.iterative:
                figures.draw_band(ax, *step_curves(group, "accuracy"), own.colour, own.dash, ceiling=1.0)
            else:
                ax.axhline(mean_of(group, "accuracy"), color=own.colour, linewidth=0.8, linestyle=own.dash, alpha=0.6)
            dot: dict[str, Any] = {"color": own.colour, "markersize": 5.5, "markeredgecolor": "white", "zorder": 3}
            ax.plot(steps_computed(group), mean_of(group, "accuracy"), own.marker, **dot)
        last = max(len(group.first.test["per_step"]) for group in alike)
        ax.set(title=figures.task_title(alike[0]), xlabel="steps computed", xscale="log")
        ax.xaxis.set_major_locator(FixedLocator([tick for tick in STEP_TICKS if tick < 0.8 * last] + [last]))
        ax.xaxis.set_minor_locator(NullLocator())
        ax.xaxis.set_major_formatter("{x:g}")
        ax.yaxis.set_major_formatter(figures.percent_ticks())
        ax.set_ylabel(judged_words("test accuracy", [run for group in groups for run in group.runs]))
    figures.legend_below(figure, look.values(), markers=True)
    return figure


# Scores by step, and halting

LINES: dict[str, Any] = {"accuracy, ECE": "-", "confidence": "--"}
MEAN_HALT: dict[str, Any] = {"color": figures.INK, "linewidth": 0.9, "linestyle": ":"}
AT_ONCE: dict[str, Any] = {"color": figures.FAINT, "linewidth": 0.9, "zorder": 0}
"""Line of a system with one step."""


def _steps(groups: Sequence[RunGroup]) -> Picture:
    at_once = "" if all(group.first.iterative for group in groups) else "; grey lines are systems with one step"
    halts = [f"{group.label} {_mean_steps(group)}" for group in groups if group.first.iterative]
    figure = steps_figure(groups)
    return Picture(
        name="steps",
        section="steps",
        figure=figure,
        alt=f"Accuracy, confidence and calibration error by refinement step. Mean halting step: {listing(halts)}.",
        caption="Accuracy, confidence and calibration error of the whole test set after each step. The dotted line is "
        f"the mean step at which the classifier stops{at_once}.{_band_words(groups, figure)}",
    )


@figures.styled
def steps_figure(groups: Sequence[RunGroup]) -> Figure:
    """One panel per iterative system."""
    look, shown = figures.looks(groups), iterative(groups)
    figure, panels = figures.panel_grid(len(shown), heights=(1.5, 1.1))
    for group, (scores, errors) in zip(shown, panels, strict=True):
        for ax, keys in ((scores, ("accuracy", "mean_confidence")), (errors, ("ece",))):
            for key in keys:
                dash = LINES["confidence"] if key == "mean_confidence" else LINES["accuracy, ECE"]
                figures.draw_band(ax, *step_curves(group, key), look[group.label].colour, dash, ceiling=1.0, label=key)
            ax.axvline(mean_of(group, "mean_steps"), **MEAN_HALT)
            figures.integer_ticks(ax)
        for single in groups:
            if not single.first.iterative and single.first.task == group.first.task:
                scores.axhline(mean_of(single, "accuracy"), **AT_ONCE)
                errors.axhline(mean_of(single, "ece"), **AT_ONCE)
        scores.set_title(short(group.label, FIGURE))
        errors.set_xlabel("step")
    for _, errors in panels:
        errors.set_ylim(bottom=0)  # last, since it also fixes the shared top
    figures.label_rows(panels, "share", "ECE")
    handles = [Line2D([], [], color=figures.INK, linestyle=dash, label=name) for name, dash in LINES.items()]
    handles.append(Line2D([], [], **MEAN_HALT, label="mean halt"))
    if single_labels := [group.label for group in groups if not group.first.iterative]:
        name = f"{listing(single_labels)} (one step)" if len(single_labels) < 3 else "systems of one step"
        handles.append(Line2D([], [], **AT_ONCE, label=name))
    figure.legend(handles=handles, loc="outside lower center", ncols=2 if len(shown) == 1 else 4)
    return figure


def _halting(groups: Sequence[RunGroup]) -> Picture:
    return Picture(
        name="halting",
        section="steps",
        figure=halting_figure(groups),
        alt="Histogram of the steps taken for right and for wrong answers.",
        caption="Steps taken for right answers (upwards) and wrong answers (downwards), each in per cent of its own "
        f"number; triangles mark the means.{_seeds_words(groups, ' Answers of all seeds are counted together.')}",
    )


@figures.styled
def halting_figure(groups: Sequence[RunGroup]) -> Figure:
    """One panel per iterative system, with all seeds pooled."""
    shown = iterative(groups)
    figure, panels = figures.panel_grid(len(shown), heights=(1.9,), same_scale=False)
    for group, (ax,) in zip(shown, panels, strict=True):
        tables = [run.test["halting"] for run in group.runs]
        steps = np.array([entry["step"] for entry in tables[0]])
        right, wrong = (
            np.array([[entry[key] for entry in table] for table in tables]).sum(axis=0) for key in ("correct", "wrong")
        )
        figures.draw_halting(ax, steps, right, wrong)
        ax.legend(handles=figures.halting_handles(int(right.sum()), int(wrong.sum())), loc="best")
        ax.set(title=short(group.label, FIGURE), xlabel="steps taken")
    figures.label_rows(panels, "← wrong, %    right, % →")
    return figure


# Training curves

TRAINING = {"accuracy": "validation accuracy", "ece": "validation ECE", "nll": "validation NLL"}


def _training(groups: Sequence[RunGroup]) -> Picture:
    one, many = "a dot marks the selected epoch", "dots mark the selected epoch of each seed"
    shown, figure = trained(groups), training_figure(groups)
    borrowers = [group.label for group in groups if group.first.derived_from]
    left_out = f" Derived from the weights of another run: {listing(borrowers)}." if borrowers else ""
    return Picture(
        name="training",
        section="training",
        figure=figure,
        alt=f"Validation accuracy, ECE and NLL by epoch: {listing([group.label for group in shown])}.",
        caption=f"Validation scores after every epoch; {_seeds_words(shown, many) or one}.{_band_words(shown, figure)}"
        f"{left_out}",
    )


def trained(groups: Sequence[RunGroup]) -> list[RunGroup]:
    """Groups with training metrics, without derived runs."""
    return [group for group in groups if group.first.derived_from is None and any(run.metrics for run in group.runs)]


@figures.styled
def training_figure(groups: Sequence[RunGroup]) -> Figure:
    """One row of panels per data set, for the groups that were trained."""
    look, shown = figures.looks(groups), trained(groups)
    tasks = by_task(shown)
    figure, panels = figures.score_grid(tasks, TRAINING, "epoch")
    for row, alike in zip(panels, tasks, strict=True):
        for ax, key in zip(row, TRAINING, strict=True):
            for group in alike:
                _draw_training(ax, group, key, look[group.label])
            figures.integer_ticks(ax, 5)
            if key == "accuracy":
                ax.yaxis.set_major_formatter(figures.percent_ticks())
            else:
                ax.set_ylim(bottom=0)
    figures.legend_below(figure, [look[group.label] for group in shown])
    return figure


def _draw_training(ax: Axes, group: RunGroup, key: str, look: figures.Look) -> None:
    epochs, curves = epoch_curves(group, key)
    if len(epochs):
        most = np.inf if key == "nll" else 1.0
        figures.draw_band(ax, epochs, curves, look.colour, look.dash, ceiling=most, linewidth=1.1, label=look.name)
    for run in group.runs:
        selected, points = run.evaluation.get("selected_epoch"), run.curve(key)
        if isinstance(selected, int) and selected in points:
            ax.plot([selected], [points[selected]], "o", color=look.colour, markersize=3.5, markeredgecolor="white")


def epoch_curves(
    group: RunGroup, key: str, split: str = "val"
) -> tuple[Integer[np.ndarray, "epochs"], Float[np.ndarray, "seeds epochs"]]:
    """A score at the epochs that all seeds measured, so that means are over the same seeds."""
    found = [points for run in group.runs if (points := run.curve(key, split))]
    epochs = sorted(set.intersection(*map(set, found))) if found else []
    curves = np.array([[points[epoch] for epoch in epochs] for points in found], dtype=np.float64)
    return np.array(epochs, dtype=int), curves.reshape(len(found), len(epochs))
