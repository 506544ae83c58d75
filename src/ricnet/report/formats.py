"""A comparison written down: for the terminal, as CSV, Markdown and LaTeX. All but CSV show the same two grids."""

import csv
import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Group, JustifyMethod, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ricnet.evaluation.metrics import BINS
from ricnet.report.comparison import (
    ALPHA,
    ENOUGH_SEEDS,
    METRICS,
    Comparison,
    Contrast,
    Metric,
    System,
    ranking,
    tasks,
)
from ricnet.report.runs import repeats_note
from ricnet.report.statistics import RESAMPLES, Interval
from ricnet.report.tables import Cell
from ricnet.report.words import listing, markdown_safe, number

Value = str | int | float | None


@dataclass(frozen=True)
class Grid:
    titles: list[str]
    numeric: list[bool]
    rows: list[list[Cell]]
    """Bold cells are those of systems shown to be better than their reference."""


def systems_grid(comparison: Comparison) -> Grid:
    """A row a system, in the order given."""
    titles = ["System", "Data", "Seeds", *(metric_title(metric) for metric in METRICS)]
    rows = [
        [Cell(system.label), Cell(system.data), Cell(str(len(system.group.runs)))]
        + [Cell(interval_text(m, system.intervals[m.name]), comparison.is_better(system, m)) for m in METRICS]
        for system in comparison.systems
    ]
    return Grid(titles, [False, False, *[True] * (len(titles) - 2)], rows)


def contrasts_grid(comparison: Comparison) -> Grid:
    """A row a difference: how large, how sure over seeds, how sure over examples, and what may be said."""
    titles = ["Difference", "Data", "Metric", "Mean ± t", "p (Holm)", "Bootstrap", "Verdict"]
    rows = [[Cell(text) for text in _contrast_texts(contrast)] for contrast in comparison.contrasts]
    return Grid(titles, [False, False, False, True, True, True, False], rows)


def caption(comparison: Comparison) -> str:
    """What one must know to read the means."""
    sizes = listing([f"{rivals[0].data}, n = {rivals[0].task.n:,}" for rivals in tasks(comparison)])
    several = any(len(system.group.runs) > 1 for system in comparison.systems)
    interval = "Mean ± half-width of the 95 % Student-t interval over seeds. " if several else "One seed each. "
    bold = any(cell.best for row in systems_grid(comparison).rows for cell in row)
    references = listing(list(dict.fromkeys(contrast.reference.label for contrast in comparison.contrasts)) or [""])
    meaning = f" Bold: better than {references} by the verdict on the difference." if bold else ""
    text = f"{interval}Test examples: {sizes}. ECE with {BINS} bins of equal width.{meaning}"
    return f"{text} {repeats_note([system.group for system in comparison.systems])}".strip()


def contrasts_caption(comparison: Comparison) -> str:
    """What one must know to read the differences."""
    return (
        f"Differences are paired. {_seeds_words(comparison)} Bootstrap is the 95 % percentile interval over test "
        f"examples ({RESAMPLES:,} resamples, the same for both systems and all seeds): what other examples would give "
        f"these trained networks. Better or worse is said from {ENOUGH_SEEDS} seeds on, and only where both agree: p "
        f"below {ALPHA} and a bootstrap interval on the same side of 0. An ECE measured on finitely many examples is "
        "too large, most where it is small, so differences of ECE tend to be understated."
    )


def _seeds_words(comparison: Comparison) -> str:
    if all(contrast.seeds.n == 1 for contrast in comparison.contrasts):
        return "One seed says nothing about other seeds."
    tested = (
        f" p is of the two-sided t test, corrected by Holm for {_count(comparison.tests)}; the intervals are not "
        "corrected."
    )
    untested = any(contrast.seeds.n > 1 and contrast.seeds.p_value is None for contrast in comparison.contrasts)
    no_spread = " Where all seeds differ by the same amount there is no spread to test, and no p."
    return (
        "± is the 95 % Student-t interval of the differences seed by seed: what other seeds would give on these test "
        f"examples.{tested if comparison.tests else ''}{no_spread if untested else ''}"
    )


def terminal_table(comparison: Comparison) -> Group:
    below = [caption(comparison), *ranking(comparison)]
    parts: list[RenderableType] = [_terminal(systems_grid(comparison)), _notes(below)]
    if comparison.contrasts:
        parts += [_terminal(contrasts_grid(comparison)), _notes([contrasts_caption(comparison)])]
    return Group(*parts)


def csv_rows(comparison: Comparison) -> list[dict[str, Value]]:
    """A row a system and metric, unrounded; the columns of the difference are empty where none was taken."""
    contrasts = {(id(c.system), c.metric.name): c for c in comparison.contrasts}
    return [
        _means(system, metric) | _differences(contrasts.get((id(system), metric.name)))
        for system in comparison.systems
        for metric in METRICS
    ]


def csv_text(comparison: Comparison) -> str:
    rows = csv_rows(comparison)
    file = io.StringIO()
    writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def markdown(comparison: Comparison) -> str:
    parts = [markdown_table(systems_grid(comparison)), *map(markdown_safe, [caption(comparison), *ranking(comparison)])]
    if comparison.contrasts:
        parts += [markdown_table(contrasts_grid(comparison)), markdown_safe(contrasts_caption(comparison))]
    return "\n\n".join(parts) + "\n"


