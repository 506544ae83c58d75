"""Many runs, several at once: the finished are not repeated, the interrupted go on, a failure stops no other.

Each worker is a process with its own share of the CPU. It stops politely when its parent asks it to, so a study can
be interrupted at any time and the same command goes on with it.
"""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from multiprocessing.synchronize import Event
from pathlib import Path

import torch
from rich.console import Console

from ricnet.errors import RicnetError
from ricnet.report.runs import RunRecord, read_run
from ricnet.studies.cells import Cell
from ricnet.studies.plans import Plan, Shelf, dataset_of, plan_cell
from ricnet.threads import usable_cores
from ricnet.training.api import pick_device, run
from ricnet.training.config import Config
from ricnet.training.console import GO_ON, Interrupted, StopRequest
from ricnet.training.finalize import derive
from ricnet.training.run import RunFolder

SECONDS_TO_SAVE = 20
SECONDS_OF_SILENCE = 15


@dataclass(frozen=True)
class Workplace:
    """Where runs are kept and made."""

    root: Path
    data_dir: Path | None = None
    device: str = "auto"
    jobs: int | None = None
    """Runs at once; None for one a CPU core, or one on a GPU."""

    def workers(self, tasks: int) -> int:
        automatic = 1 if pick_device(self.device).type == "cuda" else min(usable_cores(), 8)
        return max(1, min(self.jobs or automatic, tasks))


@dataclass(frozen=True)
class Harvest:
    runs: dict[Cell, list[RunRecord]]
    problems: list[str] = field(default_factory=list)
    """One sentence for each data set that is not here and each run that failed."""


@dataclass(frozen=True)
class Task:
    config: Config
    folder: Path
    device: str
    data_dir: Path | None
    source: Path | None = None
    """The finished run to take the weights from; None to train."""


def harvest(cells: Sequence[Cell], place: Workplace, console: Console) -> Harvest:
    """The runs of all cells, after making those that are not there yet: first what is trained, then what is derived."""
    plans, problems = _plan(cells, place)
    every = [plan for group in plans.values() for plan in group]
    for note in dict.fromkeys(note for plan in every for note in plan.notes):
        console.print(f"note: {note}", highlight=False, markup=False, soft_wrap=True)
    trained = _find([plan.base for plan in every], place, {})
    problems += execute(_tasks(trained, place, {}), place, console)
    derived = _find([plan for plan in every if plan.derived], place, trained)
    problems += execute(_tasks(derived, place, trained), place, console)
    folders = {plan.config: folder for plan, folder in (trained | derived).items()}
    runs = {}
    for cell, group in plans.items():
        finished = [folders[plan.config] for plan in group if plan.config in folders and folders[plan.config].finished]
        runs[cell] = [read_run(folder.path) for folder in finished]
    return Harvest(runs, problems)


def execute(tasks: Sequence[Task], place: Workplace, console: Console) -> list[str]:
    """Do all tasks; returns a sentence for each that failed."""
    if not tasks:
        return []
    workers = place.workers(len(tasks))
    count = f"{len(tasks)} run{'s' * (len(tasks) > 1)} to make"
    console.print(f"{count}, {workers} at once, in {place.root}", highlight=False, markup=False, soft_wrap=True)
    return _one_by_one(tasks, console) if workers == 1 else _side_by_side(tasks, workers, console)


def _plan(cells: Sequence[Cell], place: Workplace) -> tuple[dict[Cell, list[Plan]], list[str]]:
    plans: dict[Cell, list[Plan]] = {}
    problems: dict[str, None] = {}
    for cell in dict.fromkeys(cells):
        try:
            plans[cell] = plan_cell(cell, place.data_dir, pick_device(place.device))
        except RicnetError as problem:
            problems[str(problem)] = None
    return plans, list(problems)


Folders = Mapping[Plan, RunFolder]


def _find(plans: Sequence[Plan], place: Workplace, trained: Folders) -> dict[Plan, RunFolder]:
    """The folder of every plan, there or to be made; of a derived one only where its source is finished."""
    shelf, sources = Shelf(place.root), {plan.config: folder for plan, folder in trained.items()}
    folders: dict[Config, tuple[Plan, RunFolder]] = {}
    for plan in plans:
        source = sources.get(plan.base.config)
        if plan.config in folders or (source is not None and not source.finished):
            continue
        taken = [folder.path for _, folder in folders.values()]
        folders[plan.config] = plan, shelf.find(plan.config, plan.data, source) or shelf.place(plan.name, taken)
    return dict(folders.values())


def _tasks(folders: Folders, place: Workplace, trained: Folders) -> list[Task]:
    """What is still to be done."""
    sources = {plan.config: folder.path for plan, folder in trained.items()}
    return [
        Task(plan.config, folder.path, place.device, place.data_dir, sources.get(plan.base.config))
        for plan, folder in folders.items()
        if not folder.finished
    ]


