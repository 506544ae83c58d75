"""Shared by the benchmarks: timing, random data, trained models, and one format of results.

Candidates that are compared take turns in one run, so that noise of the machine affects all of them. A time is the
median over the turns.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import ricnet
from ricnet.data import Augmentation, Dataset, Split
from ricnet.models.run import RunFolder, describe_hardware
from ricnet.training.api import pick_device
from ricnet.training.recipes import configure
from ricnet.training.trainer import Trainer

ROWS = 6_144
"""Training rows: enough for the settings of the preset `fast` for large data sets."""

Row = Mapping[str, str | int | float | None]
Clock = Callable[[], float]


@dataclass(frozen=True)
class Scale:
    """What is measured: the paper's network on a GPU, a small one that takes seconds on a CPU."""

    encoder: str
    width: float
    side: int
    batch: int
    turns: int
    calls: int
    """Updates per turn. The device is synchronised after each turn, which training does not do."""

    @property
    def network(self) -> dict[str, Any]:
        return {"encoder": self.encoder, "width": self.width}

    def __str__(self) -> str:
        return f"{self.batch} images of {self.side} × {self.side} pixels, {self.encoder} of width {self.width:g}"


FULL = Scale("resnet34", 1.0, side=32, batch=512, turns=5, calls=10)
SMALL = Scale("resnet10", 0.25, side=16, batch=32, turns=9, calls=1)


def scale_for(device: torch.device) -> Scale:
    return FULL if device.type == "cuda" else SMALL


def take_turns(
    candidates: Mapping[str, Callable[[], object]],
    device: torch.device,
    turns: int,
    calls: int = 1,
    clock: Clock | None = None,
) -> dict[str, float]:
    """Median seconds of one call of each candidate; the first turn is not counted."""
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(1 + turns):
        for name, candidate in candidates.items():
            times[name].append(seconds_of(candidate, device, calls, clock))
    return {name: statistics.median(taken[1:]) for name, taken in times.items()}


def seconds_of(candidate: Callable[[], object], device: torch.device, calls: int, clock: Clock | None = None) -> float:
    """Mean seconds of a call, by the wall clock unless another is given."""
    clock = clock or time.perf_counter
    synchronize(device)
    start = clock()
    for _ in range(calls):
        candidate()
    synchronize(device)
    return (clock() - start) / calls


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@cache
def random_images(side: int, classes: int = 10) -> Dataset:
    images = torch.randint(256, (ROWS, 3, side, side), dtype=torch.uint8)
    train = Split(images, torch.randint(classes, (ROWS,)))
    few = train.take(torch.arange(8))
    names = tuple(f"class {k}" for k in range(classes))
    return Dataset("random images", train, few, few, names, Augmentation(crop_padding=4, flip=True))


@cache
def random_table(rows: int, classes: int, columns: int = 16) -> Dataset:
    train = Split(torch.randn(rows, columns), torch.randint(classes, (rows,)))
    few = train.take(torch.arange(8))
    return Dataset("random table", train, few, few, tuple(f"class {k}" for k in range(classes)))


def make_trainer(method: str, dataset: Dataset, device: torch.device, **settings: Any) -> Trainer:
    """A trainer to time updates with; no epoch ends, so nothing is written."""
    return Trainer(configure(dataset, method, "fast", **settings), dataset, RunFolder("unused"), device)


def peak_gigabytes(trainer: Trainer) -> float | None:
    """Peak memory of an eager update, with all that the trainer keeps between updates; None on a CPU. A graph uses the
    same amount, in a pool that torch does not count."""
    device = trainer.device
    if device.type != "cuda":
        return None
    kept = sum(t.nbytes for t in _kept(trainer))
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    trainer._learn(trainer._next_rows())
    synchronize(device)
    return (kept + torch.cuda.max_memory_allocated(device) - before) / 1e9


def _kept(trainer: Trainer) -> list[torch.Tensor]:
    networks = {trainer.model, trainer.snapshot, trainer.average}
    weights = [tensor for network in networks for tensor in network.state_dict().values()]
    gradients = [p.grad for p in trainer.model.parameters() if p.grad is not None]
    state = [tensor for entries in trainer.optimizer.state.values() for tensor in entries.values()]
    return [trainer.batches.feed.inputs, trainer.batches.labels, *weights, *gradients, *state]


def argument_parser(description: str | None) -> argparse.ArgumentParser:
    """The flags of all benchmarks."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", type=pick_device, default="auto", help="auto, cpu, cuda or cuda:0")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    return parser


@contextmanager
def run_or_digits(run: str | None, device: torch.device, **settings: Any) -> Iterator[str]:
    """The run that the user named, else one that is trained on digits for the time of the benchmark."""
    if run is not None:
        yield run
        return
    with tempfile.TemporaryDirectory() as folder:
        ricnet.train(**{"data": "digits", **settings}, out=Path(folder) / "digits", device=str(device))
        yield str(Path(folder) / "digits")


def publish(title: str, rows: Sequence[Row], notes: Sequence[str], device: torch.device, path: Path | None) -> None:
    """Print a table, notes and the hardware; also write them to `path`."""
    console = Console()
    console.print(title, style="bold", highlight=False, soft_wrap=True)
    console.print(tabulate(rows))
    hardware = describe_hardware(device)
    for line in [*notes, ", ".join(f"{name} {value}" for name, value in hardware.items())]:
        console.print(line, highlight=False, soft_wrap=True)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        entry = {"title": title, "hardware": hardware, "notes": list(notes), "rows": [dict(row) for row in rows]}
        path.write_text(json.dumps(entry, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def tabulate(rows: Sequence[Row]) -> Table:
    """Columns without values are left out."""
    columns = [name for name in rows[0] if any(row[name] is not None for row in rows)]
    table = Table()
    for name in columns:
        table.add_column(name, justify="left" if isinstance(rows[0][name], str) else "right")
    for row in rows:
        table.add_row(*(_cell(row[name]) for name in columns))
    return table


def _cell(value: str | int | float | None) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else value
