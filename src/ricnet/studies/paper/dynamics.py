"""Figure 2: how SL and RIC learn on the first benchmark: return, accuracy, and how what they learn generalises."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ricnet.report.figures import styled
from ricnet.report.runs import RunRecord
from ricnet.studies.cells import Cell, Runs
from ricnet.studies.paper.conditions import conditions
from ricnet.studies.paper.curves import curve_rows, measured
from ricnet.studies.paper.generalization import draw_generalization, generalization_rows, levels_note
from ricnet.studies.paper.panels import (
    WIDTH,
    Dash,
    dash_handle,
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

PANELS = {"normalized_return": "normalised return", "accuracy": "accuracy"}
DASHES: dict[str, Dash] = {"train": (0.0, (2.0, 1.2)), "validation": "-"}


def cells(scale: Scale) -> list[Cell]:
    return scale.cells(["supervised", "ric"], scale.benchmarks[:1], **dict(scale.dynamics))


def tabulate(scale: Scale, runs: Runs) -> Rows:
    return tabulate_cells(scale, cells(scale), runs, _rows, measured)


def _rows(runs: Sequence[RunRecord]) -> Rows:
    over_training = [curve_rows(runs, split, quantity) for quantity in PANELS for split in DASHES]
    return [row for rows in over_training for row in rows] + generalization_rows(runs)


@styled
def draw(rows: Rows) -> Figure:
    figure = Figure(figsize=(WIDTH, 2.6), layout="constrained")
    *left, right = figure.subplots(1, 3)
    for i, (ax, (quantity, title)) in enumerate(zip(left, PANELS.items(), strict=True)):
        _draw_training(ax, rows, quantity)
        letter(ax, i, title)
    draw_generalization(right, rows)
    letter(right, 2, "generalisation")
    handles = [*system_handles(rows), *(dash_handle(split, dash) for split, dash in DASHES.items())]
    notes = [distinct(rows, "benchmark")[0], conditions(rows), intervals(rows), levels_note(rows, "(c) lines")]
    legend(figure, handles, notes)
    return figure


def _draw_training(ax: Axes, rows: Rows, quantity: str) -> None:
    shown = pick(rows, quantity=quantity)
    for system in distinct(shown, "system"):
        for split, dash in DASHES.items():
            own = pick(shown, system=system, split=split)
            draw_curve(ax, own, "epoch", **system_line(system, len(own), dash))
    fit(ax, floats(shown, "mean"))
    over_epochs(ax)
    note_missing(ax, rows)


RECIPE = Recipe("fig2", "Training dynamics of RIC and SL", cells, tabulate, draw)
