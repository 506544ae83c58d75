"""Figure 5: what RIC does with its steps on the third benchmark.

Difficulty is how it ended in other seeds: each seed's test examples are split into three equal parts by log a_y at the
halt, averaged over all seeds but this one. Chosen by its own, the best answered would be those that were lucky in this
seed, and its curves would bend with their luck. A single seed has no others and is split by its own.
Curves over steps go on after the halt, for all examples, as if none had stopped.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Integer
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from ricnet.errors import RicnetError
from ricnet.evaluation.predictions import Predictions, read_predictions
from ricnet.report.figures import BLUE, FAINT, GREEN, INK, VERMILLION, styled
from ricnet.report.runs import RunRecord
from ricnet.studies.cells import Cell, Runs
from ricnet.studies.paper.conditions import conditions
from ricnet.studies.paper.panels import WIDTH, draw_curve, fit, intervals, legend, letter, note_missing, seeds
from ricnet.studies.paper.recipe import Recipe
from ricnet.studies.paper.rows import Row, Rows, distinct, floats, number, pick
from ricnet.studies.paper.samples import summaries, summary, tabulate_cells
from ricnet.studies.scales import Scale

DIFFICULTIES = {"easy": (GREEN, "^"), "intermediate": (BLUE, "o"), "hard": (VERMILLION, "v")}
PER_STEP = {"mean_confidence": "confidence", "ece": "ECE"}
OUTCOMES = {"right": (BLUE, 1), "wrong": (VERMILLION, -1)}
HALT: dict[str, Any] = {"color": INK, "linewidth": 0.9, "linestyle": ":"}


def cells(scale: Scale) -> list[Cell]:
    return scale.cells(["ric"], scale.benchmarks[2:3])


def tabulate(scale: Scale, runs: Runs) -> Rows:
    return tabulate_cells(scale, cells(scale), runs, _rows)


def _rows(runs: Sequence[RunRecord]) -> Rows:
    answers = [read_predictions(run.path, "test") for run in runs]
    _check_same_examples(runs, answers)
    halt: Rows = [{"quantity": "halt", **summary(run.test["mean_steps"] for run in runs)}]
    rows = _return_rows(answers) + _step_rows(runs) + halt + _halting_rows(runs)
    return [row | {"examples": len(answers[0].labels)} for row in rows]


def _check_same_examples(runs: Sequence[RunRecord], answers: Sequence[Predictions]) -> None:
    for run, own in zip(runs, answers, strict=True):
        if not np.array_equal(own.labels, answers[0].labels):
            raise RicnetError(f"{run.path} and {runs[0].path} have other test examples: train both on the same data.")


def _return_rows(answers: Sequence[Predictions]) -> Rows:
    """Normalised return 1 + log a_{t,y} / log K after each step (0 at the uniform a_0), and where the part halts."""
    rows: Rows = []
    parts = split_by_difficulty(answers)
    for name in DIFFICULTIES:
        split = [(own, part[name]) for own, part in zip(answers, parts, strict=True)]
        tracks = np.stack([_normalized_return(own)[:, part].mean(axis=1) for own, part in split])
        tags: Row = {"difficulty": name, "members": len(parts[0][name])}
        curve = zip(range(tracks.shape[1]), summaries(tracks), strict=True)
        rows += [{"quantity": "return", "step": step, **tags, **row} for step, row in curve]
        halts = summary(float(own.halt_step[part].mean()) for own, part in split)
        rows.append({"quantity": "halt of part", **tags, **halts})
    return rows


def split_by_difficulty(answers: Sequence[Predictions]) -> list[dict[str, Integer[np.ndarray, "part"]]]:
    """For each seed the examples of each third, those that the other seeds answer best first."""
    final = np.stack([own.step_scores[own.halt_step - 1, np.arange(len(own.labels))] for own in answers])
    others = [np.delete(final, seed, axis=0) for seed in range(len(final))] if len(final) > 1 else [final]
    best_first = [np.argsort(-scores.mean(axis=0, dtype=np.float64), kind="stable") for scores in others]
    return [dict(zip(DIFFICULTIES, np.array_split(order, 3), strict=True)) for order in best_first]


def _normalized_return(own: Predictions) -> Float[np.ndarray, "states n"]:
    gains = 1 + own.step_scores.astype(np.float64) / np.log(own.log_beliefs.shape[1])
    return np.concatenate([np.zeros_like(gains[:1]), gains])


def _step_rows(runs: Sequence[RunRecord]) -> Rows:
    steps = [entry["step"] for entry in runs[0].test["per_step"]]
    rows: Rows = []
    for quantity in PER_STEP:
        tracks = np.array([[entry[quantity] for entry in run.test["per_step"]] for run in runs], dtype=float)
        rows += [
            {"quantity": quantity, "step": step, **row} for step, row in zip(steps, summaries(tracks), strict=True)
        ]
    return rows


def _halting_rows(runs: Sequence[RunRecord]) -> Rows:
    """In shares of each outcome's own number, for the wrong are few; a seed without any has no shares."""
    rows: Rows = []
    for outcome, key in (("right", "correct"), ("wrong", "wrong")):
        counts = np.array([[entry[key] for entry in run.test["halting"]] for run in runs], dtype=float)
        shares = counts / np.where(counts.any(axis=1), counts.sum(axis=1), np.nan)[:, None]
        tags: Row = {"quantity": "halting", "outcome": outcome, "members": int(counts.sum())}
        rows += [{**tags, "step": step, **row} for step, row in enumerate(summaries(shares), start=1)]
    return rows