def perform(task: Task, console: Console | None = None) -> str | None:
    """Do one task; returns what went wrong, in a sentence, if the user can mend it."""
    folder = RunFolder(task.folder)
    try:
        dataset = dataset_of(task.config, task.data_dir)
        if task.source is None:
            resume = folder.config.is_file()
            run(task.config, dataset, folder, pick_device(task.device), resume=resume, console=console)
        else:
            derive(RunFolder(task.source), task.config, dataset, folder, pick_device(task.device))
    except Interrupted:
        raise
    except RicnetError as problem:
        return f"{task.folder.name}: {problem}"
    except (OSError, RuntimeError) as problem:  # a full disk, a GPU without memory: the other runs may do better
        return f"{task.folder.name}: {str(problem).splitlines()[0]}"
    return None


def _one_by_one(tasks: Sequence[Task], console: Console) -> list[str]:
    problems = []
    for number, task in enumerate(tasks, 1):
        try:
            problem = perform(task, console)
        except Interrupted:
            raise Interrupted(GO_ON) from None
        problems += [problem] if problem else []
        _announce(console, number, len(tasks), task, problem)
    return problems


def _side_by_side(tasks: Sequence[Task], workers: int, console: Console) -> list[str]:
    threads = max(1, usable_cores() // workers)
    context = multiprocessing.get_context("spawn")
    over = context.Event()
    with StopRequest() as stop, ProcessPoolExecutor(workers, context, _settle, (threads, over)) as pool:
        pending = {pool.submit(_perform_quietly, task): task for task in tasks}
        try:
            return _collect(pending, len(tasks), console, lambda: stop.asked)
        except BrokenProcessPool as error:
            raise RicnetError(
                "a worker died, perhaps for want of memory; try fewer --jobs. The same command goes on from here."
            ) from error
        finally:
            if pending:
                over.set()  # tasks that already wait in a worker's queue cannot be cancelled otherwise
                pool.shutdown(wait=False, cancel_futures=True)
                for child in multiprocessing.active_children():
                    child.terminate()  # SIGTERM, on which training saves its state


def _collect(
    pending: dict[Future[str | None], Task], total: int, console: Console, asked_to_stop: Callable[[], bool]
) -> list[str]:
    problems: list[str] = []
    spoken = time.monotonic()
    while pending:
        done, _ = wait(pending, timeout=0.5, return_when=FIRST_COMPLETED)
        for future in done:
            task, problem = pending.pop(future), future.result()
            problems += [problem] if problem else []
            _announce(console, total - len(pending), total, task, problem)
            spoken = time.monotonic()
        if time.monotonic() - spoken > SECONDS_OF_SILENCE:
            _report_progress(console, list(pending.values()))
            spoken = time.monotonic()
        if asked_to_stop():
            raise Interrupted(GO_ON)
    return problems


def _report_progress(console: Console, tasks: Sequence[Task]) -> None:
    """A sign of life from runs that are still going on."""
    for task in tasks:
        log = RunFolder(task.folder).metrics
        if log.is_file():
            epochs = log.read_bytes().count(b"\n")
            text = f"{task.folder.name}  epoch {epochs}/{task.config.optimization.epochs}"
            console.print(f"{time.strftime('%H:%M:%S')}  …  {text}", highlight=False, markup=False, soft_wrap=True)


def _announce(console: Console, number: int, total: int, task: Task, problem: str | None) -> None:
    name = f"{number}/{total}  {task.folder.name}"
    if problem or not RunFolder(task.folder).finished:
        text = f"{name}  failed"
    else:
        test = read_run(task.folder).test
        text = f"{name}  test {test['accuracy']:.2%}  ECE {test['ece']:.3f}  {test['mean_steps']:.1f} steps"
    console.print(f"{time.strftime('%H:%M:%S')}  {text}", highlight=False, markup=False, soft_wrap=True)


_over: Event | None = None
"""In a worker: set when nothing more is to be begun."""


def _settle(threads: int, over: Event) -> None:
    """In a new worker: its share of the cores, and no ear for the terminal's Ctrl-C, which its parent passes on."""
    global _over
    _over = over
    torch.set_num_threads(threads)
    if hasattr(os, "setsid"):
        os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_stop_with_parent, args=(os.getppid(),), daemon=True).start()


def _stop_with_parent(parent: int) -> None:
    """A parent that was killed can pass on nothing; nobody waits for this worker any more, so it saves and stops."""
    while os.getppid() == parent:
        time.sleep(2)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(SECONDS_TO_SAVE)
    os._exit(1)  # it has saved, and would now wait for work for ever


def _perform_quietly(task: Task) -> str | None:
    if _over is not None and _over.is_set():
        return f"{task.folder.name}: not begun"
    return perform(task, Console(quiet=True))
