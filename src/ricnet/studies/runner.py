"""From what a study asks for to finished runs: those that exist are taken, the others are made, several at once.

Runs are found by what was run, a configuration on some data, not by the name of their folder. So studies share their
runs, the finished are never repeated, and the same command goes on with what was interrupted. Each worker is a process
with its share of the CPU, which saves and stops when its parent asks it to; a run that fails stops no other.
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
from ricnet.errors import RicnetError, counted, first_line
from ricnet.io import read_json, write_atomically
from ricnet.machine import usable_cores
from ricnet.models.build import backbone_of, settle_horizon
from ricnet.models.checkpoints import find_tokenizer, keep_encoder, weights_of
from ricnet.models.config import AFTER_TRAINING, DATA_SETTINGS, Config, from_json, stripped
from ricnet.models.loading import load
from ricnet.models.run import RunFolder, describe_data, read_config
from ricnet.report.runs import RunRecord, read_run
from ricnet.studies.experiments import RAW, Experiment, System, all_systems, find_system
from ricnet.training.api import pick_device, run
from ricnet.training.console import GO_ON, Interrupted, StopRequest, say
from ricnet.training.features import behind_encoder
from ricnet.training.finish import finalize, weighted
from ricnet.training.request import configure, facts, for_encoder

SECONDS_TO_SAVE = 20
SECONDS_OF_SILENCE = 15


@dataclass(frozen=True)
class Plan:
    """A run that is wanted."""

    config: Config
    name: str
    """What its folder is called if it has to be made."""
    data: Mapping[str, Any] = field(hash=False)
    """Describes the data, as in config.json."""
    source: "Plan | None" = None
    """The training whose weights it takes, if it differs from that only after training."""
    notes: tuple[str, ...] = ()
    """What the user should know of the data."""


@dataclass(frozen=True)
class Job:
    """A run that is to be made."""

    config: Config
    folder: Path
    device: str
    data_dir: Path | None
    source: Path | None = None
    """The finished run to take the weights from; None to train."""


@dataclass(frozen=True)
class Runner:
    """Where runs are kept and made."""

    root: Path
    data_dir: Path | None = None
    device: str = "auto"
    jobs: int | None = None
    """Runs at once; None for one a CPU core, or one on a GPU."""

    def run(
        self, experiments: Sequence[Experiment], console: Console
    ) -> tuple[dict[Experiment, list[RunRecord]], list[str]]:
        """The runs of all experiments, and a sentence for each data set that is not here and each run that failed."""
        plans, problems = self._plan(experiments, console)
        wanted = [plan for group in plans.values() for plan in group]
        folders: dict[Config, RunFolder] = {}
        for stage in ([plan.source or plan for plan in wanted], [plan for plan in wanted if plan.source]):
            jobs = self._find(stage, folders)
            if jobs:
                workers = worker_count(self.jobs, len(jobs), pick_device(self.device))
                count = f"{counted(len(jobs), 'run')} to make, {workers} at once, in {self.root}"
                say([count], console)
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
        """The plans of each experiment whose data is here.

        Presets depend on the device. If the runs of a data set were begun on another kind of device, the study goes on
        with their settings, for those it would begin with here are other ones.
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
                notes[f"{data}: runs begun on another kind of device are there; the study keeps their settings."] = None
            say((f"note: {note}" for note in notes), console)
        return {experiment: plans[experiment] for experiment in experiments if experiment in plans}, list(problems)

    def _find(self, plans: Sequence[Plan], folders: dict[Config, RunFolder]) -> list[Job]:
        """Adds the folder of each plan to `folders`, one that is there or a new one; returns what is not finished."""
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
    """One plan a seed. Raises RicnetError where the data is not here."""
    system, data = find_system(experiment.system), whole_path(experiment.benchmark.data)
    given = {**dict(experiment.benchmark.changes), **system.changes, **system.after, **dict(experiment.changes)}
    given = dict(for_encoder(data, given))
    how = (given.get(name, getattr(Config, name)) for name in DATA_SETTINGS)
    dataset = read_data(data, data_dir, *how, given.get("encoder", "auto"))
    settings = {**RAW, **system.changes_for(facts(dataset, torch.device(device), given)), **given}
    described, names = describe_data(dataset), (experiment.system, _base(experiment.system, system))
    plans = []
    for seed in experiment.seeds:
        preset = system.preset or experiment.preset
        config = configure(dataset, system.method, preset, torch.device(device), **{**settings, "seed": seed})
        config = settle_horizon(dataclasses.replace(config, data=data), dataset.input_shape)
        trained = stripped(config)
        name, base = (_slug(f"{experiment.benchmark.label} {system_name} seed{seed}") for system_name in names)
        source = Plan(trained, base, described) if trained != config else None
        plans.append(Plan(config, name, described, source, tuple(dataset.notes)))
    return plans


