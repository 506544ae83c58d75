"""Tables of runs, systems, differences and classes, for the terminal and as Markdown, LaTeX, CSV and HTML.

Bold: among runs the best score of a column, among systems what is shown to be better than the reference.
"""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float, Integer
from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ricnet.errors import listing
from ricnet.evaluation.metrics import BINS
from ricnet.io import TABLE, short
from ricnet.report.comparison import (
    ALPHA,
    BALANCED_ACCURACY,
    BRIER,
    COST,
    ENOUGH_SEEDS,
    RUN_METRICS,
    SECONDS,
    STEPS,
    SYSTEM_METRICS,
    TRAIN_ACCURACY,
    Comparison,
    Contrast,
    Metric,
    ranking,
    shown,
)
from ricnet.report.runs import (
    RunRecord,
    baselines,
    by_task,
    collapse_note,
    judged_words,
    repeats_note,
    untested_note,
)
from ricnet.report.statistics import RESAMPLES

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


def terminal(grid: Grid, box: bool = False, title: str | None = None) -> Table:
    """For the terminal. Without `box`, numbers stand above their intervals to save width."""
    plain: dict[str, object] = {} if box else {"box": SIMPLE_HEAD, "padding": (0, 1, 0, 0), "show_edge": False}
    table = Table(title=title, header_style=None if box else "none", **plain)  # type: ignore[arg-type]
    for i, name in enumerate(grid.titles):
        numeric = grid.is_number(i)
        table.add_column(
            Text(name if box else _stacked(name, numeric)),
            justify="right" if numeric else "left",
            no_wrap=numeric and not box,
            overflow="fold",  # names are wrapped, not cut
        )
    for row in grid.rows:
        texts = [cell.text if box else _stacked(cell.text, grid.is_number(i)) for i, cell in enumerate(row)]
        table.add_row(*(Text(t, style="bold" if cell.best else "") for t, cell in zip(texts, row, strict=True)))
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
    return re.sub(r" (?=±|to |\()|(?<=[a-z]) (?=[a-z])", "\n", text).replace("± ", "±") if numeric else text


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


# Runs: one row per run


def runs_grid(runs: Sequence[RunRecord]) -> Grid:
    """One row per run, a second one without calibration if it was calibrated, then the baselines."""
    rows = [each for run in runs for each in (run, run.raw) if each is not None]
    metrics, simpler = shown(RUN_METRICS, rows), baselines(runs)
    entries = [(run.label, run, [metric.of(run) for metric in metrics]) for run in rows]
    entries += [(each.label, each.run, [metric.of_baseline(each) for metric in metrics]) for each in simpler]
    cells = []
    for label, run, values in entries:
        rivals = zip(*(scores for _, rival, scores in entries if rival.task == run.task), strict=True)
        scored = [
            Cell(metric.write(value, unit=True), _is_best(metric, value, others))
            for metric, value, others in zip(metrics, values, rivals, strict=True)
        ]
        cells.append([Cell(short(label, TABLE)), Cell(short(run.data_label, TABLE)), *scored])
    titles = [judged_words(metric.title, runs) for metric in metrics]
    return Grid(["Method", "Data", *titles], cells, frozenset({0, 1}))


def runs_caption(runs: Sequence[RunRecord]) -> str:
    """Caption: test sets, seeds, ECE bins, meaning of bold and of row names."""
    alike = by_task(runs)
    tests = "; ".join(f"{own[0].test_label}, n = {own[0].task.n:,}{_error(own)}" for own in alike)
    raw, rivals, simpler = any(run.raw for run in runs), any(len(own) > 1 for own in alike), baselines(runs)
    bins = listing([str(count) for count in dict.fromkeys(run.test["ece_bins"] for run in runs)])
    words = [
        untested_note(runs),
        f"{judged_words('Test set', runs)}: {tests}. {_seeds(runs)} ECE with {bins} bins.",
        "Bold: the best of the column on the same data." * (rivals or raw or bool(simpler)),
        "Raw: as trained, with nothing chosen on validation data." * raw,
        "Base rate: the commonest training class." * bool(simpler),
        "Run seconds include measuring each epoch." * any(run.seconds is not None for run in runs),
        collapse_note(runs),
    ]
    return " ".join(filter(None, words))


