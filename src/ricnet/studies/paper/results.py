"""Tables 1 and 3: accuracy and ECE of the four systems on the three benchmarks, without and with intervals."""

from collections.abc import Sequence
from functools import partial

from ricnet.report.runs import RunRecord
from ricnet.report.tables import Cell as TableCell
from ricnet.report.tables import escape_latex
from ricnet.report.words import listing
from ricnet.studies.cells import Cell, Runs
from ricnet.studies.paper.conditions import conditions
from ricnet.studies.paper.panels import seeds
from ricnet.studies.paper.recipe import Recipe
from ricnet.studies.paper.rows import Rows, distinct, number, pick
from ricnet.studies.paper.samples import summary, tabulate_cells
from ricnet.studies.paper.scores import SCORES, Score
from ricnet.studies.paper.typesetting import latex, markdown
from ricnet.studies.scales import Scale

SYSTEMS = ("supervised", "act", "pondernet", "ric")


COLUMNS = {name: SCORES[name] for name in ("train accuracy", "test accuracy", "test ece")}


def cells(scale: Scale) -> list[Cell]:
    return scale.cells(SYSTEMS, scale.benchmarks)


def tabulate(scale: Scale, runs: Runs) -> Rows:
    return tabulate_cells(scale, cells(scale), runs, _rows)


def _rows(runs: Sequence[RunRecord]) -> Rows:
    facts = {"examples": int(runs[0].test["n"]), "bins": int(runs[0].test["ece_bins"])}
    return [{"quantity": name, **summary(column.of(run) for run in runs), **facts} for name, column in COLUMNS.items()]


def write(rows: Rows, *, title: str, intervals: bool) -> dict[str, str]:
    benchmarks, notes = distinct(rows, "benchmark"), _notes(rows, intervals)
    lines = [
        [TableCell(system), *(_entry(rows, system, bench, name, intervals) for bench in benchmarks for name in COLUMNS)]
        for system in distinct(rows, "system")
    ]
    titles = ["System", *(f"{bench}: {column.title}" for bench in benchmarks for column in COLUMNS.values())]
    columns = "l" + "r" * len(COLUMNS) * len(benchmarks)
    return {
        "md": markdown(titles, columns, lines, notes),
        "tex": latex(_latex_head(benchmarks), columns, lines, title, notes),
    }


def _entry(rows: Rows, system: str, benchmark: str, quantity: str, intervals: bool) -> TableCell:
    """Means that print alike win alike: the digits not shown decide nothing."""
    column = COLUMNS[quantity]
    rivals = [row for row in pick(rows, benchmark=benchmark, quantity=quantity) if row["mean"] is not None]
    own = pick(rivals, system=system)
    if not own:
        return TableCell("–")
    best = max(rivals, key=lambda row: column.merit * (number([row], "mean") or 0))
    wins = column.merit != 0 and len(rivals) > 1 and _text(own, column, False) == _text([best], column, False)
    return TableCell(_text(own, column, intervals), wins)


def _text(rows: Rows, column: Score, intervals: bool) -> str:
    return column.write(number(rows, "mean"), number(rows, "half_width") if intervals else None)


def _notes(rows: Rows, intervals: bool) -> list[str]:
    asked, bins = number(rows, "asked") or 0, number(rows, "bins")
    spread = " ± half-width of the 95 % Student-t interval over seeds" if intervals else ""
    means = f"Means over {asked:.0f} seeds{spread}." if asked > 1 else "One seed."
    facts = [f"ECE with {bins:.0f} bins.", f"Test sets: {_sizes(rows)}."] if bins else []
    choice = "The epoch is chosen by validation accuracy."
    bold = "Bold: the best mean of its column, which need not be a difference that other seeds would repeat."
    return [" ".join([f"{conditions(rows)}.", means, *facts, choice, bold, *gaps(rows)])]


def _sizes(rows: Rows) -> str:
    sizes = {bench: number(pick(rows, benchmark=bench), "examples") for bench in distinct(rows, "benchmark")}
    return "; ".join(f"{bench}, n = {size:,.0f}" for bench, size in sizes.items() if size is not None)


def gaps(rows: Rows) -> list[str]:
    """What is missing, wholly or in part."""
    found = []
    missing = [row for row in rows if row.get("missing")]
    for benchmark in distinct(missing, "benchmark"):
        own = pick(missing, benchmark=benchmark)
        found += [f"{listing(distinct(own, 'system'))} on {benchmark}: {'; '.join(distinct(own, 'missing'))}."]
    for row in pick(rows, quantity="test accuracy"):
        if row["seeds"] != row["asked"]:
            found.append(f"{row['system']} on {row['benchmark']}: {seeds([row])} finished.")
    return found


def _latex_head(benchmarks: Sequence[str]) -> list[str]:
    width = len(COLUMNS)
    names = [rf"\multicolumn{{{width}}}{{c}}{{{escape_latex(benchmark)}}}" for benchmark in benchmarks]
    spans = [(2 + width * i, 1 + width * (i + 1)) for i in range(len(benchmarks))]
    rules = " ".join(rf"\cmidrule(lr){{{first}-{last}}}" for first, last in spans)
    titles = [escape_latex(column.title) for column in COLUMNS.values()] * len(benchmarks)
    return [" & ".join(["", *names]) + r" \\", rules, " & ".join(["System", *titles]) + r" \\"]


def _recipe(name: str, title: str, intervals: bool) -> Recipe:
    return Recipe(name, title, cells, tabulate, write=partial(write, title=title, intervals=intervals))


TABLE1 = _recipe("table1", "Test accuracy and ECE on the three benchmarks", False)
TABLE3 = _recipe("table3", "Test accuracy, train accuracy and ECE with 95 % intervals", True)
