"""Tables of runs, systems, differences and classes, for the terminal, Markdown, LaTeX, CSV and pages.

Bold marks the best score of a column among runs; among systems, scores that are shown to be better than the reference.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from jaxtyping import Float, Integer
from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ricnet.errors import listing
from ricnet.io import MARK, TABLE, short, shown_name
from ricnet.report.comparison import (
    ALPHA,
    BALANCED_ACCURACY,
    BRIER,
    COST,
    ENOUGH_SEEDS,
    SECONDS,
    STEPS,
    TRAIN_ACCURACY,
    Comparison,
    Metric,
    interval_of,
)
from ricnet.report.runs import (
    Baseline,
    RunGroup,
    RunRecord,
    by_task,
    collapse_note,
    judged_words,
    repeats_note,
    untested_note,
)
from ricnet.report.statistics import RESAMPLES, Interval

BALANCE_MATTERS = 0.01
"""Difference of balanced accuracy and accuracy above which a run's table names both."""

# A grid and its formats


@dataclass(frozen=True)
class Cell:
    text: str
    best: bool = False
    """Bold."""


@dataclass(frozen=True)
class Grid:
    titles: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    words: frozenset[int] = frozenset({0})
    """Columns of words, aligned left; numbers are aligned right."""

    def is_number(self, column: int) -> bool:
        return column not in self.words


def cells(*texts: str) -> list[Cell]:
    return [Cell(text) for text in texts]


