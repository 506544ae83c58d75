"""Run the experiments of a study: reuse existing runs, and make the others in parallel.

Runs are identified by configuration and data, not by the name of their folder. So studies share runs, finished runs are
not repeated, and an interrupted study continues with the same command. Each worker is a process with its share of the
CPU cores, which saves its state and stops on SIGTERM; a failed run does not stop the others.
"""

import dataclasses
import functools
import multiprocessing
import os
import re
import shutil
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from ricnet.data import Dataset, whole_path
from ricnet.data import load as load_data
from ricnet.errors import RicnetError, counted, first_line, listing, setting
from ricnet.io import read_json, write_atomically
from ricnet.machine import usable_cores
from ricnet.methods import METHODS, RIC
from ricnet.models.classifier import backbone_of, settle_horizon
from ricnet.models.config import AFTER_TRAINING, DATA_SETTINGS, Config, field_types, from_json, stripped
from ricnet.models.loading import load
from ricnet.models.locate import find_tokenizer, keep_encoder, weights_of
from ricnet.models.run import RunFolder, describe_data, read_config
from ricnet.report.names import system_name, without_algorithm
from ricnet.report.runs import RunRecord, group_seeds, read_run, read_runs
from ricnet.studies.experiments import RAW, Benchmark, Experiment, System, all_systems, find_system
from ricnet.terminal import say
from ricnet.training.api import pick_device, run
from ricnet.training.console import GO_ON, Interrupted, StopRequest
from ricnet.training.features import behind_encoder
from ricnet.training.finish import finalize, weighted
from ricnet.training.recipes import TYPICAL, Facts, choose_method, configure, default_oversize, for_encoder, preset

SECONDS_TO_SAVE = 20
SECONDS_OF_SILENCE = 15


@dataclass(frozen=True)
class Plan:
    """A run that an experiment needs."""

    config: Config
    name: str
    """Name of its folder if it is new."""
    data: Mapping[str, Any] = field(hash=False)
    """Description of the data, as in config.json."""
    source: "Plan | None" = None
    """The run whose weights it uses, if only settings after training differ."""
    notes: tuple[str, ...] = ()
    """Notes about the data for the user."""


@dataclass(frozen=True)
class Job:
    """A run to make."""

    config: Config
    folder: Path
    device: str
    data_dir: Path | None
    source: Path | None = None
    """Finished run whose weights are used; None to train."""


@dataclass(frozen=True)
class Runner:
    """Finds and makes the runs of experiments in a folder."""

    root: Path
    data_dir: Path | None = None
    device: str = "auto"
    jobs: int | None = None
    """Number of parallel runs; None for one per CPU core, or one on a GPU."""

    def run(
        self, experiments: Sequence[Experiment], console: Console, all_or_none: bool = False
    ) -> tuple[dict[Experiment, list[RunRecord]], list[str]]:
        """The runs of all experiments, and a message for each missing data set and each failed run. With `all_or_none`
        nothing is trained if one of the experiments is impossible."""
        plans, problems = self._plan(experiments, console)
        if problems and all_or_none:
            raise RicnetError(problems[0])
        wanted = [plan for group in plans.values() for plan in group]
        folders: dict[Config, RunFolder] = {}
        for stage in ([plan.source or plan for plan in wanted], [plan for plan in wanted if plan.source]):
            jobs = self._find(stage, folders)
            if jobs:
                automatic = 1 if pick_device(self.device).type == "cuda" else min(usable_cores(), 8)
                workers = max(1, min(self.jobs or automatic, len(jobs)))
                say([f"{counted(len(jobs), 'run')} to make, {workers} at once, in {self.root}"], console)
                problems += execute(jobs, workers, console)
        made = {config: folder.path for config, folder in folders.items() if folder.finished}
        runs = {
            experiment: [read_run(made[plan.config]) for plan in group if plan.config in made]
            for experiment, group in plans.items()
        }
        return runs, problems

    def _plan(
        self, experiments: Sequence[Experiment], console: Console
    ) -> tuple[dict[Experiment, list[Plan]], list[str]]:
        """The plans of each experiment whose data exists.

        Presets depend on the device. If runs of a data set were begun on another kind of device, the study continues
        with their settings.
        """
        plans: dict[Experiment, list[Plan]] = {}
        problems: dict[str, None] = {}
        index, own = RunIndex(self.root), pick_device(self.device).type
        for data in dict.fromkeys(experiment.benchmark.data for experiment in experiments):
            here: dict[Experiment, list[Plan]] = {}
            elsewhere: dict[Experiment, list[Plan]] = {}
            for experiment in dict.fromkeys(e for e in experiments if e.benchmark.data == data):
                try:
                    here[experiment] = plan(experiment, self.data_dir, own)
                    elsewhere[experiment] = plan(experiment, self.data_dir, "cpu" if own == "cuda" else "cuda")
                except RicnetError as problem:
                    problems[str(problem)] = None
            moved = index.knows(elsewhere) and not index.knows(here)
            plans |= elsewhere if moved else here
            notes = {note: None for group in here.values() for one in group for note in one.notes}
            if moved:
                notes[f"{data}: there are runs from another kind of device; the study keeps their settings."] = None
            say((f"note: {note}" for note in notes), console)
        return {experiment: plans[experiment] for experiment in experiments if experiment in plans}, list(problems)

    def _find(self, plans: Sequence[Plan], folders: dict[Config, RunFolder]) -> list[Job]:
        """Add the existing or new folder of each plan to `folders`; return jobs for the unfinished ones."""
        index = RunIndex(self.root)
        jobs = []
        for one in plans:
            source = folders[one.source.config] if one.source else None
            if one.config in folders or (source and not source.finished):
                continue
            folder = index.find(one.config, one.data, source) or index.new(one.name)
            folders[one.config] = folder
            if not folder.finished:
                jobs.append(Job(one.config, folder.path, self.device, self.data_dir, source.path if source else None))
        return jobs


