"""Throughput and latency of a served model, with and without batching.

    python benchmarks/server.py [RUN] [--clients 16] [--seconds 60]

RUN is a run folder or pretrained:cifar10; without one, a small model is trained on digits. Two servers are started by
`ric serve`, one as usual and one with --max-batch 1. Each client sends one input after the other over its own
connection; the servers take turns of a few seconds. Times are those that a client waits. `inputs/model s` is the number
of inputs per second in which the model runs, without HTTP, decoding and waiting. Batching should at least double it,
and no request may fail.
"""

import http.client
import itertools
import json
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np

from common import Row, argument_parser, publish, run_or_digits

TURN_SECONDS = 5.0
WARM_UP_SECONDS = 1.0
EPOCHS = 5

Request = tuple[bytes, dict[str, str]]


@dataclass
class Load:
    """Requests to one server and their times."""

    address: str
    waits: list[float] = field(default_factory=list)
    """Seconds of each request that was answered."""
    failed: int = 0
    seconds: float = 0.0
    inputs: int = 0
    batches: int = 0
    model_seconds: float = 0.0

    def row(self, name: str) -> Row:
        p50, p99 = np.percentile(self.waits, [50, 99]) if self.waits else (np.nan, np.nan)
        return {
            "server": name,
            "requests": len(self.waits),
            "failed": self.failed,
            "p50 ms": 1000 * float(p50),
            "p99 ms": 1000 * float(p99),
            "inputs/s": self.throughput,
            "inputs/model s": self.rate,
            "batch": self.inputs / max(1, self.batches),
        }

    @property
    def throughput(self) -> float:
        return self.inputs / self.seconds

    @property
    def rate(self) -> float:
        """Inputs per second in which the model runs."""
        return self.inputs / self.model_seconds if self.inputs else 0.0


def get(address: str, path: str) -> bytes:
    line = http.client.HTTPConnection(urlsplit(address).netloc, timeout=60)
    line.request("GET", path)
    body = line.getresponse().read()
    line.close()
    return body


def requests_of(address: str) -> list[Request]:
    """A request for each example of the model."""
    return [_request(address, example) for example in json.loads(get(address, "/v1/examples"))]


def _request(address: str, example: dict[str, Any]) -> Request:
    if "image" not in example:
        body = {"features": example["features"]} if "features" in example else {"rows": example["row"]}
        return json.dumps(body).encode(), {"content-type": "application/json"}
    png = get(address, example["image"])
    head = b'--edge\r\ncontent-disposition: form-data; name="images"; filename="x.png"\r\n\r\n'
    return head + png + b"\r\n--edge--\r\n", {"content-type": "multipart/form-data; boundary=edge"}


def press(load: Load, requests: Sequence[Request], clients: int, seconds: float) -> None:
    """Send requests from all clients for some time; the server counts inputs, batches and seconds of the model."""
    before = json.loads(get(load.address, "/healthz"))
    started = time.perf_counter()
    found: list[list[float | None]] = [[] for _ in range(clients)]
    threads = [
        threading.Thread(target=_ask_on, args=[load.address, requests, n, started + seconds, found[n]])
        for n in range(clients)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    load.seconds += time.perf_counter() - started
    after = json.loads(get(load.address, "/healthz"))
    for key in ("inputs", "batches", "model_seconds"):
        setattr(load, key, getattr(load, key) + after[key] - before[key])
    waits = list(itertools.chain.from_iterable(found))
    load.waits += [wait for wait in waits if wait is not None]
    load.failed += waits.count(None)


def _ask_on(address: str, requests: Sequence[Request], first: int, ends: float, waits: list[float | None]) -> None:
    line = http.client.HTTPConnection(urlsplit(address).netloc, timeout=60)
    for body, headers in itertools.islice(itertools.cycle(requests), first, None):
        asked = time.perf_counter()
        if asked > ends:
            break
        try:
            line.request("POST", "/v1/predict", body, headers)
            answer = line.getresponse()
            answer.read()
            waits.append(time.perf_counter() - asked if answer.status == 200 else None)
        except (OSError, http.client.HTTPException):
            waits.append(None)
            line.close()
    line.close()


class Served(NamedTuple):
    address: str
    process: int


@contextmanager
def server(run: str, device: str, *flags: str) -> Iterator[Served]:
    """A server in its own process."""
    command = [sys.executable, "-m", "ricnet", "serve", run, "--port", "0", "--device", device, *flags]
    with tempfile.TemporaryFile("w+") as log, subprocess.Popen(command, stderr=log) as process:
        try:
            yield Served(_address(process, log), process.pid)
        finally:
            process.terminate()


def _address(process: subprocess.Popen[bytes], log: IO[str]) -> str:
    while process.poll() is None:
        log.seek(0)
        if found := re.search(r"^page +(\S+)", log.read(), re.MULTILINE):
            return found[1]
        time.sleep(0.1)
    log.seek(0)
    raise SystemExit(f"the server did not start: {log.read()}")


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("run", nargs="?", metavar="RUN", help="run folder, Hub id or pretrained:NAME")
    parser.add_argument("--clients", type=int, default=16, help="concurrent clients")
    parser.add_argument("--seconds", type=float, default=60, help="seconds of requests to each server")
    options = parser.parse_args()
    device = options.device
    with (
        run_or_digits(options.run, device, epochs=EPOCHS) as run,
        server(run, str(device)) as batching,
        server(run, str(device), "--max-batch", "1") as single,
    ):
        requests = requests_of(batching.address)
        loads = {"batched": Load(batching.address), "single": Load(single.address)}
        for load in loads.values():
            press(Load(load.address), requests, options.clients, WARM_UP_SECONDS)
        for _ in range(max(1, round(options.seconds / TURN_SECONDS))):
            for load in loads.values():
                press(load, requests, options.clients, min(TURN_SECONDS, options.seconds))
        rows = [load.row(name) for name, load in loads.items()]
        together, alone = loads.values()
        notes = [
            f"With batching {together.rate / alone.rate:.2f} × as many inputs per second of the model, "
            f"{together.throughput / alone.throughput:.2f} × as many per second end to end.",
            f"{options.clients} clients, {options.seconds:g} s for each server.",
        ]
        publish(f"Serving {Path(run).name}", rows, notes, device, options.json)


if __name__ == "__main__":
    main()
