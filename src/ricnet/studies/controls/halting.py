"""Is the value a good judge of when to stop? Against confidence, entropy and a fixed count, at equal mean cost.

Every threshold is fitted on validation data, to a mean cost there; what is reported is measured on test data. And does
the value stop early because it is asked about mean beliefs, while it was learned on sampled ones? The last panel asks
the same weights both ways.
"""

from collections.abc import Sequence
from operator import itemgetter

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ricnet.evaluation.predictions import Predictions, read_predictions
from ricnet.report.figures import BLUE, GREEN, INK, ORANGE, PURPLE, VERMILLION, styled
from ricnet.report.runs import RunRecord
from ricnet.report.tables import Cell
from ricnet.studies import cells as asked
from ricnet.studies.cells import Runs
from ricnet.studies.controls.rules import RULES, VALUE, Rule, cost, judge, threshold_for
from ricnet.studies.paper.conditions import conditions
from ricnet.studies.paper.panels import WIDTH, draw_curve, fit, intervals, legend, letter, note_missing, seeds
from ricnet.studies.paper.recipe import Recipe
from ricnet.studies.paper.rows import Rows, distinct, floats, number, pick
from ricnet.studies.paper.samples import summary, tabulate_cells
from ricnet.studies.paper.scores import Score
from ricnet.studies.paper.typesetting import markdown
from ricnet.studies.scales import Scale

LOOKS = {
    "value": (BLUE, "o"),
    "confidence": (VERMILLION, "s"),
    "entropy": (GREEN, "^"),
    "fixed number of steps": (PURPLE, "D"),
}
MEASURES = {
    "accuracy": Score("accuracy, %", itemgetter("accuracy"), 100, 2),
    "ece": Score("ECE", itemgetter("ece")),
    "nll": Score("NLL", itemgetter("nll")),
    "cost": Score("cell evaluations", itemgetter("cost"), digits=2),
    "steps": Score("steps", itemgetter("steps"), digits=2),
    "steps_right": Score("if right", itemgetter("steps_right"), digits=2),
    "steps_wrong": Score("if wrong", itemgetter("steps_wrong"), digits=2),
}
"""Of what `_judged` finds for one seed."""
AS_TRAINED = 0.0
"""The value's own threshold."""
NOTE = "Thresholds are fitted on validation data, measured on test data"
Split = tuple[Predictions, Predictions]
"""Validation and test."""


def cells(scale: Scale) -> list[asked.Cell]:
    return scale.cells(["ric", "ric-sampled-feedback"], scale.benchmarks[2:3])


def tabulate(scale: Scale, runs: Runs) -> Rows:
    mean_fed, sample_fed = cells(scale)
    rows = tabulate_cells(scale, [mean_fed], runs, _compare_rules)
    return rows + tabulate_cells(scale, [mean_fed, sample_fed], runs, _steps_taken)


def _compare_rules(runs: Sequence[RunRecord]) -> Rows:
    splits = [(read_predictions(run.path, "val"), read_predictions(run.path, "test")) for run in runs]
    return _at_equal_cost(splits) + _frontiers(splits)


def _at_equal_cost(splits: Sequence[Split]) -> Rows:
    """Each rule where it costs what the value does on validation data; the value itself as it was trained."""
    budgets = [cost(VALUE, val, VALUE.halt(val, AS_TRAINED)) for val, _ in splits]
    rows: Rows = []
    for rule in RULES:
        thresholds = [AS_TRAINED] * len(splits) if rule is VALUE else _fitted(rule, splits, budgets)
        rows += [{"part": "at equal cost", "rule": rule.name, **row} for row in _judged(rule, splits, thresholds)]
    return rows


def _frontiers(splits: Sequence[Split]) -> Rows:
    horizon = max(len(test.step_scores) for _, test in splits)
    rows: Rows = []
    for rule in RULES:
        for budget in np.linspace(1 + rule.asks_ahead, horizon, 20).tolist():
            found = _judged(rule, splits, _fitted(rule, splits, [budget] * len(splits)))
            rows += [{"part": "frontier", "rule": rule.name, "budget": budget, **row} for row in found]
    return rows


def _fitted(rule: Rule, splits: Sequence[Split], budgets: Sequence[float]) -> list[float]:
    return [threshold_for(rule, val, budget) for (val, _), budget in zip(splits, budgets, strict=True)]


def _judged(rule: Rule, splits: Sequence[Split], thresholds: Sequence[float]) -> Rows:
    """One row a measure: its mean over the seeds, each with its own threshold, on test data."""
    found: list[dict[str, float | None]] = []
    for (_, test), threshold in zip(splits, thresholds, strict=True):
        halt = rule.halt(test, threshold)
        found.append(judge(test, halt) | {"cost": cost(rule, test, halt)})
    return [{"measure": name, **summary(map(measure.of, found))} for name, measure in MEASURES.items()]