def plan(experiment: Experiment, data_dir: Path | None, device: str = "cuda") -> list[Plan]:
    """One plan per seed. Raises RicnetError if the data is missing."""
    system, data = find_system(experiment.system), whole_path(experiment.benchmark.data)
    given = {**dict(experiment.benchmark.changes), **system.changes, **system.after, **dict(experiment.changes)}
    given = dict(for_encoder(data, given))
    recipe = system.preset or experiment.preset
    how = {name: given.get(name, getattr(Config, name)) for name in DATA_SETTINGS} | default_oversize(recipe, given)
    dataset = read_data(data, data_dir, given.get("encoder", "auto"), **how)
    facts = Facts.of(dataset, torch.device(device), given)
    settings = {**RAW, **system.changes_for(facts), **given}
    if system.method is None:
        _refuse_of_another_algorithm(given, experiment.system, choose_method(recipe, None, facts))
    described, names = describe_data(dataset), (experiment.system, _base(experiment.system, system))
    plans = []
    for seed in experiment.seeds:
        config = configure(dataset, system.method, recipe, torch.device(device), **{**settings, "seed": seed})
        config = settle_horizon(dataclasses.replace(config, data=data), dataset.input_shape)
        trained = stripped(config)
        name, base = (_slug(f"{experiment.benchmark.label} {system_name} seed{seed}") for system_name in names)
        source = Plan(trained, base, described) if trained != config else None
        plans.append(Plan(config, name, described, source, tuple(dataset.notes)))
    return plans


def _refuse_of_another_algorithm(given: Mapping[str, Any], system: str, method: str) -> None:
    """Refuse settings of Algorithm 1 for a system that takes the default method, if the default is another one."""
    for name in given:
        if name in field_types(RIC) and name not in field_types(METHODS[method]):
            raise RicnetError(
                f"{setting(name)} is a setting of Algorithm 1, but the system {system} is the default for this data, "
                f"{method}; compare ric-snapshots instead, or leave it out."
            )


def _base(name: str, system: System) -> str:
    """Name of the system with the same training and no settings after it; `name` if there is none."""
    alike = (base for base, other in all_systems().items() if other == dataclasses.replace(system, after={}))
    return next(alike, name)


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")