@styled
def draw(rows: Rows) -> Figure:
    figure = Figure(figsize=(WIDTH, 2.9), layout="constrained")
    grid = figure.add_gridspec(2, 3)
    left, right = figure.add_subplot(grid[:, 0]), figure.add_subplot(grid[:, 2])
    upper = figure.add_subplot(grid[0, 1])
    lower = figure.add_subplot(grid[1, 1], sharex=upper)
    _draw_returns(left, rows)
    _draw_steps((upper, lower), rows)
    _draw_halting(right, rows)
    for i, (ax, title) in enumerate(((left, "return by difficulty"), (upper, "calibration"), (right, "halting"))):
        letter(ax, i, title)
    legend(figure, _handles(), _notes(rows))
    return figure


def _draw_returns(ax: Axes, rows: Rows) -> None:
    shown = pick(rows, quantity="return")
    for name, (shade, marker) in DIFFICULTIES.items():
        curve, halt = pick(shown, difficulty=name), pick(rows, quantity="halt of part", difficulty=name)
        if curve and halt:
            draw_curve(ax, curve, "step", color=shade)
            at = number(halt, "mean") or 0
            height = np.interp(at, floats(curve, "step"), floats(curve, "mean"))
            ax.plot([at], [height], marker, color=shade, markersize=5, markeredgecolor=INK, markeredgewidth=0.6)
    fit(ax, floats(shown, "mean"))
    _over_steps(ax, "normalised return")
    note_missing(ax, rows)


def _draw_steps(axes: Sequence[Axes], rows: Rows) -> None:
    for ax, (quantity, name) in zip(axes, PER_STEP.items(), strict=True):
        curve = pick(rows, quantity=quantity)
        draw_curve(ax, curve, "step", color=BLUE)
        for halt in pick(rows, quantity="halt"):
            ax.axvline(number([halt], "mean") or 0, **HALT)
        fit(ax, floats(curve, "mean"))
        ax.yaxis.set_major_locator(MaxNLocator(4))
        _over_steps(ax, name)
    axes[0].tick_params(labelbottom=False)
    axes[0].set_xlabel("")
    for ax in axes:
        note_missing(ax, rows)


def _draw_halting(ax: Axes, rows: Rows) -> None:
    """Right answers rise, wrong ones hang."""
    for outcome, (shade, sign) in OUTCOMES.items():
        shown = pick(rows, quantity="halting", outcome=outcome)
        if not shown:
            continue
        step, share, half = (floats(shown, name) for name in ("step", "mean", "half_width"))
        share, half = 100 * np.nan_to_num(share), 100 * half
        name = f"{outcome}, n = {number(shown, 'members'):,.0f}"
        ax.bar(step, sign * share, 0.82, color=shade, alpha=0.85, label=name)
        ax.vlines(step, sign * np.clip(share - half, 0, 100), sign * np.clip(share + half, 0, 100), INK, linewidth=0.7)
        _mark_mean(ax, step, share, sign)
    _frame_halting(ax, pick(rows, quantity="halting"))
    note_missing(ax, rows)


def _mark_mean(ax: Axes, step: np.ndarray, share: np.ndarray, sign: int) -> None:
    if share.sum():
        mean = (step * share).sum() / share.sum()
        ax.plot([mean], [0], "^" if sign > 0 else "v", color=INK, markersize=4, zorder=4)


def _frame_halting(ax: Axes, shown: Rows) -> None:
    if not shown:
        return
    right, wrong = (100 * floats(pick(shown, outcome=outcome), "mean") for outcome in OUTCOMES)
    top, bottom = max(np.nanmax(right, initial=0), 1), max(np.nanmax(wrong, initial=0), 1)
    ax.set_ylim(-1.2 * bottom, 1.2 * top)
    ax.axhline(0, color=FAINT, linewidth=0.6)
    ax.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{abs(share):.0f}"))
    _over_steps(ax, "← wrong, %      right, % →")
    ax.legend(loc="upper right", bbox_to_anchor=(0.95, 1.0), handlelength=1)  # few stop between


def _over_steps(ax: Axes, name: str) -> None:
    ax.set(xlabel="step", ylabel=name)
    ax.xaxis.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=1))


def _handles() -> list[Line2D]:
    style: dict[str, Any] = {"linewidth": 1.1, "markersize": 5, "markeredgecolor": INK, "markeredgewidth": 0.6}
    parts = [
        Line2D([], [], color=shade, marker=marker, label=name, **style)
        for name, (shade, marker) in DIFFICULTIES.items()
    ]
    return [*parts, Line2D([], [], **HALT, label="mean halt (in (a) marker, in (c) triangle)")]


def _notes(rows: Rows) -> list[str]:
    size = number(rows, "examples")
    counts = f", test n = {size:,.0f}" if size else ""
    system = f"{distinct(rows, 'system')[0]} on {distinct(rows, 'benchmark')[0]} ({seeds(rows)}{counts})"
    return [system, conditions(rows), _rule(rows), intervals(rows)]


def _rule(rows: Rows) -> str:
    """By which the examples were split; nothing where there are none."""
    count = floats(rows, "seeds").max()
    by = "in the other seeds" if count > 1 else "in this seed, for there is no other"
    return f"(a): each seed's thirds of the test set by log-score at the halt {by}" if count else ""


RECIPE = Recipe("fig5", "Adaptive computation on the third benchmark", cells, tabulate, draw)
