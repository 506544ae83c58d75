"""From what a figure asks for to what has to be run: the configuration of each run, and the folder where it is."""

import dataclasses
import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ricnet.data import Dataset, whole_path
from ricnet.data import load as load_data
from ricnet.errors import RicnetError
from ricnet.io import read_json
from ricnet.studies.cells import Cell
from ricnet.studies.systems import RAW, SYSTEMS, System, find_system
from ricnet.training.api import GPU, configure
from ricnet.training.config import DATA_SETTINGS, Config, from_json
from ricnet.training.finalize import stripped
from ricnet.training.run import RunFolder, describe_data


@dataclass(frozen=True)
class Plan:
    config: Config
    name: str
    """What its folder is called if it has to be made."""
    base_name: str
    """The same for the training behind it."""
    data: Mapping[str, Any] = dataclasses.field(hash=False)
    """Describes the data, as in config.json."""
    notes: tuple[str, ...] = ()
    """What the user should know of the data."""

    @property
    def base(self) -> "Plan":
        """The training behind it: itself, or what it differs from only after training."""
        return dataclasses.replace(self, config=stripped(self.config), name=self.base_name)

    @property
    def derived(self) -> bool:
        return stripped(self.config) != self.config


def plan_cell(cell: Cell, data_dir: Path | None, device: torch.device = GPU) -> list[Plan]:
    """One plan a seed. Raises RicnetError where the data is not here."""
    system, data = find_system(cell.system), whole_path(cell.benchmark.data)
    settings = {**RAW, **dict(cell.benchmark.changes), **system.changes, **system.after, **dict(cell.changes)}
    dataset = read_data(data, data_dir, **{k: settings[k] for k in DATA_SETTINGS if k in settings})
    settings = {**system.changes_for(len(dataset.class_names)), **settings}
    described = describe_data(dataset)
    preset = system.preset or cell.preset
    plans = []
    for seed in cell.seeds:
        config = configure(dataset, system.method, preset, device, **{**settings, "seed": seed})
        name, base = (_slug(f"{cell.benchmark.label} {s} seed{seed}") for s in (cell.system, _base_name(cell, system)))
        plans.append(Plan(dataclasses.replace(config, data=data), name, base, described, dataset.notes))
    return plans


def _base_name(cell: Cell, system: System) -> str:
    """The system that has the same training and nothing after it, if it has a name."""
    alike = [name for name, other in SYSTEMS.items() if other == dataclasses.replace(system, after={})]
    return alike[0] if alike else cell.system


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")


def dataset_of(config: Config, data_dir: Path | None) -> Dataset:
    return read_data(config.data, data_dir, **{name: getattr(config, name) for name in DATA_SETTINGS})


def read_data(
    data: str,
    data_dir: Path | None,
    *,
    resolution: int | None = None,
    val_fraction: float = 0.1,
    label_noise: float = 0.0,
) -> Dataset:
    """Many runs in a row use the same data; the last few sets stay in memory."""
    return _read_data(data, data_dir, resolution, val_fraction, label_noise)


@functools.lru_cache(maxsize=4)
def _read_data(data: str, data_dir: Path | None, resolution: int | None, val: float, noise: float) -> Dataset:
    return load_data(data, data_dir=data_dir, resolution=resolution, val_fraction=val, label_noise=noise)


class Shelf:
    """The run folders under one root, found by what was run rather than by name."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.known = [(RunFolder(folder), _entry(folder)) for folder in _run_folders(root)]

    def find(self, config: Config, data: Mapping[str, Any], source: RunFolder | None = None) -> RunFolder | None:
        """A folder where this was run, on this data, finished or not; a finished one if there are several.

        With `source`, a run derived from the very weights that are there now.
        """
        weights = source.weights_hash() if source is not None and source.model.is_file() else None
        wanted = (config, data, source is not None, weights)
        same = [folder for folder, entry in self.known if entry == wanted]
        return min(same, key=lambda folder: not folder.finished, default=None)

    def place(self, name: str, taken: Iterable[Path] = ()) -> RunFolder:
        """A folder of this name that is not there yet."""
        names = (name, *(f"{name}-{number}" for number in range(2, 10_000)))
        used = set(taken)
        return RunFolder(next(p for n in names if not (p := self.root / n).exists() and p not in used))


def _run_folders(root: Path) -> Sequence[Path]:
    return sorted(path.parent for path in root.glob("*/config.json")) if root.is_dir() else []


def _entry(folder: Path) -> tuple[Config, Any, bool, str | None] | None:
    """None where the folder is of another version or is damaged: it is left alone."""
    try:
        entry = read_json(folder / "config.json")
        config = from_json(entry.get("config"), str(folder))
        return config, entry.get("data"), "derived_from" in entry, entry.get("weights")
    except RicnetError:
        return None
