"""`make attack`: damage, kills, silent clients, poison rows and files that unpack to gigabytes, about ten minutes.

The kills are those of tests/training/test_kills.py, which has the same mark. Each test adds a line to the summary that
is printed at the end.
"""

import gzip
import io
import json
import re
import resource
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import ricnet
from ricnet.errors import RicnetError
from ricnet.models.run import LOADED, Damaged, RunFolder

from .test_commands import run as ric
from .test_requests import check, serving

pytestmark = pytest.mark.attack

Report = Callable[[str], None]
FLIPS = 300
"""Of bits, in each file."""
SILENT = 400
BEGINNINGS = (
    b"",
    b"GET / HTTP/1.1\r\nhost: localhost\r\n",
    b"POST /v1/predict HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n{",
)
"""What a client sends before it falls silent."""
OPEN_FILES = 256
"""What the server may have open, sockets and all: fewer than there are silent clients."""
MEGABYTE = 1 << 20
LIMIT = 6 << 30
"""Address space of a process that is given a file to choke on, so that it takes no other process with it."""


# Damage


def flipped(whole: bytes, random: np.random.Generator) -> bytes:
    content = bytearray(whole)
    content[random.integers(len(content))] ^= 1 << int(random.integers(8))
    return bytes(content)


@pytest.mark.parametrize("kind", ["table_run", "image_run"])
def test_flipped_bits_in_every_file_of_a_run(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, summary: Report
) -> None:
    """The same answers or one sentence; of the files that decide the answers, always the sentence."""
    run, random = shutil.copytree(request.getfixturevalue(kind), tmp_path / "run"), np.random.default_rng()
    model = ricnet.load(run)
    inputs = np.zeros((2, *model.input_shape), np.uint8 if len(model.input_shape) == 3 else np.float32)
    expected = model.predict_proba(inputs)
    for path in sorted(run.iterdir()):
        whole, refused = path.read_bytes(), 0
        for _ in range(FLIPS):
            path.write_bytes(flipped(whole, random))
            try:
                assert np.array_equal(ricnet.load(run).predict_proba(inputs), expected), path.name
            except RicnetError:
                refused += 1
        assert refused == FLIPS or path.name not in LOADED, f"{path.name}: {FLIPS - refused} flips were not noticed"
        path.write_bytes(whole)
        summary(f"{refused} of {FLIPS} flipped bits in {path.name} refused, the others without effect ({kind})")


def test_flipped_bits_in_what_reports_are_made_of(table_run: Path, tmp_path: Path, summary: Report) -> None:
    run, random, codes = shutil.copytree(table_run, tmp_path / "run"), np.random.default_rng(), list[int]()
    for name in ("metrics.jsonl", "evaluation.json", "predictions.npz", "examples.npz"):
        whole = (run / name).read_bytes()
        for _ in range(FLIPS // 30):
            (run / name).write_bytes(flipped(whole, random))
            code, said = ric(["report", str(run), "--out", str(tmp_path / "report.html")])
            assert code in (0, 2), said
            codes.append(code)
        (run / name).write_bytes(whole)
    summary(f"{len(codes)} reports of damaged runs: {codes.count(0)} drawn, {codes.count(2)} refused in a sentence")


def test_flipped_bits_in_a_state(tmp_path: Path, summary: Report) -> None:
    folder, random = RunFolder(tmp_path), np.random.default_rng()
    folder.write_state({"update": 1, "model": {"weight": np.ones(1000).tolist()}})
    whole = folder.state.read_bytes()
    for _ in range(FLIPS):
        folder.state.write_bytes(flipped(whole, random))
        with pytest.raises(Damaged):
            folder.read_state()
    summary(f"{FLIPS} of {FLIPS} flipped bits in state.pt refused")


# Poison rows


POISON: list[Any] = [
    *({"size": value, "colour": "red"} for value in (1e400, -1e308, 10**400, "1e999", "n/k", "NaN", "inf", [], {})),
    *({"size": 1, "colour": value} for value in ("x" * 100_000, "\x00", "\ud800", 3, None, True, ["red"], "=1+1")),
    *({}, [], None, "row", 7, {"size": 1}, {"colour": "red"}, {"size": 1, "colour": "red", "more": 2}, {"": 1}),
    {str(i): i for i in range(10_000)},
]
WHOLE: list[Any] = [{"rows": row} for row in ([], {}, "x", [[]], [[1, 2]], [None] * 100, [{"size": 1}] * 2000)]
WHOLE += [{"features": x} for x in ([[0.5]], [[1e39] * 4], [[[0.5] * 4]], [["a"] * 4], [[None] * 4])]
LITERAL = [b'{"rows": [{"size": NaN}]}', b'{"features": [[Infinity, 0, 0, 0]]}', b"[" * 100_000, b"1" + b"0" * 9999]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_poison_rows_are_refused_and_the_rows_after_them_answered(table_run: Path, summary: Report) -> None:
    good = json.dumps({"rows": [{"size": 3, "colour": "red"}]}).encode()
    bodies = [json.dumps({"rows": [row]}).encode() for row in POISON]
    bodies += [json.dumps({"rows": [{"size": 3, "colour": "red"}, row]}).encode() for row in POISON]
    bodies += [*(json.dumps(whole).encode() for whole in WHOLE), *LITERAL]
    with serving(table_run) as client:
        headers = {"content-type": "application/json"}

        def answer() -> Any:
            (found,) = client.post("/v1/predict", content=good, headers=headers).json()["predictions"]
            return found

        before = answer()
        for body in bodies:
            check(client, body, "application/json")
            assert answer() == before, body[:200]
    summary(f"{len(bodies)} poison requests: each answered or refused in a sentence, the row after it as before")


# Silent clients: holds with header and idle timeouts and a cap on connections in `ric serve`


@contextmanager
def served(run: Path, log: Path, *flags: str) -> Iterator[tuple[str, int]]:
    """Address and process of `ric serve` with few open files."""
    command = [sys.executable, "-m", "ricnet", "serve", str(run), "--port", "0", "--device", "cpu", *flags]

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, OPEN_FILES))

    with log.open("w") as file, subprocess.Popen(command, stderr=file, stdout=file, preexec_fn=limit) as process:
        try:
            while not (found := re.search(r"^page +(http://\S+?)/?$", log.read_text(), re.MULTILINE)):
                assert process.poll() is None, log.read_text()
                time.sleep(0.1)
            yield found[1], process.pid
        finally:
            process.terminate()