def latex(comparison: Comparison) -> str:
    """Table environments to \\input; booktabs and a T1 font encoding are all they ask for."""
    note = r"% needs \usepackage{booktabs} and \usepackage[T1]{fontenc}"
    parts = [note, _latex(systems_grid(comparison), " ".join([caption(comparison), *ranking(comparison)]))]
    if comparison.contrasts:
        parts.append(_latex(contrasts_grid(comparison), contrasts_caption(comparison)))
    return "\n\n".join(parts) + "\n"


def metric_title(metric: Metric) -> str:
    return f"{metric.title} (%)" if metric.scale == 100 else metric.title


def interval_text(metric: Metric, interval: Interval) -> str:
    mean = number(metric.scale * interval.mean, metric.digits)
    return mean + half_text(metric, interval.half_width)


def half_text(metric: Metric, half_width: float | None) -> str:
    if half_width is None or math.isnan(half_width):
        return ""
    return f" ± {number(metric.scale * half_width, metric.digits)}"


def _contrast_texts(contrast: Contrast) -> list[str]:
    metric, seeds, examples = contrast.metric, contrast.seeds, contrast.examples
    unit = " (points)" if metric.scale == 100 else ""
    return [
        f"{contrast.system.label} − {contrast.reference.label}",
        contrast.system.data,
        metric.title + unit,
        signed_text(metric, seeds.mean) + half_text(metric, seeds.half_width),
        _p(contrast.p_corrected),
        f"{signed_text(metric, examples.low)} to {signed_text(metric, examples.high)}",
        contrast.verdict,
    ]


def signed_text(metric: Metric, value: float) -> str:
    if math.isnan(value):
        return number(value, metric.digits)
    text = f"{metric.scale * value:+.{metric.digits}f}"
    return text[1:] if float(text) == 0 else text.replace("-", "−")


def _p(p_value: float | None) -> str:
    return "< 0.001" if p_value is not None and p_value < 0.001 else number(p_value, 3)


def _count(tests: int) -> str:
    return "the one test of this table" if tests == 1 else f"the {tests} tests of this table"


def _terminal(grid: Grid) -> Table:
    """Numbers stand over their intervals, so that the table fits a narrow terminal; only words are broken further."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, header_style="none")
    columns = list(zip(*grid.rows, strict=True))
    shown = [i for i, title in enumerate(grid.titles) if title != "Data" or len({c.text for c in columns[i]}) > 1]
    for i in shown:
        justify: JustifyMethod = "right" if grid.numeric[i] else "left"
        table.add_column(Text(_stacked(grid.titles[i], grid.numeric[i])), justify=justify, no_wrap=grid.numeric[i])
    for row in grid.rows:
        cells = [Text(_stacked(row[i].text, grid.numeric[i]), style="bold" if row[i].best else "") for i in shown]
        table.add_row(*cells)
    return table


def _stacked(text: str, numeric: bool) -> str:
    return re.sub(r" (?=±|to |\()|(?<=[a-z]) (?=[a-z])", "\n", text).replace("± ", "±") if numeric else text


def _notes(lines: Sequence[str]) -> Padding:
    return Padding(Text("\n".join(lines)), (1, 0, 1, 0))


def _means(system: System, metric: Metric) -> dict[str, Value]:
    interval = system.intervals[metric.name]
    return {
        "system": system.label,
        "data": system.data,
        "metric": metric.name,
        "seeds": " ".join(str(seed) for seed in system.group.seeds),
        "n_test": system.task.n,
        "mean": _finite(interval.mean),
        "half_width": _finite(interval.half_width),
    }


def _differences(contrast: Contrast | None) -> dict[str, Value]:
    return {
        "reference": contrast.reference.label if contrast else None,
        "difference": _finite(contrast.seeds.mean) if contrast else None,
        "difference_half_width": _finite(contrast.seeds.half_width) if contrast else None,
        "p_value": _finite(contrast.seeds.p_value) if contrast else None,
        "p_holm": _finite(contrast.p_corrected) if contrast else None,
        "bootstrap_low": _finite(contrast.examples.low) if contrast else None,
        "bootstrap_high": _finite(contrast.examples.high) if contrast else None,
        "verdict": contrast.verdict if contrast else None,
    }


def _finite(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else value


def markdown_table(grid: Grid) -> str:
    lines = [
        grid.titles,
        ["---:" if numeric else ":---" for numeric in grid.numeric],
        *([cell.markdown for cell in row] for row in grid.rows),
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _latex(grid: Grid, caption: str) -> str:
    lines = [[escape_latex(title) for title in grid.titles]]
    lines += [
        [rf"\textbf{{{escape_latex(c.text)}}}" if c.best else escape_latex(c.text) for c in row] for row in grid.rows
    ]
    head, *body = (" & ".join(line) + r" \\" for line in lines)
    columns = "".join("r" if numeric else "l" for numeric in grid.numeric)
    opening = [r"\begin{table}", r"\centering", r"\footnotesize", r"\setlength{\tabcolsep}{3pt}"]
    tabular = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", head, r"\midrule", *body, r"\bottomrule"]
    closing = [r"\end{tabular}", rf"\caption{{{escape_latex(caption)}}}", r"\end{table}"]
    return "\n".join([*opening, *tabular, *closing])


_LATEX = {
    **{sign: "\\" + sign for sign in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "−": "$-$",
    "–": "--",
    "…": r"\ldots{}",
}


def escape_latex(text: str) -> str:
    """Names come from strangers' folders. Letters beyond those of T1 fonts would stop pdflatex and become a ?."""
    return "".join(_LATEX.get(c, c if c.isascii() or (ord(c) < 0x180 and c.isalpha()) else "?") for c in text)
