"""Is the value a good judge of when to stop? Against confidence, entropy and a fixed count, at equal mean cost.

Every threshold is fitted on validation data, to a mean cost there; what is reported is measured on test data. And does
the value stop early because it is asked about mean beliefs, while it was learned on sampled ones? The last panel asks
the same weights both ways.
"""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ricnet.report.predictions import Predictions, read_predictions
from ricnet.report.runs import RunRecord
from ricnet.report.style import BLUE, GREEN, INK, ORANGE, PURPLE, VERMILLION, styled
from ricnet.report.tables import Cell
from ricnet.studies import cells as asked
from ricnet.studies.cells import Runs
from ricnet.studies.controls.rules import RULES, VALUE, Rule, cost, judge, threshold_for
from ricnet.studies.paper.panels import WIDTH, draw_curve, fit, intervals, legend, letter, note_missing, seeds
from ricnet.studies.paper.recipe import Recipe
from ricnet.studies.paper.rows import Row, Rows, distinct, floats, pick
from ricnet.studies.paper.samples import summary, tabulate_cells
from ricnet.studies.paper.typesetting import markdown
from ricnet.studies.scales import Scale

LOOKS = {
    "value": (BLUE, "o"),
    "confidence": (VERMILLION, "s"),
    "entropy": (GREEN, "^"),
    "fixed number of steps": (PURPLE, "D"),
}
MEASURES = ("accuracy", "ece", "nll", "cost", "steps", "steps_right", "steps_wrong")
NOTE = "Thresholds fitted on validation data to the cost of the value there, measured on test data"
Split = tuple[Predictions, Predictions]
"""Validation and test."""


def cells(scale: Scale) -> list[asked.Cell]:
    return scale.cells(["ric", "ric-sampled-feedback"], scale.benchmarks[2:3])


def tabulate(scale: Scale, runs: Runs) -> Rows:
    mean_fed, sample_fed = cells(scale)
    rows = tabulate_cells([mean_fed], runs, _compare_rules)
    return rows + tabulate_cells([mean_fed, sample_fed], runs, _steps_taken)


def _compare_rules(runs: Sequence[RunRecord]) -> Rows:
    splits = [(read_predictions(run.path, "val"), read_predictions(run.path, "test")) for run in runs]
    own = [cost(VALUE, val, VALUE.halt(val, 0.0)) for val, _ in splits]
    horizon = max(len(test.step_scores) for _, test in splits)
    rows: Rows = []
    for rule in RULES:
        rows += [{"part": "at equal cost", "rule": rule.name, **row} for row in _apply(rule, splits, own)]
    for rule in RULES:
        budgets = np.linspace(1 + rule.asks_ahead, horizon, 20)
        for budget in budgets.tolist():
            found = _apply(rule, splits, [budget] * len(splits))
            rows += [{"part": "frontier", "rule": rule.name, "budget": budget, **row} for row in found]
    return rows


def _apply(rule: Rule, splits: Sequence[Split], budgets: Sequence[float]) -> Rows:
    """One row a measure: its mean over seeds when the rule may spend this much."""
    found: list[dict[str, float | None]] = []
    for (val, test), budget in zip(splits, budgets, strict=True):
        # At the value's own cost its own threshold is exact; a fitted one could only come near it.
        own = rule is VALUE and budget == cost(VALUE, val, VALUE.halt(val, 0.0))
        halt = rule.halt(test, 0.0 if own else threshold_for(rule, val, budget))
        found.append(judge(test, halt) | {"cost": cost(rule, test, halt)})
    return [{"measure": name, **summary([entry[name] for entry in found])} for name in MEASURES]


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
    letter(panels[2], 2, "steps taken")
    handles = [
        Line2D([], [], color=colour, marker=marker, markersize=3.5, label=name)
        for name, (colour, marker) in LOOKS.items()
    ]
    handles.append(Line2D([], [], color=INK, marker="*", linestyle="", markersize=7, label="V < 0, as trained"))
    notes = [f"{distinct(rows, 'benchmark')[0]}, {seeds(rows)}", intervals(rows), NOTE]
    legend(figure, handles, notes, columns=5)
    return figure


def _draw_frontier(ax: Axes, rows: Rows, measure: str) -> None:
    shown: list[float] = []
    for rule, (colour, marker) in LOOKS.items():
        curve = pick(rows, part="frontier", rule=rule, measure=measure)
        costs = pick(rows, part="frontier", rule=rule, measure="cost")
        points: Rows = [row | {"spent": spent["mean"]} for row, spent in zip(curve, costs, strict=True)]
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
                label = f"{answers} answers" if place == 0 else None
                ax.bar(place + shift, mean, 0.3, yerr=error, color=colour, label=label, error_kw={"linewidth": 0.8})
    ax.set_xticks([0, 1], ["V asked on means\n(the paper)", "V asked on\nsamples"])
    ax.set_ylabel("mean steps")
    if ax.has_data():
        ax.set_ylim(top=1.25 * ax.get_ylim()[1])
        ax.legend(loc="upper right", ncols=2)
    note_missing(ax, rows)


def write(rows: Rows) -> dict[str, str]:
    """The rules at the cost of the value's own halts."""
    titles = {"accuracy": "Accuracy, %", "ece": "ECE", "nll": "NLL", "cost": "Cell evaluations", "steps": "Steps"}
    lines = [[Cell(rule), *(_entry(rows, rule, measure) for measure in titles)] for rule in LOOKS]
    notes = [f"Mean ± half-width of the 95 % Student-t interval over seeds. {NOTE}."]
    return {"md": markdown(["Halting by", *titles.values()], "l" + "r" * len(titles), lines, notes)}


def _entry(rows: Rows, rule: str, measure: str) -> Cell:
    found: Row = next(iter(pick(rows, part="at equal cost", rule=rule, measure=measure)), {})
    mean, half = found.get("mean"), found.get("half_width")
    if not isinstance(mean, float):
        return Cell("–")
    digits, scale = {"accuracy": (2, 100), "cost": (2, 1), "steps": (2, 1)}.get(measure, (3, 1))
    spread = f" ± {scale * half:.{digits}f}" if isinstance(half, float) else ""
    return Cell(f"{scale * mean:.{digits}f}{spread}")


HALTING = Recipe("halting", "When to stop: the value against simpler rules", cells, tabulate, draw, write)
