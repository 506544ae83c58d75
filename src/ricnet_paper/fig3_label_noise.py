"""Figure 3: ECE and confidence during training with clean, aggregate and worst labels, on the clean test set.

A classifier that has learned nothing can be well calibrated, so the lowest ECE is taken among epochs with at least half
of the best accuracy.
"""

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ricnet.report.figures import INK, letter, look_of, styled
from ricnet.report.runs import RunRecord
from ricnet.studies.experiments import Experiment, Runs
from ricnet_paper import kit
from ricnet_paper.kit import Item
from ricnet_paper.scales import Scale

QUANTITIES = {"ece": "ECE", "mean_confidence": "mean confidence"}
LOWEST = "lowest ece"


def experiments(scale: Scale) -> list[Experiment]:
    return scale.experiments(["supervised", "ric"], scale.noise)


def table(scale: Scale, runs: Runs) -> pd.DataFrame:
    found = kit.tabulate(scale, experiments(scale), runs, measure, kit.measured)
    parts = found.groupby(["benchmark", "system", "split"], sort=False) if "split" in found else ()
    return pd.concat([found, *(lowest(own) for _, own in parts)], ignore_index=True)


def measure(runs: Sequence[RunRecord]) -> pd.DataFrame:
    splits, quantities = ("test", "validation"), (*QUANTITIES, "accuracy")
    seen = pd.DataFrame([row for split in splits for name in quantities for row in kit.curves(runs, split, name)])
    return seen.assign(examples=seen.split.map({"test": int(runs[0].test["n"])}))


def lowest(curves: pd.DataFrame) -> pd.DataFrame:
    """The row of the epoch with the lowest mean ECE, among epochs with half of the best accuracy; empty if none."""
    means = curves.pivot_table("mean", "epoch", "quantity", aggfunc="first")
    learned = means[means["accuracy"] >= 0.5 * means["accuracy"].max()]
    if learned["ece"].isna().all():
        return curves[:0]
    best = (curves["epoch"] == learned["ece"].idxmin()) & (curves["quantity"] == "ece")
    return curves[best].assign(quantity=LOWEST)


@styled
def draw(table: pd.DataFrame) -> Figure:
    benchmarks = kit.distinct(table, "benchmark")
    figure = Figure(figsize=(kit.WIDTH, 4.0), layout="constrained")
    grid = figure.subplots(2, len(benchmarks), sharex="col", sharey="row", height_ratios=(1.2, 1), squeeze=False)
    test = table[table["split"] == "test"]
    for i, (column, benchmark) in enumerate(zip(grid.T, benchmarks, strict=True)):
        shown = test[test.benchmark == benchmark]
        for ax, quantity in zip(column, QUANTITIES, strict=True):
            kit.draw_systems(ax, shown[shown.quantity == quantity])
        column[0].set_xlabel("")
        for line, best in enumerate(shown[shown.quantity == LOWEST].itertuples()):
            _mark_lowest(column[0], best, line)
        for ax in column:
            kit.note_missing(ax, table[table.benchmark == benchmark])
        letter(column[0], i, benchmark, pad=24)
    for ax, (quantity, name) in zip(grid[:, 0], QUANTITIES.items(), strict=True):
        ax.set_ylabel(name)
        kit.fit(ax, test["mean"][test.quantity == quantity])
    star = Line2D([], [], linestyle="none", marker="*", color=INK, markersize=7, label="lowest mean ECE")
    sizes = sorted(f"{int(n):,}" for n in table["examples"].dropna().unique())
    notes = [f"Clean test set, n = {' and '.join(sizes) or '–'}", kit.conditions(table), kit.intervals(table)]
    notes.append("★: among epochs with at least half of the best accuracy")
    kit.legend(figure, [*kit.system_handles(table), star], notes)
    return figure


def _mark_lowest(ax: Axes, best: Any, line: int) -> None:
    """Mark it by a star on the curve and write its numbers above the panel; the legend has the system's full name."""
    shade, at, low = look_of(best.system).colour, best.epoch, best.mean
    name = "RIC" if best.system.startswith("RIC,") else best.system
    ax.plot([at], [low], "*", color=shade, markersize=9, markeredgecolor=INK, markeredgewidth=0.6, zorder=4)
    text, place = f"★ {name}: {low:.3f} at epoch {at:.0f}", (0, 13 - 10 * line)
    ax.annotate(text, (0, 1), place, "axes fraction", textcoords="offset points", color=shade, fontsize=kit.SMALL)


ITEM = Item("fig3", "Calibration dynamics under label noise", experiments, table, draw)
