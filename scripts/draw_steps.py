"""Draw Figure 5 (b) and (c), calibration by step and halting, from archived runs with any number of seeds.

python scripts/draw_steps.py imagewoof-half-resnet18-paper    # results/NAME/fig5bc.png and .csv, of its ric-seed*.json

Figure 5 (a) needs the log-score of every test example after every step, which archives do not have:
`ric reproduce fig5 --from-runs RUN` draws it from the run folder.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ricnet.errors import RicnetError
from ricnet.report.figures import (
    BLUE,
    draw_curve,
    draw_halting,
    draw_intervals,
    halting_handles,
    integer_ticks,
    styled,
)
from ricnet.report.runs import RunRecord
from ricnet.report.statistics import mean_interval
from write_evidence import RESULTS, Pairing

CURVES = {"mean_confidence": "confidence", "ece": "ECE"}
OUTCOMES = {"right": "correct", "wrong": "wrong"}
"""Outcome of an answer, and its key in archives."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="folder of results/ with ric-seed*.json")
    name = parser.parse_args().name
    try:
        draw_folder(RESULTS / name)
    except RicnetError as error:
        sys.exit(f"draw_steps: {error}")


def draw_folder(folder: Path) -> None:
    """Draw the figure from the numbers in the CSV file, so that both agree."""
    runs = Pairing(folder.name, "ric-seed{}").runs(folder.parent)
    if not runs:
        raise RicnetError(f"{folder} has no ric-seed*.json: archive runs of RIC there first.")
    table = measured(runs)
    table.to_csv(folder / "fig5bc.csv", index=False)
    figure_of(table).savefig(folder / "fig5bc.png", dpi=200)


def measured(runs: Sequence[RunRecord]) -> pd.DataFrame:
    """Test scores and shares of halting answers by step: mean and half-width of the 95 % Student-t interval."""
    steps = range(1, len(runs[0].test["per_step"]) + 1)
    curves = [_row(name, step, runs, lambda run: run.test["per_step"]) for name in CURVES for step in steps]
    halts = [
        _row(name, step, runs, lambda run, key=key: _shares(run, key))
        for name, key in OUTCOMES.items()
        for step in steps
    ]
    halt = mean_interval([run.test["mean_steps"] for run in runs])
    last = {"quantity": "halt", "step": None, "mean": halt.mean, "half_width": halt.half_width, "seeds": halt.n}
    return pd.DataFrame([*curves, *halts, last])


def _row(name: str, step: int, runs: Sequence[RunRecord], entries: Callable[[RunRecord], Any]) -> dict[str, Any]:
    found = mean_interval([float(entries(run)[step - 1][name]) for run in runs])
    key = OUTCOMES.get(name)
    members = sum(entry[key] for run in runs for entry in run.test["halting"]) if key else None
    own = {"quantity": name, "step": step, "mean": found.mean, "half_width": found.half_width}
    return {**own, "seeds": found.n, "members": members}


def _shares(run: RunRecord, key: str) -> list[dict[str, float]]:
    """Share of the right (or wrong) answers that halted after each step."""
    counts = [entry[key] for entry in run.test["halting"]]
    outcome = next(name for name, each in OUTCOMES.items() if each == key)
    return [{outcome: count / max(sum(counts), 1)} for count in counts]


@styled
def figure_of(table: pd.DataFrame) -> Figure:
    figure = Figure(figsize=(6.8, 2.4), layout="constrained")
    axes = figure.subplots(1, 3)
    halt = float(table["mean"][table.quantity == "halt"].iloc[0])
    for ax, (name, title) in zip(axes, CURVES.items(), strict=False):
        own = table[table.quantity == name]
        draw_curve(ax, *(own[key].to_numpy(dtype=np.float64) for key in ("step", "mean", "half_width")), BLUE)
        ax.axvline(halt, linewidth=0.9, linestyle=":")
        ax.set(xlabel="step", ylabel=title)
        integer_ticks(ax, 5)
    _halting(axes[2], table)
    seeds = int(table["seeds"].max())
    words = f"{seeds} seeds" if seeds > 1 else "one seed"
    for ax, title in zip(axes, ("5b: confidence", "5b: ECE", f"5c: halting ({words})"), strict=True):
        ax.set_title(title, loc="left")
    return figure


def _halting(ax: Axes, table: pd.DataFrame) -> None:
    parts = {name: table[table.quantity == name] for name in OUTCOMES}
    steps = parts["right"]["step"].to_numpy(dtype=np.float64)
    draw_halting(ax, steps, *(own["mean"].to_numpy() for own in parts.values()))
    for own, sign in zip(parts.values(), (1, -1), strict=True):
        share, half = (100 * own[key].to_numpy(dtype=np.float64) for key in ("mean", "half_width"))
        draw_intervals(ax, steps, sign * np.clip(share - half, 0, 100), sign * np.clip(share + half, 0, 100), 0.7)
    ax.set(xlabel="step", ylabel="← wrong, %      right, % →")
    counts = [int(own["members"].iloc[0]) for own in parts.values()]
    ax.legend(handles=halting_handles(*counts), loc="upper right", handlelength=1)


if __name__ == "__main__":
    main()
