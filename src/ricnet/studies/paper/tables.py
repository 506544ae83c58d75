"""What the tables say of a run, and how it is written: Markdown to read anywhere, LaTeX (booktabs) to \\input."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pandas as pd

from ricnet.report.runs import RunRecord
from ricnet.report.tables import Cell, escape_latex
from ricnet.report.words import listing
from ricnet.studies.paper.item import conditions, distinct, first
from ricnet.studies.paper.kit import seeds

NEEDS = r"% needs \usepackage{booktabs}, \usepackage{graphicx} and \usepackage[T1]{fontenc}"
SHRINK = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"
"""To the width of the text where the table is wider, and only there."""
MEANS = "Mean ± half-width of the 95 % Student-t interval over seeds."
Lines = Sequence[Sequence[Cell]]


@dataclass(frozen=True)
class Score:
    title: str
    path: tuple[str, ...] = ()
    """Where it stands in evaluation.json."""
    factor: int = 1
    digits: int = 3
    merit: int = 0
    """1 where more is better, −1 where less is, 0 where there is nothing to win: a higher training accuracy is none."""

    def write(self, table: pd.DataFrame, intervals: bool = True) -> str:
        """The number of a table's first row."""
        half_width = first(table[:1], "half_width") if intervals else None
        return write_interval(first(table[:1], "mean"), half_width, self.digits, self.factor)


SCORES = {
    "train accuracy": Score("train acc., %", ("train", "accuracy"), 100, 2),
    "val accuracy": Score("val. acc., %", ("val", "accuracy"), 100, 2, merit=1),
    "val nll": Score("val. NLL", ("val", "nll"), merit=-1),
    "test accuracy": Score("test acc., %", ("test", "accuracy"), 100, 2, merit=1),
    "test ece": Score("test ECE", ("test", "ece"), merit=-1),
    "test ece signed": Score("conf. − acc.", ("test", "ece_signed")),
    "test nll": Score("test NLL", ("test", "nll"), merit=-1),
    "mean steps": Score("mean steps", ("test", "mean_steps"), digits=1),
}


def measure(runs: Sequence[RunRecord], names: Iterable[str]) -> pd.DataFrame:
    """These scores of each run, with what one must know of its test set."""
    paths = {name: SCORES[name].path for name in names}
    rows = [
        {"quantity": name, "value": run.evaluation[split][key]} for name, (split, key) in paths.items() for run in runs
    ]
    return pd.DataFrame(rows).assign(examples=int(runs[0].test["n"]), bins=int(runs[0].test["ece_bins"]))


def write_interval(mean: float | None, half_width: float | None, digits: int, factor: int = 1) -> str:
    """Mean ± half-width; the mean alone where one seed gives no interval, a dash where there is no number at all."""
    if mean is None:
        return "–"
    interval = "" if half_width is None else f" ± {factor * half_width:.{digits}f}"
    # Rounded first, plus 0: no number is written as −0.
    return f"{round(factor * mean, digits) + 0.0:.{digits}f}".replace("-", "−") + interval


def facts(table: pd.DataFrame) -> str:
    """What one must know to read a table of one benchmark."""
    size, bins = first(table, "examples"), first(table, "bins")
    counts = f", test n = {size:,.0f}, ECE with {bins:.0f} bins" if size and bins else ""
    return f"{distinct(table, 'benchmark')[0]}{counts}. {conditions(table)}. {MEANS}"


def gaps(table: pd.DataFrame) -> list[str]:
    """What is missing, wholly or in part."""
    missing = table.dropna(subset=["missing"]).groupby("benchmark", sort=False)
    found = [f"{listing(distinct(own, 'system'))} on {b}: {'; '.join(distinct(own, 'missing'))}." for b, own in missing]
    partly = table[(table.quantity == "test accuracy") & (table.seeds != table.asked)]
    return found + [
        f"{system} on {benchmark}: {seeds(own)} finished."
        for (benchmark, system), own in partly.groupby(["benchmark", "system"], sort=False)
    ]


def markdown(titles: Sequence[str], columns: str, lines: Lines, note: str) -> str:
    """`columns` as LaTeX spells it: l for names, r for numbers."""
    head = [list(titles), [":---" if column == "l" else "---:" for column in columns]]
    body = [[f"**{cell.text}**" if cell.best else cell.text for cell in line] for line in lines]
    table = "\n".join(f"| {' | '.join(line)} |" for line in head + body)
    return f"{table}\n\n{note}\n"


def latex(head: Sequence[str], columns: str, lines: Lines, caption: str, note: str) -> str:
    """`head` is LaTeX already, for titles may span columns; all else is plain text."""
    body = [" & ".join(_latex_cell(cell) for cell in line) + r" \\" for line in lines]
    tabular = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", *head, r"\midrule", *body, r"\bottomrule"]
    words = rf"\textbf{{{escape_latex(caption)}.}} {escape_latex(note)}"
    opening = [NEEDS, r"\begin{table}", r"\centering", r"\footnotesize", r"\setlength{\tabcolsep}{4pt}", SHRINK]
    closing = [r"\end{tabular}}", rf"\caption{{{words}}}", r"\end{table}"]
    return "\n".join([*opening, *tabular, *closing]) + "\n"


def _latex_cell(cell: Cell) -> str:
    text = escape_latex(cell.text)
    return rf"\textbf{{{text}}}" if cell.best else text