def healthy(address: str, seconds: float) -> float:
    """Seconds until /healthz answers."""
    began = time.monotonic()
    while True:
        try:
            with urllib.request.urlopen(f"{address}/healthz", timeout=5) as answer:
                assert answer.status == 200
            return time.monotonic() - began
        except OSError:
            assert time.monotonic() - began < seconds, f"/healthz has not answered for {seconds} s"
            time.sleep(0.2)


def test_silent_clients_do_not_silence_the_server(table_run: Path, tmp_path: Path, summary: Report) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    log, waits = tmp_path / "log", []
    try:
        with served(table_run, log) as (address, _), ExitStack() as lines:
            host, port = address.removeprefix("http://").rsplit(":", 1)
            for said in BEGINNINGS:
                for _ in range(SILENT // len(BEGINNINGS)):
                    line = lines.enter_context(socket.create_connection((host, int(port)), timeout=5))
                    with suppress(OSError):  # it was closed: no worse
                        line.sendall(said)
                waits.append(healthy(address, 60))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert log.stat().st_size < MEGABYTE
    summary(f"{SILENT} silent clients, {OPEN_FILES} open files: /healthz after {max(waits):.1f} s at most")


# Files that unpack to gigabytes: hold with the header read first, and limits on what is unpacked and decoded


def peak_of(arguments: list[str]) -> tuple[int, str, float]:
    """Exit code, what is said, and the most megabytes that `ric` with these arguments takes."""
    code = (
        "import resource, sys\n"
        f"resource.setrlimit(resource.RLIMIT_AS, ({LIMIT}, {LIMIT}))\n"
        "from ricnet.apps.cli import main\n"
        "try:\n    main(sys.argv[1:])\n"
        "finally:\n    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    return done.returncode, done.stderr, float(done.stdout.split()[-1])


def test_a_table_of_gigabytes_in_kilobytes_is_refused(table_run: Path, tmp_path: Path, summary: Report) -> None:
    row = b"1," * 500 + b"1\n"
    for name, header in (("other", b"other," * 500 + b"columns\n"), ("same", b"size,colour\n")):
        bomb = tmp_path / f"{name}.csv.gz"
        with gzip.open(bomb, "wb", compresslevel=9) as file:
            file.write(header)
            for _ in range(3000):
                file.write((row if name == "other" else b"1,red\n" * 170) * 1000)
        code, said, peak = peak_of(["predict", str(table_run), str(bomb)])
        assert (code, said.count("Traceback")) == (2, 0), said[-2000:]
        assert peak < 2000, f"{peak:.0f} MB"
        summary(f"{bomb.stat().st_size / 1e3:.0f} kB of .csv.gz ({name} columns): refused at {peak:.0f} MB")


def test_an_image_of_gigabytes_in_kilobytes_is_refused(image_run: Path, tmp_path: Path, summary: Report) -> None:
    """And through the server, where others are answered meanwhile."""
    with io.BytesIO() as file:
        Image.new("L", (13_000, 13_000)).save(file, "png")
        image = file.getvalue()
    (tmp_path / "bomb.png").write_bytes(image)
    _, said, peak = peak_of(["predict", str(image_run), str(tmp_path / "bomb.png")])
    assert "Traceback" not in said
    assert peak < 2000, f"{peak:.0f} MB"
    body = b'--x\r\ncontent-disposition: form-data; name="images"; filename="a.png"\r\n\r\n' + image + b"\r\n--x--\r\n"
    with served(image_run, tmp_path / "log") as (address, process):
        host, port = address.removeprefix("http://").rsplit(":", 1)
        head = f"POST /v1/predict HTTP/1.1\r\nhost: {host}:{port}\r\ncontent-length: {len(body)}\r\n".encode()
        with ExitStack() as lines:
            for _ in range(8):
                line = lines.enter_context(socket.create_connection((host, int(port)), timeout=60))
                line.sendall(head + b"content-type: multipart/form-data; boundary=x\r\n\r\n" + body)
            waited = healthy(address, 10)
        time.sleep(2)
        status = Path(f"/proc/{process}/status").read_text() if Path("/proc").is_dir() else "VmHWM: 0 kB"
        most = int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 1024  # type: ignore[index]
    assert most < 2000, f"{most:.0f} MB"
    summary(f"8 clients with a PNG of 169 megapixels: /healthz after {waited:.1f} s, {most:.0f} MB at most")
