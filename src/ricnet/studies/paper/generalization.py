"""Figure 6: validation accuracy against training accuracy, on each benchmark; Figure 2 (c) is the same on the first.

Epochs are compared at equal training accuracy: those whose training accuracy falls into the same two points are one
sample of a seed, their mean validation accuracy. Lines are drawn where at least two seeds have one,
bands where all have.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ricnet.report.figures import FAINT, styled
from ricnet.report.runs import RunRecord
from ricnet.studies.cells import Cell, Runs
from ricnet.studies.paper.conditions import conditions
from ricnet.studies.paper.curves import curves, measured
from ricnet.studies.paper.looks import look_of
from ricnet.studies.paper.panels import (
    WIDTH,
    draw_curve,
    fit,
    intervals,
    legend,
    letter,
    note_missing,
    system_handles,
    system_line,
    thin,
)
from ricnet.studies.paper.recipe import Recipe
from ricnet.studies.paper.rows import Rows, distinct, floats, number, pick
from ricnet.studies.paper.samples import summaries, tabulate_cells
from ricnet.studies.scales import Scale

LEVELS = 50
"""Bins of training accuracy, each 1/50 = two points wide."""


def cells(scale: Scale) -> list[Cell]:
    return scale.cells(["supervised", "ric"], scale.benchmarks)


def tabulate(scale: Scale, runs: Runs) -> Rows:
    return tabulate_cells(scale, cells(scale), runs, generalization_rows, measured)


def generalization_rows(runs: Sequence[RunRecord]) -> Rows:
    """Each epoch's means over the seeds, and the levels of equal training accuracy."""
    epochs, train = curves(runs, "train", "accuracy")
    validated, val = curves(runs, "validation", "accuracy")
    both = np.intersect1d(epochs, validated)
    train, val = train[:, np.isin(epochs, both)], val[:, np.isin(validated, both)]
    points = zip(both.tolist(), np.nanmean(train, axis=0).tolist(), summaries(val), strict=True)
    rows: Rows = [{"quantity": "epoch", "epoch": epoch, "train": at, **row} for epoch, at, row in points]
    return rows + _level_rows(train, val)


def _level_rows(train: Float[np.ndarray, "seeds epochs"], val: Float[np.ndarray, "seeds epochs"]) -> Rows:
    level = np.minimum(np.floor(train * LEVELS), LEVELS - 1)
    present = np.unique(level[np.isfinite(level)])
    tracks = np.array([[_mean(seed[at == k]) for k in present] for seed, at in zip(val, level, strict=True)])
    places = [float(train[level == k].mean()) for k in present]
    return [{"quantity": "level", "train": place, **row} for place, row in zip(places, summaries(tracks), strict=True)]


def _mean(values: Float[np.ndarray, "epochs"]) -> float:
    return float(values.mean()) if values.size else np.nan


@styled
def draw(rows: Rows) -> Figure:
    benchmarks = distinct(rows, "benchmark")
    figure = Figure(figsize=(WIDTH, 2.6), layout="constrained")
    axes = figure.subplots(1, len(benchmarks), squeeze=False)[0]
    for i, (ax, benchmark) in enumerate(zip(axes, benchmarks, strict=True)):
        draw_generalization(ax, pick(rows, benchmark=benchmark))
        letter(ax, i, benchmark)
    for ax in axes[1:]:
        ax.set_ylabel("")
    legend(figure, system_handles(rows), [conditions(rows), intervals(rows), levels_note(rows, "Lines")])
    return figure


def levels_note(rows: Rows, lines: str) -> str:
    """What is a line and what a dot; a single seed has all its lines and no band to explain."""
    if floats(rows, "seeds").max() < 2:
        return f"{lines}: epochs of equal training accuracy; dots: epochs"
    levels = "training accuracies that two or more seeds reached, bands: that all did"
    return f"{lines}: {levels}; dots: epochs, alone where one seed did"


def draw_generalization(ax: Axes, rows: Rows) -> None:
    for system in distinct(rows, "system"):
        own = pick(rows, system=system)
        epochs, levels = thin(pick(own, quantity="epoch")), _shown_levels(pick(own, quantity="level"))
        dots: dict[str, Any] = {"s": 3, "alpha": 0.35, "linewidths": 0, "zorder": 1}
        ax.scatter(floats(epochs, "train"), floats(epochs, "mean"), color=look_of(system).colour, **dots)
        draw_curve(ax, levels, "train", **system_line(system, len(levels)))
    _frame(ax, pick(rows, quantity="epoch"))
    note_missing(ax, rows)


def _shown_levels(levels: Rows) -> Rows:
    """Two seeds of many give a mean worth drawing, but an interval of 13 standard errors that hides all others."""
    several = [row for row in levels if (number([row], "n") or 0) >= min(2, number([row], "seeds") or 0)]
    return [row | {"half_width": row["half_width"] if row["n"] == row["seeds"] else None} for row in several]


def _frame(ax: Axes, epochs: Rows) -> None:
    """The upper part of training, where systems can be compared; the diagonal is no generalisation gap at all."""
    if not epochs:
        return
    train, val = floats(epochs, "train"), floats(epochs, "mean")
    start = max(train.min(), min(np.quantile(train, 0.1), train.max() - 0.1))
    ax.plot([0, 1], [0, 1], color=FAINT, linewidth=0.8, linestyle=(0, (4, 3)), zorder=0)
    fit(ax, val[train >= start])
    ax.set_xlim(start - 0.02 * (1 - start), 1 + 0.02 * (1 - start))
    ax.set(xlabel="training accuracy", ylabel="validation accuracy")


RECIPE = Recipe("fig6", "Validation accuracy as a function of training accuracy", cells, tabulate, draw)