class RunIndex:
    """The run folders in `root`, found by configuration and data."""

    def __init__(self, root: Path) -> None:
        self.root = root
        folders = sorted(path.parent for path in root.glob("*/config.json")) if root.is_dir() else []
        self.known = [(RunFolder(folder), _identity(folder)) for folder in folders]
        self.reserved: set[Path] = set()

    def find(self, config: Config, data: Mapping[str, Any], source: RunFolder | None = None) -> RunFolder | None:
        """A run of this configuration on this data, preferably a finished one; None if there is none. A pretrained
        encoder must have the same weights. With `source`, a run derived from its current weights.
        """
        weights = source.weights_hash() if source is not None and source.model.is_file() else None
        name = config.network.encoder
        wanted = (dataclasses.replace(config, baselines=True), data, weights_of(name), source is not None, weights)
        same = [folder for folder, entry in self.known if entry == wanted]
        return min(same, key=lambda folder: not folder.finished, default=None)

    def knows(self, plans: Mapping[Experiment, Sequence[Plan]]) -> bool:
        """Whether any of these runs was begun."""
        trainings = [one.source or one for group in plans.values() for one in group]
        return any(self.find(one.config, one.data) is not None for one in trainings)

    def new(self, name: str) -> RunFolder:
        """A new folder of this name, with a number appended if it exists."""
        paths = [self.root / (name if number == 1 else f"{name}-{number}") for number in range(1, 10_000)]
        path = next(path for path in paths if not path.exists() and path not in self.reserved)
        self.reserved.add(path)
        return RunFolder(path)


def _identity(folder: Path) -> tuple[Config, Any, Any, bool, str | None] | None:
    """Configuration, data and weights of a run; None if it is damaged or of another version."""
    try:
        entry = read_json(folder / "config.json")
        config = from_json(entry.get("config"), str(folder))
        encoder = described.get("weights") if isinstance(described := entry.get("encoder"), dict) else None
        alike = dataclasses.replace(config, baselines=True)  # baselines do not change the network
        return alike, entry.get("data"), encoder, "derived_from" in entry, entry.get("weights")
    except RicnetError:
        return None


# Making runs


@functools.lru_cache(maxsize=4)
def read_data(data: str, data_dir: Path | None, encoder: str = "auto", **settings: Any) -> Dataset:
    """Load a data set with these DATA_SETTINGS; the four most recent ones are cached. A pretrained `encoder` may have
    its own tokenizer."""
    return load_data(data, data_dir=data_dir, tokenizer=find_tokenizer(encoder), **settings)


def dataset_of(config: Config, data_dir: Path | None) -> Dataset:
    settings = {name: getattr(config, name) for name in DATA_SETTINGS}
    return read_data(config.data, data_dir, config.network.encoder, **settings)


def execute(jobs: Sequence[Job], workers: int, console: Console) -> list[str]:
    """Do all jobs; return a message for each failed job."""
    if workers > 1:
        return _execute_parallel(jobs, workers, console)
    problems = []
    for number, job in enumerate(jobs, 1):
        try:
            problem = perform(job, console)
        except Interrupted:
            raise Interrupted(GO_ON) from None
        problems += [problem] if problem else []
        _print_result(console, f"{number}/{len(jobs)}", job, problem)
    return problems


def perform(job: Job, console: Console | None = None) -> str | None:
    """Do one job; returns a message if it failed."""
    folder, device = RunFolder(job.folder), pick_device(job.device)
    try:
        dataset = dataset_of(job.config, job.data_dir)
        if job.source is None:
            run(job.config, dataset, folder, device, resume=folder.begun, console=console)
        else:
            derive(RunFolder(job.source), job.config, dataset, folder, device)
    except Interrupted:
        raise
    except RicnetError as problem:
        return f"{job.folder.name}: {problem}"
    except (OSError, RuntimeError) as problem:  # full disk or out of memory; other runs may succeed
        return f"{job.folder.name}: {first_line(problem)}"
    return None


def derive(source: RunFolder, config: Config, dataset: Dataset, folder: RunFolder, device: torch.device) -> None:
    """Make a run with the weights of a finished one and another readout, halting rule or calibration."""
    trained = load(source.path, str(device))
    if stripped(config) != stripped(dataclasses.replace(trained.config, baselines=config.baselines)):
        raise RicnetError(
            f"{source.path} was trained with other settings; only {', '.join(AFTER_TRAINING)} may differ."
        )
    course = {key: read_json(source.evaluation).get(key) for key in ("selected_epoch", "seconds")}
    encoder, frozen = read_config(source.path).get("encoder"), backbone_of(trained.model).frozen_encoder
    with folder.held(), torch.random.fork_rng([device] if device.type == "cuda" else []):
        folder.begin(config, dataset, device, source, encoder)
        for old, new in ((source.model, folder.model), (source.metrics, folder.metrics)):
            write_atomically(new, functools.partial(shutil.copyfile, old))
        if frozen is not None:
            keep_encoder(frozen, folder)
            trained, dataset = behind_encoder(trained, dataset)
        torch.manual_seed(config.seed)
        finalize(config, trained.model, weighted(config, dataset), folder, course)


