"""Figure 2: training dynamics of SL and RIC on the first benchmark: return, accuracy and generalisation."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ricnet.report.figures import INK, letter, styled
from ricnet.report.runs import RunRecord
from ricnet.studies.experiments import Experiment
from ricnet_paper import kit
from ricnet_paper.fig6_generalization import draw_generalization, generalization, levels_note
from ricnet_paper.scales import Scale

PANELS = {"normalized_return": "normalised return", "accuracy": "accuracy"}
DASHES: dict[str, kit.Dash] = {"train": (0.0, (2.0, 1.2)), "validation": "-"}


def experiments(scale: Scale) -> list[Experiment]:
    return scale.experiments(["supervised", "ric"], scale.benchmarks[:1], **dict(scale.dynamics))


def measure(runs: Sequence[RunRecord]) -> pd.DataFrame:
    over_training = [row for quantity in PANELS for split in DASHES for row in kit.curves(runs, split, quantity)]
    return pd.concat([pd.DataFrame(over_training), generalization(runs)])


@styled
def draw(table: pd.DataFrame) -> Figure:
    figure = Figure(figsize=(kit.WIDTH, 2.6), layout="constrained")
    *left, right = figure.subplots(1, 3)
    for i, (ax, (quantity, title)) in enumerate(zip(left, PANELS.items(), strict=True)):
        shown = table[table.quantity == quantity]
        for _, own in shown.groupby("system", sort=False):
            for split, dash in DASHES.items():
                kit.draw_systems(ax, own[own.split == split], dash)
        kit.fit(ax, shown["mean"])
        kit.note_missing(ax, table)
        letter(ax, i, title)
    draw_generalization(right, table)
    letter(right, 2, "generalisation")
    dashes = [Line2D([], [], color=INK, linestyle=dash, linewidth=1.1, label=split) for split, dash in DASHES.items()]
    notes = [
        kit.distinct(table, "benchmark")[0],
        kit.conditions(table),
        kit.intervals(table),
        levels_note(table, "(c) lines"),
    ]
    kit.legend(figure, [*kit.system_handles(table), *dashes], notes)
    return figure


ITEM = kit.item("fig2", "Training dynamics of RIC and SL", experiments, measure, draw, usable=kit.measured)
