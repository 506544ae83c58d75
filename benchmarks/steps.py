"""What refinement costs: one training update and one prediction of RIC, in units of supervised learning's.

    python benchmarks/steps.py            # on a GPU if there is one

Every ratio comes from one run in which the candidates take turns, so that a noisy machine disturbs them alike; each
time is the median over the turns. Halting needs a model with something to say, so RIC first learns digits for
half a minute.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

import ricnet
from ricnet.data import load
from ricnet.training.api import configure, pick_device
from ricnet.training.run_folder import RunFolder, describe_hardware
from ricnet.training.trainer import Trainer

TURNS = 30


def take_turns(candidates: dict[str, Callable[[], object]], device: torch.device) -> dict[str, float]:
    """Median seconds of each candidate."""
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for turn in range(TURNS + 3):
        for name, candidate in candidates.items():
            start = time.perf_counter()
            candidate()
            if device.type == "cuda":
                torch.cuda.synchronize()
            if turn >= 3:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    device = pick_device("auto")
    digits = load("digits")
    table = Table("what", "batch", "milliseconds", "× supervised")
    with tempfile.TemporaryDirectory() as scratch:
        models = {
            method: ricnet.train(digits, method=method, out=Path(scratch) / method, epochs=40, device=str(device))
            for method in ("supervised", "ric")
        }
        updates = {
            method: Trainer(configure(digits, method, "fast"), digits, RunFolder(scratch), device)._step
            for method in models
        }
        report(table, "update", 128, take_turns(dict(updates), device))
        for batch in (1, 32, 256):
            inputs = digits.test.inputs[:batch].to(device)
            ric, supervised = models["ric"], models["supervised"]
            answers = {
                "supervised": lambda x=inputs, m=supervised: m.refine(x),
                "ric, halted": lambda x=inputs, m=ric: m.refine(x),
                "ric, all 20 steps": lambda x=inputs, m=ric: m.refine(x, halt=False),
            }
            steps = models["ric"].refine(inputs).halt_step.double().mean()
            report(table, f"prediction ({steps:.1f} steps on average)", batch, take_turns(answers, device))
    console = Console()
    console.print(table)
    console.print(describe_hardware(device), highlight=False)


def report(table: Table, what: str, batch: int, seconds: dict[str, float]) -> None:
    for name, value in seconds.items():
        table.add_row(f"{what}: {name}", str(batch), f"{1000 * value:.2f}", f"{value / seconds['supervised']:.2f}")


if __name__ == "__main__":
    main()
