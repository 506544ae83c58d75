"""What can be reproduced, and the tidy table it is made of: one row a number, with its mean and interval over seeds.

The table is written as CSV and drawn from the file as read back, so the data beside a figure is all there is in it.
Conditions stand in every row and every note, so that no number of a small scale can be taken for one of the paper's.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ricnet.errors import RicnetError
from ricnet.nets.encoders import choose_encoder
from ricnet.report.runs import RunRecord
from ricnet.report.statistics import band
from ricnet.report.words import epochs, listing
from ricnet.studies.runner import Experiment, Runs
from ricnet.studies.scales import GIVEN, Scale

Measure = Callable[[Sequence[RunRecord]], Any]
"""What was seen in the runs of an experiment: rows of one `value` each, the same but for it in every seed."""
SPLITS = {"train": "train_eval", "validation": "val", "test": "test"}
"""What a figure calls a split, and what metrics.jsonl does; its own `train` is of augmented inputs."""


@dataclass(frozen=True)
class Item:
    """A table or a figure. `draw` and `write` get the table alone, so either can be made again from its CSV file."""

    name: str
    """fig2: what the command line calls it, and its files."""
    title: str
    experiments: Callable[[Scale], list[Experiment]]
    tabulate: Callable[[Scale, Runs], pd.DataFrame]
    draw: Callable[[pd.DataFrame], Figure] | None = None
    """Figures only."""
    write: Callable[[pd.DataFrame], dict[str, str]] | None = None
    """Tables only: their text by the ending of its file, md and tex."""


def tabulate(
    scale: Scale,
    experiments: Sequence[Experiment],
    runs: Runs,
    measure: Measure,
    usable: Callable[[Sequence[RunRecord]], Sequence[RunRecord]] = list,
) -> pd.DataFrame:
    """What was measured in the runs of each experiment; one without runs has a row that says what is `missing`.

    `seeds` are `usable` of those `asked` for; of runs that are taken as found, none was asked for that is not there. A
    row's own `n` may be less, where a seed has no such number.
    """
    parts = []
    for experiment in experiments:
        finished = runs.get(experiment, ())
        used = usable(finished)
        facts = {
            "benchmark": experiment.benchmark.label,
            "system": _system(experiment, runs),
            "seeds": len(used),
            "asked": len(finished) if finished and scale.name == GIVEN else len(experiment.seeds),
            "scale": scale.name,
            **(_conditions(used[0]) if used else {}),
        }
        rows = over_seeds(pd.DataFrame(measure(used))) if used else pd.DataFrame({"missing": [""]})
        rows["missing"] = None if used else _reason(experiment, runs, scale)
        parts += [facts | row for row in rows.to_dict("records")]
    return pd.DataFrame(parts)


def over_seeds(observed: pd.DataFrame) -> pd.DataFrame:
    """Rows that agree in all but `value` become one: mean, half-width of the 95 % Student-t interval, and how many."""
    keys = [name for name in observed if name != "value"]
    groups = observed.groupby(keys, sort=False, dropna=False)
    seeds = np.full((groups.size().max(), groups.ngroups), np.nan)
    values = observed["value"].astype(float)
    seeds[groups.cumcount(), groups.ngroup()] = values.where(np.isfinite(values))
    mean, half_width = band(seeds)
    table = observed[keys].drop_duplicates(ignore_index=True)
    return table.assign(mean=mean, half_width=half_width, n=np.isfinite(seeds).sum(axis=0))


def curves(runs: Sequence[RunRecord], split: str, quantity: str) -> list[dict[str, Any]]:
    """A row for each epoch that measured this, in each run."""
    rows: list[dict[str, Any]] = []
    for run in runs:
        key, before = SPLITS[split], len(rows)
        scores = {entry["epoch"]: (entry.get(key) or {}).get(quantity) for entry in run.metrics}
        rows += [
            {"split": split, "quantity": quantity, "epoch": epoch, "value": score}
            for epoch, score in scores.items()
            if score is not None
        ]
        if len(rows) == before:
            raise RicnetError(f"{run.path} has not measured {key}.{quantity}: train it again with measure_all.")
    return rows


def measured(runs: Sequence[RunRecord]) -> Sequence[RunRecord]:
    """Runs that have measured every split, after every epoch or now and then. Where none has, all: they say so."""
    return [r for r in runs if all(any(entry.get(key) for entry in r.metrics) for key in SPLITS.values())] or runs


def _system(experiment: Experiment, runs: Runs) -> str:
    """As the report calls the system's runs; as the command line does if it has settings of its own, or no runs."""
    called = [found[0].method for other, found in runs.items() if found and other.system == experiment.system]
    return called[0] if called and ":" not in experiment.system else experiment.system


def _reason(experiment: Experiment, runs: Runs, scale: Scale) -> str:
    """Where runs were asked for, or another system has learned from the same data, the data is here."""
    if scale.name == GIVEN:
        return "not among the given runs"
    data = experiment.benchmark.data
    here = experiment in runs or any(found and other.benchmark.data == data for other, found in runs.items())
    return "no run finished" if here else f"{Path(data).name} is not here"


def _conditions(run: RunRecord) -> dict[str, Any]:
    config, shape = run.config, tuple(int(side) for side in run.data["input_shape"])
    return {
        "network": network_name(config["network"]["encoder"], config["network"]["width"], shape),
        "input": f"{shape[0]} features" if len(shape) == 1 else " × ".join(str(side) for side in shape),
        "epochs": int(config["optimization"]["epochs"]),
        "preset": str(config["preset"]),
    }


def network_name(encoder: str, width: float, shape: tuple[int, ...]) -> str:
    """The encoder as it is built: `auto` depends on the inputs."""
    return choose_encoder(encoder, shape) + (f", width {width:g}" if width != 1 else "")


def conditions(table: pd.DataFrame) -> str:
    """All rows' conditions in one sentence; where they differ, whose are which."""
    written: Mapping[str, tuple[str, Callable[[Any], str]]] = {
        "network": ("benchmark", str),
        "input": ("benchmark", lambda shape: f"inputs {shape}"),
        "epochs": ("system", lambda count: epochs(int(count))),
        "preset": ("system", lambda name: f"preset {name}"),
    }
    parts = []
    for name, (owner, form) in written.items():
        values = list(table[name].dropna().unique()) if name in table else []
        owners = [listing(distinct(table[table[name] == value], owner)) for value in values]
        several = [f"{form(value)} ({own})" for value, own in zip(values, owners, strict=True)]
        parts += [listing(several)] if len(values) > 1 else [form(value) for value in values]
    names, known = listing(distinct(table, "scale")), ", ".join(filter(None, parts))
    head = "As run" if names == GIVEN else f"Scale {names}"
    return f"{head}: {known}" if known else head


def distinct(table: pd.DataFrame, name: str) -> list[str]:
    """What a column says, each word once, in its order."""
    return [str(value) for value in table[name].dropna().unique()] if name in table else []


def first(table: pd.DataFrame, name: str) -> float | None:
    """The first number of a column; None where there is none."""
    found = list(table[name].dropna()) if name in table else []
    return float(found[0]) if found else None


def write_csv(table: pd.DataFrame, path: Path) -> None:
    """Whole numbers are written as such, though some rows may have none."""
    table.convert_dtypes().to_csv(path, index=False, encoding="utf-8")


def read_csv(path: Path) -> pd.DataFrame:
    return pd.read_csv(path, keep_default_na=False, na_values=[""])
