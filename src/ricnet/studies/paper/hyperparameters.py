"""Table 2: the paper's sweep of optimizer, activation and batch size, for SL and RIC on the first benchmark.

Validation accuracy chooses, the lower validation NLL where it cannot; test numbers stand beside it and choose nothing.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

from ricnet.report.runs import RunRecord
from ricnet.report.tables import Cell as TableCell
from ricnet.report.tables import escape_latex
from ricnet.studies.cells import Cell, Runs
from ricnet.studies.paper.conditions import conditions
from ricnet.studies.paper.panels import seeds
from ricnet.studies.paper.recipe import Recipe
from ricnet.studies.paper.rows import Row, Rows, distinct, floats, number, pick
from ricnet.studies.paper.samples import summary, tabulate_cells
from ricnet.studies.paper.scores import SCORES
from ricnet.studies.paper.typesetting import latex, markdown
from ricnet.studies.scales import Scale

SYSTEMS = ("supervised", "ric")
OPTIMIZERS: dict[str, dict[str, Any]] = {"adam": {}, "sgd": {"lr": 0.1}}
"""Adam at the preset's learning rate; SGD needs a rate of its own, and 0.1 with momentum 0.9 is the usual one."""
ACTIVATIONS = ("relu", "silu")
BATCHES = (128, 256)
DECAY = 1e-3
"""The paper's. Adam and SGD add it to the gradient; the 0.05 that suits AdamW makes SGD diverge and spoils Adam."""

COLUMNS = {name: SCORES[name] for name in ("val accuracy", "val nll", "test accuracy", "test ece")}


def cells(scale: Scale) -> list[Cell]:
    """One seed shows which settings learn at all; the paper's own scale takes all."""
    found = [cell for settings in _grid() for cell in _cells(scale, settings)]
    found.sort(key=lambda cell: SYSTEMS.index(cell.system))
    return found if scale.name == "paper" else [replace(cell, seeds=cell.seeds[:1]) for cell in found]


def _grid() -> list[dict[str, Any]]:
    return [
        {"optimizer": optimizer, "activation": activation, "batch_size": batch, "weight_decay": DECAY, **own}
        for (optimizer, own), activation, batch in product(OPTIMIZERS.items(), ACTIVATIONS, BATCHES)
    ]


def _cells(scale: Scale, settings: dict[str, Any]) -> list[Cell]:
    return scale.cells(SYSTEMS, scale.benchmarks[:1], **settings)


def tabulate(scale: Scale, runs: Runs) -> Rows:
    """One row a setting, so that the table can be read in the CSV file too."""
    rows = [_row(scale, cell, runs) for cell in cells(scale)]
    chosen = [id(best) for system in distinct(rows, "system") if (best := _best(pick(rows, system=system))) is not None]
    return [row | {"chosen": int(id(row) in chosen)} for row in rows]


def _row(scale: Scale, cell: Cell, runs: Runs) -> Row:
    settings = {name: value for name, value in cell.changes if name in ("optimizer", "activation", "batch_size")}
    (facts,) = tabulate_cells(scale, [cell], runs, lambda found: [_scores(found)])
    return settings | facts


def _scores(found: Sequence[RunRecord]) -> Row:
    row: Row = {"n": len(found), "examples": int(found[0].test["n"])}
    for name, column in COLUMNS.items():
        own = summary(column.of(run) for run in found)
        row |= {name: own["mean"], f"{name}, half-width": own["half_width"]}
    return row


def _best(rows: Rows) -> Row | None:
    known = [row for row in rows if row.get("val accuracy") is not None]
    return max(known, key=lambda row: (number([row], "val accuracy"), -(number([row], "val nll") or 0)), default=None)


def write(rows: Rows, *, title: str) -> dict[str, str]:
    titles = ["System", "optimizer", "activation", "batch", *(column.title for column in COLUMNS.values())]
    lines = [_line(row) for row in rows]
    head = [" & ".join(escape_latex(title) for title in titles) + r" \\"]
    columns, notes = "lllr" + "r" * len(COLUMNS), [_note(rows)]
    return {
        "md": markdown(titles, columns, lines, notes),
        "tex": latex(head, columns, lines, title, notes),
    }


def _line(row: Row) -> list[TableCell]:
    texts = [str(row["system"]), str(row["optimizer"]), str(row["activation"]), str(row["batch_size"])]
    texts += [
        column.write(number([row], name), number([row], f"{name}, half-width")) for name, column in COLUMNS.items()
    ]
    return [TableCell(text, bool(row["chosen"])) for text in texts]


def _note(rows: Rows) -> str:
    size, asked = number(rows, "examples"), int(number(rows, "asked") or 0)
    test = f", test n = {size:,.0f}" if size is not None else ""
    rate = OPTIMIZERS["sgd"]["lr"]
    sentences = [
        f"{distinct(rows, 'benchmark')[0]}, {asked} seed{'s' * (asked > 1)} a setting{test}. {conditions(rows)}.",
        f"Adam at the preset's learning rate, SGD at {rate} with momentum 0.9; weight decay {DECAY}.",
        "Bold: each system's setting with the best validation accuracy, among equals the lowest validation NLL.",
    ]
    return " ".join([*sentences, *_gaps(rows)])


def _gaps(rows: Rows) -> list[str]:
    missing = [row for row in rows if row.get("missing")]
    if len(missing) == len(rows):
        return [f"Missing: {reason}." for reason in distinct(rows, "missing")]
    gaps = [f"{_setting(row)}: {row['missing']}." for row in missing]
    return gaps + [
        f"{_setting(row)}: {seeds([row])}." for row in rows if 0 < floats([row], "seeds")[0] < floats([row], "asked")[0]
    ]


def _setting(row: Row) -> str:
    return f"{row['system']} with {row['optimizer']}, {row['activation']}, {row['batch_size']}"


_TITLE = "Sweep of optimizer, activation and batch size"
RECIPE = Recipe("table2", _TITLE, cells, tabulate, write=partial(write, title=_TITLE))
