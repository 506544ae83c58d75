"""Start and shutdown of `ric serve` and `ric demo` as processes."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from ricnet.apps.commands import serve

from .conftest import Refused, RunRic


@contextmanager
def started(*arguments: object) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that says where it listens; it is gone in the end."""
    command = [sys.executable, "-m", "ricnet", *map(str, arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stderr is not None
            for line in process.stderr:
                if found := re.match(r"page +(http://\S+)", line):
                    yield process, found[1]
                    break
            else:
                pytest.fail("it ended before it listened")
        finally:
            process.kill()


def test_requests_in_progress_are_answered_at_shutdown(digits_run: Path) -> None:
    """Half of a request has arrived when the server is told to stop."""
    body = json.dumps({"images": ["AAAA"]}).encode()
    fields = {"host": "localhost", "content-type": "application/json", "content-length": len(body)}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    with started("serve", digits_run, "--port", "0", "--device", "cpu") as (process, address):
        assert address.startswith("http://127.0.0.1:")
        assert httpx.get(f"{address}/v1/model", trust_env=False).json()["name"] == digits_run.name
        url = httpx.URL(address)
        with socket.create_connection((url.host, url.port or 0), timeout=20) as line:
            line.sendall(f"POST /v1/predict HTTP/1.1\r\n{head}\r\n".encode() + body[:5])
            httpx.get(f"{address}/healthz", trust_env=False)  # by now the other has been seen
            process.send_signal(signal.SIGINT)
            assert process.stderr is not None
            process.stderr.readline()
            while True:  # no one new is let in …
                try:
                    httpx.get(f"{address}/healthz", trust_env=False)
                except httpx.TransportError:
                    break
            line.sendall(body[5:])  # … but who is in is answered
            answer = b"".join(iter(lambda: line.recv(4096), b""))  # until the server hangs up
            assert b"images[0] is not a readable image" in answer
        assert process.wait(20) == 0


@pytest.mark.parametrize("given", ["--port 70000", "--host nowhere.invalid", "--max-batch 0", "--allow-host http://x"])
def test_invalid_options_are_refused(given: str, digits_run: Path, refused: Refused) -> None:
    refused(given, "serve", digits_run, *given.split())


def test_a_port_in_use_is_refused(digits_run: Path, refused: Refused) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused(f"--port {port}", "serve", digits_run, "--port", port)


@pytest.mark.parametrize("command", ["serve pretrained:cifar10", "demo"])
def test_a_missing_extra_is_named(command: str, refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    refused("pip install 'ricnet[serve]'", *command.split())


def test_the_demo_takes_the_pretrained_model_or_trains_digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = tmp_path / "shelf"
    (shelf / "cifar10").mkdir(parents=True)
    (shelf / "cifar10" / "config.json").touch()
    monkeypatch.setattr("ricnet.models.locate.PRETRAINED", shelf)
    assert serve.prepare("cpu") == "pretrained:cifar10"


def test_the_demo_learns_digits_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ricnet.models.locate.PRETRAINED", tmp_path)
    monkeypatch.setattr(serve, "EPOCHS", 1)
    monkeypatch.chdir(tmp_path)
    run = serve.prepare("cpu")
    weights = tmp_path / run / "model.safetensors"
    before = weights.stat().st_mtime_ns
    assert serve.prepare("cpu") == run
    assert weights.stat().st_mtime_ns == before


def test_the_demo_opens_the_page_unless_told_not_to(
    digits_run: Path, monkeypatch: pytest.MonkeyPatch, run_ric: RunRic
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(serve, "prepare", lambda device: str(digits_run))
    monkeypatch.setattr("uvicorn.Server.run", lambda self, sockets: None)
    monkeypatch.setattr("webbrowser.open", opened.append)
    run_ric("demo", "--port", 0, "--no-browser")
    assert opened == []
    said = run_ric("demo", "--port", 0).err
    for _ in range(100):
        if opened:
            break
        signal.sigtimedwait([], 0.02)
    assert len(opened) == 1
    assert opened[0] in said
