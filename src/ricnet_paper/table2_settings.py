"""Table 2: sweep of optimizer, activation and batch size for SL and RIC on the first benchmark.

The setting is chosen by validation accuracy, ties by validation NLL; test numbers are only shown.
"""

from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import pandas as pd

from ricnet.errors import counted
from ricnet.report.tables import Cell, Grid
from ricnet.studies.experiments import Experiment, Runs
from ricnet_paper import kit
from ricnet_paper.kit import Item
from ricnet_paper.scales import Scale

SYSTEMS = ("supervised", "ric")
RATES: dict[str, dict[str, Any]] = {"adam": {}, "sgd": {"lr": 0.1}}
"""Adam at the preset's learning rate, SGD at the usual 0.1 with momentum 0.9."""
DECAY = 1e-3
"""Weight decay of the paper. Adam and SGD add it to the gradient; the 0.05 for AdamW makes SGD diverge."""
SETTINGS = ["optimizer", "activation", "batch_size"]
COLUMNS = ("val accuracy", "val nll", "test accuracy", "test ece")


def experiments(scale: Scale) -> list[Experiment]:
    """One seed per setting, all seeds at scale `paper`."""
    found = []
    for system, optimizer, activation, batch in product(SYSTEMS, RATES, ("relu", "silu"), (128, 256)):
        settings = {"optimizer": optimizer, "activation": activation, "batch_size": batch, **RATES[optimizer]}
        found += scale.experiments([system], scale.benchmarks[:1], weight_decay=DECAY, **settings)
    return found if scale.name == "paper" else [replace(one, seeds=one.seeds[:1]) for one in found]


def table(scale: Scale, runs: Runs) -> pd.DataFrame:
    """`chosen` is 1 in the rows of the setting that validation data selects for a system."""
    parts = []
    for one in experiments(scale):
        settings = {name: value for name, value in one.changes if name in SETTINGS}
        parts.append(kit.tabulate(scale, [one], runs, partial(kit.measure, names=COLUMNS)).assign(**settings, chosen=0))
    finished = [part for part in parts if part["missing"].isna().all()]
    for system in {part["system"].iloc[0] for part in finished}:
        best = max((part for part in finished if part["system"].iloc[0] == system), key=_rank)
        best["chosen"] = 1
    return pd.concat(parts, ignore_index=True)


def _rank(part: pd.DataFrame) -> tuple[float, float]:
    mean = part.set_index("quantity")["mean"]
    return mean["val accuracy"], -mean["val nll"]


def write(table: pd.DataFrame, *, title: str) -> dict[str, str]:
    titles = ["System", "optimizer", "activation", "batch", *(kit.METRICS[name].title for name in COLUMNS)]
    lines = []
    for setting, own in table.groupby(["system", *SETTINGS], sort=False):
        texts = [
            *(str(setting[0]) + kit.mark(own), *map(str, setting[1:])),
            *(kit.write_cell(kit.METRICS[name], own[own.quantity == name]) for name in COLUMNS),
        ]
        lines.append([Cell(text, bool(own["chosen"].iloc[0])) for text in texts])
    grid, note = Grid(titles, lines, frozenset({0, 1, 2})), _note(table)
    return {"md": kit.write_markdown(grid, note), "tex": kit.write_latex(grid, title, note)}


def _note(table: pd.DataFrame) -> str:
    size, asked = kit.first(table, "examples"), int(table["asked"].iloc[0])
    test = f", test n = {size:,.0f}" if size is not None else ""
    sentences = [
        f"{kit.distinct(table, 'benchmark')[0]}, {counted(asked, 'seed')} per setting{test}. {kit.conditions(table)}.",
        f"Adam at the preset's learning rate, SGD at {RATES['sgd']['lr']} with momentum 0.9; weight decay {DECAY}.",
        "Bold: each system's setting with the best validation accuracy, among equals the lowest validation NLL.",
    ]
    return " ".join([*sentences, *_gaps(table)])


def _gaps(table: pd.DataFrame) -> list[str]:
    found = []
    for (system, *setting), own in table.groupby(["system", *SETTINGS], sort=False):
        name = f"{system} with {', '.join(map(str, setting))}"
        found += [f"{name}: {reason}." for reason in kit.distinct(own, "missing")]
        found += [f"{name}: {kit.seeds(own)}."] if 0 < own["seeds"].iloc[0] < own["asked"].iloc[0] else []
    return found


_TITLE = "Sweep of optimizer, activation and batch size"
ITEM = Item("table2", _TITLE, experiments, table, write=partial(write, title=_TITLE))
