"""Figure 6: validation accuracy against training accuracy on each benchmark; Figure 2 (c) shows the first one.

Epochs are grouped by training accuracy, in bins of two percentage points, and averaged per seed. Lines are drawn where
at least two seeds have epochs in a bin, bands where all seeds have.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ricnet.report.figures import FAINT, letter, look_of, styled
from ricnet.report.runs import RunRecord
from ricnet.studies.experiments import Experiment
from ricnet_paper import kit
from ricnet_paper.scales import Scale

LEVELS = 50
"""Number of bins of training accuracy."""


def experiments(scale: Scale) -> list[Experiment]:
    return scale.experiments(["supervised", "ric"], scale.benchmarks)


def generalization(runs: Sequence[RunRecord]) -> pd.DataFrame:
    """Rows `epoch` for each epoch of each seed, and rows `level` for each seed's mean in a bin."""
    seen = pd.concat([_accuracies(run).assign(seed=seed) for seed, run in enumerate(runs)])
    level = np.minimum(np.floor(seen["train"] * LEVELS), LEVELS - 1)
    epochs = seen.assign(quantity="epoch", train=seen.groupby("epoch")["train"].transform("mean"))
    place = seen.groupby(level)["train"].transform("mean")
    levels = seen.groupby([place, "seed"], as_index=False)["value"].mean().assign(quantity="level")
    return pd.concat([epochs.sort_values("epoch"), levels]).drop(columns="seed")


def _accuracies(run: RunRecord) -> pd.DataFrame:
    """Training and validation accuracy at the epochs that measured both."""
    train, value = (pd.DataFrame(kit.curves([run], split, "accuracy")) for split in ("train", "validation"))
    both = train.merge(value, on="epoch")
    return pd.DataFrame({"epoch": both["epoch"], "train": both["value_x"], "value": both["value_y"]})


@styled
def draw(table: pd.DataFrame) -> Figure:
    benchmarks = kit.distinct(table, "benchmark")
    figure = Figure(figsize=(kit.WIDTH, 2.6), layout="constrained")
    axes = figure.subplots(1, len(benchmarks), squeeze=False)[0]
    for i, (ax, benchmark) in enumerate(zip(axes, benchmarks, strict=True)):
        own = table[table.benchmark == benchmark]
        draw_generalization(ax, own)
        letter(ax, i, benchmark + kit.mark(own))
    for ax in axes[1:]:
        ax.set_ylabel("")
    kit.legend(
        figure, kit.system_handles(table), [kit.conditions(table), kit.intervals(table), levels_note(table, "Lines")]
    )
    return figure


def levels_note(table: pd.DataFrame, lines: str) -> str:
    """Note on lines, bands and dots."""
    if table["seeds"].max() < 2:
        return f"{lines}: means in bins of training accuracy; dots: epochs"
    return f"{lines}: means in bins of training accuracy with at least two seeds; bands: with all seeds; dots: epochs"


def draw_generalization(ax: Axes, table: pd.DataFrame) -> None:
    for system, own in table.groupby("system", sort=False):
        epochs, levels = kit.thin(own[own.quantity == "epoch"]), own[own.quantity == "level"]
        # The t interval of two seeds, 13 standard errors wide, would hide all others: bands need all seeds.
        levels = levels[levels.n >= np.minimum(2, levels.seeds)]
        levels = levels.assign(half_width=levels.half_width.where(levels.n == levels.seeds))
        ax.scatter(epochs.train, epochs["mean"], s=3, alpha=0.35, linewidths=0, zorder=1, color=look_of(system).colour)
        kit.draw_curve(ax, levels, "train", **kit.system_line(system, len(levels)))
    _frame(ax, table[table.quantity == "epoch"])
    kit.note_missing(ax, table)


def _frame(ax: Axes, epochs: pd.DataFrame) -> None:
    """Show the upper part of training. On the diagonal there is no generalisation gap."""
    if epochs.empty:
        return
    train = epochs["train"]
    start = max(train.min(), min(train.quantile(0.1), train.max() - 0.1))
    ax.plot([0, 1], [0, 1], color=FAINT, linewidth=0.8, linestyle=(0, (4, 3)), zorder=0)
    kit.fit(ax, epochs["mean"][train >= start])
    ax.set_xlim(start - 0.02 * (1 - start), 1 + 0.02 * (1 - start))
    ax.set(xlabel="training accuracy", ylabel="validation accuracy")


_TITLE = "Validation accuracy as a function of training accuracy"
ITEM = kit.item("fig6", _TITLE, experiments, generalization, draw, usable=kit.measured)
