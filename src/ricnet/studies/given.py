"""Selects finished runs for a study by what was trained, so that nothing is trained again (`--from-runs`).

A run belongs to an experiment if system, data set and seed agree; its other settings may differ, and figures name them.
A setting that distinguishes systems (`ric:gamma=0.9`, the grid of Table 2) must agree too.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from ricnet.errors import RicnetError, listing
from ricnet.methods import RIC
from ricnet.models.run import RunFolder
from ricnet.report.names import system_name, without_algorithm
from ricnet.report.runs import RunRecord, group_seeds, read_runs
from ricnet.studies.experiments import RAW, Benchmark, Experiment, System, find_system
from ricnet.training.console import say
from ricnet.training.recipes import TYPICAL, preset


def read_given(places: Sequence[Path]) -> list[RunRecord]:
    """Read finished and archived runs in these folders; a place may also be a run itself."""
    if missing := [str(place) for place in places if not place.exists()]:
        raise RicnetError(f"--from-runs: {listing(missing)} does not exist.")
    found = [path for place in places for path in _runs_at(place)]
    if not found:
        raise RicnetError(f"--from-runs: {listing([str(place) for place in places])} contains no finished runs.")
    return read_runs(found)


def _runs_at(place: Path) -> list[Path]:
    if place.suffix == ".json" and place.is_file():
        return [place]
    folders = [place, *sorted(path.parent for path in place.glob("*/config.json"))]
    finished = [folder for folder in folders if RunFolder(folder).begun and RunFolder(folder).finished]
    return finished if place in finished else finished + sorted(place.glob("*.json"))


def take_given(
    experiments: Sequence[Experiment], runs: Sequence[RunRecord], console: Console
) -> tuple[dict[Experiment, list[RunRecord]], list[str]]:
    """Select the runs of each experiment and print which have none. Returns runs and problems."""
    found: dict[Experiment, list[RunRecord]] = {}
    problems: list[str] = []
    for experiment in dict.fromkeys(experiments):
        name = f"{experiment.system} on {experiment.benchmark.label}"
        groups = group_seeds([run for run in runs if _belongs(run, experiment)])
        found[experiment] = list(groups[0].runs) if len(groups) == 1 else []
        if len(groups) > 1:
            paths = listing([str(group.first.path) for group in groups])
            problems.append(f"{name} was run with different settings ({paths}): give only one of them.")
    missing = [f"{e.system} on {e.benchmark.label}" for e, own in found.items() if not own]
    if missing:
        say([f"missing: {'; '.join(dict.fromkeys(missing))}"], console)
    return found, problems


def _belongs(run: RunRecord, experiment: Experiment) -> bool:
    system = find_system(experiment.system)
    parts = [run.config, *(run.config.get(part, {}) for part in ("network", "optimization", "method"))]
    settings = {name: value for part in parts for name, value in part.items()}
    return (
        _is_made_by(run, system)
        and without_algorithm(run.method) == _title(system)
        and ran_on(run, experiment.benchmark)
        and run.seed in experiment.seeds
        and all(settings.get(name) == value for name, value in (*system.changes.items(), *experiment.changes))
        and all(settings.get(name, RAW[name]) == system.after.get(name, RAW[name]) for name in RAW)
    )


def ran_on(run: RunRecord, benchmark: Benchmark) -> bool:
    """Whether data and label noise of the run are those of the benchmark."""
    noise = dict(benchmark.changes).get("label_noise", 0.0)
    return Path(run.data_name).name == Path(benchmark.data).name and run.label_noise == noise


def _is_made_by(run: RunRecord, system: System) -> bool:
    """Whether the run used the algorithm of RIC that the system names, if any."""
    if system.preset is None or system.method is None:
        return True
    wanted = preset(system.preset, system.method, TYPICAL).method
    return run.config["method"]["name"] == wanted.name and wanted.title_of(run.config["method"]) == wanted.title_of(
        dataclasses.asdict(wanted)
    )


def _title(system: System) -> str:
    """Title of the system in reports, without the algorithm of RIC."""
    settings = {
        **system.changes,
        **system.after,
        "name": system.method or RIC.name,
        "uniform_mix": float(system.capped),
    }
    return without_algorithm(system_name({"method": settings, "calibration": system.after.get("calibration")}))
