"""Does 80 % sure mean right 80 times in 100? The reliability diagram and the confidences behind it."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ricnet.report.figures import FAINT, draw_reliability, label_rows, looks, panel_grid, reliability_handles, styled
from ricnet.report.runs import RunGroup
from ricnet.report.statistics import band, mean_interval
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
    figure.legend(
        handles=[Patch(facecolor=FAINT, label="accuracy"), *reliability_handles()], loc="outside lower center", ncols=3
    )
    return figure


def _draw_diagram(ax: Axes, group: RunGroup, shade: str) -> None:
    accuracy, confidence = (over_seeds(group, key) for key in ("accuracy", "confidence"))
    draw_reliability(ax, *_edges(group), accuracy, confidence, shade)
    ax.set(ylim=(0, 1.2), title=short(group.label, FIGURE))
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
    lower, upper = _edges(group)
    ax.bar(lower, shares, upper - lower, align="edge", color=shade, alpha=0.8)
    ax.set_xlabel("confidence")


def _edges(group: RunGroup) -> tuple[Float[np.ndarray, "bins"], Float[np.ndarray, "bins"]]:
    bins = group.first.test["reliability"]
    lower = np.array([entry["lower"] for entry in bins], dtype=np.float64)
    return lower, np.array([entry["upper"] for entry in bins], dtype=np.float64)