def _steps_taken(runs: Sequence[RunRecord]) -> Rows:
    kinds = {"right": "mean_steps_correct", "wrong": "mean_steps_wrong"}
    return [
        {"part": "steps", "answers": kind, **summary([run.test[key] for run in runs])} for kind, key in kinds.items()
    ]


@styled
def draw(rows: Rows) -> Figure:
    figure = Figure(figsize=(WIDTH, 2.7), layout="constrained")
    panels = figure.subplots(1, 3)
    for index, (ax, measure, title) in enumerate(zip(panels, ("nll", "accuracy"), ("NLL", "accuracy"), strict=False)):
        _draw_frontier(ax, rows, measure)
        letter(ax, index, f"test {title} against cost")
        ax.set_xlabel("mean evaluations of the cell")
    _draw_steps(panels[2], [row for row in rows if row.get("part") == "steps" or row.get("missing")])
    letter(panels[2], 2, "steps taken by answers")
    handles = [
        Line2D([], [], color=colour, marker=marker, markersize=3.5, label=name)
        for name, (colour, marker) in LOOKS.items()
    ]
    handles.append(Line2D([], [], color=INK, marker="*", linestyle="", markersize=7, label="V < 0, as trained"))
    spread = intervals(pick(rows, part="steps"), "(a) and (b): means over seeds; (c), lines")
    notes = [f"{distinct(rows, 'benchmark')[0]}, {seeds(rows)}", conditions(rows), spread, NOTE]
    legend(figure, handles, notes, columns=5)
    return figure


def _draw_frontier(ax: Axes, rows: Rows, measure: str) -> None:
    shown: list[float] = []
    for rule, (colour, marker) in LOOKS.items():
        curve = pick(rows, part="frontier", rule=rule, measure=measure)
        costs = pick(rows, part="frontier", rule=rule, measure="cost")
        # Without bands: four of three seeds each, over one another, leave nothing to be seen.
        points: Rows = [row | {"spent": at["mean"], "half_width": None} for row, at in zip(curve, costs, strict=True)]
        draw_curve(ax, points, "spent", color=colour, marker=marker, markersize=2.5, markevery=3)
        shown += floats(points, "mean").tolist()
    own, spent = (pick(rows, part="at equal cost", rule="value", measure=name) for name in (measure, "cost"))
    if own:
        ax.plot(floats(spent, "mean"), floats(own, "mean"), "*", color=INK, markersize=8, zorder=5)
    fit(ax, np.array(shown))
    note_missing(ax, rows)


def _draw_steps(ax: Axes, rows: Rows) -> None:
    for place, system in enumerate(distinct(rows, "system")):
        for shift, answers, colour in ((-0.17, "right", BLUE), (0.17, "wrong", ORANGE)):
            entry = pick(rows, system=system, answers=answers)
            if entry and entry[0].get("mean") is not None:
                mean, half = floats(entry, "mean")[0], floats(entry, "half_width")[0]
                error = None if np.isnan(half) else half
                label = answers if place == 0 else None
                ax.bar(place + shift, mean, 0.3, yerr=error, color=colour, label=label, error_kw={"linewidth": 0.8})
    ax.set_xticks([0, 1], ["V asked on means\n(the paper)", "V asked on\nsamples"])
    ax.set_ylabel("mean steps")
    if ax.has_data():
        ax.set_ylim(0, 1.25 * ax.get_ylim()[1])
        ax.legend(loc="upper right", ncols=2)
    note_missing(ax, rows)


def write(rows: Rows) -> dict[str, str]:
    """The rules at the cost of the value's own halts."""
    lines = [[Cell(rule), *(Cell(_text(rows, rule, name)) for name in MEASURES)] for rule in LOOKS]
    titles = ["Halting by", *(measure.title for measure in MEASURES.values())]
    notes = [
        f"{distinct(rows, 'benchmark')[0]}, {seeds(rows)}. {conditions(rows)}. "
        "Mean ± half-width of the 95 % Student-t interval over seeds. "
        f"The value halts where V < 0, as trained; the others cost at most as much on validation data. {NOTE}. "
        "A stop by the value costs one evaluation of the cell more than its steps, for it is asked of the next thought."
    ]
    return {"md": markdown(titles, "l" + "r" * len(MEASURES), lines, notes)}


def _text(rows: Rows, rule: str, measure: str) -> str:
    own = pick(rows, part="at equal cost", rule=rule, measure=measure)
    return MEASURES[measure].write(number(own, "mean"), number(own, "half_width"))


HALTING = Recipe("halting", "When to stop: the value against simpler rules", cells, tabulate, draw, write)