def _execute_parallel(jobs: Sequence[Job], workers: int, console: Console) -> list[str]:
    context = multiprocessing.get_context("spawn")
    over, threads = context.Event(), max(1, usable_cores() // workers)
    with StopRequest() as stop, ProcessPoolExecutor(workers, context, _start_worker, (threads, over)) as pool:
        pending = {pool.submit(_perform_quietly, job): job for job in jobs}
        try:
            return _collect(pending, console, stop)
        except BrokenProcessPool as error:
            raise RicnetError(
                "a worker process died, perhaps out of memory; repeat the command with fewer --jobs to continue."
            ) from error
        finally:
            if pending:
                over.set()  # jobs in the queue of a worker cannot be cancelled otherwise
                pool.shutdown(wait=False, cancel_futures=True)
                for child in multiprocessing.active_children():
                    child.terminate()  # SIGTERM, on which training saves its state


def _collect(pending: dict[Future[str | None], Job], console: Console, stop: StopRequest) -> list[str]:
    problems: list[str] = []
    total, spoken = len(pending), time.monotonic()
    while pending:
        done, _ = wait(pending, timeout=0.5, return_when=FIRST_COMPLETED)
        for future in done:
            job, problem = pending.pop(future), future.result()
            problems += [problem] if problem else []
            _print_result(console, f"{total - len(pending)}/{total}", job, problem)
            spoken = time.monotonic()
        if time.monotonic() - spoken > SECONDS_OF_SILENCE:
            for job in pending.values():
                _print_progress(console, job)
            spoken = time.monotonic()
        if stop.received:
            raise Interrupted(GO_ON)
    return problems


def _print_progress(console: Console, job: Job) -> None:
    """Print the epoch of a run that is in training."""
    folder = RunFolder(job.folder)
    if folder.metrics.is_file():
        _print_job(console, "…", job, f"epoch {folder.last_epoch}/{job.config.optimization.epochs}")


def _print_result(console: Console, count: str, job: Job, problem: str | None) -> None:
    text = "failed"
    if not problem and RunFolder(job.folder).finished:
        test = read_run(job.folder).test
        text = f"test {test['accuracy']:.2%}  ECE {test['ece']:.3f}  {test['mean_steps']:.1f} steps"
    _print_job(console, count, job, text)


def _print_job(console: Console, count: str, job: Job, text: str) -> None:
    say([f"{time.strftime('%H:%M:%S')}  {count}  {job.folder.name}  {text}"], console)


_no_more_jobs: Event | None = None
"""In a worker: set when no further job may start."""


def _start_worker(threads: int, over: Event) -> None:
    """Initialise a worker process: limit its threads, and ignore Ctrl-C, which the parent passes on as SIGTERM."""
    global _no_more_jobs
    _no_more_jobs = over
    torch.set_num_threads(threads)
    if hasattr(os, "setsid"):
        os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_stop_with_parent, args=(os.getppid(),), daemon=True).start()


def _stop_with_parent(parent: int) -> None:
    """When the parent process has died, save the state and exit."""
    while os.getppid() == parent:
        time.sleep(2)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(SECONDS_TO_SAVE)
    os._exit(1)  # else the worker would wait for jobs for ever


def _perform_quietly(job: Job) -> str | None:
    if _no_more_jobs is not None and _no_more_jobs.is_set():
        return f"{job.folder.name}: not started"
    return perform(job, Console(quiet=True))


# Finished runs instead of new ones (`--from-runs`). A run belongs to an experiment if system, data set and seed agree;
# its other settings may differ, and figures name them. A setting that distinguishes systems (`ric:gamma=0.9`, the grid
# of Table 2) must agree too.


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
    wanted, used = preset(system.preset, system.method, TYPICAL).method, run.config["method"]
    return used["name"] == wanted.name and wanted.title_of(used) == wanted.title_of(dataclasses.asdict(wanted))


def _title(system: System) -> str:
    """Title of the system in reports, without the algorithm of RIC."""
    named = {"name": system.method or RIC.name, "uniform_mix": float(system.capped)}
    settings = {**system.changes, **system.after, **named}
    return without_algorithm(system_name({"method": settings, "calibration": system.after.get("calibration")}))
