"""The figures of a report with alternative text and caption, for the page and for `ric report --figures`.

Curves are means over seeds with 95 % intervals.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Integer
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ricnet.core.trajectory import halting_step
from ricnet.errors import listing
from ricnet.evaluation.choices import rule_words
from ricnet.evaluation.evaluate import read_predictions, scores_at
from ricnet.evaluation.metrics import risk_at
from ricnet.io import FIGURE, short
from ricnet.methods import METHODS
from ricnet.report import figures
from ricnet.report.comparison import ECE, STEPS, interval_of
from ricnet.report.examples import input_words, refinement_figure
from ricnet.report.figures import FAINT, INK, Look
from ricnet.report.runs import RunGroup, RunRecord, by_task, group_seeds

Looks = Mapping[str, Look]
"""Look of each system by its label, the same in all figures of a report."""


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
    iterative = [group for group in groups if group.first.iterative]
    leaving = [group for group in groups if all(run.has_exits for run in group.runs)]
    answered, taught = with_predictions(groups), trained(groups)
    look = figures.looks(groups)
    found = [_refinement(group) for group in with_examples(groups)[:1]]
    found.append(reliability(groups))
    found += [risk(answered, look)] if answered else []
    found += [exits(leaving, look)] if leaving else []
    found += [steps(groups, look), halting(iterative)] if iterative else []
    found += [training(taught, look)] if taught else []
    return found


def with_examples(groups: Sequence[RunGroup]) -> list[RunGroup]:
    """Iterative systems with stored examples, those with a value function first."""
    able = [g for g in groups if g.first.iterative and g.first.examples is not None and len(g.first.examples.labels)]
    return sorted(able, key=lambda group: group.first.examples is None or group.first.examples.values is None)


def with_predictions(groups: Sequence[RunGroup]) -> list[RunGroup]:
    """The groups with only their runs that have predictions.npz."""
    kept = [replace(group, runs=tuple(run for run in group.runs if run.has_predictions)) for group in groups]
    return [group for group in kept if group.runs]


def trained(groups: Sequence[RunGroup]) -> list[RunGroup]:
    """Groups with training metrics, without derived runs."""
    return [group for group in groups if group.first.derived_from is None and any(run.metrics for run in group.runs)]


def mean_of(group: RunGroup, key: str) -> float:
    """Mean over seeds of a number of the test set; NaN if missing."""
    return float(np.mean(np.array([run.test.get(key) for run in group.runs], dtype=np.float64)))


def _band_words(groups: Sequence[RunGroup], figure: Figure) -> str:
    cut = " Bands are cut at the edge of a panel." if figures.cuts_bands(figure) else ""
    several = any(len(group.runs) > 1 for group in groups)
    return f" Curves are means over seeds, bands their 95 % Student-t intervals.{cut}" * several


# Accuracy, NLL and ECE by step, by share of compute and by epoch

SCORES = {"accuracy": "accuracy", "nll": "NLL", "ece": "ECE"}


def _draw_scores(
    groups: Sequence[RunGroup],
    look: Looks,
    split: str,
    xlabel: str,
    draw: Callable[[Axes, RunGroup, str, Look], None],
) -> Figure:
    """One row of panels per data set, one panel per score; `draw` adds a system to a panel."""
    tasks = by_task(groups)
    figure = Figure(figsize=(7.2, 2.1 * len(tasks) + 0.35), layout="constrained")
    panels = figure.subplots(len(tasks), len(SCORES), squeeze=False)
    for row, alike in zip(panels, tasks, strict=True):
        where = f", {figures.task_title(alike[0])}" if len(tasks) > 1 else ""
        for ax, (key, title) in zip(row, SCORES.items(), strict=True):
            ax.set_title(f"{split} {title}{where}")
            for group in alike:
                draw(ax, group, key, look[group.label])
            if key != "nll":
                figures.end_at_whole(ax)
        row[0].yaxis.set_major_formatter(figures.percent_ticks())
    for ax in panels[-1]:
        ax.set_xlabel(xlabel)
    return figure


def _judged(groups: Sequence[RunGroup]) -> str:
    return "test" if any(run.judged_on == "test" for group in groups for run in group.runs) else "validation"


def _highest(key: str) -> float:
    return np.inf if key == "nll" else 1.0


def _draw_dot(ax: Axes, x: float | int, y: float, look: Look, marker: str = "o", size: float = 5.5) -> None:
    ax.plot([x], [y], marker, color=look.colour, markersize=size, markeredgecolor="white", zorder=3)


@figures.styled
def steps(groups: Sequence[RunGroup], look: Looks) -> Picture:
    def draw(ax: Axes, group: RunGroup, key: str, own: Look) -> None:
        if group.first.iterative:
            figures.draw_band(ax, *step_curves(group, key), own.colour, own.dash, ceiling=_highest(key))
        else:
            ax.axhline(mean_of(group, key), color=own.colour, linewidth=0.8, linestyle=own.dash, alpha=0.6)
        _draw_dot(ax, mean_of(group, "mean_steps"), mean_of(group, key), own, own.marker)
        figures.integer_ticks(ax)

    figure = _draw_scores(groups, look, _judged(groups), "step", draw)
    figures.legend_below(figure, [look[group.label] for group in groups], markers=True)
    one_step = "" if all(group.first.iterative for group in groups) else " A level line is a system with one step."
    halts = [f"{group.label} {STEPS.write(mean_of(group, 'mean_steps'))}" for group in groups if group.first.iterative]
    return Picture(
        name="steps",
        section="steps",
        figure=figure,
        alt=f"Accuracy, NLL and ECE by refinement step. Mean halting step: {listing(halts)}.",
        caption="Scores of the whole test set after each step. The marker shows the system as it stops, at its mean "
        f"number of steps.{one_step}{_band_words(groups, figure)}",
    )


def step_curves(group: RunGroup, key: str) -> tuple[Integer[np.ndarray, "steps"], Float[np.ndarray, "seeds steps"]]:
    """A score of the whole test set after each step."""
    tables = [run.test["per_step"] for run in group.runs]
    steps = np.array([entry["step"] for entry in tables[0]])
    return steps, np.array([[entry[key] for entry in table] for table in tables], dtype=np.float64)


@figures.styled
def training(groups: Sequence[RunGroup], look: Looks) -> Picture:
    def draw(ax: Axes, group: RunGroup, key: str, own: Look) -> None:
        epochs, curves = epoch_curves(group, key)
        if len(epochs):
            figures.draw_band(ax, epochs, curves, own.colour, own.dash, ceiling=_highest(key), linewidth=1.1)
        for run in group.runs:
            selected, points = run.evaluation.get("selected_epoch"), run.curve(key)
            if selected in points:
                _draw_dot(ax, selected, points[selected], own, size=3.5)
        figures.integer_ticks(ax, 5)

    fitted = [group.label for group in groups if group.first.final_fit]
    rows = "training" if len(fitted) == len(groups) else "validation"
    words = f" The scores of {listing(fitted)} are on training rows (--final-fit)." if fitted else ""
    figure = _draw_scores(groups, look, rows, "epoch", draw)
    for i, ax in enumerate(figure.axes):
        if i % len(SCORES):  # all but accuracy; last, since it also fixes the top
            ax.set_ylim(bottom=0)
    figures.legend_below(figure, [look[group.label] for group in groups])
    return Picture(
        name="training",
        section="training",
        figure=figure,
        alt=f"{rows.capitalize()} accuracy, NLL and ECE by epoch: {listing([group.label for group in groups])}.",
        caption=f"{rows.capitalize()} scores after every epoch; a dot marks the selected epoch of a run.{words}"
        f"{_band_words(groups, figure)}",
    )


def epoch_curves(
    group: RunGroup, key: str, split: str = "val"
) -> tuple[Integer[np.ndarray, "epochs"], Float[np.ndarray, "seeds epochs"]]:
    """A score at the epochs that all seeds measured, so that means are over the same seeds."""
    found = [points for run in group.runs if (points := run.curve(key, split))]
    epochs = sorted(set.intersection(*map(set, found))) if found else []
    curves = np.array([[points[epoch] for epoch in epochs] for points in found], dtype=np.float64)
    return np.array(epochs, dtype=int), curves.reshape(len(found), len(epochs))


# Early exits. All examples leave at the same exit, or each where its value falls below a threshold (without a value:
# where its confidence rises above one). Thresholds come from validation data.

THRESHOLDS = 40
TOGETHER: dict[str, Any] = {"linestyle": ":", "marker": "|", "markersize": 7, "linewidth": 1.0}


@figures.styled
def exits(groups: Sequence[RunGroup], look: Looks) -> Picture:
    def draw(ax: Axes, group: RunGroup, key: str, own: Look) -> None:
        ax.plot(*exit_means(group, key), color=own.colour, **TOGETHER)
        shares, curves = budget_curves(group, key)
        if len(curves):
            figures.draw_band(ax, shares, curves, own.colour, ceiling=_highest(key))
        _draw_dot(ax, mean_of(group, "mean_cost"), mean_of(group, key), own)
        ax.set_xlim(0, 1.02)
        ax.xaxis.set_major_formatter(figures.percent_ticks())

    figure = _draw_scores(groups, look, _judged(groups), "share of compute", draw)
    rules = {rule: None for group in groups for run in group.runs if (rule := budgeted_by(run))}
    ways = [Line2D([], [], color=INK, label=f"each by its {' or '.join(rules)}")] if rules else []
    ways.append(Line2D([], [], color=INK, **TOGETHER, label="all at the same exit"))
    systems = [replace(look[group.label], dash="-") for group in groups]
    figures.legend_below(figure, systems if len(systems) > 1 else [], more=ways)
    points = [
        f"{group.label} {100 * mean_of(group, 'accuracy'):.1f} % for {100 * mean_of(group, 'mean_cost'):.0f} %"
        for group in groups
    ]
    return Picture(
        name="exits",
        section="steps",
        figure=figure,
        alt=f"Accuracy, NLL and ECE by the share of compute. They stop at: {listing(points)}.",
        caption="Scores by share of compute (multiply-adds of the whole network). Dotted: all examples leave at the "
        "same exit, one stroke per exit. Solid: each example leaves by its value or confidence, at thresholds from "
        f"validation data. The dot marks the run as it stops.{_band_words(groups, figure)}",
    )


def exit_means(group: RunGroup, key: str) -> tuple[Float[np.ndarray, "exits"], Float[np.ndarray, "exits"]]:
    """Cost and score of each exit if all examples leave there, averaged over seeds."""
    return np.mean([run.costs for run in group.runs], axis=0), step_curves(group, key)[1].mean(axis=0)


def budget_curves(group: RunGroup, key: str) -> tuple[Float[np.ndarray, "shares"], Float[np.ndarray, "seeds shares"]]:
    """Score by share of compute if each example leaves by its value or confidence; one curve per seed."""
    found = [_spending(run) for run in group.runs if budgeted_by(run)]
    if not found:
        return np.empty(0), np.empty((0, 0))
    shares = np.linspace(max(each["cost"][0] for each in found), min(each["cost"][-1] for each in found), THRESHOLDS)
    return shares, np.stack([np.interp(shares, each["cost"], each[key]) for each in found])


def budgeted_by(run: RunRecord) -> Literal["value", "confidence"] | None:
    """The quantity that is compared with a threshold, if the run stored it."""
    if not (run.has_exits and run.has_predictions):
        return None
    if run.predictions().values is not None:
        return "value"
    method = METHODS.get(run.config["method"]["name"])  # None for an unregistered method
    return "confidence" if method is not None and method().takes_budget else None


def _spending(run: RunRecord) -> dict[str, Float[np.ndarray, "thresholds"]]:
    """Cost and scores on the test set by threshold, from the least compute to the most."""
    held_out, test = read_predictions(run.path, "val"), run.predictions()
    costs = torch.tensor(run.costs, dtype=torch.float64)
    lowest = held_out.continuation[1:].cummin(0).values
    inner = np.quantile(lowest.numpy(), np.linspace(1, 0, THRESHOLDS))
    points = []
    for threshold in (np.inf, *inner, -np.inf):
        halt = halting_step(test.continuation, float(threshold))
        points.append({"cost": float(costs[halt - 1].mean()), **scores_at(test, halt)})
    return {key: np.array([point[key] for point in points]) for key in points[0]}


# Reliability, risk and halting


@figures.styled
def reliability(groups: Sequence[RunGroup]) -> Picture:
    """One panel per system: reliability diagram and confidence histogram, averaged over seeds."""
    look = figures.looks(groups)
    figure, panels = figures.panel_grid(len(groups), heights=(2.1, 0.7))
    for group, (diagram, histogram) in zip(groups, panels, strict=True):
        shade, test, ece = look[group.label].colour, group.first.test, interval_of(group, ECE)
        lower, upper = (np.array([entry[end] for entry in test["reliability"]], float) for end in ("lower", "upper"))
        accuracy, confidence = (over_seeds(group, key) for key in ("accuracy", "confidence"))
        figures.draw_reliability(diagram, lower, upper, accuracy, confidence, shade)
        diagram.set(ylim=(0, 1.2), title=short(group.label, FIGURE))
        facts = f"ECE {ECE.write(ece.mean, ece.half_width)} ({test['ece_bins']} bins)\nn = {test['n']:,}"
        facts += f", {ece.n} seeds" * (ece.n > 1)
        diagram.text(0.02, 0.99, facts, transform=diagram.transAxes, va="top", fontsize=7)
        counts = np.array([[entry["n"] for entry in run.test["reliability"]] for run in group.runs])
        shares = 100 * (counts / counts.sum(axis=1, keepdims=True)).mean(axis=0)
        histogram.bar(lower, shares, upper - lower, align="edge", color=shade, alpha=0.8)
        histogram.set_xlabel("confidence")
    figures.label_rows(panels, "accuracy", "share, %")
    handles = [Patch(facecolor=FAINT, label="accuracy"), *figures.reliability_handles()]
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    errors = listing([f"{group.label} {mean_of(group, 'ece'):.3f}" for group in groups])
    return Picture(
        name="reliability",
        section="calibration",
        figure=figure,
        alt=f"Reliability diagram and histogram of confidence. Expected calibration error: {errors}.",
        caption="Test answers in bins of confidence, as means over seeds. A bar at the diagonal: confidence equals "
        "accuracy; a bar below it means overconfidence, above it underconfidence. The small bars show the share of "
        "answers per bin.",
    )


def over_seeds(group: RunGroup, key: str) -> Float[np.ndarray, "bins"]:
    """Mean of each bin over the seeds with answers in it; NaN if there are none."""
    bins = [[entry[key] if entry["n"] else np.nan for entry in run.test["reliability"]] for run in group.runs]
    return figures.band(np.array(bins, dtype=np.float64))[0]


COVERAGE = np.arange(1, 201) / 200


@figures.styled
def risk(groups: Sequence[RunGroup], look: Looks) -> Picture:
    """One panel per data set, for runs with predictions.npz."""
    tasks = by_task(groups)
    figure, panels = figures.panel_grid(len(tasks), heights=(2.1,), same_scale=False)
    for (ax,), alike in zip(panels, tasks, strict=True):
        for group in alike:
            risks = np.stack([risk_of(run) for run in group.runs])
            figures.draw_band(ax, COVERAGE, risks, look[group.label].colour, look[group.label].dash, ceiling=1.0)
        ax.set(title=figures.task_title(alike[0]), xlabel="answered, most confident first", xlim=(0, 1), ylim=(0, None))
        ax.xaxis.set_major_formatter(figures.percent_ticks())
        ax.yaxis.set_major_formatter(figures.percent_ticks())
    figures.label_rows(panels, "errors among the answered")
    figures.legend_below(figure, [look[group.label] for group in groups])
    return Picture(
        name="risk",
        section="selection",
        figure=figure,
        alt=f"Share of errors among the answered by share answered: {listing([group.label for group in groups])}.",
        caption="Error rate if only the most confident answers are given. At 100 % every example is answered; a lower "
        f"curve means that confidence separates right from wrong answers better.{_band_words(groups, figure)}",
    )


def risk_of(run: RunRecord) -> Float[np.ndarray, "coverage"]:
    """Error rate among the most confident answers, for each share in `COVERAGE`."""
    found = run.predictions()
    sureness, answer = found.log_beliefs.max(dim=1)
    return risk_at(torch.from_numpy(COVERAGE), sureness, answer == found.labels).numpy()


@figures.styled
def halting(groups: Sequence[RunGroup]) -> Picture:
    """One panel per system, with all seeds pooled."""
    figure, panels = figures.panel_grid(len(groups), heights=(1.9,), same_scale=False)
    for group, (ax,) in zip(groups, panels, strict=True):
        tables = [run.test["halting"] for run in group.runs]
        steps = np.array([entry["step"] for entry in tables[0]])
        right, wrong = (
            np.array([[entry[key] for entry in table] for table in tables]).sum(axis=0) for key in ("correct", "wrong")
        )
        figures.draw_halting(ax, steps, right, wrong)
        ax.legend(handles=figures.halting_handles(int(right.sum()), int(wrong.sum())), loc="best")
        ax.set(title=short(group.label, FIGURE), xlabel="steps taken")
    figures.label_rows(panels, "← wrong, %    right, % →")
    return Picture(
        name="halting",
        section="steps",
        figure=figure,
        alt="Histogram of the steps taken for right and for wrong answers.",
        caption="Steps taken for right answers (upwards) and wrong answers (downwards), each in per cent of its own "
        "number; triangles mark the means. Answers of all seeds are counted together.",
    )


# How a belief is refined


def _refinement(group: RunGroup) -> Picture:
    run = group.first
    threshold = run.halt_threshold
    by_method = "after all steps" if threshold is None else f"once V is less than {threshold:g}"
    stops = rule_words(run.rule) if run.rule else by_method
    below = f" Below: the value V, the gain that it still expects; it stops {stops}."
    has_value = run.examples is not None and run.examples.values is not None
    return Picture(
        name="refinement-" + re.sub(r"[^a-z0-9]+", "-", group.label.lower()).strip("-"),
        section="refinement",
        figure=refinement_figure(run),
        alt=f"The belief of {group.label} about a few test examples, step by step, and where it stops.",
        caption=f"{group.label}: the belief starts uniform over all classes (grey) and moves to the true class (blue) "
        "or to its strongest rival (orange). The vertical line marks where the classifier stops; the pale part shows "
        f"later steps. The first steps are drawn wider.{below * has_value} {input_words(run)} Selected from the stored "
        "test examples: right answers from the fewest steps to the most, and a wrong one if there is any.",
    )