def _base(name: str, system: System) -> str:
    """The system that has the same training and nothing after it, if it has a name."""
    alike = (base for base, other in all_systems().items() if other == dataclasses.replace(system, after={}))
    return next(alike, name)


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")


class RunIndex:
    """The run folders under one root, found by what was run."""

    def __init__(self, root: Path) -> None:
        self.root = root
        folders = sorted(path.parent for path in root.glob("*/config.json")) if root.is_dir() else []
        self.known = [(RunFolder(folder), _identity(folder)) for folder in folders]
        self.reserved: set[Path] = set()

    def find(self, config: Config, data: Mapping[str, Any], source: RunFolder | None = None) -> RunFolder | None:
        """A folder where this was run, on this data, finished or not; a finished one if there are several. An encoder
        that others have trained must have had the weights that its name stands for now.

        With `source`, a run derived from the very weights that are there now.
        """
        weights = source.weights_hash() if source is not None and source.model.is_file() else None
        name = config.network.encoder
        wanted = (dataclasses.replace(config, baselines=True), data, weights_of(name), source is not None, weights)
        same = [folder for folder, entry in self.known if entry == wanted]
        return min(same, key=lambda folder: not folder.finished, default=None)

    def knows(self, plans: Mapping[Experiment, Sequence[Plan]]) -> bool:
        """Whether any of these trainings was begun."""
        trainings = [one.source or one for group in plans.values() for one in group]
        return any(self.find(one.config, one.data) is not None for one in trainings)

    def new(self, name: str) -> RunFolder:
        """A folder of this name that is not there yet."""
        paths = [self.root / (name if number == 1 else f"{name}-{number}") for number in range(1, 10_000)]
        path = next(path for path in paths if not path.exists() and path not in self.reserved)
        self.reserved.add(path)
        return RunFolder(path)


def _identity(folder: Path) -> tuple[Config, Any, Any, bool, str | None] | None:
    """What was run in a folder; None where it is of another version or damaged: it is left alone."""
    try:
        entry = read_json(folder / "config.json")
        config = from_json(entry.get("config"), str(folder))
        encoder = described.get("weights") if isinstance(described := entry.get("encoder"), dict) else None
        alike = dataclasses.replace(config, baselines=True)  # baselines do not change the network
        return alike, entry.get("data"), encoder, "derived_from" in entry, entry.get("weights")
    except RicnetError:
        return None


# Making runs, several at once


@functools.lru_cache(maxsize=4)
def read_data(
    data: str,
    data_dir: Path | None,
    resolution: int | None,
    val_fraction: float,
    train_fraction: float,
    label_noise: float,
    text: str | None = None,
    test: str | None = None,
    test_fraction: float | None = None,
    encoder: str = "auto",
) -> Dataset:
    """Many runs in a row use the same data, so the last few sets stay in memory. An `encoder` that others have trained
    may cut texts in its own way."""
    return load_data(
        data,
        data_dir=data_dir,
        resolution=resolution,
        val_fraction=val_fraction,
        train_fraction=train_fraction,
        label_noise=label_noise,
        text=text,
        test=test,
        test_fraction=test_fraction,
        tokenizer=find_tokenizer(encoder),
    )


def dataset_of(config: Config, data_dir: Path | None) -> Dataset:
    settings = (getattr(config, name) for name in DATA_SETTINGS)
    return read_data(config.data, data_dir, *settings, config.network.encoder)