def terminal(grid: Grid) -> Table:
    """For the terminal; numbers stand above their intervals to save width."""
    table = Table(header_style="none", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for i, name in enumerate(grid.titles):
        numeric = grid.is_number(i)
        justify: Literal["left", "right"] = "right" if numeric else "left"
        table.add_column(Text(_stacked(name, numeric)), justify=justify, overflow="fold")
    for row in grid.rows:
        styles = ["bold" if cell.best else "" for cell in row]
        texts = [_stacked(cell.text, grid.is_number(i)) for i, cell in enumerate(row)]
        table.add_row(*(Text(text, style) for text, style in zip(texts, styles, strict=True)))
    return table


@dataclass(frozen=True)
class Fitted:
    """A table for the terminal. Columns are left out, the first of `optional` first, until names need not be wrapped;
    pages and files have all columns."""

    grid: Grid
    optional: Sequence[str]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        grids = [self.grid]
        for title in self.optional:
            grids.append(_without_column(grids[-1], title))
        unlimited = options.update(max_width=10_000)
        fits = [terminal(g).__rich_measure__(console, unlimited).maximum <= options.max_width for g in grids]
        yield terminal(grids[fits.index(True)] if True in fits else grids[-1])


def _without_column(grid: Grid, title: str) -> Grid:
    kept = [i for i, name in enumerate(grid.titles) if name != title]
    rows = [[row[i] for i in kept] for row in grid.rows]
    return Grid([grid.titles[i] for i in kept], rows, frozenset(n for n, i in enumerate(kept) if i in grid.words))


def _stacked(text: str, numeric: bool) -> str:
    breaks = r" (?=±|to |\()|(?<=[a-z]) (?=[a-z])" if numeric else r" (?=− |\()"
    return re.sub(breaks, "\n", text).replace("± ", "±")


def markdown_table(grid: Grid) -> str:
    rules = ["---:" if grid.is_number(i) else ":---" for i in range(len(grid.titles))]
    body = [[_bold(markdown_safe(cell.text), cell.best, "**{}**") for cell in row] for row in grid.rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in [grid.titles, rules, *body])


def latex_table(grid: Grid, caption: str, head: Sequence[str] | None = None, shrink: bool = False) -> str:
    """A table environment. `caption` and `head`, which replaces the titles, are LaTeX; `shrink` fits a wide table to
    the text width (needs graphicx)."""
    head = [_latex_line([escape_latex(title) for title in grid.titles])] if head is None else head
    body = [_latex_line([_bold(escape_latex(c.text), c.best, r"\textbf{{{}}}") for c in row]) for row in grid.rows]
    columns = "".join("r" if grid.is_number(i) else "l" for i in range(len(grid.titles)))
    fit = [r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"] if shrink else []
    return "\n".join(
        [
            *(r"\begin{table}", r"\centering", r"\footnotesize", r"\setlength{\tabcolsep}{3pt}", *fit),
            *(rf"\begin{{tabular}}{{{columns}}}", r"\toprule", *head, r"\midrule", *body, r"\bottomrule"),
            *(r"\end{tabular}" + "}" * shrink, rf"\caption{{{caption}}}", r"\end{table}"),
        ]
    )


def _latex_line(texts: Sequence[str]) -> str:
    return " & ".join(texts) + r" \\"


def _bold(text: str, best: bool, form: str) -> str:
    return form.format(text) if best else text


_LATEX = {
    **{sign: "\\" + sign for sign in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "−": "$-$",
    "–": "--",
    "…": r"\ldots{}",
    "†": r"$\dagger$",
}


def escape_latex(text: str) -> str:
    """Escape special characters; those missing in T1 fonts, which stop pdflatex, become ?."""
    return "".join(_LATEX.get(c, c if c.isascii() or (ord(c) < 0x180 and c.isalpha()) else "?") for c in text)


# Numbers and names in a table


def number(value: float | int | None, digits: int) -> str:
    return "–" if value is None or math.isnan(value) else f"{value:,.{digits}f}"


def percent(share: float | int | None, digits: int = 2) -> str:
    return "–" if share is None or math.isnan(share) else f"{100 * share:.{digits}f} %"


def markdown_safe(text: str) -> str:
    """Escape Markdown syntax."""
    for sign in "\\|*_`[]":
        text = text.replace(sign, "\\" + sign)
    return text.replace("<", "&lt;")


# Results: one row per system


def results_grid(comparison: Comparison) -> Grid:
    """One row per system, a second one without calibration if it was calibrated, then the baselines.

    With several seeds, bold marks scores shown to be better than the reference; else the best on the same data.
    """
    metrics, seeds = comparison.metrics, comparison.has_seeds
    groups = [each for group in comparison.systems for each in (group, group.raw) if each is not None]
    rows: list[tuple[RunGroup | Baseline, list[Interval]]]
    rows = [(group, [interval_of(group, metric) for metric in metrics]) for group in groups]
    rows += [
        (each, [Interval(metric.of_baseline(each), None, 1) for metric in metrics]) for each in comparison.baselines
    ]
    cells = []
    for system, intervals in rows:
        rivals = [others for other, others in rows if other.task == system.task]
        scores = []
        for metric, found, column in zip(metrics, intervals, zip(*rivals, strict=True), strict=True):
            bold = comparison.is_better(system, metric) if seeds else _is_best(metric, found, column)
            scores.append(Cell(metric.write(found.mean, found.half_width), bold))
        count = [Cell(str(len(system.runs)) if isinstance(system, RunGroup) else "–")] * seeds
        cells.append([Cell(short(system.name, TABLE)), Cell(short(system.first.data_label, TABLE)), *count, *scores])
    titles = [judged_words(metric.heading, comparison.runs) for metric in metrics]
    return Grid(["System", "Data", *["Seeds"] * seeds, *titles], cells, frozenset({0, 1}))


def _is_best(metric: Metric, found: Interval, rivals: Sequence[Interval]) -> bool:
    """Whether the mean, as written, equals the best one; hidden digits do not count."""
    known = [each.mean for each in rivals if math.isfinite(each.mean)]
    if not metric.merit or len(rivals) < 2 or not known:
        return False
    return metric.write(found.mean) == metric.write(max(known, key=lambda mean: metric.merit * mean))


def results_caption(comparison: Comparison) -> str:
    """Test sets, intervals, ECE bins, meaning of bold and of row names."""
    runs, seeds = comparison.runs, comparison.has_seeds
    bins = listing([str(count) for count in dict.fromkeys(run.test["ece_bins"] for run in runs)])
    bold = any(cell.best for row in results_grid(comparison).rows for cell in row)
    meaning = f"better than {references(comparison)}, by the verdict below" if seeds else "the best on the same data"
    words = [
        untested_note(runs),
        "Mean ± half-width of the 95 % Student-t interval over seeds." * seeds,
        f"{_test_sets(runs)} ECE with {bins} bins.",
        f"Bold: {meaning}." * bold,
        "Raw: as trained, with nothing chosen on validation data." * any(run.raw for run in runs),
        "Base rate: the commonest training class." * bool(comparison.baselines),
        collapse_note(runs),
        repeats_note(comparison.systems),
        comparison.note,
    ]
    return " ".join(filter(None, words))


def _test_sets(runs: Sequence[RunRecord]) -> str:
    """Name and size of each test set, with the standard error of a mean accuracy on it."""
    parts = []
    for alike in by_task(runs):
        n, mean = alike[0].task.n, sum(run.test["accuracy"] for run in alike) / len(alike)
        error = f" (standard error of an accuracy: {100 * math.sqrt(mean * (1 - mean) / n):.2f} points)"
        own = alike[0].config.get("test")  # a separate file
        name = shown_name(str(own)) if own else alike[0].data_label
        parts.append(f"{name}, n = {n:,}{error if 0 < mean < 1 else ''}")
    return f"{judged_words('Test set', runs)}: {'; '.join(parts)}."


OPTIONAL = (*(metric.heading for metric in (SECONDS, TRAIN_ACCURACY, BRIER, STEPS, COST)), "p (Holm)", "Bootstrap")
"""Columns that a narrow terminal leaves out, the first one first."""


def run_table(run: RunRecord) -> Group:
    """A single run with a short caption; the page explains the rest."""
    balanced = BALANCED_ACCURACY.of(run)
    differs = balanced is not None and abs(balanced - run.test["accuracy"]) > BALANCE_MATTERS
    words = [
        untested_note([run]),
        _test_sets([run]),
        f"Balanced accuracy: {BALANCED_ACCURACY.write(balanced, unit=True)}." * differs,
        collapse_note([run]),
    ]
    label = run.label.removesuffix(MARK) + MARK * bool(run.collapses)
    grid = results_grid(Comparison((RunGroup(label, (run,)),)))
    return Group(Fitted(_without_data(grid), OPTIONAL), Text(" ".join(filter(None, words))))


# Differences from a reference


def references(comparison: Comparison) -> str:
    """Names of the references, one per data set."""
    names = dict.fromkeys(short(contrast.reference.label, TABLE) for contrast in comparison.contrasts)
    return listing(list(names) or [""])


def contrasts_grid(comparison: Comparison) -> Grid:
    """One row per difference: mean, interval and test over seeds, bootstrap over examples, verdict."""
    rows = []
    for each in comparison.contrasts:
        metric, p, runs = each.metric, each.p_corrected, each.system.runs
        low, high = (metric.write(end, signed=True) for end in (each.examples.low, each.examples.high))
        texts = [
            f"{short(each.system.name, TABLE)} − {short(each.reference.name, TABLE)}",
            short(runs[0].data_label, TABLE),
            judged_words(metric.title, runs) + " (points)" * (metric.scale == 100),
            metric.write(each.seeds.mean, each.seeds.half_width, signed=True),
            "< 0.001" if p is not None and p < 0.001 else number(p, 3),
            f"{low} to {high}",
            each.verdict,
        ]
        rows.append([Cell(text) for text in texts])
    titles = ["Difference", "Data", "Metric", "Mean ± t", "p (Holm)", "Bootstrap", "Verdict"]
    return Grid(titles, rows, frozenset({0, 1, 2, 6}))


def contrasts_caption(comparison: Comparison) -> str:
    """Meaning of interval, p value, bootstrap and verdict."""
    over_seeds = (
        "±: 95 % Student-t interval of the paired differences over seeds. p: two-sided t test with Holm correction for "
        "all tests of this table; there is none if all seeds differ by the same amount. "
    )
    text = (
        f"Bootstrap: 95 % percentile interval over test examples for these trained networks ({RESAMPLES:,} resamples). "
        f"A verdict is better or worse only with at least {ENOUGH_SEEDS} seeds, p below {ALPHA} and a bootstrap "
        "interval on the same side of 0. ECE is biased upwards, most where it is small: differences are understated."
    )
    return judged_words(over_seeds * comparison.has_seeds + text, comparison.runs)


def without_equal_data(grid: Grid) -> Grid:
    """Drop the column of data if all rows have the same data, which the caption names."""
    return _without_column(grid, "Data") if len({data.text for _, data, *_ in grid.rows}) == 1 else grid


def _without_data(grid: Grid) -> Grid:
    """Drop the column of data; if data sets differ, write them below the names of the systems."""
    several = len({data.text for _, data, *_ in grid.rows}) > 1
    rows = [[Cell(f"{name.text}\n on {data.text}") if several else name, *rest] for name, data, *rest in grid.rows]
    return Grid([grid.titles[0], *grid.titles[2:]], rows, frozenset(max(i - 1, 0) for i in grid.words))


def terminal_table(comparison: Comparison) -> Group:
    parts: list[RenderableType] = []
    for grid, words in _captioned(comparison):
        parts += [Fitted(_without_data(grid), OPTIONAL), Padding(Text(words), (1, 0, 1, 0))]
    return Group(*parts)


def _captioned(comparison: Comparison) -> list[tuple[Grid, str]]:
    """The table of results, and that of differences if there are any, each with its caption."""
    found = [(results_grid(comparison), results_caption(comparison))]
    return found + [(contrasts_grid(comparison), contrasts_caption(comparison))] * bool(comparison.contrasts)


def markdown(comparison: Comparison) -> str:
    parts = [f"{markdown_table(grid)}\n\n{markdown_safe(words)}\n" for grid, words in _captioned(comparison)]
    return "\n".join(parts)


def latex(comparison: Comparison) -> str:
    """Table environments; need booktabs and a T1 font encoding."""
    tables = [f"{latex_table(grid, escape_latex(words))}\n" for grid, words in _captioned(comparison)]
    return "\n".join([r"% needs \usepackage{booktabs} and \usepackage[T1]{fontenc}" + "\n", *tables])


def csv_text(comparison: Comparison) -> str:
    """One row per system and metric, unrounded; without a difference its columns are empty."""
    contrasts = {(id(c.system), c.metric): c for c in comparison.contrasts}
    rows: list[dict[str, Any]] = []
    for system in comparison.systems:
        for metric in comparison.metrics:
            interval, contrast = interval_of(system, metric), contrasts.get((id(system), metric))
            row = {
                "system": short(system.label, TABLE),
                "data": short(system.first.data_label, TABLE),
                "metric": metric.key,
                "seeds": " ".join(str(seed) for seed in system.seeds),
                "split": system.first.judged_on,
                "n_test": system.task.n,
                "mean": interval.mean,
                "half_width": interval.half_width,
                "reference": contrast and short(contrast.reference.label, TABLE),
                "difference": contrast and contrast.seeds.mean,
                "difference_half_width": contrast and contrast.seeds.half_width,
                "p_value": contrast and contrast.seeds.p_value,
                "p_holm": contrast and contrast.p_corrected,
                "bootstrap_low": contrast and contrast.examples.low,
                "bootstrap_high": contrast and contrast.examples.high,
                "verdict": contrast and contrast.verdict,
            }
            rows.append(row)
    for each in comparison.baselines:
        about = {"system": each.label, "data": short(each.first.data_label, TABLE), "n_test": each.task.n}
        scores = {metric.key: metric.of_baseline(each) for metric in comparison.metrics}
        rows += [{**about, "metric": key, "mean": score} for key, score in scores.items() if not math.isnan(score)]
    text: str = pd.DataFrame(rows).to_csv(index=False, lineterminator="\n")
    return text


# Confused classes

MOST_CLASSES = 20
"""Maximum classes of a confusion matrix."""
MOST_ROWS = 100
"""Maximum classes in the table; of more, those of lowest recall."""
PAIRS = 10
"""Maximum confused pairs."""


@dataclass(frozen=True)
class Confusion:
    counts: Integer[np.ndarray, "classes classes"]
    """Rows: true class, columns: answer."""
    names: tuple[str, ...]

    @property
    def recall(self) -> Float[np.ndarray, "classes"]:
        """Share of right answers among the examples of a class; NaN without examples."""
        return self._right_among(axis=1)

    @property
    def precision(self) -> Float[np.ndarray, "classes"]:
        """Share of right answers among the answers with a class; NaN without answers."""
        return self._right_among(axis=0)

    def _right_among(self, axis: int) -> Float[np.ndarray, "classes"]:
        with np.errstate(invalid="ignore"):
            shares: np.ndarray = self.counts.diagonal() / self.counts.sum(axis=axis)
        return shares

    def pairs(self, most: int = PAIRS) -> list[tuple[int, int, int]]:
        """True class, answer and count of the commonest mistakes."""
        wrong = self.counts * ~np.eye(len(self.counts), dtype=bool)
        order = np.argsort(-wrong, axis=None, kind="stable")[:most]
        places = zip(*np.unravel_index(order, wrong.shape), strict=True)
        return [(int(i), int(j), int(wrong[i, j])) for i, j in places if wrong[i, j]]


def confusion(labels: Integer[np.ndarray, "n"], answers: Integer[np.ndarray, "n"], names: Sequence[str]) -> Confusion:
    counts = np.zeros((len(names), len(names)), dtype=np.int64)
    np.add.at(counts, (labels, answers), 1)
    return Confusion(counts, tuple(names))


def class_grid(found: Confusion) -> Grid:
    """One row per class; of more than MOST_ROWS those of lowest recall."""
    order = np.argsort(np.nan_to_num(found.recall, nan=np.inf), kind="stable")[:MOST_ROWS].tolist()
    shares, totals = (found.precision, found.recall), (found.counts.sum(axis=1), found.counts.sum(axis=0))
    rows = [
        [short(found.names[k], 24), *(percent(float(own[k]), 1) for own in shares), *(f"{own[k]:,}" for own in totals)]
        for k in (order if len(found.names) > MOST_ROWS else range(len(found.names)))
    ]
    titles = ["Class", "Precision", "Recall", "Examples", "Answers"]
    return Grid(titles, [[Cell(text) for text in row] for row in rows])


def matrix_grid(found: Confusion) -> Grid:
    """Confusion matrix with right answers in bold and a dot for 0."""
    rows = [
        [Cell(short(name)), *(Cell(number(n, 0) if n else "·", best=k == j and n > 0) for j, n in enumerate(row))]
        for k, (name, row) in enumerate(zip(found.names, found.counts.tolist(), strict=True))
    ]
    return Grid(["true class ↓ answer →", *(short(name) for name in found.names)], rows)


def pair_words(found: Confusion, true: int, answer: int, times: int) -> str:
    total = int(found.counts[true].sum())
    names = short(found.names[true], 24), short(found.names[answer], 24)
    return f"{names[0]} taken for {names[1]}: {times:,} of {total:,} ({percent(times / total, 1)})"
