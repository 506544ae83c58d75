"""The runs of a study taken from those at hand: nothing is trained, no data is read, settings are as they were run.

A run belongs to an experiment if its system and its data do, whatever else it was trained with; a figure says what that
was. Where systems differ in a setting (`ric:gamma=0.9`, the grid of Table 2), that setting must agree.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from ricnet.errors import RicnetError, listing
from ricnet.report.runs import RunRecord, group_seeds, read_runs, system_name, without_algorithm
from ricnet.studies.runner import Experiment
from ricnet.studies.scales import GIVEN, Scale
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
    if place.suffix == ".json" and place.is_file():
        return [place]
    folders = [place, *sorted(path.parent for path in place.glob("*/config.json"))]
    finished = [folder for folder in folders if RunFolder(folder).begun and RunFolder(folder).finished]
    return finished if place in finished else finished + sorted(place.glob("*.json"))


def as_given(scale: Scale, runs: Sequence[RunRecord]) -> Scale:
    """The scale's data sets and systems, with none of its settings and the seeds that are there."""
    seeds = tuple(sorted({_seed(run) for run in runs}))
    return dataclasses.replace(scale, name=GIVEN, seeds=seeds, changes=(), dynamics=(), ablation=())


def take_given(
    experiments: Sequence[Experiment], runs: Sequence[RunRecord], console: Console
) -> tuple[dict[Experiment, list[RunRecord]], list[str]]:
    """The runs of each experiment, and what is wrong with them; what is missing is said."""
    found: dict[Experiment, list[RunRecord]] = {}
    problems: list[str] = []
    for experiment in dict.fromkeys(experiments):
        name = f"{experiment.system} on {experiment.benchmark.label}"
        groups = group_seeds([run for run in runs if _belongs(run, experiment)])
        found[experiment] = list(groups[0].runs) if len(groups) == 1 else []
        if len(groups) > 1:
            paths = listing([str(group.first.path) for group in groups])
            problems.append(f"{name} was run with different settings ({paths}): leave all but one out.")
    missing = [f"{e.system} on {e.benchmark.label}" for e, own in found.items() if not own]
    if missing:
        console.print(f"missing: {'; '.join(dict.fromkeys(missing))}", highlight=False, markup=False, soft_wrap=True)
    return found, problems


def _belongs(run: RunRecord, experiment: Experiment) -> bool:
    system = find_system(experiment.system)
    parts = [run.config, *(run.config.get(part, {}) for part in ("network", "optimization", "method"))]
    settings = {name: value for part in parts for name, value in part.items()}
    return (
        _is_made_by(run, system)
        and without_algorithm(run.method) == _title(system)
        and Path(run.data_name).name == Path(experiment.benchmark.data).name
        and run.label_noise == dict(experiment.benchmark.changes).get("label_noise", 0.0)
        and _seed(run) in experiment.seeds
        and all(settings.get(name) == value for name, value in (*system.changes.items(), *experiment.changes))
        and all(settings.get(name, RAW[name]) == system.after.get(name, RAW[name]) for name in RAW)
    )


def _is_made_by(run: RunRecord, system: System) -> bool:
    """Whether the algorithm of RIC is the one that the system asks for, if it asks for any."""
    if system.preset is None:
        return True
    wanted = preset(system.preset, system.method, TYPICAL).method
    return wanted.title_of(run.config["method"]) == wanted.title_of(dataclasses.asdict(wanted))


def _title(system: System) -> str:
    """What the report calls its runs, whichever algorithm of RIC made them."""
    settings = {**system.changes, **system.after, "name": system.method, "uniform_mix": float(system.capped)}
    return without_algorithm(system_name({"method": settings, "calibration": system.after.get("calibration")}))


def _seed(run: RunRecord) -> int:
    return int(run.config.get("seed", 0))
