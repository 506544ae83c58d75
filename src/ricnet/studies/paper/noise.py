"""Figure 3: calibration over training under clean, slightly and badly wrong labels, always on the clean test set.

Before it has learned anything a classifier is as unsure as it is ignorant, which is perfect calibration and no merit:
the lowest ECE is therefore looked for only among epochs with at least half of the best accuracy.
"""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ricnet.report.figures import INK, styled
from ricnet.report.runs import RunRecord
from ricnet.studies.cells import Cell, Runs
from ricnet.studies.paper.conditions import conditions
from ricnet.studies.paper.curves import curve_rows, measured
from ricnet.studies.paper.looks import look_of
from ricnet.studies.paper.panels import (
    SMALL,
    WIDTH,
    draw_curve,
    fit,
    intervals,
    legend,
    letter,
    note_missing,
    over_epochs,
    system_handles,
    system_line,
)
from ricnet.studies.paper.recipe import Recipe
from ricnet.studies.paper.rows import Rows, distinct, floats, pick
from ricnet.studies.paper.samples import tabulate_cells
from ricnet.studies.scales import Scale

QUANTITIES = {"ece": "ECE", "mean_confidence": "mean confidence"}
LOWEST = "lowest ece"


def cells(scale: Scale) -> list[Cell]:
    return scale.cells(["supervised", "ric"], scale.noise)


def tabulate(scale: Scale, runs: Runs) -> Rows:
    return tabulate_cells(scale, cells(scale), runs, _rows, measured)


def _rows(runs: Sequence[RunRecord]) -> Rows:
    examples = int(runs[0].test["n"])
    rows: Rows = []
    for split in ("test", "validation"):
        tracks = {quantity: curve_rows(runs, split, quantity) for quantity in (*QUANTITIES, "accuracy")}
        rows += [row for track in tracks.values() for row in track]
        rows += lowest(tracks["ece"], tracks["accuracy"])
    return [row | {"examples": examples if row["split"] == "test" else None} for row in rows]


def lowest(errors: Rows, accuracies: Rows) -> Rows:
    """The epoch with the lowest mean ECE among those that have learned something; none if none was measured."""
    accuracy = dict(zip(floats(accuracies, "epoch"), floats(accuracies, "mean"), strict=True))
    enough = 0.5 * np.nanmax(list(accuracy.values()))
    learned = [row for row in errors if row["mean"] is not None and accuracy.get(float(row["epoch"] or 0), 0) >= enough]
    return [min(learned, key=lambda row: floats([row], "mean")[0]) | {"quantity": LOWEST}] if learned else []


@styled
def draw(rows: Rows) -> Figure:
    benchmarks = distinct(rows, "benchmark")
    figure = Figure(figsize=(WIDTH, 4.0), layout="constrained")
    grid = figure.subplots(2, len(benchmarks), sharex="col", sharey="row", height_ratios=(1.2, 1))
    for i, (column, benchmark) in enumerate(zip(grid.T, benchmarks, strict=True)):
        _draw_column(list(column), pick(rows, benchmark=benchmark))
        letter(column[0], i, benchmark, pad=24)
    for ax, (quantity, name) in zip(grid[:, 0], QUANTITIES.items(), strict=True):
        ax.set_ylabel(name)
        fit(ax, floats(pick(rows, quantity=quantity, split="test"), "mean"))
    legend(figure, [*system_handles(rows), _star()], _notes(rows))
    return figure


def _draw_column(axes: Sequence[Axes], rows: Rows) -> None:
    shown = pick(rows, split="test")
    for ax, quantity in zip(axes, QUANTITIES, strict=True):
        for system in distinct(shown, "system"):
            own = pick(shown, system=system, quantity=quantity)
            draw_curve(ax, own, "epoch", **system_line(system, len(own)))
    over_epochs(axes[-1])
    for line, row in enumerate(pick(shown, quantity=LOWEST)):
        _mark_lowest(axes[0], row, line)
    for ax in axes:
        note_missing(ax, rows)


def _mark_lowest(ax: Axes, row: dict[str, str | int | float | None], line: int) -> None:
    """A star on the curve; its numbers above the panel, where no curve can run through them."""
    shade = look_of(str(row["system"])).colour
    (at,), (low,) = floats([row], "epoch"), floats([row], "mean")
    ax.plot([at], [low], "*", color=shade, markersize=9, markeredgecolor=INK, markeredgewidth=0.6, zorder=4)
    text = f"★ {row['system']}: {low:.3f} at epoch {at:.0f}"
    ax.annotate(
        text, (0, 1), (0, 13 - 10 * line), "axes fraction", textcoords="offset points", color=shade, fontsize=SMALL
    )


def _star() -> Line2D:
    return Line2D([], [], linestyle="none", marker="*", color=INK, markersize=7, label="lowest mean ECE")


def _notes(rows: Rows) -> list[str]:
    sizes = sorted({f"{int(n):,}" for n in floats(rows, "examples") if np.isfinite(n)})
    test = f"Clean test set, n = {' and '.join(sizes) or '–'}"
    return [test, conditions(rows), intervals(rows), "★: among epochs with half the best accuracy"]


RECIPE = Recipe("fig3", "Calibration dynamics under label noise", cells, tabulate, draw)
