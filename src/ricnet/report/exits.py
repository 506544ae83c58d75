"""Figure of early exits: accuracy, NLL and ECE on the test set by share of compute.

All examples leave at the same exit, or each where its value falls below a threshold (without a value: where its
confidence rises above one). Thresholds come from validation data.
"""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ricnet.core.trajectory import halting_step
from ricnet.evaluation.evaluate import read_predictions, scores_at
from ricnet.io import FIGURE, short
from ricnet.methods import METHODS
from ricnet.report.figures import INK, draw_band, looks, percent_ticks, score_grid, styled
from ricnet.report.runs import RunGroup, RunRecord, by_task, judged_words

SCORES = {"accuracy": "test accuracy", "nll": "test NLL", "ece": "test ECE"}
THRESHOLDS = 40
TOGETHER: dict[str, Any] = {"linestyle": ":", "marker": "|", "markersize": 7, "linewidth": 1.0}


@styled
def exits_figure(groups: Sequence[RunGroup]) -> Figure:
    look, tasks = looks(groups), by_task(groups)
    runs = [run for group in groups for run in group.runs]
    scores = {key: judged_words(words, runs) for key, words in SCORES.items()}
    figure, panels = score_grid(tasks, scores, "share of compute")
    for row, alike in zip(panels, tasks, strict=True):
        for ax, key in zip(row, SCORES, strict=True):
            for group in alike:
                colour = look[group.label].colour
                ax.plot(*exit_means(group, key), color=colour, **TOGETHER)
                shares, curves = budget_curves(group, key)
                if len(curves):
                    draw_band(ax, shares, curves, colour, ceiling=np.inf if key == "nll" else 1.0)
                cost, score = (np.mean([run.test[name] for run in group.runs]) for name in ("mean_cost", key))
                ax.plot(cost, score, "o", color=colour, markersize=5.5, markeredgecolor="white", zorder=3)
            ax.set_xlim(0, 1.02)
            ax.xaxis.set_major_formatter(percent_ticks())
        row[0].yaxis.set_major_formatter(percent_ticks())
    figure.legend(handles=_handles(groups), loc="outside lower center", ncols=3)
    return figure


def _handles(groups: Sequence[RunGroup]) -> list[Line2D]:
    """Legend: colours of several systems, line styles of the ways to leave."""
    look = looks(groups)
    systems = [Line2D([], [], color=each.colour, linewidth=3, label=short(each.name, FIGURE)) for each in look.values()]
    ways = [Line2D([], [], color=INK, **TOGETHER, label="all at the same exit")]
    if rules := {rule: None for group in groups for run in group.runs if (rule := budgeted_by(run))}:
        ways.insert(0, Line2D([], [], color=INK, label=f"each by its {' or '.join(rules)}"))
    return [
        *(systems if len(look) > 1 else []),
        *ways,
        Line2D([], [], color=INK, marker="o", linestyle="", label="as it stops"),
    ]


def exit_means(group: RunGroup, key: str) -> tuple[Float[np.ndarray, "exits"], Float[np.ndarray, "exits"]]:
    """Cost and score of each exit if all examples leave there, averaged over seeds."""
    scores = [[entry[key] for entry in run.test["per_step"]] for run in group.runs]
    return np.mean([run.costs for run in group.runs], axis=0), np.mean(scores, axis=0)


def budget_curves(group: RunGroup, key: str) -> tuple[Float[np.ndarray, "shares"], Float[np.ndarray, "seeds shares"]]:
    """Score by share of compute if each example leaves by its value or confidence; one curve per seed."""
    found = [_spending(run) for run in group.runs if budgeted_by(run)]
    if not found:
        return np.empty(0), np.empty((0, 0))
    shares = np.linspace(max(each["cost"][0] for each in found), min(each["cost"][-1] for each in found), THRESHOLDS)
    return shares, np.stack([np.interp(shares, each["cost"], each[key]) for each in found])


def budgeted_by(run: RunRecord) -> Literal["value", "confidence"] | None:
    """The quantity that is compared with a threshold, if the run stored it."""
    if not (run.has_exits and run.has_predictions):
        return None
    if run.predictions().values is not None:
        return "value"
    method = METHODS.get(run.config["method"]["name"])  # None for an unregistered method
    return "confidence" if method is not None and method().takes_budget else None


def _spending(run: RunRecord) -> dict[str, Float[np.ndarray, "thresholds"]]:
    """Cost and scores on the test set by threshold, from the least compute to the most."""
    held_out, test = read_predictions(run.path, "val"), run.predictions()
    costs = torch.tensor(run.costs, dtype=torch.float64)
    lowest = held_out.continuation[1:].cummin(0).values
    inner = np.quantile(lowest.numpy(), np.linspace(1, 0, THRESHOLDS))
    points = []
    for threshold in (np.inf, *inner, -np.inf):
        halt = halting_step(test.continuation, float(threshold))
        points.append({"cost": float(costs[halt - 1].mean()), **scores_at(test, halt)})
    return {key: np.array([point[key] for point in points]) for key in points[0]}
