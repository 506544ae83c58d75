"""The cost of an update in two versions of the code.

    python benchmarks/versions.py OTHER [--device DEVICE] [--json FILE]

OTHER is a checkout of another commit (`git worktree add ../before COMMIT`). Each version runs in its own process and
builds its trainers by its own `benchmarks/training.py`. The two take turns, so that noise affects both; `ratio` is the
median over the turns of this version's time divided by the other's.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TypeAlias

import torch

from common import Row, argument_parser, publish, random_images, scale_for, synchronize

HERE = Path(__file__).resolve().parents[1]
TURNS = 15

Worker: TypeAlias = "subprocess.Popen[str]"


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("other", type=Path, help="checkout of the version to compare with")
    parser.add_argument("--work", metavar="SYSTEM", help=argparse.SUPPRESS)
    options = parser.parse_args()
    device = options.device
    if options.work:
        work(options.work, device)
        return
    from training import SYSTEMS

    rows = measure(list(SYSTEMS), options.other.resolve(), device)
    notes = [f"Medians over {TURNS} turns; with a ratio above 1 this version is slower."]
    publish(f"An update in two versions: {scale_for(device)}", rows, notes, device, options.json)


def measure(systems: list[str], other: Path, device: torch.device) -> list[Row]:
    pairs = {system: (start(HERE, system, device), start(other, system, device)) for system in systems}
    processes = [process for pair in pairs.values() for process in pair]
    try:
        for process in processes:  # the first turn compiles and records, all processes at once
            ask(process)
        for process in processes:
            answer(process)
        return [compare(system, *pair) for system, pair in pairs.items()]
    finally:
        for process in processes:
            process.kill()


def compare(system: str, this: Worker, other: Worker) -> Row:
    times = [(turn(this), turn(other)) for _ in range(TURNS)]
    return {
        "method": system,
        "this ms": 1000 * statistics.median(first for first, _ in times),
        "other ms": 1000 * statistics.median(second for _, second in times),
        "ratio": statistics.median(first / second for first, second in times),
    }


def start(tree: Path, system: str, device: torch.device) -> Worker:
    paths = [str(tree / "src"), str(tree / "benchmarks"), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-P", __file__, str(tree), "--work", system, "--device", str(device)]
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def turn(process: Worker) -> float:
    """Seconds of an update, measured by the process."""
    ask(process)
    return answer(process)


def ask(process: Worker) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def answer(process: Worker) -> float:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        sys.exit("versions: a process ended early; its message is above.")
    return float(line)


def work(system: str, device: torch.device) -> None:
    """Time one turn of updates for each line of standard input."""
    from training import WAYS, Candidate, build

    scale = scale_for(device)
    way = list(WAYS)[-1] if device.type == "cuda" else "eager"
    trainer = build(Candidate(system, way), random_images(scale.side), device, scale)
    for _ in sys.stdin:
        synchronize(device)
        start_time = time.perf_counter()
        for _ in range(scale.calls):
            trainer._step()
        synchronize(device)
        print((time.perf_counter() - start_time) / scale.calls, flush=True)


if __name__ == "__main__":
    main()
