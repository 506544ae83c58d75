"""How fast is training on cores that other work uses too, by how torch's threads wait?

`ric train digits` on the first two cores, each of which a program that never rests uses as well. The ways take turns,
each in a process of its own, for OpenMP reads its variables only once.

python benchmarks/threads.py --json FILE
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from common import Row, parse, publish
from ricnet.threads import COUNTS, WAITS

CORES, TURNS, EPOCHS = 2, 3, 2
AS_IT_IS = "from ricnet.apps.commands.train import main; import sys; main(sys.argv[1:])"
"""The command without what it tells OpenMP."""
WAYS: dict[str, tuple[list[str], dict[str, str]]] = {
    "torch's own: threads that spin": (["-c", AS_IT_IS], {}),
    "ric: threads that wait passively": (["-m", "ricnet", "train"], {}),
    "one thread": (["-m", "ricnet", "train"], {"OMP_NUM_THREADS": "1"}),
}


def main() -> None:
    _, path = parse(__doc__)
    rates: dict[str, list[float]] = {way: [] for way in WAYS}
    with spinning(CORES):
        for _ in range(TURNS):
            for way, (command, variables) in WAYS.items():
                rates[way].append(rate(command, variables))
                print(f"{way}: {rates[way][-1]:.0f} images/s", file=sys.stderr, flush=True)
    title = f"Digits, RIC, preset fast, on {CORES} busy cores: images/s, median over {TURNS} turns"
    publish(title, table(rates), [], torch.device("cpu"), path)


def table(rates: Mapping[str, Sequence[float]]) -> list[Row]:
    """Each way beside the first."""
    medians = {way: statistics.median(found) for way, found in rates.items()}
    first = next(iter(medians.values()))
    return [{"way": way, "images/s": round(rate), "ratio": round(rate / first, 2)} for way, rate in medians.items()]


def rate(command: Sequence[str], variables: Mapping[str, str]) -> float:
    """Images a second in the last epoch; in the first, memory is still being fetched."""
    environment = {name: value for name, value in os.environ.items() if name not in COUNTS | WAITS} | dict(variables)
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["digits", "--epochs", str(EPOCHS), "--device", "cpu", "--out", folder]
        subprocess.run(
            [sys.executable, *command, *arguments], env=environment, check=True, capture_output=True, preexec_fn=pin
        )
        lines = (Path(folder) / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return float(json.loads(lines[-1])["images_per_second"])


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
