"""Train the runs of a study in pieces of minutes: several at once, each finished run once, stopped at a deadline.

A run is finished when its archive exists. No run starts after `--minutes`. At `--deadline` running ones save their
state and end, and the next call resumes them if their folders are still there. `archive_stopped` archives what they
have reached. Each training is a process of its own, so that CUDA MPS can share a GPU between them, and reads the data
from a file that the first call writes.
"""

import argparse
import hashlib
import json
import multiprocessing
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from archive_results import archive_run
from ricnet.data import Dataset, whole_path
from ricnet.data import load as load_data
from ricnet.data.dataset import altered
from ricnet.errors import Interrupted, RicnetError
from ricnet.io import read_json, write_atomically
from ricnet.machine import usable_cores
from ricnet.models.config import Config, from_json, to_json
from ricnet.models.run import RunFolder
from ricnet.studies.runner import derive
from ricnet.training.api import pick_device, run
from ricnet.training.console import StopRequest

SECONDS_TO_SAVE = 30


@dataclass(frozen=True)
class Job:
    """A run to make."""

    name: str
    """Name of run folder and archive; may contain a subfolder."""
    config: Config
    data: Path
    """The data set, written by `store`; `config.train_fraction` of its training rows are used."""
    device: str
    tempered: bool = False
    """Whether it is archived with a fitted temperature too."""


Finish = Callable[["Job", RunFolder, Path], None]
"""Writes the archive of a job from its folder, which is finished or diverged."""


def add_options(parser: argparse.ArgumentParser, archives: Path) -> None:
    parser.add_argument("--data-dir", type=Path, help="folder of the named data sets")
    parser.add_argument("--runs", type=Path, default=Path("runs") / archives.name, help="folder for unfinished runs")
    parser.add_argument("--to", type=Path, default=archives, help="folder of the archives, one JSON file per run")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at once")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no run after this time")
    parser.add_argument("--deadline", type=float, default=float("inf"), help="minutes after which running ones stop")
    parser.add_argument("--show", action="store_true", help="train nothing; print the table of the archives")
    parser.set_defaults(began=time.monotonic())


def store(data: str, options: argparse.Namespace, keep_test: bool = True, **settings: Any) -> Path:
    """Read a data set once and write it to a file. With `keep_test=False` it has no test rows."""
    key = hashlib.sha256(json.dumps([whole_path(data), keep_test, settings]).encode()).hexdigest()[:12]
    path: Path = options.runs / f"{Path(data).name}-{key}.pt"
    if not path.is_file():
        dataset = load_data(data, data_dir=options.data_dir, **settings)
        dataset = dataset if keep_test else replace(dataset, test=dataset.test.take(torch.empty(0, dtype=torch.int64)))
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, lambda draft: torch.save(dataset, draft))
    return path


def read(path: Path, train_fraction: float = 1.0) -> Dataset:
    """A data set that `store` wrote; its rows are mapped, so that processes share the memory."""
    return altered(torch.load(path, mmap=True, weights_only=False), train_fraction)


def archive_of(job: Job, archives: Path) -> Path:
    return archives / f"{job.name}.json"


def updates_per_epoch(rows: int, batch: int) -> int:
    return rows // min(batch, rows)


def unfinished(jobs: Sequence[Job], archives: Path) -> list[Job]:
    """Jobs without an archive. An archive with other settings is refused, so that studies are not mixed."""
    for each in jobs:
        path = archive_of(each, archives)
        if path.is_file():
            entry = read_json(path)["config"] | {"data": each.config.data}
            if from_json(entry, str(path)) != each.config:
                sys.exit(f"{path} was made with other settings than the study has; move it, or give another --to.")
    return [each for each in jobs if not archive_of(each, archives).is_file()]


