"""Does 80 % sure mean right 80 times in 100? The reliability diagram and the confidences behind it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ricnet.report.runs import RunRecord
from ricnet.report.style import FAINT, INK, colour, label_rows, panel_grid, styled


@styled
def reliability_figure(runs: Sequence[RunRecord]) -> Figure:
    figure, panels = panel_grid(len(runs), heights=(2.1, 0.7))
    for run, (diagram, histogram) in zip(runs, panels, strict=True):
        _draw_diagram(diagram, run)
        _draw_histogram(histogram, run)
    label_rows(panels, "accuracy", "share, %")
    figure.legend(handles=_legend(), loc="outside lower center", ncols=3)
    return figure


def _legend() -> list[Artist]:
    return [
        Patch(facecolor=FAINT, label="accuracy"),
        Patch(facecolor="none", edgecolor=INK, linewidth=0.5, hatch="//////", label="gap to confidence"),
        Line2D([], [], color=FAINT, linewidth=0.8, linestyle=(0, (4, 3)), label="perfectly calibrated"),
    ]


def _draw_diagram(ax: Axes, run: RunRecord) -> None:
    bins = [entry for entry in run.test["reliability"] if entry["n"] > 0]
    left, width = _edges(bins)
    accuracy = np.array([entry["accuracy"] for entry in bins])
    gap = np.array([entry["confidence"] for entry in bins]) - accuracy
    ax.plot([0, 1], [0, 1], color=FAINT, linewidth=0.8, linestyle=(0, (4, 3)), zorder=0)
    ax.bar(left, accuracy, width, align="edge", color=colour(run), edgecolor="none", alpha=0.8)
    outline: dict[str, Any] = {"facecolor": "none", "edgecolor": INK, "linewidth": 0.5, "hatch": "//////"}
    ax.bar(left, gap, width, accuracy, align="edge", **outline)
    ax.set(xlim=(0, 1), ylim=(0, 1.13), yticks=[0, 0.25, 0.5, 0.75, 1], title=run.label)
    facts = f"ECE {run.test['ece']:.3f} ({run.test['ece_bins']} bins), n = {run.test['n']:,}"
    ax.text(0.02, 0.99, facts, transform=ax.transAxes, va="top", fontsize=7)


def _draw_histogram(ax: Axes, run: RunRecord) -> None:
    bins = run.test["reliability"]
    left, width = _edges(bins)
    counts = np.array([entry["n"] for entry in bins])
    ax.bar(left, 100 * counts / max(counts.sum(), 1), width, align="edge", color=colour(run), alpha=0.8)
    ax.set_xlabel("confidence")


def _edges(bins: Sequence[dict[str, Any]]) -> tuple[np.ndarray, np.ndarray]:
    lower = np.array([entry["lower"] for entry in bins])
    return lower, np.array([entry["upper"] for entry in bins]) - lower
