"""Figure of learning speed: scores of each epoch against seconds of training."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Num
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ricnet.io import FIGURE, short
from ricnet.report.figures import INK, Look, draw_band, looks, styled, task_title
from ricnet.report.pictures import epoch_curves, trained
from ricnet.report.runs import RunGroup, by_task

CURVES = {"accuracy": "accuracy", "ece": "ECE", "nll": "NLL"}
SPLITS: dict[str, Any] = {"test": "-", "val": ":"}
NAMES = {"test": "test (selects nothing)", "val": "validation"}


@styled
def pace_figure(groups: Sequence[RunGroup]) -> Figure:
    """One row of panels per data set; a dot marks the selected epoch."""
    shown = [group for group in trained(groups) if all(run.clock for run in group.runs)]
    look, rows = looks(shown), by_task(shown)
    figure = Figure(figsize=(7.2, 2.1 * len(rows) + 0.4), layout="constrained")
    panels = figure.subplots(len(rows), len(CURVES), squeeze=False)
    for row, alike in zip(panels, rows, strict=True):
        for ax, (key, title) in zip(row, CURVES.items(), strict=True):
            for group in alike:
                _draw_group(ax, group, key, look[group.label])
            _frame(ax, key, f"{title}, {task_title(alike[0])}" if len(rows) > 1 else title)
    for ax in panels[-1]:
        ax.set_xlabel("seconds of training")
    figure.legend(handles=_handles(shown, look), loc="outside lower center", ncols=4)
    return figure


def _draw_group(ax: Axes, group: RunGroup, key: str, look: Look) -> None:
    for split, dash in SPLITS.items():
        epochs, curves = epoch_curves(group, key, split)
        if len(epochs):
            most = np.inf if key == "nll" else 1.0
            curves = between(epochs, curves)
            draw_band(ax, _seconds(group, epochs.tolist()), curves, look.colour, dash, ceiling=most, linewidth=1.1)
    for run in group.runs:
        scores = run.curve(key, "test") or run.curve(key)
        clock, selected = run.clock, run.evaluation.get("selected_epoch")
        if selected in clock and selected in scores:
            dot: dict[str, Any] = {"color": look.colour, "markersize": 4.5, "markeredgecolor": "white", "zorder": 3}
            ax.plot(clock[selected], scores[selected], look.marker, **dot)


def between(
    epochs: Num[np.ndarray, "epochs"], curves: Float[np.ndarray, "seeds epochs"]
) -> Float[np.ndarray, "seeds epochs"]:
    """Interpolate linearly, because seeds may have measured at different epochs; NaN before the first."""
    filled = curves.copy()
    for own in filled:
        known = ~np.isnan(own)
        if known.any():
            own[:] = np.interp(epochs, epochs[known], own[known], left=np.nan, right=np.nan)
    return filled


def _seconds(group: RunGroup, epochs: Sequence[int]) -> Float[np.ndarray, "epochs"]:
    """Mean seconds over seeds, interpolated between the epochs that a seed has stored."""
    clocks = [(list(run.clock), list(run.clock.values())) for run in group.runs]
    return np.mean([np.interp(epochs, kept, seconds) for kept, seconds in clocks], axis=0)


def _frame(ax: Axes, key: str, title: str) -> None:
    ax.set_title(title)
    ax.set_xlim(left=0)
    ax.set_ylim(bottom=0.7 * ax.get_ylim()[1] if key == "accuracy" else 0)


def _handles(shown: Sequence[RunGroup], look: dict[str, Look]) -> list[Line2D]:
    systems = {look[group.label].name: look[group.label] for group in shown}
    lines = [
        Line2D([], [], color=own.colour, marker=own.marker, markersize=4.5, label=short(name, FIGURE))
        for name, own in systems.items()
    ]
    measured = {split for group in shown for split in SPLITS if epoch_curves(group, "accuracy", split)[0].size}
    dashes = [Line2D([], [], color=INK, linestyle=SPLITS[s], label=NAMES[s]) for s in SPLITS if s in measured]
    return [*lines, *dashes]
