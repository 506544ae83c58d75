"""Many runs, several at once: the interrupted go on, and a failure stops no other.

Each worker is a process with its share of the CPU. It saves and stops when its parent asks it to, so a study can be
interrupted at any time.
"""

import functools
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.synchronize import Event
from pathlib import Path

import torch
from rich.console import Console

from ricnet.data import Dataset
from ricnet.data import load as load_data
from ricnet.errors import RicnetError
from ricnet.report.runs import read_run
from ricnet.threads import usable_cores
from ricnet.training.api import pick_device, run
from ricnet.training.config import DATA_SETTINGS, Config
from ricnet.training.console import GO_ON, Interrupted, StopRequest
from ricnet.training.finalize import derive
from ricnet.training.run import RunFolder

SECONDS_TO_SAVE = 20
SECONDS_OF_SILENCE = 15


@dataclass(frozen=True)
class Job:
    config: Config
    folder: Path
    device: str
    data_dir: Path | None
    source: Path | None = None
    """The finished run to take the weights from; None to train."""


@functools.lru_cache(maxsize=4)
def read_data(
    data: str, data_dir: Path | None, resolution: int | None, val_fraction: float, label_noise: float
) -> Dataset:
    """Many runs in a row use the same data, so the last few sets stay in memory."""
    return load_data(data, data_dir=data_dir, resolution=resolution, val_fraction=val_fraction, label_noise=label_noise)


def dataset_of(config: Config, data_dir: Path | None) -> Dataset:
    return read_data(config.data, data_dir, *(getattr(config, name) for name in DATA_SETTINGS))


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
        return f"{job.folder.name}: {str(problem).splitlines()[0]}"
    return None


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
        _say(console, f"…  {job.folder.name}  epoch {epoch}/{job.config.optimization.epochs}")


def _announce(console: Console, count: str, job: Job, problem: str | None) -> None:
    text = f"{count}  {job.folder.name}  failed"
    if not problem and RunFolder(job.folder).finished:
        test = read_run(job.folder).test
        scores = f"test {test['accuracy']:.2%}  ECE {test['ece']:.3f}  {test['mean_steps']:.1f} steps"
        text = f"{count}  {job.folder.name}  {scores}"
    _say(console, text)


def _say(console: Console, text: str) -> None:
    console.print(f"{time.strftime('%H:%M:%S')}  {text}", highlight=False, markup=False, soft_wrap=True)


_over: Event | None = None
"""In a worker: set when nothing more is to be begun."""


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
    """A parent that was killed cannot pass anything on, so its worker saves and stops by itself."""
    while os.getppid() == parent:
        time.sleep(2)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(SECONDS_TO_SAVE)
    os._exit(1)  # it has saved, and would now wait for work for ever


def _perform_quietly(job: Job) -> str | None:
    if _over is not None and _over.is_set():
        return f"{job.folder.name}: not begun"
    return perform(job, Console(quiet=True))
