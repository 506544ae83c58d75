"""Two tables the paper's readers ask for next: RIC beside other ways to calibrate, its ablations and controls."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from ricnet.io import read_json
from ricnet.methods import RIC
from ricnet.report.runs import RunRecord
from ricnet.report.tables import Cell as TableCell
from ricnet.studies.cells import Cell, Runs
from ricnet.studies.paper.conditions import conditions
from ricnet.studies.paper.recipe import Recipe
from ricnet.studies.paper.results import gaps
from ricnet.studies.paper.rows import Row, Rows, distinct, number, pick
from ricnet.studies.paper.samples import summary, tabulate_cells
from ricnet.studies.paper.scores import SCORES
from ricnet.studies.paper.typesetting import markdown
from ricnet.studies.scales import Scale
from ricnet.studies.systems import find_system

PEERS = (
    *("supervised", "supervised-temperature", "label-smoothing", "logitnorm", "evidential", "confidence-cap"),
    *("ric", "ric-temperature"),
)
ABLATIONS = (
    *("ric", "ric-snapshots", "ric-closed-form", "ric-expected", "anytime"),
    *("ric-ppo", "ric-logistic-normal", "ric-mu", "ric-implied"),
)
ALONE = "ric:rollouts=1"
SETTINGS = (
    "ric:updates_per_snapshot=none",  # the paper's five passes
    *(ALONE, "ric:horizon=5", "ric:gae_lambda=0", "ric:gae_lambda=0.95"),
    *("ric:gamma=0.5", "ric:gamma=0.95"),
    *("ric:c_max=3", "ric:c_max=100"),
)
"""One at a time, in one seed below the paper's scale: to see which way each pulls, not to claim how far."""

COLUMNS = {
    name: SCORES[name]
    for name in ("train accuracy", "test accuracy", "test ece", "test ece signed", "test nll", "mean steps")
}


def peer_cells(scale: Scale) -> list[Cell]:
    return scale.cells(PEERS, scale.benchmarks[:1])


def ablation_cells(scale: Scale) -> list[Cell]:
    single = scale.cells([name for name in SETTINGS if _changes(name, scale)], scale.benchmarks[:1])
    if scale.name != "paper":
        single = [replace(cell, seeds=cell.seeds[:1]) for cell in single]
    return scale.cells(ABLATIONS, scale.benchmarks[:1]) + single


def _changes(system: str, scale: Scale) -> bool:
    """RIC's defaults are the paper's settings, and its preset has no others: there some systems would be RIC itself."""
    return scale.preset != "paper" or replace(RIC(), **find_system(system).changes) != RIC()


def tabulate(scale: Scale, runs: Runs, *, cells: Callable[[Scale], list[Cell]]) -> Rows:
    return tabulate_cells(scale, cells(scale), runs, _rows)


def _rows(runs: Sequence[RunRecord]) -> Rows:
    facts: Row = {"examples": int(runs[0].test["n"]), "bins": int(runs[0].test["ece_bins"])}
    if runs[0].config.get("calibration") == "temperature":
        fits = [read_json(run.path / "calibration.json") for run in runs]
        facts["unfitted"] = sum(not fit["found"] for fit in fits)
    return [{"quantity": name, **summary(column.of(run) for run in runs), **facts} for name, column in COLUMNS.items()]


def write(rows: Rows, *, notes: Callable[[Rows], list[str]]) -> dict[str, str]:
    titles = ["System", "Seeds", *(column.title for column in COLUMNS.values())]
    lines = [
        [TableCell(text) for text in (system, _seeds(own), *(_text(own, name) for name in COLUMNS))]
        for system in distinct(rows, "system")
        if (own := pick(rows, system=system))
    ]
    words = " ".join([*_facts(rows), *notes(rows), *gaps(rows)])
    return {"md": markdown(titles, "lr" + "r" * len(COLUMNS), lines, [words])}


def _seeds(own: Rows) -> str:
    return f"{number(own, 'seeds') or 0:.0f}"


def _text(own: Rows, quantity: str) -> str:
    found = pick(own, quantity=quantity)
    return COLUMNS[quantity].write(number(found, "mean"), number(found, "half_width"))


def _facts(rows: Rows) -> list[str]:
    size, bins = number(rows, "examples"), number(rows, "bins")
    counts = f", test n = {size:,.0f}, ECE with {bins:.0f} bins" if size and bins else ""
    means = "Mean ± half-width of the 95 % Student-t interval over seeds."
    return [f"{distinct(rows, 'benchmark')[0]}{counts}. {conditions(rows)}.", means]


def _peer_notes(rows: Rows) -> list[str]:
    return [
        "Temperatures are fitted on validation data.",
        *_unfitted(rows),
        "Evidential takes its evidence by softplus and keeps the weight of its KL term constant, without annealing;",
        "LogitNorm reports the softmax of the normalised logits.",
    ]


def _unfitted(rows: Rows) -> list[str]:
    """Such a line repeats the one without a temperature, and is no finding about temperatures."""
    counts = {system: number(pick(rows, system=system), "unfitted") for system in distinct(rows, "system")}
    return [
        f"{system}: in {count:.0f} of {_seeds(pick(rows, system=system))} seeds no finite temperature is best, as when "
        "no validation answer is wrong, and it stays at 1."
        for system, count in counts.items()
        if count
    ]


def _ablation_notes(rows: Rows) -> list[str]:
    """Names with a colon are the command line's, whose settings they show."""
    notes = [
        "RIC has the preset's settings; a name with a colon, as `ric compare --methods` takes it, changes one of them.",
        "Both readouts share RIC's weights.",
        "Anytime is a control, not an ablation of one part: it lacks the Dirichlet, sampling, the value and halting.",
    ]
    alone = "With rollouts=1 the leave-one-out part of the label baseline has no other roll-out to compare with."
    return notes + [alone] * (ALONE in distinct(rows, "system"))


def _recipe(name: str, title: str, cells: Callable[[Scale], list[Cell]], notes: Callable[[Rows], list[str]]) -> Recipe:
    return Recipe(name, title, cells, partial(tabulate, cells=cells), write=partial(write, notes=notes))


TABLES = (
    _recipe("peers", "RIC beside other ways to calibrate", peer_cells, _peer_notes),
    _recipe("ablations", "RIC's ablations and controls", ablation_cells, _ablation_notes),
)
