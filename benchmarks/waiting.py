"""Speed of training on busy cores, by how the threads of torch wait.

    python benchmarks/waiting.py [--json FILE]

Updates of RIC on digits, as `ric train` makes them, on the first two cores, each of which also runs a busy loop. The
ways to wait take turns, each in its own process, because OpenMP reads its variables once.
"""

import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch

from common import Row, argument_parser, publish
from ricnet.machine import COUNTS, WAITS

CORES, TURNS = 2, 3
UPDATES = """
import sys, time
if sys.argv[1] == "settled":
    import ricnet
import torch
from ricnet.data import load
from ricnet.training.recipes import configure
from ricnet.training.trainer import Trainer
data = load("digits")
trainer = Trainer(configure(data, None, "fast"), data, None, torch.device("cpu"))
for update in range(8):
    if update == 2:
        start = time.perf_counter()
    trainer._step()
print(6 * trainer.batch_size / (time.perf_counter() - start))
"""
WAYS: dict[str, tuple[str, dict[str, str]]] = {
    "torch's own: threads that spin": ("as it is", {}),
    "ricnet: threads that wait passively": ("settled", {}),
    "one thread": ("as it is", {"OMP_NUM_THREADS": "1"}),
}


def main() -> None:
    path = argument_parser(__doc__).parse_args().json
    rates: dict[str, list[float]] = {way: [] for way in WAYS}
    with spinning(CORES):
        for _ in range(TURNS):
            for way, how in WAYS.items():
                rates[way].append(rate(*how))
                print(f"{way}: {rates[way][-1]:.0f} images/s", file=sys.stderr, flush=True)
    title = f"Digits, RIC, preset fast, on {CORES} busy cores: images/s, median over {TURNS} turns"
    publish(title, table(rates), [], torch.device("cpu"), path)


def table(rates: Mapping[str, Sequence[float]]) -> list[Row]:
    """Each way compared with the first."""
    medians = {way: statistics.median(found) for way, found in rates.items()}
    first = next(iter(medians.values()))
    return [{"way": way, "images/s": round(rate), "ratio": round(rate / first, 2)} for way, rate in medians.items()]


def rate(way: str, variables: Mapping[str, str]) -> float:
    """Images per second."""
    environment = {name: value for name, value in os.environ.items() if name not in COUNTS | WAITS} | dict(variables)
    command = [sys.executable, "-c", UPDATES, way]
    made = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, preexec_fn=pin)
    return float(made.stdout)


@contextmanager
def spinning(count: int) -> Iterator[None]:
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"], preexec_fn=pin) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def pin() -> None:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])


if __name__ == "__main__":
    main()