OPTIONAL = tuple(metric.title for metric in (SECONDS, BRIER, TRAIN_ACCURACY, STEPS, COST))
"""Columns of runs and systems that a narrow terminal leaves out, the first one first."""


def runs_table(runs: Sequence[RunRecord]) -> Group:
    return Group(Fitted(_without_data(runs_grid(runs)), OPTIONAL), Text(runs_caption(runs)))


def run_table(run: RunRecord) -> Group:
    """A single run with a short caption; the page explains the rest."""
    tests, balanced = f"{run.test_label}, n = {run.task.n:,}{_error([run])}", BALANCED_ACCURACY.of(run)
    differs = balanced is not None and abs(balanced - run.test["accuracy"]) > BALANCE_MATTERS
    words = [
        untested_note([run]),
        f"{judged_words('Test set', [run])}: {tests}. Seed {run.config.get('seed')}.",
        f"Balanced accuracy: {BALANCED_ACCURACY.write(balanced, unit=True)}." * differs,
        collapse_note([run]),
    ]
    return Group(Fitted(_without_data(runs_grid([run])), OPTIONAL), Text(" ".join(filter(None, words))))


def runs_markdown(runs: Sequence[RunRecord]) -> str:
    return f"{markdown_table(runs_grid(runs))}\n\n{markdown_safe(runs_caption(runs))}\n"


def _is_best(metric: Metric, value: float | None, rivals: Sequence[float | None]) -> bool:
    """Whether the value, as written, equals the best one; hidden digits do not count."""
    known = [each for each in rivals if each is not None and math.isfinite(each)]
    if not metric.merit or len(rivals) < 2 or not known:
        return False
    return metric.write(value) == metric.write(max(known, key=lambda each: metric.merit * each))


def _error(runs: Sequence[RunRecord]) -> str:
    """Standard error of an accuracy on this test set."""
    mean = sum(run.test["accuracy"] for run in runs) / len(runs)
    points = 100 * math.sqrt(mean * (1 - mean) / runs[0].test["n"])
    return f" (standard error of an accuracy: about {points:.2f} points)" if points > 0 else ""


def _seeds(runs: Sequence[RunRecord]) -> str:
    seeds: dict[tuple[str, str], dict[str, None]] = {}
    for run in runs:
        seeds.setdefault((run.method, run.data_label), {})[str(run.config.get("seed"))] = None
    if len({tuple(found) for found in seeds.values()}) > 1:
        parts = [f"{method} on {data}: {', '.join(found)}" for (method, data), found in seeds.items()]
        return f"Seeds: {'; '.join(parts)}."
    same = list(next(iter(seeds.values())))
    return f"One seed{' each' * (len(runs) > 1)} ({same[0]})." if len(same) == 1 else f"Seeds {listing(same)} each."


# Systems, averaged over seeds, and their differences from a reference


def systems_grid(comparison: Comparison) -> Grid:
    """One row per system, in the order given, then the baselines."""
    metrics = shown(SYSTEM_METRICS, _all_runs(comparison))
    rows = [
        [Cell(system.label), Cell(system.data), Cell(str(len(system.group.runs)))]
        + [
            Cell(metric.write(found.mean, found.half_width), comparison.is_better(system, metric))
            for metric in metrics
            for found in [system.intervals[metric.key]]
        ]
        for system in comparison.systems
    ]
    rows += [
        [Cell(each.label), Cell(short(each.run.data_label, TABLE)), Cell("–")]
        + [Cell(metric.write(metric.of_baseline(each))) for metric in metrics]
        for each in comparison.baselines
    ]
    titles = [judged_words(metric.heading, _all_runs(comparison)) for metric in metrics]
    return Grid(["System", "Data", "Seeds", *titles], rows, frozenset({0, 1}))


