"""Halting by the value against halting by confidence, entropy or a fixed number of steps, at equal mean cost.

Thresholds are fitted to a mean cost on validation data and measured on test data. Cost is the number of cell
evaluations: halting by the value needs one more than the steps taken, because the value reads the next thought. The
last panel compares halting with mean and with sampled beliefs as feedback, for the same weights.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Int64
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from torch import Tensor

from ricnet import RicnetError
from ricnet.core.trajectory import first_stop, halting_step
from ricnet.evaluation.evaluate import Outcome, read_predictions, scores_at
from ricnet.report.comparison import Metric
from ricnet.report.figures import BLUE, GREEN, INK, ORANGE, PURPLE, VERMILLION, draw_intervals, letter, styled
from ricnet.report.runs import RunRecord
from ricnet.report.tables import Cell, Grid
from ricnet.studies.experiments import Experiment, Runs
from ricnet_paper import kit
from ricnet_paper.kit import Item
from ricnet_paper.scales import Scale

HaltStep = Int64[Tensor, "n"]
MEASURES = {
    "accuracy": Metric("accuracy", "accuracy, %", 2, scale=100),
    "ece": Metric("ece", "ECE"),
    "nll": Metric("nll", "NLL"),
    "cost": Metric("cost", "cell evaluations", 2),
    "steps": Metric("steps", "steps", 2),
    "steps_right": Metric("steps_right", "if right", 2),
    "steps_wrong": Metric("steps_wrong", "if wrong", 2),
}
"""Reported for each rule."""
AS_TRAINED = 0.0
"""Threshold of the value in the paper."""
NOTE = "Thresholds are fitted on validation data, measured on test data"


@dataclass(frozen=True)
class Rule:
    name: str
    halt: Callable[[Outcome, float], HaltStep]
    """Steps of each example, given the threshold."""
    low: float
    high: float
    """Thresholds with the fewest and with the most steps."""
    look: tuple[str, str]
    """Colour and marker."""
    asks_ahead: bool = False
    """Whether a stop costs one more cell evaluation than its steps."""


def by_value(run: Outcome, threshold: float) -> HaltStep:
    """Stop after n ≥ 1 steps if V(s_{n+1}) is below the threshold."""
    if run.values is None:
        raise RicnetError("this run has no value function for halting; use a run of method ric.")
    return halting_step(run.values, threshold)


def by_confidence(run: Outcome, threshold: float) -> HaltStep:
    return first_stop(run.step_confidence < threshold)


def by_entropy(run: Outcome, threshold: float) -> HaltStep:
    return first_stop(run.step_entropy > threshold)


def by_count(run: Outcome, threshold: float) -> HaltStep:
    """A fixed number of steps; the fraction of a step is taken by that share of the examples, evenly spaced."""
    steps, n = run.step_scores.shape
    whole = int(min(max(threshold, 1), steps))
    extra = np.diff(np.floor(np.arange(n + 1) * (threshold - whole))) > 0
    return torch.from_numpy(np.minimum(whole + extra, steps))


VALUE = Rule("value", by_value, 1e6, -1e6, (BLUE, "o"), asks_ahead=True)
CONFIDENCE = Rule("confidence", by_confidence, 0.0, 2.0, (VERMILLION, "s"))
ENTROPY = Rule("entropy", by_entropy, 1e6, -1.0, (GREEN, "^"))
COUNT = Rule("fixed number of steps", by_count, 1.0, 1e6, (PURPLE, "D"))
RULES = (VALUE, CONFIDENCE, ENTROPY, COUNT)


def cost(rule: Rule, run: Outcome, halt: HaltStep) -> float:
    """Mean number of cell evaluations."""
    return float((halt + (rule.asks_ahead & (halt < len(run.step_scores)))).double().mean())


def threshold_for(rule: Rule, run: Outcome, budget: float) -> float:
    """Threshold with the largest mean cost within the budget, by bisection: cost rises from `low` to `high`."""
    early, late = rule.low, rule.high
    for _ in range(100):
        middle = (early + late) / 2
        early, late = (middle, late) if cost(rule, run, rule.halt(run, middle)) <= budget else (early, middle)
    return early


def scores(rule: Rule, run: Outcome, threshold: float) -> dict[str, float | None]:
    """Scores and costs when each example stops by the rule."""
    halt = rule.halt(run, threshold)
    steps, correct = halt.double(), run.step_correct[halt - 1, torch.arange(len(halt))]
    return {
        **scores_at(run, halt),
        "cost": cost(rule, run, halt),
        "steps": float(steps.mean()),
        "steps_right": float(steps[correct].mean()) if correct.any() else None,
        "steps_wrong": float(steps[~correct].mean()) if not correct.all() else None,
    }


def experiments(scale: Scale) -> list[Experiment]:
    return scale.experiments(["ric", "ric-sampled-feedback"], [scale.benchmarks[scale.looked_at]])


def table(scale: Scale, runs: Runs) -> pd.DataFrame:
    mean_fed, sample_fed = experiments(scale)
    rules = kit.tabulate(scale, [mean_fed], runs, lambda own: list(_compare_rules(own)))
    return pd.concat([rules, kit.tabulate(scale, [mean_fed, sample_fed], runs, _steps_taken)], ignore_index=True)


def _compare_rules(runs: Sequence[RunRecord]) -> Iterator[dict[str, Any]]:
    """Each rule at the mean cost of halting by V < 0 on validation data, and at 20 costs over the whole range."""
    splits = [(read_predictions(run.path, "val"), read_predictions(run.path, "test")) for run in runs]
    horizon = max(len(test.step_scores) for _, test in splits)
    for rule in RULES:
        for val, test in splits:
            own = cost(VALUE, val, VALUE.halt(val, AS_TRAINED))
            threshold = AS_TRAINED if rule is VALUE else threshold_for(rule, val, own)
            yield from _rows({"part": "at equal cost", "rule": rule.name}, scores(rule, test, threshold))
            for budget in np.linspace(1 + rule.asks_ahead, horizon, 20).tolist():
                found = scores(rule, test, threshold_for(rule, val, budget))
                yield from _rows({"part": "frontier", "rule": rule.name, "budget": budget}, found)


def _rows(tags: dict[str, Any], found: dict[str, float | None]) -> list[dict[str, Any]]:
    return [{**tags, "measure": name, "value": value} for name, value in found.items()]


def _steps_taken(runs: Sequence[RunRecord]) -> list[dict[str, Any]]:
    kinds = {"right": "mean_steps_correct", "wrong": "mean_steps_wrong"}
    return [{"part": "steps", "answers": kind, "value": run.test[key]} for kind, key in kinds.items() for run in runs]


@styled
def draw(table: pd.DataFrame) -> Figure:
    figure = Figure(figsize=(kit.WIDTH, 2.7), layout="constrained")
    *frontiers, steps = figure.subplots(1, 3)
    for i, (ax, measure, title) in enumerate(zip(frontiers, ("nll", "accuracy"), ("NLL", "accuracy"), strict=True)):
        _draw_frontier(ax, table, measure)
        letter(ax, i, f"test {title} against cost")
        ax.set_xlabel("mean cell evaluations")
    _draw_steps(steps, table[(table.part == "steps") | table.missing.notna()])
    letter(steps, 2, "steps by outcome")
    handles = [
        Line2D([], [], color=rule.look[0], marker=rule.look[1], markersize=3.5, label=rule.name) for rule in RULES
    ]
    handles.append(Line2D([], [], color=INK, marker="*", linestyle="", markersize=7, label="V < 0, as trained"))
    lines = kit.intervals(table[table.part == "steps"], "(a) and (b): means over seeds; (c), lines")
    notes = [f"{kit.distinct(table, 'benchmark')[0]}, {kit.seeds(table)}", kit.conditions(table), lines, NOTE]
    kit.legend(figure, handles, notes, columns=5)
    return figure


def _draw_frontier(ax: Axes, table: pd.DataFrame, measure: str) -> None:
    """Means without bands, which would overlap."""
    frontier = table[(table.part == "frontier") & table.measure.isin([measure, "cost"])]
    points = frontier.pivot(index=["rule", "budget"], columns="measure", values="mean").reset_index()
    for rule in RULES:
        own = points[points.rule == rule.name]
        curve = pd.DataFrame({"spent": own["cost"], "mean": own[measure], "half_width": np.nan})
        colour, marker = rule.look
        kit.draw_curve(ax, curve, "spent", color=colour, marker=marker, markersize=2.5, markevery=3)
    own = table[(table.part == "at equal cost") & (table.rule == VALUE.name)].set_index("measure")["mean"]
    if measure in own:
        ax.plot(own["cost"], own[measure], "*", color=INK, markersize=8, zorder=5)
    kit.fit(ax, points[measure] if measure in points else np.empty(0))
    kit.note_missing(ax, table)


def _draw_steps(ax: Axes, table: pd.DataFrame) -> None:
    for place, (_, own) in enumerate(table.groupby("system", sort=False)):
        for shift, answers, colour in ((-0.17, "right", BLUE), (0.17, "wrong", ORANGE)):
            for row in own[own.answers == answers].dropna(subset=["mean"]).itertuples():
                ax.bar(place + shift, row.mean, 0.3, color=colour, label=answers if place == 0 else None)
                ends = np.array([[row.mean - row.half_width], [row.mean + row.half_width]])
                draw_intervals(ax, np.array([place + shift]), *ends)
    ax.set_xticks([0, 1], ["mean feedback\n(the paper)", "sampled\nfeedback"])
    ax.set_ylabel("mean steps")
    if ax.has_data():
        ax.set_ylim(0, 1.25 * ax.get_ylim()[1])
        ax.legend(loc="upper right", ncols=2)
    kit.note_missing(ax, table)


def write(table: pd.DataFrame) -> dict[str, str]:
    """The rules at the cost of halting by V < 0."""
    equal = table[table.part == "at equal cost"]
    lines = []
    for rule in RULES:
        own = equal[equal.rule == rule.name]
        texts = [kit.write_cell(metric, own[own.measure == name]) for name, metric in MEASURES.items()]
        lines.append([Cell(text) for text in (rule.name, *texts)])
    titles = ["Halting by", *(metric.title for metric in MEASURES.values())]
    note = (
        f"{kit.distinct(table, 'benchmark')[0]}, {kit.seeds(table)}. {kit.conditions(table)}. {kit.MEANS} "
        f"The value halts where V < 0, as trained; the others cost at most as much on validation data. {NOTE}. "
        "A stop by the value costs one cell evaluation more than its steps, because the value reads the next thought."
    )
    return {"md": kit.write_markdown(Grid(titles, lines), note)}


ITEM = Item("halting", "When to stop: the value against simpler rules", experiments, table, draw, write)