def worker_count(asked: int | None, jobs: int, device: torch.device) -> int:
    automatic = 1 if device.type == "cuda" else min(usable_cores(), 8)
    return max(1, min(asked or automatic, jobs))


def execute(jobs: Sequence[Job], workers: int, console: Console) -> list[str]:
    """Do all jobs; returns a sentence for each that failed."""
    if workers > 1:
        return _side_by_side(jobs, workers, console)
    problems = []
    for number, job in enumerate(jobs, 1):
        try:
            problem = perform(job, console)
        except Interrupted:
            raise Interrupted(GO_ON) from None
        problems += [problem] if problem else []
        _announce(console, f"{number}/{len(jobs)}", job, problem)
    return problems


def perform(job: Job, console: Console | None = None) -> str | None:
    """Do one job; returns what went wrong, in a sentence, if the user can mend it."""
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
    except (OSError, RuntimeError) as problem:  # a full disk, a GPU without memory: the other runs may do better
        return f"{job.folder.name}: {first_line(problem)}"
    return None


def derive(source: RunFolder, config: Config, dataset: Dataset, folder: RunFolder, device: torch.device) -> None:
    """A run of the same weights as a finished one, which answers, halts or is calibrated in another way."""
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


def _side_by_side(jobs: Sequence[Job], workers: int, console: Console) -> list[str]:
    context = multiprocessing.get_context("spawn")
    over, threads = context.Event(), max(1, usable_cores() // workers)
    with StopRequest() as stop, ProcessPoolExecutor(workers, context, _start_worker, (threads, over)) as pool:
        pending = {pool.submit(_perform_quietly, job): job for job in jobs}
        try:
            return _collect(pending, console, stop)
        except BrokenProcessPool as error:
            raise RicnetError(
                "a worker died, perhaps for want of memory; try fewer --jobs. The same command goes on from here."
            ) from error
        finally:
            if pending:
                over.set()  # jobs that already wait in a worker's queue cannot be cancelled otherwise
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
            _announce(console, f"{total - len(pending)}/{total}", job, problem)
            spoken = time.monotonic()
        if time.monotonic() - spoken > SECONDS_OF_SILENCE:
            for job in pending.values():
                _report_progress(console, job)
            spoken = time.monotonic()
        if stop.asked:
            raise Interrupted(GO_ON)
    return problems


def _report_progress(console: Console, job: Job) -> None:
    """A sign of life from a run that is still going on."""
    log = RunFolder(job.folder).metrics
    if log.is_file():
        epoch = log.read_bytes().count(b"\n")
        say(
            [f"{time.strftime('%H:%M:%S')}  …  {job.folder.name}  epoch {epoch}/{job.config.optimization.epochs}"],
            console,
        )


def _announce(console: Console, count: str, job: Job, problem: str | None) -> None:
    text = f"{count}  {job.folder.name}  failed"
    if not problem and RunFolder(job.folder).finished:
        test = read_run(job.folder).test
        scores = f"test {test['accuracy']:.2%}  ECE {test['ece']:.3f}  {test['mean_steps']:.1f} steps"
        text = f"{count}  {job.folder.name}  {scores}"
    say([f"{time.strftime('%H:%M:%S')}  {text}"], console)


_over: Event | None = None
"""In a worker: set when no further job may start."""


def _start_worker(threads: int, over: Event) -> None:
    """In a new worker: take a share of the cores, and ignore the terminal's Ctrl-C, which the parent passes on."""
    global _over
    _over = over
    torch.set_num_threads(threads)
    if hasattr(os, "setsid"):
        os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_stop_with_parent, args=(os.getppid(),), daemon=True).start()


def _stop_with_parent(parent: int) -> None:
    """If the parent was killed, save and stop."""
    while os.getppid() == parent:
        time.sleep(2)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(SECONDS_TO_SAVE)
    os._exit(1)  # it has saved, and would now wait for work for ever


def _perform_quietly(job: Job) -> str | None:
    if _over is not None and _over.is_set():
        return f"{job.folder.name}: not begun"
    return perform(job, Console(quiet=True))