def _all_runs(comparison: Comparison) -> list[RunRecord]:
    return [run for system in comparison.systems for run in system.group.runs]


def systems_caption(comparison: Comparison) -> str:
    """Caption: intervals, test sets, ECE bins, meaning of bold."""
    sizes = listing([f"{rivals[0].data}, n = {rivals[0].task.n:,}" for rivals in by_task(comparison.systems)])
    several = any(len(system.group.runs) > 1 for system in comparison.systems)
    interval = "Mean ± half-width of the 95 % Student-t interval over seeds." if several else "One seed each."
    bold = any(cell.best for row in systems_grid(comparison).rows for cell in row)
    words = [
        untested_note(_all_runs(comparison)),
        f"{interval} {judged_words('Test examples', _all_runs(comparison))}: {sizes}.",
        f"ECE with {BINS} bins of equal width.",
        f"Bold: better than {references(comparison)}, by the verdict below." * bold,
        collapse_note(_all_runs(comparison)),
        repeats_note([system.group for system in comparison.systems]),
    ]
    return " ".join(filter(None, words))


def references(comparison: Comparison) -> str:
    """Names of the references, one per data set."""
    return listing(list(dict.fromkeys(contrast.reference.label for contrast in comparison.contrasts)) or [""])


def contrasts_grid(comparison: Comparison) -> Grid:
    """One row per difference: mean, interval and test over seeds, bootstrap over examples, verdict."""
    titles = ["Difference", "Data", "Metric", "Mean ± t", "p (Holm)", "Bootstrap", "Verdict"]
    rows = [[Cell(text) for text in _contrast_texts(contrast)] for contrast in comparison.contrasts]
    return Grid(titles, rows, frozenset({0, 1, 2, 6}))


def _contrast_texts(contrast: Contrast) -> list[str]:
    metric, p = contrast.metric, contrast.p_corrected
    low, high = (metric.write(end, signed=True) for end in (contrast.examples.low, contrast.examples.high))
    return [
        f"{contrast.system.label} − {contrast.reference.label}",
        contrast.system.data,
        judged_words(metric.title, contrast.system.group.runs) + " (points)" * (metric.scale == 100),
        metric.write(contrast.seeds.mean, contrast.seeds.half_width, signed=True),
        "< 0.001" if p is not None and p < 0.001 else number(p, 3),
        f"{low} to {high}",
        contrast.verdict,
    ]


def contrasts_caption(comparison: Comparison) -> str:
    """Caption: meaning of interval, p value, bootstrap and verdict."""
    return judged_words(
        f"Differences are paired. {_seeds_words(comparison)} Bootstrap: 95 % percentile interval over test examples "
        f"for these trained networks ({RESAMPLES:,} resamples, the same for both systems and all seeds). A verdict is "
        f"better or worse only with at least {ENOUGH_SEEDS} seeds, p below {ALPHA} and a bootstrap interval on the "
        "same side of 0. ECE is biased upwards, most where it is small, so that differences of ECE are understated.",
        _all_runs(comparison),
    )


def _seeds_words(comparison: Comparison) -> str:
    if all(contrast.seeds.n == 1 for contrast in comparison.contrasts):
        return "One seed does not show how seeds vary."
    count = "the one test" if comparison.tests == 1 else f"the {comparison.tests} tests"
    tested = f" p: two-sided t test with Holm correction for {count} of this table; intervals are not "
    untested = any(contrast.seeds.n > 1 and contrast.seeds.p_value is None for contrast in comparison.contrasts)
    no_spread = " If all seeds differ by the same amount, there is no p."
    return (
        "±: 95 % Student-t interval of the differences over seeds, for these test "
        f"examples.{tested + 'corrected.' if comparison.tests else ''}{no_spread if untested else ''}"
    )