def work(wanted: Callable[[], Sequence[Job]], finish: Finish, options: argparse.Namespace) -> list[str]:
    """Train what `wanted` returns, in this order, until nothing is left or time is up. `wanted` is called again after
    each run, so that a run may depend on the archives of others. Returns the names of runs that failed."""
    context, threads = multiprocessing.get_context("spawn"), max(1, usable_cores() // options.jobs)
    running: dict[str, Any] = {}
    failed: list[str] = []
    queue = list(wanted())
    with StopRequest() as stop:
        try:
            while True:
                minutes = (time.monotonic() - options.began) / 60
                ended = [name for name, process in running.items() if process.exitcode is not None]
                for name in ended:
                    code = running.pop(name).exitcode
                    failed += [name] if code else []
                    print(f"{minutes:5.1f} min  {name}  {'failed' if code else 'finished'}", flush=True)
                queue = list(wanted()) if ended else queue
                if minutes >= options.deadline or stop.received:
                    break
                waiting = [job for job in queue if job.name not in running and job.name not in failed]
                for job in waiting[: options.jobs - len(running)] if minutes < options.minutes else ():
                    arguments = (job, options.runs / job.name, options.to, threads, finish)
                    running[job.name] = context.Process(target=perform, args=arguments, name=job.name)
                    running[job.name].start()
                    print(f"{minutes:5.1f} min  {job.name}  started", flush=True)
                if not running:
                    break
                time.sleep(0.1)
        finally:
            stop_all(running)
    left = len([job for job in wanted() if job.name not in failed])
    print(f"{len(failed)} failed, {left} left (of those known by now)", flush=True)
    return failed


def stop_all(running: dict[str, Any]) -> None:
    """SIGTERM, on which training saves its state."""
    for process in running.values():
        process.terminate()
    for name, process in running.items():
        process.join(SECONDS_TO_SAVE)
        process.kill()
        print(f"{name}  stopped", flush=True)


def perform(job: Job, path: Path, archives: Path, threads: int, finish: Finish) -> None:
    """Make or resume a run, then write its archive. Runs in a process of its own."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # Ctrl-C reaches the parent, which sends SIGTERM
    torch.set_num_threads(threads)
    folder = RunFolder(path)
    try:
        if not (folder.finished or folder.has_diverged):
            dataset = read(job.data, job.config.train_fraction)
            run(job.config, dataset, folder, pick_device(job.device), resume=folder.begun, console=Console(quiet=True))
    except Interrupted:
        sys.exit(Interrupted.exit_code)
    except RicnetError as problem:
        if not folder.has_diverged:
            sys.exit(f"{job.name}: {problem}")
    archives.mkdir(parents=True, exist_ok=True)
    finish(job, folder, archives)


def archive(job: Job, folder: RunFolder, archives: Path) -> None:
    """Archive a run; first the one with a temperature, which has the same weights."""
    if folder.has_diverged:
        raise RicnetError(f"{folder.path} diverged; archive nothing.")
    target = archive_of(job, archives).parent
    if job.tempered:
        warm = RunFolder(folder.path.with_name(f"{folder.path.name}-temperature"))
        if not warm.finished:
            config, dataset = replace(job.config, calibration="temperature"), read(job.data, job.config.train_fraction)
            derive(folder, config, dataset, warm, pick_device(job.device))
        archive_run(warm.path, target)
    archive_run(folder.path, target)


# Archiving unfinished runs


def archive_stopped(jobs: Sequence[Job], options: argparse.Namespace) -> list[str]:
    """Archive unfinished runs with the epochs they have completed. Their learning rate must be constant: then the
    result equals that of a run planned with that many epochs. Its folder is kept, and the run can go on."""
    cuts = [short for job in unfinished(jobs, options.to) if (short := cut(job, options)) is not None]
    at_once = argparse.Namespace(**{**vars(options), "minutes": float("inf"), "deadline": float("inf")})
    return work(lambda: [job for job in cuts if epochs_archived(job, options.to) < epochs_of(job)], archive, at_once)


def cut(job: Job, options: argparse.Namespace) -> Job | None:
    """The job of as many epochs as a stopped run has completed; it has nothing left to train. Updates of an unfinished
    epoch are dropped: no weights after them can have been selected. None without a completed epoch."""
    begun = RunFolder(options.runs / job.name)
    state = begun.read_state() if begun.begun and not begun.has_diverged else None
    rows = len(read(job.data, job.config.train_fraction).train)
    per_epoch = updates_per_epoch(rows, job.config.optimization.batch_size)
    if state is None or not (epochs := state["update"] // per_epoch):
        return None
    config = replace(job.config, optimization=replace(job.config.optimization, epochs=epochs))
    short = replace(job, name=stopped(job.name), config=config)
    folder = RunFolder(options.runs / short.name)
    shutil.rmtree(folder.path, ignore_errors=True)
    shutil.rmtree(f"{folder.path}-temperature", ignore_errors=True)
    folder.path.mkdir(parents=True)
    shutil.copyfile(begun.metrics, folder.metrics)
    folder.write_state(state | {"update": epochs * per_epoch})
    folder.write_json(folder.config, read_json(begun.config) | {"config": to_json(config)})
    return short


def stopped(name: str) -> str:
    """Name of a run that has fewer epochs than planned."""
    system, _, seed = name.rpartition("-seed")
    return f"{system}-stopped-seed{seed}"


def epochs_of(job: Job) -> int:
    return job.config.optimization.epochs


def epochs_archived(job: Job, archives: Path) -> int:
    path = archive_of(job, archives)
    return int(read_json(path)["config"]["optimization"]["epochs"]) if path.is_file() else 0
