"""From what a figure asks for to what has to be run: the configuration of each run, and the folder where it is."""

import dataclasses
import functools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ricnet.data import Dataset
from ricnet.data import load as load_data
from ricnet.data.registry import SOURCES
from ricnet.errors import RicnetError
from ricnet.studies.cells import Cell
from ricnet.studies.systems import find_system
from ricnet.training.api import configure
from ricnet.training.conclusion import stripped
from ricnet.training.config import Config, from_json
from ricnet.training.files import read_json
from ricnet.training.run_folder import RunFolder, describe_data


@dataclass(frozen=True)
class Plan:
    config: Config
    name: str
    """What its folder is called if it has to be made."""

    @property
    def base(self) -> Config:
        """The training behind it: itself, or what it differs from only after training."""
        return stripped(self.config)

    @property
    def derived(self) -> bool:
        return self.base != self.config


def plan_cell(cell: Cell, data_dir: Path | None) -> list[Plan]:
    """One plan a seed. Raises RicnetError where the data is not here."""
    system = find_system(cell.system)
    settings = {**dict(cell.benchmark.changes), **system.changes, **system.after, **dict(cell.changes)}
    data = whole_path(cell.benchmark.data)
    wanted = {k: settings[k] for k in ("resolution", "val_fraction", "label_noise") if k in settings}
    dataset = read_data(data, data_dir, **wanted)
    plans = []
    for seed in cell.seeds:
        config = configure(dataset, system.method, cell.preset, **{**settings, "seed": seed})
        title = f"{Path(cell.benchmark.label).stem} {cell.system} seed{seed}"
        plans.append(
            Plan(dataclasses.replace(config, data=data), re.sub(r"[^a-z0-9.]+", "-", title.lower()).strip("-"))
        )
    return plans


def dataset_of(config: Config, data_dir: Path | None) -> Dataset:
    return read_data(
        config.data,
        data_dir,
        resolution=config.resolution,
        val_fraction=config.val_fraction,
        label_noise=config.label_noise,
    )


@functools.lru_cache(maxsize=3)
def read_data(data: str, data_dir: Path | None, **how: Any) -> Dataset:
    """Many runs in a row use the same data; the last few stay in memory."""
    return load_data(data, data_dir=data_dir, **how)


class Shelf:
    """The run folders under one root, found by what was run rather than by name."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.known = [(folder, entry) for folder in _run_folders(root) if (entry := _entry(folder)) is not None]

    def find(self, config: Config, derived: bool, dataset: Dataset) -> RunFolder | None:
        """A folder where this was run, on this data, finished or not; a finished one if there are several."""
        same = [
            RunFolder(folder)
            for folder, (found, is_derived, data) in self.known
            if found == config and is_derived == derived and data == describe_data(dataset)
        ]
        return min(same, key=lambda folder: not folder.finished, default=None)

    def place(self, name: str, taken: Iterable[Path]) -> RunFolder:
        """A folder of this name that is not there yet."""
        names = (name, *(f"{name}-{number}" for number in range(2, 1000)))
        used = set(taken)
        return RunFolder(next(p for n in names if not (p := self.root / n).exists() and p not in used))


def _run_folders(root: Path) -> Sequence[Path]:
    return sorted(path.parent for path in root.glob("*/config.json")) if root.is_dir() else []


def _entry(folder: Path) -> tuple[Config, bool, Any] | None:
    """None where the folder is of another version or is damaged: it is left alone."""
    try:
        entry = read_json(folder / "config.json")
        return from_json(entry.get("config"), str(folder)), "derived_from" in entry, entry.get("data")
    except RicnetError:
        return None


def whole_path(data: str) -> str:
    path = Path(data).expanduser()
    return str(path.resolve()) if data not in SOURCES and path.exists() else data
