"""How the systems learned: validation accuracy, calibration and log-score, epoch by epoch."""

from collections.abc import Sequence
from math import isfinite

import numpy as np
from jaxtyping import Float, Integer
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ricnet.io import LARGEST_NUMBER
from ricnet.report.figures import Look, by_task, draw_band, legend_below, looks, styled, task_title
from ricnet.report.runs import RunGroup, RunRecord

CURVES = {"accuracy": "validation accuracy", "ece": "validation ECE", "nll": "validation NLL"}


@styled
def training_figure(groups: Sequence[RunGroup]) -> Figure:
    """A row of panels for each data set. Colours are those of all groups, curves of those that were trained."""
    look, shown = looks(groups), trained(groups)
    rows = by_task(shown)
    figure = Figure(figsize=(7.2, 2.0 * len(rows) + 0.3), layout="constrained")
    panels = figure.subplots(len(rows), len(CURVES), squeeze=False)
    for row, alike in zip(panels, rows, strict=True):
        where = f", {task_title(alike[0])}" if len(rows) > 1 else ""
        for ax, (key, title) in zip(row, CURVES.items(), strict=True):
            for group in alike:
                _draw_group(ax, group, key, look[group.label])
            ax.set_title(title + where)
            ax.xaxis.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=1))
            if key != "accuracy":
                ax.set_ylim(bottom=0)
    for ax in panels[-1]:
        ax.set_xlabel("epoch")
    legend_below(figure, [look[group.label] for group in shown])
    return figure


def trained(groups: Sequence[RunGroup]) -> list[RunGroup]:
    """Those that left a record of their training; derived runs only carry that of the run whose weights they took."""
    return [group for group in groups if group.first.derived_from is None and any(run.metrics for run in group.runs)]


def _draw_group(ax: Axes, group: RunGroup, key: str, look: Look) -> None:
    epochs, curves = epoch_curves(group, key)
    if len(epochs):
        most = np.inf if key == "nll" else 1.0
        draw_band(ax, epochs, curves, look.colour, look.dash, ceiling=most, linewidth=1.1, label=look.name)
    for run in group.runs:
        selected, points = run.evaluation.get("selected_epoch"), epoch_scores(run, key)
        if isinstance(selected, int) and selected in points:
            ax.plot([selected], [points[selected]], "o", color=look.colour, markersize=3.5, markeredgecolor="white")


def epoch_curves(
    group: RunGroup, key: str, split: str = "val"
) -> tuple[Integer[np.ndarray, "epochs"], Float[np.ndarray, "seeds epochs"]]:
    """A score at every epoch that all seeds have it for, so that a mean is always over the same seeds."""
    found = [points for run in group.runs if (points := epoch_scores(run, key, split))]
    epochs = sorted(set.intersection(*map(set, found))) if found else []
    curves = np.array([[points[epoch] for epoch in epochs] for points in found], dtype=np.float64)
    return np.array(epochs, dtype=int), curves.reshape(len(found), len(epochs))


def epoch_scores(run: RunRecord, key: str, split: str = "val") -> dict[int, float]:
    """A score of a split by epoch, where the run has measured it, and no larger than can be drawn."""
    scores = {entry["epoch"]: (entry.get(split) or {}).get(key) for entry in run.metrics}
    finite = {epoch: float(score) for epoch, score in scores.items() if score is not None and isfinite(score)}
    return {epoch: min(max(score, -LARGEST_NUMBER), LARGEST_NUMBER) for epoch, score in finite.items()}
