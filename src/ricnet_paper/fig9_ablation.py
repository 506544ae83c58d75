"""Figure 9: ablations of RIC during training: PPO instead of SPO, a logistic-normal policy instead of the Dirichlet."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from ricnet.methods import OnPolicy
from ricnet.report.figures import letter, styled
from ricnet.report.runs import RunRecord
from ricnet.studies.experiments import Experiment
from ricnet_paper import kit
from ricnet_paper.scales import Scale

PANELS = {"normalized_return": "normalised return", "accuracy": "accuracy", "ece": "ECE"}


def experiments(scale: Scale) -> list[Experiment]:
    """Ablations of Algorithm 1, the default of preset `paper`; given runs may use any algorithm."""
    systems = ("ric-snapshots" if scale.ablation else "ric", "ric-ppo", "ric-logistic-normal")
    return scale.experiments(systems, scale.benchmarks[:1], **dict(scale.ablation))


def measure(runs: Sequence[RunRecord]) -> pd.DataFrame:
    rows = [row for quantity in PANELS for row in kit.curves(runs, "validation", quantity)]
    return pd.DataFrame(rows).assign(snapshot=_snapshot(runs[0].config["method"]))


def _snapshot(settings: Mapping[str, Any]) -> str | None:
    """Note on the length of a snapshot, which limits how far SPO and PPO can differ."""
    updates, passes = (settings.get(f"{unit}_per_snapshot") for unit in ("updates", "passes"))
    if settings["name"] == OnPolicy.name:
        return "A snapshot every update, with which SPO and PPO are the same"
    return f"A snapshot every {updates} updates" if updates else f"A snapshot every {passes} passes" if passes else None


@styled
def draw(table: pd.DataFrame) -> Figure:
    figure = Figure(figsize=(kit.WIDTH, 2.6), layout="constrained")
    for i, (ax, (quantity, title)) in enumerate(zip(figure.subplots(1, 3), PANELS.items(), strict=True)):
        shown = table[table.quantity == quantity]
        kit.draw_systems(ax, shown)
        kit.fit(ax, shown["mean"])
        kit.note_missing(ax, table)
        letter(ax, i, title)
    where = f"{kit.distinct(table, 'benchmark')[0]}, validation data"
    notes = [where, kit.conditions(table), *kit.distinct(table, "snapshot"), kit.intervals(table)]
    kit.legend(figure, kit.system_handles(table), notes)
    return figure


ITEM = kit.item("fig9", "Ablations of RIC", experiments, measure, draw)
