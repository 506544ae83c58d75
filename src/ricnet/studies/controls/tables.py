"""Two tables the paper's readers ask for next: RIC beside other ways to calibrate, and RIC with one thing changed."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from ricnet.report.runs import RunRecord
from ricnet.report.tables import Cell as TableCell
from ricnet.studies.cells import Cell, Runs
from ricnet.studies.paper.recipe import Recipe
from ricnet.studies.paper.rows import Rows, distinct, number, pick
from ricnet.studies.paper.samples import summary, tabulate_cells
from ricnet.studies.paper.typesetting import markdown
from ricnet.studies.scales import Scale

PEERS = (
    *("supervised", "supervised-temperature", "label-smoothing", "logitnorm", "evidential", "confidence-cap"),
    *("ric", "ric-temperature"),
)
ABLATIONS = ("ric", "anytime", "ric-expected", "ric-ppo", "ric-logistic-normal", "ric-mu", "ric-implied")
SETTINGS = (
    "ric:updates_per_snapshot=1",
    "ric:updates_per_snapshot=none",  # the paper's five passes
    *("ric:rollouts=1", "ric:horizon=5"),
    *("ric:gamma=0.5", "ric:gamma=0.95"),
    *("ric:c_max=3", "ric:c_max=100"),
)
"""One at a time, in one seed below the paper's scale: to see which way each pulls, not to claim how far."""

COLUMNS: dict[str, tuple[str, float, int, Callable[[RunRecord], float]]] = {
    "train accuracy": ("Train acc., %", 100, 2, lambda run: run.evaluation["train"]["accuracy"]),
    "test accuracy": ("Test acc., %", 100, 2, lambda run: run.test["accuracy"]),
    "ece": ("ECE", 1, 3, lambda run: run.test["ece"]),
    "ece signed": ("Conf. − acc.", 1, 3, lambda run: run.test["ece_signed"]),
    "nll": ("NLL", 1, 3, lambda run: run.test["nll"]),
    "mean steps": ("Mean steps", 1, 1, lambda run: run.test["mean_steps"]),
}


def peer_cells(scale: Scale) -> list[Cell]:
    return scale.cells(PEERS, scale.benchmarks[:1])


def ablation_cells(scale: Scale) -> list[Cell]:
    single = scale.cells(SETTINGS, scale.benchmarks[:1])
    if scale.name != "paper":
        single = [replace(cell, seeds=cell.seeds[:1]) for cell in single]
    return scale.cells(ABLATIONS, scale.benchmarks[:1]) + single


def tabulate(scale: Scale, runs: Runs, *, cells: Callable[[Scale], list[Cell]]) -> Rows:
    return tabulate_cells(cells(scale), runs, _rows)


def _rows(runs: Sequence[RunRecord]) -> Rows:
    examples = int(runs[0].test["n"])
    return [
        {"quantity": name, **summary(of(run) for run in runs), "examples": examples}
        for name, (_, _, _, of) in COLUMNS.items()
    ]


def write(rows: Rows, *, note: str) -> dict[str, str]:
    titles = ["System", "Seeds", *(column[0] for column in COLUMNS.values())]
    lines = [
        [TableCell(system), TableCell(_seeds(rows, system)), *(_entry(rows, system, name) for name in COLUMNS)]
        for system in distinct(rows, "system")
    ]
    sizes = f"{distinct(rows, 'benchmark')[0]}, test n = {number(rows, 'examples') or 0:,.0f}"
    facts = f"Mean ± half-width of the 95 % Student-t interval over seeds; {sizes}; ECE with 15 bins. {note}"
    return {"md": markdown(titles, "lr" + "r" * len(COLUMNS), lines, [facts])}


def _seeds(rows: Rows, system: str) -> str:
    return f"{number(pick(rows, system=system, quantity='nll'), 'n') or 0:.0f}"


def _entry(rows: Rows, system: str, quantity: str) -> TableCell:
    _, factor, digits, _ = COLUMNS[quantity]
    own = pick(rows, system=system, quantity=quantity)
    mean, half = number(own, "mean"), number(own, "half_width")
    if mean is None:
        return TableCell("–")
    return TableCell(f"{factor * mean:.{digits}f}" + (f" ± {factor * half:.{digits}f}" if half is not None else ""))


def _recipe(name: str, title: str, cells: Callable[[Scale], list[Cell]], note: str) -> Recipe:
    return Recipe(name, title, cells, partial(tabulate, cells=cells), write=partial(write, note=note))


TABLES = (
    _recipe(
        "peers",
        "RIC beside other ways to calibrate",
        peer_cells,
        "Names are those of `ric compare --methods`. Temperatures are fitted on validation data.",
    ),
    _recipe(
        "ablations",
        "RIC with one thing changed",
        ablation_cells,
        "Names are those of `ric compare --methods`; `ric` itself has the preset's settings, and ric-mu and "
        "ric-implied share its weights.",
    ),
)