def _without_data(grid: Grid) -> Grid:
    """Drop the column of data; if it differs, name it below the first column: RIC, then on digits."""
    several = len({data.text for _, data, *_ in grid.rows}) > 1
    rows = [[Cell(f"{name.text}\n on {data.text}") if several else name, *rest] for name, data, *rest in grid.rows]
    return Grid([grid.titles[0], *grid.titles[2:]], rows, frozenset(max(i - 1, 0) for i in grid.words))


def terminal_table(comparison: Comparison) -> Group:
    below = "\n".join([systems_caption(comparison), *ranking(comparison)])
    optional = [metric.heading for metric in (TRAIN_ACCURACY, BRIER, STEPS, COST)]
    parts: list[RenderableType] = [
        Fitted(_without_data(systems_grid(comparison)), optional),
        Padding(Text(below), (1, 0, 1, 0)),
    ]
    if comparison.contrasts:
        words = Padding(Text(contrasts_caption(comparison)), (1, 0, 1, 0))
        grid = contrasts_grid(comparison)
        rows = [[Cell(re.sub(r" (?=− |\()", "\n", cell.text)) for cell in row] for row in grid.rows]
        parts += [Fitted(_without_data(replace(grid, rows=rows)), ("p (Holm)", "Bootstrap")), words]
    return Group(*parts)


def markdown(comparison: Comparison) -> str:
    words = [markdown_safe(line) for line in (systems_caption(comparison), *ranking(comparison))]
    parts = [markdown_table(systems_grid(comparison)), *words]
    if comparison.contrasts:
        parts += [markdown_table(contrasts_grid(comparison)), markdown_safe(contrasts_caption(comparison))]
    return "\n\n".join(parts) + "\n"


def latex(comparison: Comparison) -> str:
    """Table environments; need booktabs and a T1 font encoding."""
    words = " ".join([systems_caption(comparison), *ranking(comparison)])
    parts = [r"% needs \usepackage{booktabs} and \usepackage[T1]{fontenc}"]
    parts.append(latex_table(systems_grid(comparison), escape_latex(words)))
    if comparison.contrasts:
        parts.append(latex_table(contrasts_grid(comparison), escape_latex(contrasts_caption(comparison))))
    return "\n\n".join(parts) + "\n"


def csv_rows(comparison: Comparison) -> list[dict[str, Any]]:
    """One row per system and metric, unrounded; without a difference its columns are empty."""
    contrasts = {(id(c.system), c.metric): c for c in comparison.contrasts}
    rows = []
    metrics = shown(SYSTEM_METRICS, _all_runs(comparison))
    for system in comparison.systems:
        for metric in metrics:
            interval, contrast = system.intervals[metric.key], contrasts.get((id(system), metric))
            row = {
                "system": system.label,
                "data": system.data,
                "metric": metric.key,
                "seeds": " ".join(str(seed) for seed in system.group.seeds),
                "split": system.group.first.judged_on,
                "n_test": system.task.n,
                "mean": interval.mean,
                "half_width": interval.half_width,
                "reference": contrast and contrast.reference.label,
                "difference": contrast and contrast.seeds.mean,
                "difference_half_width": contrast and contrast.seeds.half_width,
                "p_value": contrast and contrast.seeds.p_value,
                "p_holm": contrast and contrast.p_corrected,
                "bootstrap_low": contrast and contrast.examples.low,
                "bootstrap_high": contrast and contrast.examples.high,
                "verdict": contrast and contrast.verdict,
            }
            rows.append({k: None if isinstance(v, float) and math.isnan(v) else v for k, v in row.items()})
    for each in comparison.baselines:
        about = dict.fromkeys(rows[0]) | {"system": each.label, "data": short(each.run.data_label, TABLE)}
        scores = {metric.key: metric.of_baseline(each) for metric in metrics}
        known = {key: score for key, score in scores.items() if score is not None}
        rows += [{**about, "metric": key, "n_test": each.run.task.n, "mean": score} for key, score in known.items()]
    return rows


