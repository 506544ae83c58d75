"""Trains tiny models in processes of their own, kills each at a random moment, lets it go on, and prints a line of JSON
for each: did it end with the weights of one that nobody killed? `python kills.py FOLDER KILLS SEED`; test_kills.py runs
it, as a program of its own because it forks, which spares each of the processes the import of torch.
"""

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

import problems
from problems import CPU, epochs, weights
from ricnet.data import Augmentation, Dataset, Split
from ricnet.models.run import RunFolder, SealedFile
from ricnet.training.api import run
from ricnet.training.recipes import configure

VARIANTS: dict[str, dict[str, Any]] = {
    "ric": {"updates_per_snapshot": 4},
    "ric, a snapshot every two passes": {"passes_per_snapshot": 2},
    "ric-on-policy": {},
    "ric, averaged": {"average": 0.9, "select": "nll"},
    "ric, evaluated with random numbers": {"feedback": "sample"},
    "supervised": {"optimizer": "sgd", "lr": 0.05, "patience": 3},
    "supervised on augmented images": {"warmup_epochs": 2.0},
    "anytime": {},
    "act": {},
    "pondernet": {},
    "ric, with exits": {"exits": "stage", "compute_price": 0.01},
}
PLACES: dict[str, tuple[Any, str]] = {
    "write": (SealedFile, "write"),
    "fsync": (os, "fsync"),
    "rename": (os, "replace"),
}
"""Where a process can be made to kill itself; "time" is the fourth, where another kills it."""


def blobs(rows: int, seed: int, images: bool) -> Split:
    """Three overlapping clouds in four dimensions, or in those of a tiny image."""
    split = problems.blobs(rows, seed)
    if not images:
        return split
    noise = torch.randint(0, 120, (rows, 1, 8, 8), generator=torch.Generator().manual_seed(seed))
    return Split((noise + 50 * split.labels[:, None, None, None]).to(torch.uint8), split.labels)


def train(folder: RunFolder, variant: str, seconds: float) -> None:
    """The settings, the data and the command are the same each time, as with a user who types it again."""
    images = "images" in variant
    splits = (blobs(rows, seed, images) for seed, rows in enumerate((96, 30, 60)))
    dataset = Dataset("blobs", *splits, ("a", "b", "c"), Augmentation(crop_padding=1, flip=True))
    method = variant.split(maxsplit=1)[0].strip(",")
    horizon = {} if method == "supervised" or "exits" in variant else {"horizon": 4}
    settings = {"epochs": 4, "batch_size": 16, "width": 0.1} | horizon | VARIANTS[variant]
    config = configure(dataset, method, "fast", **settings)
    resume, quiet = folder.config.is_file(), Console(quiet=True)
    run(config, dataset, folder, CPU, resume=resume, checkpoint_seconds=seconds, console=quiet)


def fork(work: Callable[[], None]) -> int:
    child = os.fork()
    if child:
        return child
    try:
        work()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def end(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def watch_calls(place: str, calls: list[int], fatal: int | None = None) -> None:
    """Count the calls of a function; the fatal one kills the process, halfway through what it was to write."""
    holder, name = PLACES[place]
    plain = getattr(holder, name)

    def counted(*args: Any) -> Any:
        calls[0] += 1
        if calls[0] == fatal:
            if place == "write":
                plain(args[0], args[1][: len(args[1]) // 2])
                args[0].flush()
            os.kill(os.getpid(), signal.SIGKILL)
        return plain(*args)

    setattr(holder, name, counted)


def measure(folder: RunFolder, variant: str) -> dict[str, float]:
    """Train without a kill; returns how often each place was passed, and the seconds it took."""
    counts = {place: [0] for place in PLACES}
    file = folder.path.with_suffix(".json")

    def work() -> None:
        for place, calls in counts.items():
            watch_calls(place, calls)
        began = time.monotonic()
        train(folder, variant, 0.0)
        passed = {place: calls[0] for place, calls in counts.items()}
        file.write_text(json.dumps(passed | {"time": time.monotonic() - began}))

    assert end(fork(work)) == 0
    measured: dict[str, float] = json.loads(file.read_text())
    return measured


def kill_once(folder: RunFolder, variant: str, place: str, moment: float) -> bool:
    """False where it was over before."""
    if place == "time":
        child = fork(lambda: train(folder, variant, 0.02))
        time.sleep(moment)
        os.kill(child, signal.SIGKILL)
    else:

        def work() -> None:
            watch_calls(place, [0], fatal=1 + int(moment))
            train(folder, variant, 0.0)

        child = fork(work)
    return end(child) == -signal.SIGKILL


def same(left: RunFolder, right: RunFolder) -> bool:
    ours, theirs = weights(left.path), weights(right.path)
    alike = ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
    return alike and epochs(left.path) == epochs(right.path)


def main(root: Path, kills: int, seed: int) -> None:
    torch.set_num_threads(1)
    random = np.random.default_rng(seed)
    whole: dict[str, tuple[RunFolder, dict[str, float]]] = {}
    places = [*PLACES, "time"]
    for number in range(kills):
        variant, place = list(VARIANTS)[number % len(VARIANTS)], places[number % len(places)]
        if variant not in whole:
            reference = RunFolder(root / f"whole-{len(whole)}")
            whole[variant] = reference, measure(reference, variant)
        reference, passed = whole[variant]
        folder = RunFolder(root / f"killed-{number}")
        moment = random.uniform(0, passed[place])
        while not kill_once(folder, variant, place, moment):  # the machine was quicker this time
            assert place == "time"
            folder, moment = RunFolder(folder.path.with_name(folder.path.name + "-again")), moment / 2
        resumed = end(fork(lambda folder=folder, variant=variant: train(folder, variant, 0.02))) == 0
        equal = resumed and same(folder, reference)
        tidy = {path.name for path in folder.path.iterdir()} == {path.name for path in reference.path.iterdir()}
        line = {"variant": variant, "place": place, "moment": moment, "equal": equal, "tidy": tidy}
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
