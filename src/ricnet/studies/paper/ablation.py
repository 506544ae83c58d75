"""Figure 9: RIC without its parts: PPO in the place of SPO, a logistic-normal policy in the place of the Dirichlet."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ricnet.report.figures import styled
from ricnet.report.runs import RunRecord
from ricnet.studies.cells import Cell, Runs
from ricnet.studies.paper.conditions import conditions
from ricnet.studies.paper.curves import curve_rows
from ricnet.studies.paper.panels import (
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
from ricnet.studies.paper.rows import Row, Rows, distinct, floats, pick
from ricnet.studies.paper.samples import tabulate_cells
from ricnet.studies.scales import Scale

SYSTEMS = ("ric", "ric-ppo", "ric-logistic-normal")
PANELS = {"normalized_return": "normalised return", "accuracy": "accuracy", "ece": "ECE"}


def cells(scale: Scale) -> list[Cell]:
    return scale.cells(SYSTEMS, scale.benchmarks[:1], **dict(scale.ablation))


def tabulate(scale: Scale, runs: Runs) -> Rows:
    return tabulate_cells(scale, cells(scale), runs, _rows)


def _rows(runs: Sequence[RunRecord]) -> Rows:
    own: Row = {"snapshot": _snapshot(runs[0].config["method"])}
    return [own | row for quantity in PANELS for row in curve_rows(runs, "validation", quantity)]


def _snapshot(settings: Mapping[str, Any]) -> str | None:
    """How long one lasts, which decides how far SPO and PPO can differ."""
    updates, passes = (settings.get(f"{unit}_per_snapshot") for unit in ("updates", "passes"))
    if updates == 1:
        return "A snapshot every update, with which SPO and PPO are the same"
    return f"A snapshot every {updates} updates" if updates else f"A snapshot every {passes} passes" if passes else None


@styled
def draw(rows: Rows) -> Figure:
    figure = Figure(figsize=(WIDTH, 2.6), layout="constrained")
    for i, (ax, (quantity, title)) in enumerate(zip(figure.subplots(1, 3), PANELS.items(), strict=True)):
        _draw_panel(ax, rows, quantity)
        letter(ax, i, title)
    where = f"{distinct(rows, 'benchmark')[0]}, validation data"
    legend(figure, system_handles(rows), [where, conditions(rows), *distinct(rows, "snapshot"), intervals(rows)])
    return figure


def _draw_panel(ax: Axes, rows: Rows, quantity: str) -> None:
    shown = pick(rows, quantity=quantity)
    for system in distinct(shown, "system"):
        own = pick(shown, system=system)
        draw_curve(ax, own, "epoch", **system_line(system, len(own)))
    fit(ax, floats(shown, "mean"))
    over_epochs(ax)
    note_missing(ax, rows)


RECIPE = Recipe("fig9", "Ablations of RIC", cells, tabulate, draw)
