"""What a step of refinement buys, and where the classifier stops: confidence, accuracy, ECE and halting by step."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Integer
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ricnet.errors import RicnetError
from ricnet.report.figures import (
    FAINT,
    INK,
    draw_band,
    draw_halting,
    halting_handles,
    integer_ticks,
    label_rows,
    looks,
    panel_grid,
    styled,
)
from ricnet.report.runs import RunGroup
from ricnet.report.words import FIGURE, listing, short

LINES: dict[str, Any] = {"accuracy, ECE": "-", "confidence": "--"}
MEAN_HALT: dict[str, Any] = {"color": INK, "linewidth": 0.9, "linestyle": ":"}
AT_ONCE: dict[str, Any] = {"color": FAINT, "linewidth": 0.9, "zorder": 0}
"""A classifier that answers at once is a level, not a curve."""


@styled
def steps_figure(groups: Sequence[RunGroup]) -> Figure:
    """A panel for each system that takes steps."""
    look, shown = looks(groups), iterative(groups)
    figure, panels = panel_grid(len(shown), heights=(1.5, 1.1))
    for group, (scores, errors) in zip(shown, panels, strict=True):
        shade = look[group.label].colour
        _draw_curves(scores, group, ("accuracy", "mean_confidence"), shade)
        _draw_curves(errors, group, ("ece",), shade)
        for single in groups:
            if not single.first.iterative and single.first.task == group.first.task:
                scores.axhline(mean_of(single, "accuracy"), **AT_ONCE)
                errors.axhline(mean_of(single, "ece"), **AT_ONCE)
        scores.set_title(short(group.label, FIGURE))
        errors.set_xlabel("step")
    for _, errors in panels:
        errors.set_ylim(bottom=0)  # after all are drawn: it fixes the top as well, and panels of a row share it
    label_rows(panels, "share", "ECE")
    figure.legend(handles=_legend(groups), loc="outside lower center", ncols=2 if len(shown) == 1 else 4)
    return figure


@styled
def halting_figure(groups: Sequence[RunGroup]) -> Figure:
    """A panel for each system that takes steps, all its seeds pooled."""
    shown = iterative(groups)
    figure, panels = panel_grid(len(shown), heights=(1.9,), same_scale=False)
    for group, (ax,) in zip(shown, panels, strict=True):
        step, right = pooled_halts(group, "correct")
        _, wrong = pooled_halts(group, "wrong")
        draw_halting(ax, step, right, wrong)
        ax.legend(handles=halting_handles(int(right.sum()), int(wrong.sum())), loc="best")
        ax.set(title=short(group.label, FIGURE), xlabel="steps taken")
    label_rows(panels, "← wrong, %    right, % →")
    return figure


def iterative(groups: Sequence[RunGroup]) -> list[RunGroup]:
    found = [group for group in groups if group.first.iterative]
    if not found:
        raise RicnetError("None of these runs refines its answer in steps: add a run of `ric train --method ric`.")
    return found


def mean_of(group: RunGroup, key: str) -> float:
    """A number of the test set, averaged over seeds; NaN where it was not measured."""
    return float(np.mean(np.array([run.test[key] for run in group.runs], dtype=np.float64)))


def steps_computed(group: RunGroup) -> float:
    """A value is asked of the next thought: who stops by it has computed one step more than it took."""
    return mean_of(group, "mean_cell_evaluations" if "mean_cell_evaluations" in group.first.test else "mean_steps")


def looks_ahead(group: RunGroup) -> bool:
    return steps_computed(group) > mean_of(group, "mean_steps")


def step_curves(group: RunGroup, key: str) -> tuple[Integer[np.ndarray, "steps"], Float[np.ndarray, "seeds steps"]]:
    """A measure of the whole test set, made to answer after each step."""
    tables = [run.test["per_step"] for run in group.runs]
    steps = np.array([entry["step"] for entry in tables[0]])
    return steps, np.array([[entry[key] for entry in table] for table in tables], dtype=np.float64)


def _draw_curves(ax: Axes, group: RunGroup, keys: Sequence[str], shade: str) -> None:
    for key in keys:
        dash = "--" if key == "mean_confidence" else "-"
        draw_band(ax, *step_curves(group, key), shade, dash, ceiling=1.0, label=key)
    ax.axvline(mean_of(group, "mean_steps"), **MEAN_HALT)
    integer_ticks(ax)


def _legend(groups: Sequence[RunGroup]) -> list[Line2D]:
    """One legend for all panels, in ink: a panel's colour is its system, the dashes are the quantity."""
    lines = [Line2D([], [], color=INK, linestyle=dash, label=name) for name, dash in LINES.items()]
    lines.append(Line2D([], [], **MEAN_HALT, label="mean halt"))
    single = [group.label for group in groups if not group.first.iterative]
    name = f"{listing(single)} (one step)" if 0 < len(single) < 3 else "systems of one step"
    return [*lines, Line2D([], [], **AT_ONCE, label=name)] if single else lines


def pooled_halts(group: RunGroup, key: str) -> tuple[Integer[np.ndarray, "steps"], Integer[np.ndarray, "steps"]]:
    tables = [run.test["halting"] for run in group.runs]
    counts = np.array([[entry[key] for entry in table] for table in tables]).sum(axis=0)
    return np.array([entry["step"] for entry in tables[0]]), counts
