"""Tables 1 and 3: accuracy and ECE of the four systems on the three benchmarks, without and with intervals."""

from collections.abc import Sequence
from functools import partial

import pandas as pd

from ricnet.errors import listing
from ricnet.report.tables import Cell, Grid, escape_latex
from ricnet.studies.experiments import Experiment
from ricnet_paper import kit
from ricnet_paper.kit import Item
from ricnet_paper.scales import Scale

COLUMNS = ("train accuracy", "test accuracy", "test ece")


def experiments(scale: Scale) -> list[Experiment]:
    return scale.experiments(("supervised", "act", "pondernet", "ric"), scale.benchmarks)


def write(table: pd.DataFrame, *, title: str, intervals: bool) -> dict[str, str]:
    benchmarks = kit.distinct(table, "benchmark")
    places = [(benchmark, name) for benchmark in benchmarks for name in COLUMNS]
    lines = [
        [
            Cell(system + kit.mark(table[table.system == system])),
            *(_cell(table, system, *place, intervals) for place in places),
        ]
        for system in kit.distinct(table, "system")
    ]
    titles = ["System", *(f"{benchmark}: {kit.METRICS[name].title}" for benchmark, name in places)]
    grid, note = Grid(titles, lines), _note(table, intervals)
    return {"md": kit.write_markdown(grid, note), "tex": kit.write_latex(grid, title, note, _latex_head(benchmarks))}


def _cell(table: pd.DataFrame, system: str, benchmark: str, name: str, intervals: bool) -> Cell:
    """Bold for the best mean and for means that round to the same number."""
    metric = kit.METRICS[name]
    rivals = table[(table.benchmark == benchmark) & (table.quantity == name)].dropna(subset=["mean"])
    own = rivals[rivals.system == system]
    if own.empty or not metric.merit or len(rivals) < 2:
        return Cell(kit.write_cell(metric, own, intervals))
    best = rivals.loc[[(metric.merit * rivals["mean"]).idxmax()]]
    wins = kit.write_cell(metric, own, False) == kit.write_cell(metric, best, False)
    return Cell(kit.write_cell(metric, own, intervals), wins)


def _note(table: pd.DataFrame, intervals: bool) -> str:
    finished, bins = table[table["seeds"] > 0], kit.first(table, "bins")
    interval = " ± half-width of the 95 % Student-t interval over seeds" if intervals else ""
    sizes = table.groupby("benchmark", sort=False)["examples"].max().dropna()
    tests = "; ".join(f"{benchmark}, n = {size:,.0f}" for benchmark, size in sizes.items())
    sentences = [
        f"{kit.conditions(table)}.",
        "One seed." if finished["asked"].max() == 1 else f"Means over {_seeds(finished)}{interval}.",
        f"ECE with {bins:.0f} bins. Test sets: {tests}." if bins else "",
        "Bold: the best mean of its column, which need not be a difference that other seeds would repeat.",
    ]
    return " ".join([*filter(None, sentences), *kit.gaps(table)])


def _seeds(table: pd.DataFrame) -> str:
    """5 seeds; by benchmark if they differ."""
    counts = [f"{kit.seeds(own)} on {benchmark}" for benchmark, own in table.groupby("benchmark", sort=False)]
    return listing(counts) if table["asked"].nunique() > 1 else kit.seeds(table)


def _latex_head(benchmarks: Sequence[str]) -> list[str]:
    width = len(COLUMNS)
    names = [rf"\multicolumn{{{width}}}{{c}}{{{escape_latex(benchmark)}}}" for benchmark in benchmarks]
    rules = [rf"\cmidrule(lr){{{2 + width * i}-{1 + width * (i + 1)}}}" for i in range(len(benchmarks))]
    titles = [escape_latex(kit.METRICS[name].title) for name in COLUMNS] * len(benchmarks)
    return [" & ".join(["", *names]) + r" \\", " ".join(rules), " & ".join(["System", *titles]) + r" \\"]


def _item(name: str, title: str, intervals: bool) -> Item:
    measure = partial(kit.measure, names=COLUMNS)
    return kit.item(name, title, experiments, measure, write=partial(write, title=title, intervals=intervals))


TABLE1 = _item("table1", "Test accuracy and ECE on the three benchmarks", False)
TABLE3 = _item("table3", "Test accuracy, train accuracy and ECE with 95 % intervals", True)