def csv_text(comparison: Comparison) -> str:
    text: str = pd.DataFrame(csv_rows(comparison)).to_csv(index=False, lineterminator="\n")
    return text


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
        return _share(self.counts.diagonal(), self.counts.sum(axis=1))

    @property
    def precision(self) -> Float[np.ndarray, "classes"]:
        """Share of right answers among the answers with a class; NaN without answers."""
        return _share(self.counts.diagonal(), self.counts.sum(axis=0))

    def pairs(self, most: int = PAIRS) -> list[tuple[int, int, int]]:
        """True class, answer and count of the commonest mistakes."""
        wrong = self.counts * ~np.eye(len(self.counts), dtype=bool)
        order = np.argsort(-wrong, axis=None, kind="stable")[:most]
        places = zip(*np.unravel_index(order, wrong.shape), strict=True)
        return [(int(i), int(j), int(wrong[i, j])) for i, j in places if wrong[i, j]]

    def rows(self) -> list[int]:
        """Classes in the table: all, or those of lowest recall."""
        if len(self.names) <= MOST_ROWS:
            return list(range(len(self.names)))
        worst = np.argsort(np.nan_to_num(self.recall, nan=np.inf), kind="stable")[:MOST_ROWS]
        return [int(k) for k in worst]


def confusion(labels: Integer[np.ndarray, "n"], answers: Integer[np.ndarray, "n"], names: Sequence[str]) -> Confusion:
    counts = np.zeros((len(names), len(names)), dtype=np.int64)
    np.add.at(counts, (labels, answers), 1)
    return Confusion(counts, tuple(names))


def class_grid(found: Confusion) -> Grid:
    """One row per class."""
    truly, answered = found.counts.sum(axis=1), found.counts.sum(axis=0)
    rows = [
        [
            Cell(short(found.names[k], 24)),
            Cell(_percent(found.precision[k])),
            Cell(_percent(found.recall[k])),
            Cell(number(int(truly[k]), 0)),
            Cell(number(int(answered[k]), 0)),
        ]
        for k in found.rows()
    ]
    return Grid(["Class", "Precision", "Recall", "Examples", "Answers"], rows)


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


def _percent(share: float) -> str:
    return percent(float(share), 1)


def _share(part: Integer[np.ndarray, "classes"], whole: Integer[np.ndarray, "classes"]) -> Float[np.ndarray, "classes"]:
    shares: np.ndarray = np.divide(part, whole, out=np.full(len(whole), np.nan), where=whole > 0)
    return shares


def paragraph(text: str, kind: str = "") -> str:
    opening = f'<p class="{kind}">' if kind else "<p>"
    return f"{opening}{escape(text)}</p>" if text else ""


def terms(pairs: Iterable[tuple[str, Any]]) -> str:
    return "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape('–' if value is None else str(value))}</dd></div>"
        for name, value in pairs
    )


def details(title: str, aside: str, content: str, *, is_open: bool) -> str:
    """`content` is HTML."""
    heading = f'<h3>{escape(title)}</h3> <span class="aside">{escape(aside)}</span>'
    return f'<details class="system"{" open" * is_open}><summary>{heading}</summary>\n{content}</details>'


def html_table(name: str, grid: Grid) -> str:
    """The first cell of a row is its heading. Wide tables scroll in their own box."""
    kinds = ["" if grid.is_number(i) else ' class="word"' for i in range(len(grid.titles))]
    head = "".join(f'<th scope="col"{kind}>{escape(t)}</th>' for t, kind in zip(grid.titles, kinds, strict=True))
    lines = []
    for row in grid.rows:
        first, *texts = (f"<strong>{escape(cell.text)}</strong>" if cell.best else escape(cell.text) for cell in row)
        rest = "".join(f"<td{kind}>{text}</td>" for kind, text in zip(kinds[1:], texts, strict=True))
        lines.append(f'<tr><th scope="row" class="word">{first}</th>{rest}</tr>')
    body = "\n".join(lines)
    return scrolling(name, f'<table class="numbers"><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table>')


def scrolling(name: str, content: str) -> str:
    """A box that scrolls by mouse and keyboard; `content` is HTML."""
    return f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(name)}">{content}</div>'
