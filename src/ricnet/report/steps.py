"""What a step of refinement buys, and where the classifier stops: confidence, accuracy, ECE and halting by step."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from ricnet.errors import RicnetError
from ricnet.report.runs import RunRecord
from ricnet.report.style import BLUE, FAINT, INK, VERMILLION, colour, label_rows, panel_grid, styled
from ricnet.report.words import listing

LINES: dict[str, Any] = {"accuracy, ECE": "-", "confidence": "--"}
MEAN_HALT: dict[str, Any] = {"color": INK, "linewidth": 0.9, "linestyle": ":"}
AT_ONCE: dict[str, Any] = {"color": FAINT, "linewidth": 0.9, "zorder": 0}
"""A classifier that answers at once is a level, not a curve."""


@styled
def steps_figure(runs: Sequence[RunRecord]) -> Figure:
    shown = iterative(runs)
    figure, panels = panel_grid(len(shown), heights=(1.5, 1.1))
    for run, (scores, errors) in zip(shown, panels, strict=True):
        _draw_curves(scores, run, ("accuracy", "mean_confidence"))
        _draw_curves(errors, run, ("ece",))
        for single in runs:
            if not single.iterative and single.data_name == run.data_name:
                scores.axhline(single.test["accuracy"], **AT_ONCE)
                errors.axhline(single.test["ece"], **AT_ONCE)
        scores.set_title(run.label)
        errors.set_ylim(bottom=0)
        errors.set_xlabel("step")
    label_rows(panels, "share", "ECE")
    figure.legend(handles=_legend(runs), loc="outside lower center", ncols=2 if len(shown) == 1 else 4)
    return figure


@styled
def halting_figure(runs: Sequence[RunRecord]) -> Figure:
    shown = iterative(runs)
    figure, panels = panel_grid(len(shown), heights=(1.9,), same_scale=False)
    for run, (ax,) in zip(shown, panels, strict=True):
        _draw_halting(ax, run)
        ax.set(title=run.label, xlabel="steps taken")
    label_rows(panels, "← wrong, %    right, % →")
    return figure


def iterative(runs: Sequence[RunRecord]) -> list[RunRecord]:
    found = [run for run in runs if run.iterative]
    if not found:
        raise RicnetError("None of these runs refines its answer in steps: add a run of `ric train --method ric`.")
    return found


def _draw_curves(ax: Axes, run: RunRecord, keys: Sequence[str]) -> None:
    per_step = run.test["per_step"]
    step = [entry["step"] for entry in per_step]
    for key in keys:
        dash = "--" if key == "mean_confidence" else "-"
        ax.plot(step, [entry[key] for entry in per_step], dash, color=colour(run), label=key)
    ax.axvline(run.test["mean_steps"], **MEAN_HALT)
    ax.xaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1))


def _legend(runs: Sequence[RunRecord]) -> list[Line2D]:
    """One legend for all panels, in ink: a panel's colour is its method, the dashes are the quantity."""
    lines = [Line2D([], [], color=INK, linestyle=dash, label=name) for name, dash in LINES.items()]
    lines.append(Line2D([], [], **MEAN_HALT, label="mean halt"))
    single = [run.label for run in runs if not run.iterative]
    return [*lines, Line2D([], [], **AT_ONCE, label=f"{listing(single)} (one step)")] if single else lines


def _draw_halting(ax: Axes, run: RunRecord) -> None:
    """Right answers rise, wrong ones hang: each side is in per cent of its own number, for the wrong are few."""
    halting = run.test["halting"]
    step = np.array([entry["step"] for entry in halting])
    for key, shade, sign in (("correct", BLUE, 1), ("wrong", VERMILLION, -1)):
        counts = np.array([entry[key] for entry in halting])
        name = f"{'right' if sign > 0 else 'wrong'} (n = {counts.sum():,})"
        ax.bar(step, sign * 100 * counts / max(counts.sum(), 1), 0.82, color=shade, alpha=0.85, label=name)
        if counts.sum():
            mean = (step * counts).sum() / counts.sum()
            ax.plot([mean], [0], marker="^v"[sign < 0], color=INK, markersize=4, clip_on=False, zorder=3)
    ax.axhline(0, color=FAINT, linewidth=0.6)
    ax.xaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{abs(share):.0f}"))
    ax.legend(loc="best")
