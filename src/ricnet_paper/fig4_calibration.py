"""Figures 4, 7 and 8: confidence histogram and reliability diagrams of SL and RIC on the test set of a benchmark."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ricnet.report.comparison import ECE
from ricnet.report.figures import draw_intervals, draw_reliability, letter, look_of, reliability_handles, styled
from ricnet.report.names import without_algorithm
from ricnet.report.runs import RunRecord
from ricnet.studies.experiments import Experiment
from ricnet_paper import kit
from ricnet_paper.kit import Item
from ricnet_paper.scales import Scale

SCORES = ("accuracy", "mean_confidence", "ece")
RARE = 0.01
"""Bins with a smaller share of the answers are drawn pale."""


def experiments(scale: Scale, index: int) -> list[Experiment]:
    return scale.experiments(("supervised", "ric"), scale.benchmarks[index : index + 1])


def measure(runs: Sequence[RunRecord]) -> pd.DataFrame:
    """Scores, and share, accuracy and confidence of each bin (None if it is empty)."""
    rows = [{"quantity": score, "value": run.test[score]} for run in runs for score in SCORES]
    for run in runs:
        for entry in run.test["reliability"]:
            edges = {"lower": entry["lower"], "upper": entry["upper"]}
            rows.append({"quantity": "share", **edges, "value": entry["n"] / run.test["n"]})
            rows += [{"quantity": f"bin {key}", **edges, "value": entry[key]} for key in ("accuracy", "confidence")]
    return pd.DataFrame(rows).assign(examples=int(runs[0].test["n"]), bins=int(runs[0].test["ece_bins"]))


@styled
def draw(table: pd.DataFrame) -> Figure:
    figure = Figure(figsize=(kit.WIDTH, 2.7), layout="constrained")
    histogram, *diagrams = figure.subplots(1, 3)
    systems = kit.distinct(table, "system")
    for system, filled in zip(systems, (True, False), strict=True):  # the second is outlined
        share = table[(table.system == system) & (table.quantity == "share")]
        if len(share):
            edges = [*share["lower"], share["upper"].iloc[-1]]
            histogram.stairs(100 * share["mean"], edges, **_histogram_style(system, filled))
    histogram.set(xlim=(0, 1), xlabel="confidence", ylabel="share of answers, %")
    highest = 100 * table["mean"][table.quantity == "share"].max()
    histogram.set_ylim(0, 1.06 * np.nanmax([highest, 1]))
    kit.note_missing(histogram, table)
    letter(histogram, 0, "confidence")
    for i, (ax, system) in enumerate(zip(diagrams, systems, strict=True), start=1):
        _draw_reliability(ax, table[table.system == system])
        letter(ax, i, f"reliability of {without_algorithm(system)}")  # full name in the legend
    kit.legend(figure, _handles(table), _notes(table))
    return figure


def _histogram_style(system: str, filled: bool) -> dict[str, Any]:
    colour = look_of(system).colour
    return {"color": colour, "fill": filled, "alpha": 0.35 if filled else 1, "linewidth": 0 if filled else 1.3}


def _draw_reliability(ax: Axes, table: pd.DataFrame) -> None:
    of = dict(list(table.groupby("quantity")))
    if "bin accuracy" in of:
        bins = of["bin accuracy"][["lower", "upper", "mean", "half_width"]].to_numpy(float)
        lower, upper, height, half = bins.T
        confidence, share = (of[name]["mean"].to_numpy(float) for name in ("bin confidence", "share"))
        colour = look_of(table["system"].iloc[0]).colour
        draw_reliability(ax, lower, upper, height, confidence, colour, np.where(share >= RARE, 0.8, 0.3))
        draw_intervals(ax, (lower + upper) / 2, np.clip(height - half, 0, 1), np.clip(height + half, 0, 1))
        scores = [
            f"accuracy {100 * (kit.first(of['accuracy'], 'mean') or 0):.1f} %",
            f"confidence {100 * (kit.first(of['mean_confidence'], 'mean') or 0):.1f} %",
            f"ECE {ECE.write(kit.first(of['ece'], 'mean'), kit.first(of['ece'], 'half_width'))}",
        ]
        ax.text(0.03, 0.99, "\n".join(scores), transform=ax.transAxes, va="top", fontsize=7, linespacing=1.35)
    ax.set(xlim=(0, 1), ylim=(0, 1.42), xlabel="confidence", ylabel="accuracy")
    kit.note_missing(ax, table)


def _handles(table: pd.DataFrame) -> list[Any]:
    systems = [
        Patch(**_histogram_style(system, filled), label=kit.system_label(system, own))
        for (system, own), filled in zip(table.groupby("system", sort=False), (True, False), strict=True)
    ]
    return [*systems, *reliability_handles()]


def _notes(table: pd.DataFrame) -> list[str]:
    size, bins = kit.first(table, "examples"), kit.first(table, "bins")
    counts = f", test n = {size:,.0f}, {bins:.0f} bins" if size and bins else ""
    means = f"{kit.distinct(table, 'benchmark')[0]}{counts}, means over seeds"
    pale = "Pale: bins with less than 1 % of the answers"
    return [means, kit.conditions(table), kit.intervals(table, "Lines, cut at 0 and 1"), pale]


def _item(name: str, index: int) -> Item:
    title = f"Confidence and reliability on the {('first', 'second', 'third')[index]} benchmark"
    return kit.item(name, title, partial(experiments, index=index), measure, draw)


FIG4, FIG7, FIG8 = _item("fig4", 0), _item("fig7", 1), _item("fig8", 2)
