"""The cost of an update in two versions of the code.

    python benchmarks/versions.py OTHER [--tables] [--device DEVICE] [--json FILE]

OTHER is a checkout of another commit (`git worktree add ../before COMMIT`). Each version runs in its own process and
builds its trainers by its own `benchmarks/training.py`. The two take turns, so that noise affects both; `ratio` is the
median over the turns of this version's time divided by the other's. `--tables` measures the tables of this version's
`training.py` in CPU seconds, all methods in turns; `× SL` is relative to supervised learning of the same version.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from operator import truediv
from pathlib import Path
from typing import TypeAlias

import torch

from common import Row, argument_parser, publish, random_images, scale_for, seconds_of

HERE = Path(__file__).resolve().parents[1]
TURNS = 15

Worker: TypeAlias = "subprocess.Popen[str]"


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("other", type=Path, help="checkout of the version to compare with")
    parser.add_argument("--tables", action="store_true", help="measure tables instead of images")
    parser.add_argument("--work", metavar="SYSTEM", help=argparse.SUPPRESS)
    options = parser.parse_args()
    device, other = options.device, options.other.resolve()
    if options.work:
        (work_on_table if options.tables else work)(options.work, device)
        return
    notes = [f"Medians over {TURNS} turns; with a ratio above 1 this version is slower."]
    if options.tables:
        publish("An update of a table in two versions", measure_tables(other, device), notes, device, options.json)
        return
    from training import SYSTEMS

    rows = [compare(system, *times) for system, times in measure(list(SYSTEMS), other, device, together=False).items()]
    publish(f"An update in two versions: {scale_for(device)}", rows, notes, device, options.json)


Times = tuple[list[float], list[float]]
"""Seconds of an update in each turn, of this version and of the other."""


def measure(
    systems: list[str], other: Path, device: torch.device, together: bool, tables: bool = False
) -> dict[str, Times]:
    """The versions take turns for each system; if `together`, the systems take turns too."""
    pairs = {system: [start(tree, system, device, tables) for tree in (HERE, other)] for system in systems}
    processes = [process for pair in pairs.values() for process in pair]
    try:
        for process in processes:  # the first turn compiles and records, all processes at once
            ask(process)
        for process in processes:
            answer(process)
        times: dict[str, Times] = {system: ([], []) for system in systems}
        order = list(systems) * TURNS if together else [system for system in systems for _ in range(TURNS)]
        for system in order:
            for process, taken in zip(pairs[system], times[system], strict=True):
                taken.append(turn(process))
        return times
    finally:
        for process in processes:
            process.kill()


def compare(system: str, this: list[float], other: list[float]) -> Row:
    return {
        "method": system,
        "this ms": 1000 * statistics.median(this),
        "other ms": 1000 * statistics.median(other),
        "ratio": statistics.median(map(truediv, this, other)),
    }


def measure_tables(other: Path, device: torch.device) -> list[Row]:
    from training import TABLE_METHODS, TABLES

    rows: list[Row] = []
    for table in TABLES:
        times = measure([f"{table}: {method}" for method in TABLE_METHODS], other, device, True, tables=True)
        supervised, *_ = times.values()
        for system, taken in times.items():
            of_sl = [statistics.median(map(truediv, own, sl)) for own, sl in zip(taken, supervised, strict=True)]
            rows.append(compare(system, *taken) | dict(zip(("× SL, this", "× SL, other"), of_sl, strict=True)))
    return rows


def start(tree: Path, system: str, device: torch.device, tables: bool) -> Worker:
    benchmarks = (HERE if tables else tree) / "benchmarks"
    paths = [str(tree / "src"), str(benchmarks), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-P", __file__, str(tree), "--work", system, "--device", str(device)]
    command += ["--tables"] if tables else []
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
        print(seconds_of(trainer._step, device, scale.calls), flush=True)


def work_on_table(system: str, device: torch.device) -> None:
    from training import TABLE_UPDATES, table_trainer

    trainer = table_trainer(*system.split(": "), device)
    for _ in sys.stdin:
        print(seconds_of(trainer._step, device, TABLE_UPDATES, time.process_time), flush=True)


if __name__ == "__main__":
    main()
