"""Figure 5: return, confidence, ECE and halting of RIC by step, on the third benchmark (or the last with given runs).

Difficulty: the test examples are split into thirds by log a_y at the halt, averaged over all other seeds, to avoid
selecting by the noise of the seed that is shown. A single seed is split by itself. Curves continue after the halt, as
if no example had stopped.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Integer
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from ricnet import RicnetError
from ricnet.evaluation.evaluate import Outcome, read_predictions
from ricnet.report.figures import (
    BLUE,
    GREEN,
    INK,
    VERMILLION,
    draw_halting,
    draw_intervals,
    halting_handles,
    integer_ticks,
    letter,
    styled,
)
from ricnet.report.runs import RunRecord
from ricnet.studies.experiments import Experiment
from ricnet_paper import kit
from ricnet_paper.scales import Scale

DIFFICULTIES = {"easy": (GREEN, "^"), "intermediate": (BLUE, "o"), "hard": (VERMILLION, "v")}
PER_STEP = {"mean_confidence": "confidence", "ece": "ECE"}
OUTCOMES = {"right": "correct", "wrong": "wrong"}
"""Names in evaluation.json."""
HALT: dict[str, Any] = {"color": INK, "linewidth": 0.9, "linestyle": ":"}


def experiments(scale: Scale) -> list[Experiment]:
    return scale.experiments(["ric"], [scale.benchmarks[scale.looked_at]])


def measure(runs: Sequence[RunRecord]) -> pd.DataFrame:
    answers = [read_predictions(run.path, "test") for run in runs]
    for run, own in zip(runs, answers, strict=True):
        if not torch.equal(own.labels, answers[0].labels):
            raise RicnetError(
                f"{run.path} and {runs[0].path} differ in their test examples: use runs on the same data."
            )
    rows = [*_returns(answers), *_steps(runs), *_halting(runs)]
    return pd.DataFrame(rows).assign(examples=len(answers[0].labels))


def _returns(answers: Sequence[Outcome]) -> Iterator[dict[str, Any]]:
    """Normalised return 1 + log a_{t,y} / log K after each step (0 at the uniform a_0), and mean halt of each third."""
    for own, parts in zip(answers, split_by_difficulty(answers), strict=True):
        gains = 1 + own.step_scores.double().numpy() / np.log(own.log_beliefs.shape[1])
        for name, part in parts.items():
            tags = {"difficulty": name, "members": len(part)}
            for step, value in enumerate([0.0, *gains[:, part].mean(axis=1)]):
                yield {"quantity": "return", "step": step, **tags, "value": value}
            yield {"quantity": "halt of part", **tags, "value": own.halt_step.numpy()[part].mean()}


def split_by_difficulty(answers: Sequence[Outcome]) -> list[dict[str, Integer[np.ndarray, "part"]]]:
    """For each seed, the examples of each third, easiest first."""
    final = np.stack([own.step_scores[own.halt_step - 1, torch.arange(len(own.labels))] for own in answers])
    others = [np.delete(final, seed, axis=0) for seed in range(len(final))] if len(final) > 1 else [final]
    best_first = [np.argsort(-scores.mean(axis=0, dtype=np.float64), kind="stable") for scores in others]
    return [dict(zip(DIFFICULTIES, np.array_split(order, 3), strict=True)) for order in best_first]


def _steps(runs: Sequence[RunRecord]) -> Iterator[dict[str, Any]]:
    for run in runs:
        yield {"quantity": "halt", "value": run.test["mean_steps"]}
        for entry in run.test["per_step"]:
            yield from ({"quantity": name, "step": entry["step"], "value": entry[name]} for name in PER_STEP)


def _halting(runs: Sequence[RunRecord]) -> Iterator[dict[str, Any]]:
    """Shares among right and among wrong answers; None for a seed without wrong answers."""
    for outcome, key in OUTCOMES.items():
        counts = np.array([[entry[key] for entry in run.test["halting"]] for run in runs])
        tags = {"quantity": "halting", "outcome": outcome, "members": int(counts.sum())}
        for own in counts:
            for step, count in enumerate(own, start=1):
                yield {**tags, "step": step, "value": count / own.sum() if own.any() else None}


@styled
def draw(table: pd.DataFrame) -> Figure:
    figure = Figure(figsize=(kit.WIDTH, 2.9), layout="constrained")
    grid = figure.add_gridspec(2, 3)
    left, right = figure.add_subplot(grid[:, 0]), figure.add_subplot(grid[:, 2])
    upper = figure.add_subplot(grid[0, 1])
    lower = figure.add_subplot(grid[1, 1], sharex=upper)
    _draw_returns(left, table)
    _draw_steps((upper, lower), table)
    _draw_halting(right, table[table.quantity == "halting"])
    for ax in (left, upper, lower, right):
        kit.note_missing(ax, table)
    for i, (ax, title) in enumerate(((left, "return by difficulty"), (upper, "calibration"), (right, "halting"))):
        letter(ax, i, title)
    kit.legend(figure, _handles(), _notes(table))
    return figure


def _draw_returns(ax: Axes, table: pd.DataFrame) -> None:
    returns = table[table.quantity == "return"]
    for name, (colour, marker) in DIFFICULTIES.items():
        curve = returns[returns.difficulty == name]
        kit.draw_curve(ax, curve, "step", color=colour)
        for at in table["mean"][(table.quantity == "halt of part") & (table.difficulty == name)]:
            height = np.interp(at, curve["step"], curve["mean"])
            ax.plot([at], [height], marker, color=colour, markersize=5, markeredgecolor=INK, markeredgewidth=0.6)
    kit.fit(ax, returns["mean"])
    _over_steps(ax, "normalised return")


def _draw_steps(axes: Sequence[Axes], table: pd.DataFrame) -> None:
    for ax, (quantity, name) in zip(axes, PER_STEP.items(), strict=True):
        curve = table[table.quantity == quantity]
        kit.draw_curve(ax, curve, "step", color=BLUE)
        for halt in table["mean"][table.quantity == "halt"]:
            ax.axvline(halt, **HALT)
        kit.fit(ax, curve["mean"])
        ax.yaxis.set_major_locator(MaxNLocator(4))
        _over_steps(ax, name)
    axes[0].tick_params(labelbottom=False)
    axes[0].set_xlabel("")


def _draw_halting(ax: Axes, table: pd.DataFrame) -> None:
    shares = {name: table[table.outcome == name] for name in OUTCOMES}
    if table.empty:
        return
    right, wrong = (own["mean"].fillna(0).to_numpy() for own in shares.values())
    draw_halting(ax, shares["right"]["step"].to_numpy(), right, wrong)
    for own, sign in zip(shares.values(), (1, -1), strict=True):
        share, half = 100 * own["mean"].fillna(0).to_numpy(), 100 * own["half_width"].to_numpy()
        low, high = np.clip(share - half, 0, 100), np.clip(share + half, 0, 100)
        draw_intervals(ax, own["step"].to_numpy(), sign * low, sign * high, 0.7)
    ax.set_ylim(-120 * max(wrong.max(), 0.01), 120 * max(right.max(), 0.01))
    _over_steps(ax, "← wrong, %      right, % →")
    handles = halting_handles(*(int(own["members"].iloc[0]) for own in shares.values()))
    ax.legend(handles=handles, loc="upper right", bbox_to_anchor=(0.95, 1.0), handlelength=1)


def _over_steps(ax: Axes, name: str) -> None:
    ax.set(xlabel="step", ylabel=name)
    integer_ticks(ax, 5)


def _handles() -> list[Line2D]:
    style: dict[str, Any] = {"linewidth": 1.1, "markersize": 5, "markeredgecolor": INK, "markeredgewidth": 0.6}
    parts = [Line2D([], [], color=c, marker=m, label=name, **style) for name, (c, m) in DIFFICULTIES.items()]
    return [*parts, Line2D([], [], **HALT, label="mean halt (in (a) marker, in (c) triangle)")]


def _notes(table: pd.DataFrame) -> list[str]:
    size, count = kit.first(table, "examples"), table["seeds"].max()
    examples = f", test n = {size:,.0f}" if size else ""
    by = "in the other seeds" if count > 1 else "in the only seed"
    return [
        f"{kit.distinct(table, 'system')[0]} on {kit.distinct(table, 'benchmark')[0]} ({kit.seeds(table)}{examples})",
        kit.conditions(table),
        f"(a): thirds of the test set by log-score at the halt {by}" if count else "",
        kit.intervals(table),
    ]


ITEM = kit.item("fig5", "Adaptive computation on the third benchmark", experiments, measure, draw)
