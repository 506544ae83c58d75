"""Does 80 % sure mean right 80 times in 100? The reliability diagram and the confidences behind it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ricnet.report.groups import RunGroup
from ricnet.report.looks import looks
from ricnet.report.panels import label_rows, panel_grid
from ricnet.report.statistics import band, mean_interval
from ricnet.report.style import FAINT, INK, styled
from ricnet.report.words import FIGURE, short


@styled
def reliability_figure(groups: Sequence[RunGroup]) -> Figure:
    """A panel for each system, averaged over its seeds."""
    look = looks(groups)
    figure, panels = panel_grid(len(groups), heights=(2.1, 0.7))
    for group, (diagram, histogram) in zip(groups, panels, strict=True):
        _draw_diagram(diagram, group, look[group.label].colour)
        _draw_histogram(histogram, group, look[group.label].colour)
    label_rows(panels, "accuracy", "share, %")
    figure.legend(handles=_legend(), loc="outside lower center", ncols=3)
    return figure


def _legend() -> list[Artist]:
    return [
        Patch(facecolor=FAINT, label="accuracy"),
        Patch(facecolor="none", edgecolor=INK, linewidth=0.5, hatch="//////", label="gap to confidence"),
        Line2D([], [], color=FAINT, linewidth=0.8, linestyle=(0, (4, 3)), label="perfectly calibrated"),
    ]


def _draw_diagram(ax: Axes, group: RunGroup, shade: str) -> None:
    left, width = _edges(group)
    accuracy, confidence = (over_seeds(group, key) for key in ("accuracy", "confidence"))
    filled = ~np.isnan(accuracy)
    left, width, accuracy, gap = left[filled], width[filled], accuracy[filled], (confidence - accuracy)[filled]
    ax.plot([0, 1], [0, 1], color=FAINT, linewidth=0.8, linestyle=(0, (4, 3)), zorder=0)
    ax.bar(left, accuracy, width, align="edge", color=shade, edgecolor="none", alpha=0.8)
    outline: dict[str, Any] = {"facecolor": "none", "edgecolor": INK, "linewidth": 0.5, "hatch": "//////"}
    ax.bar(left, gap, width, accuracy, align="edge", **outline)
    ax.set(xlim=(0, 1), ylim=(0, 1.2), yticks=[0, 0.25, 0.5, 0.75, 1], title=short(group.label, FIGURE))
    ax.text(0.02, 0.99, _facts(group), transform=ax.transAxes, va="top", fontsize=7)


def over_seeds(group: RunGroup, key: str) -> Float[np.ndarray, "bins"]:
    """The mean of each bin over the seeds that have answers in it; NaN where none has."""
    bins = [[entry[key] if entry["n"] else np.nan for entry in run.test["reliability"]] for run in group.runs]
    return band(np.array(bins, dtype=np.float64))[0]


def _facts(group: RunGroup) -> str:
    test, ece = group.first.test, mean_interval([run.test["ece"] for run in group.runs])
    spread = "" if ece.half_width is None else f" ± {ece.half_width:.3f}"
    seeds = "" if ece.n == 1 else f", {ece.n} seeds"
    return f"ECE {ece.mean:.3f}{spread} ({test['ece_bins']} bins)\nn = {test['n']:,}{seeds}"


def _draw_histogram(ax: Axes, group: RunGroup, shade: str) -> None:
    counts = np.array([[entry["n"] for entry in run.test["reliability"]] for run in group.runs])
    shares = 100 * (counts / counts.sum(axis=1, keepdims=True)).mean(axis=0)
    left, width = _edges(group)
    ax.bar(left, shares, width, align="edge", color=shade, alpha=0.8)
    ax.set_xlabel("confidence")


def _edges(group: RunGroup) -> tuple[Float[np.ndarray, "bins"], Float[np.ndarray, "bins"]]:
    bins = group.first.test["reliability"]
    lower = np.array([entry["lower"] for entry in bins], dtype=np.float64)
    return lower, np.array([entry["upper"] for entry in bins]) - lower
