"""Figures 4, 7 and 8: how sure SL and RIC are on the test set of a benchmark, and whether they are right as often."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ricnet.report.figures import FAINT, INK, styled
from ricnet.report.runs import RunRecord
from ricnet.studies.cells import Cell, Runs
from ricnet.studies.paper.conditions import conditions
from ricnet.studies.paper.looks import look_of
from ricnet.studies.paper.panels import WIDTH, intervals, legend, letter, note_missing, seeds
from ricnet.studies.paper.recipe import Recipe
from ricnet.studies.paper.rows import Row, Rows, distinct, floats, number, pick
from ricnet.studies.paper.samples import summaries, summary, tabulate_cells
from ricnet.studies.paper.typesetting import write_interval
from ricnet.studies.scales import Scale

SYSTEMS = ("supervised", "ric")
SCORES = ("accuracy", "mean_confidence", "ece")
RARE = 0.01
"""A bin with less than this share of the answers says little, and is drawn pale."""
DIAGONAL: dict[str, Any] = {"color": FAINT, "linewidth": 0.8, "linestyle": (0, (4, 3))}
GAP: dict[str, Any] = {"facecolor": "none", "edgecolor": INK, "linewidth": 0.4, "hatch": "//////"}


def cells(scale: Scale, index: int) -> list[Cell]:
    return scale.cells(SYSTEMS, scale.benchmarks[index : index + 1])


def tabulate(scale: Scale, runs: Runs, index: int) -> Rows:
    return tabulate_cells(scale, cells(scale, index), runs, _rows)


def _rows(runs: Sequence[RunRecord]) -> Rows:
    facts: Row = {"examples": int(runs[0].test["n"]), "bins": int(runs[0].test["ece_bins"])}
    scores: Rows = [{"quantity": score, **summary(run.test[score] for run in runs)} for score in SCORES]
    return [row | facts for row in scores + _bin_rows(runs)]


def _bin_rows(runs: Sequence[RunRecord]) -> Rows:
    """Per bin: its share of the answers, its accuracy and confidence over the seeds that have an answer in it."""
    bins = [run.test["reliability"] for run in runs]
    total = [run.test["n"] for run in runs]
    shares = [[entry["n"] / n for entry in own] for own, n in zip(bins, total, strict=True)]
    tracks = {"share": np.array(shares)} | {
        f"bin {key}": np.array([[entry[key] for entry in own] for own in bins], dtype=float)  # None becomes NaN
        for key in ("accuracy", "confidence")
    }
    return [
        {"quantity": name, "lower": entry["lower"], "upper": entry["upper"], **row}
        for name, track in tracks.items()
        for entry, row in zip(bins[0], summaries(track), strict=True)
    ]


@styled
def draw(rows: Rows) -> Figure:
    figure = Figure(figsize=(WIDTH, 2.7), layout="constrained")
    histogram, *diagrams = figure.subplots(1, 3)
    _draw_histogram(histogram, rows)
    letter(histogram, 0, "confidence")
    for i, (ax, system) in enumerate(zip(diagrams, distinct(rows, "system"), strict=True), start=1):
        _draw_diagram(ax, pick(rows, system=system))
        letter(ax, i, f"reliability of {system}")
    legend(figure, _handles(rows), _notes(rows))
    return figure


def _draw_histogram(ax: Axes, rows: Rows) -> None:
    """The first system filled, the second outlined over it."""
    for system, filled in zip(distinct(rows, "system"), (True, False), strict=True):
        own = pick(rows, system=system, quantity="share")
        if not own:
            continue
        edges = [*floats(own, "lower"), floats(own, "upper")[-1]]
        ax.stairs(100 * floats(own, "mean"), edges, **_histogram_style(system, filled))
    ax.set(xlim=(0, 1), xlabel="confidence", ylabel="share of answers, %")
    ax.set_ylim(0, 1.06 * max([100 * np.nanmax(floats(pick(rows, quantity="share"), "mean"), initial=0), 1]))
    note_missing(ax, rows)


def _histogram_style(system: str, filled: bool) -> dict[str, Any]:
    shade = look_of(system).colour
    return {"color": shade, "fill": filled, "alpha": 0.35 if filled else 1, "linewidth": 0 if filled else 1.3}


def _draw_intervals(ax: Axes, x: np.ndarray, rows: Rows) -> None:
    mean, half = floats(rows, "mean"), floats(rows, "half_width")
    known = np.isfinite(half)
    low, high = np.clip(mean - half, 0, 1), np.clip(mean + half, 0, 1)
    ax.vlines(x[known], low[known], high[known], color=INK, linewidth=0.8, zorder=3)


def _draw_diagram(ax: Axes, rows: Rows) -> None:
    accuracy, confidence, share = (pick(rows, quantity=name) for name in ("bin accuracy", "bin confidence", "share"))
    if accuracy:
        left, height = floats(accuracy, "lower"), floats(accuracy, "mean")
        width = floats(accuracy, "upper") - left
        shade = look_of(str(accuracy[0]["system"])).colour
        bars = ax.bar(left, height, width, align="edge", color=shade, edgecolor="white", linewidth=0.4)
        for bar, weight in zip(bars, floats(share, "mean"), strict=True):
            bar.set_alpha(0.8 if weight >= RARE else 0.3)
        ax.bar(left, floats(confidence, "mean") - height, width, height, align="edge", **GAP)
        _draw_intervals(ax, left + width / 2, accuracy)
        ax.plot([0, 1], [0, 1], zorder=0, **DIAGONAL)
        ax.text(0.03, 0.99, _facts(rows), transform=ax.transAxes, va="top", fontsize=7, linespacing=1.35)
    ax.set(xlim=(0, 1), ylim=(0, 1.42), yticks=[0, 0.25, 0.5, 0.75, 1], xlabel="confidence", ylabel="accuracy")
    note_missing(ax, rows)


def _facts(rows: Rows) -> str:
    accuracy, confidence, ece = (pick(rows, quantity=score) for score in SCORES)
    error = write_interval(number(ece, "mean"), number(ece, "half_width"), 3)
    shares = [
        f"{name} {100 * (number(own, 'mean') or 0):.1f} %"
        for name, own in (("accuracy", accuracy), ("confidence", confidence))
    ]
    return "\n".join([*shares, f"ECE {error}"])


def _handles(rows: Rows) -> list[Any]:
    systems = [
        Patch(**_histogram_style(system, filled), label=f"{system} ({seeds(pick(rows, system=system))})")
        for system, filled in zip(distinct(rows, "system"), (True, False), strict=True)
    ]
    gap = Patch(**GAP, label="gap to confidence")
    return [*systems, gap, Line2D([], [], **DIAGONAL, label="perfectly calibrated")]


def _notes(rows: Rows) -> list[str]:
    size, bins = number(rows, "examples"), number(rows, "bins")
    counts = f", test n = {size:,.0f}, {bins:.0f} bins" if size and bins else ""
    means = f"{distinct(rows, 'benchmark')[0]}{counts}, means over seeds"
    return [
        means,
        conditions(rows),
        intervals(rows, "Lines, cut at 0 and 1"),
        "Pale: bins with less than 1 % of the answers",
    ]


def recipe(name: str, index: int) -> Recipe:
    which = ("first", "second", "third")[index]
    title = f"Confidence and reliability on the {which} benchmark"
    return Recipe(name, title, partial(cells, index=index), partial(tabulate, index=index), draw)
