"""The runs of a study taken from those at hand: nothing is trained, no data is read, settings are as they were run.

A run belongs to a cell if its system and its data do, whatever else it was trained with; a figure says what that was.
Where systems differ in a setting (`ric:gamma=0.9`, the grid of Table 2), that setting must agree.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from ricnet.errors import RicnetError
from ricnet.report.runs import RunRecord, group_seeds, read_runs
from ricnet.report.titles import ric_title, system_name, without_algorithm
from ricnet.report.words import listing
from ricnet.studies.cells import Cell
from ricnet.studies.execution import Harvest
from ricnet.studies.paper.conditions import GIVEN
from ricnet.studies.scales import Scale
from ricnet.studies.systems import RAW, System, find_system
from ricnet.training.presets import TYPICAL, preset
from ricnet.training.run import RunFolder


def read_given(places: Sequence[Path]) -> list[RunRecord]:
    """Finished run folders and archived runs in these folders; a place may also be one of either."""
    found = [path for place in places for path in _runs_at(place)]
    if not found:
        raise RicnetError(f"--from-runs: there are no finished runs in {listing([str(place) for place in places])}.")
    return read_runs(found)


def _runs_at(place: Path) -> list[Path]:
    folders = [place, *sorted(path.parent for path in place.glob("*/config.json"))]
    finished = [folder for folder in folders if RunFolder(folder).config.is_file() and RunFolder(folder).finished]
    if place.suffix == ".json" and place.is_file():
        return [place]
    return finished if place in finished else finished + sorted(place.glob("*.json"))


def as_given(scale: Scale, runs: Sequence[RunRecord]) -> Scale:
    """The scale's data sets and systems, with none of its settings and the seeds that are there."""
    seeds = tuple(sorted({seed_of(run) for run in runs}))
    return dataclasses.replace(scale, name=GIVEN, seeds=seeds, changes=(), dynamics=(), ablation=())


def gather(cells: Sequence[Cell], runs: Sequence[RunRecord], console: Console) -> Harvest:
    """The runs of each cell; what is not there is said."""
    found: dict[Cell, list[RunRecord]] = {}
    problems: list[str] = []
    for cell in dict.fromkeys(cells):
        try:
            found[cell] = _runs_of(cell, runs)
        except RicnetError as problem:
            found[cell] = []
            problems.append(str(problem))
    missing = [f"{cell.system} on {cell.benchmark.label}" for cell, own in found.items() if not own]
    if missing:
        console.print(f"missing: {'; '.join(dict.fromkeys(missing))}", highlight=False, markup=False, soft_wrap=True)
    return Harvest(found, problems)


def _runs_of(cell: Cell, runs: Sequence[RunRecord]) -> list[RunRecord]:
    own = [run for run in runs if _belongs(run, cell)]
    groups = group_seeds(own)
    if len(groups) > 1:
        names = listing([str(group.first.path) for group in groups])
        raise RicnetError(
            f"{cell.system} on {cell.benchmark.label} was run with different settings ({names}): leave all but one out."
        )
    return list(groups[0].runs) if groups else []


def _belongs(run: RunRecord, cell: Cell) -> bool:
    system, settings = find_system(cell.system), _settings(run)
    return (
        _is_made_by(run, system)
        and without_algorithm(run.method) == _called(system)
        and Path(run.data_name).name == Path(cell.benchmark.data).name
        and run.label_noise == dict(cell.benchmark.changes).get("label_noise", 0.0)
        and seed_of(run) in cell.seeds
        and all(settings.get(name) == value for name, value in (*system.changes.items(), *cell.changes))
        and all(settings.get(name, RAW[name]) == system.after.get(name, RAW[name]) for name in RAW)
    )


def _is_made_by(run: RunRecord, system: System) -> bool:
    """Whether the algorithm of RIC is the one that the system asks for, if it asks for any."""
    if system.preset is None:
        return True
    wanted = preset(system.preset, system.method, TYPICAL).method
    return ric_title(run.config["method"]) == ric_title(dataclasses.asdict(wanted))


def _called(system: System) -> str:
    """What the report calls its runs, whichever algorithm of RIC made them."""
    settings = {**system.changes, **system.after, "name": system.method, "uniform_mix": float(system.capped)}
    return without_algorithm(system_name({"method": settings, "calibration": system.after.get("calibration")}))


def _settings(run: RunRecord) -> dict[str, Any]:
    parts = [run.config.get(part, {}) for part in ("network", "optimization", "method")]
    return {name: value for part in (run.config, *parts) for name, value in part.items()}


def seed_of(run: RunRecord) -> int:
    return int(run.config.get("seed", 0))
