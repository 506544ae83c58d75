"""Whether memory stays constant over many rounds of training, evaluation, prediction and serving.

    python benchmarks/soak.py [--minutes 20] [--device auto]

A round trains, evaluates and predicts with a small model of the digits in this process, through the commands, and sends
valid and invalid requests to a server that keeps running. Then the resident memory of both processes is printed.
Caches fill in the first third of the rounds. Memory is flat if the median of the last third is at most 2 % above that
of the second. The exit code is 1 if it is not, or if a request failed.
"""

import argparse
import contextlib
import gc
import http.client
import io
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from ricnet.apps.cli import main as ric
from ricnet.training.api import pick_device
from server import Load, Request, press, requests_of, server

TOLERANCE = 0.02
CLIENTS, SECONDS = 4, 2.0
SMALL = ("--epochs", "2", "--width", "0.25", "--horizon", "5")
JSON = {"content-type": "application/json"}
REFUSED: tuple[Request, ...] = (
    (b"{", JSON),
    (b'{"images": ["' + b"A" * 100_000 + b'"]}', JSON),
    (b'{"features": [' + b'"a",' * 50_000 + b"1]}", JSON),
    (b"no form", {"content-type": "multipart/form-data; boundary=edge"}),
)


def resident_megabytes(process: int) -> float:
    return int(subprocess.check_output(["ps", "-o", "rss=", "-p", str(process)])) * 1024 / 1e6


def growth(sizes: Sequence[float]) -> float | None:
    """Relative growth from the second third to the last; None with too few rounds."""
    third = len(sizes) // 3
    if third < 2:
        return None
    before, after = statistics.median(sizes[third : 2 * third]), statistics.median(sizes[-third:])
    return after / before - 1


def verdict(name: str, sizes: Sequence[float]) -> tuple[bool, str]:
    share = growth(sizes)
    if share is None:
        return False, f"{name}: {len(sizes)} rounds are too few; give more --minutes."
    word = "flat" if share <= TOLERANCE else "NOT flat"
    span = f"{min(sizes):.0f} to {max(sizes):.0f} MB in {len(sizes)} rounds, {sizes[-1]:.0f} MB in the last"
    return share <= TOLERANCE, f"{name}: {word} ({span}; {share:+.1%} from the second third to the last)."


def work(run: Path, device: str, seed: int) -> None:
    """Train, evaluate and predict, without output."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        where = ["--device", device]
        ric(["train", "digits", "--out", str(run), "--overwrite", "--seed", str(seed), *SMALL, *where])
        ric(["evaluate", str(run), *where])
        ric(["predict", str(run), "--json", "--trace", *where])


def refusals(address: str) -> int:
    """Number of invalid requests that were not refused."""
    line = http.client.HTTPConnection(urlsplit(address).netloc, timeout=60)
    wrong = 0
    for body, headers in REFUSED:
        line.request("POST", "/v1/predict", body, headers)
        answer = line.getresponse()
        answer.read()
        wrong += not 400 <= answer.status < 500
    line.close()
    return wrong


def soak(folder: Path, minutes: float, device: str) -> bool:
    work(folder / "served", device, seed=0)
    sizes: dict[str, list[float]] = {"commands": [], "server": []}
    ends, failed, answered = time.monotonic() + 60 * minutes, 0, 0
    with server(str(folder / "served"), device) as served:
        requests = requests_of(served.address)
        while time.monotonic() < ends:
            work(folder / "round", device, seed=len(sizes["server"]))
            press(load := Load(served.address), requests, CLIENTS, SECONDS)
            failed, answered = failed + load.failed + refusals(served.address), answered + len(load.waits)
            gc.collect()
            for name, process in (("commands", os.getpid()), ("server", served.process)):
                sizes[name].append(resident_megabytes(process))
            now = ", ".join(f"{name} {size[-1]:.1f} MB" for name, size in sizes.items())
            print(f"round {len(sizes['server'])}: {now}, {answered:,} requests answered, {failed} failed", flush=True)
    found = [verdict(name, size) for name, size in sizes.items()]
    print(*(sentence for _, sentence in found), sep="\n")
    return failed == 0 and all(flat for flat, _ in found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20, help="duration")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:0")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sys.exit(0 if soak(Path(folder), options.minutes, str(pick_device(options.device))) else 1)


if __name__ == "__main__":
    main()
