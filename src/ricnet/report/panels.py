"""Where panels stand in a figure: one for each system, or one for each data set with all its systems."""

import math
from collections.abc import Sequence
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ricnet.report.groups import RunGroup
from ricnet.report.runs import Task
from ricnet.report.words import FIGURE, short


def task_title(group: RunGroup) -> str:
    return short(group.first.data_label, FIGURE)


def by_task(groups: Sequence[RunGroup]) -> list[list[RunGroup]]:
    """Systems of the same task, together: only those belong in one panel."""
    found: dict[Task, list[RunGroup]] = {}
    for group in groups:
        found.setdefault(group.first.task, []).append(group)
    return list(found.values())


def panel_grid(count: int, heights: tuple[float, ...], *, same_scale: bool = True) -> tuple[Figure, list[list[Axes]]]:
    """A figure of `count` panels, at most four abreast; each panel is a stack of axes of these heights (inches)."""
    rows = math.ceil(count / 4)
    columns = math.ceil(count / rows)
    figure = Figure(figsize=(max(3.6, 2.3 * columns), rows * (sum(heights) + 0.55)))
    figure.set_layout_engine("constrained", h_pad=0.07)  # inches, so that a title is nearer to its own panel
    ratios = list(heights) * rows
    sharey: Literal["row", "none"] = "row" if same_scale else "none"
    axes = figure.subplots(len(ratios), columns, squeeze=False, sharex=True, sharey=sharey, height_ratios=ratios)
    depth = len(heights)
    panels = [[axes[depth * (i // columns) + k, i % columns] for k in range(depth)] for i in range(rows * columns)]
    for spare in panels[count:]:
        for ax in spare:
            ax.remove()
    for panel in panels[:count]:
        panel[-1].tick_params(labelbottom=True)
    return figure, panels[:count]


def overlay_grid(count: int) -> tuple[Figure, list[Axes]]:
    """Panels in which all systems meet, at most three abreast; one alone is as wide as a phone."""
    rows = math.ceil(count / 3)
    columns = math.ceil(count / rows)
    figure = Figure(figsize=(3.9 if count == 1 else 3.1 * columns, 2.5 * rows + 0.3), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for spare in axes[count:]:
        spare.remove()
    return figure, axes[:count]


def label_rows(panels: Sequence[Sequence[Axes]], *labels: str) -> None:
    """Scales are named once a row, at its left end."""
    for panel in panels:
        for ax, label in zip(panel, labels, strict=True):
            place = ax.get_subplotspec()
            if place is not None and place.is_first_col():
                ax.set_ylabel(label)
