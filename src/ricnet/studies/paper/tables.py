"""What the tables of the paper say of a run, and their text: Markdown to read anywhere, LaTeX (booktabs) to \\input."""

from collections.abc import Iterable, Sequence

import pandas as pd

from ricnet.errors import listing
from ricnet.report.comparison import Metric
from ricnet.report.runs import RunRecord
from ricnet.report.tables import Grid, escape_latex, latex_table, markdown_table
from ricnet.studies.paper.kit import conditions, distinct, first, seeds

NEEDS = r"% needs \usepackage{booktabs}, \usepackage{graphicx} and \usepackage[T1]{fontenc}"
MEANS = "Mean ± half-width of the 95 % Student-t interval over seeds."
METRICS = {
    "train accuracy": Metric("accuracy", "train acc., %", 2, scale=100, split="train"),
    "val accuracy": Metric("accuracy", "val. acc., %", 2, merit=1, scale=100, split="val"),
    "val nll": Metric("nll", "val. NLL", merit=-1, split="val"),
    "test accuracy": Metric("accuracy", "test acc., %", 2, merit=1, scale=100),
    "test ece": Metric("ece", "test ECE", merit=-1),
    "test ece signed": Metric("ece_signed", "conf. − acc."),
    "test nll": Metric("nll", "test NLL", merit=-1),
    "mean steps": Metric("mean_steps", "mean steps", 1),
}
"""By what the CSV files call them, with the short titles of a page's width."""


def measure(runs: Sequence[RunRecord], names: Iterable[str]) -> pd.DataFrame:
    """These metrics of each run, with what one must know of its test set."""
    rows = [{"quantity": name, "value": METRICS[name].of(run)} for name in names for run in runs]
    return pd.DataFrame(rows).assign(examples=int(runs[0].test["n"]), bins=int(runs[0].test["ece_bins"]))


def write_cell(metric: Metric, table: pd.DataFrame, intervals: bool = True) -> str:
    """The number of a table's first row; a dash where there is none."""
    return metric.write(first(table[:1], "mean"), first(table[:1], "half_width") if intervals else None)


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


def write_markdown(grid: Grid, note: str) -> str:
    return f"{markdown_table(grid)}\n\n{note}\n"


def write_latex(grid: Grid, title: str, note: str, head: Sequence[str] | None = None) -> str:
    """`head` takes the place of the titles, for those may span columns; it is LaTeX already."""
    caption = rf"\textbf{{{escape_latex(title)}.}} {escape_latex(note)}"
    return f"{NEEDS}\n{latex_table(grid, caption, head, shrink=True)}\n"
