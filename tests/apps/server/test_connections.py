"""Silent and slow clients, limits on bodies and on requests in progress, headers, ids and the log."""

import asyncio
import errno
import json
import logging
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from refusals import refusal
from ricnet.apps.server import application, connections
from ricnet.apps.server.connections import address_of, listen
from ricnet.models.classifier import Classifier

from .asking import open_request, refused
from .conftest import serving

HALF_A_HEAD = b"GET / HTTP/1.1\r\nhost: localhost\r\n"
HALF_A_BODY = b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 50\r\ncontent-type: application/json\r\n\r\n{"
LARGE = 64_000_000


async def answer(scope: Any, receive: Any, send: Any) -> None:
    """Reads the body, then sends ok; at /large more than a connection holds, at /slow after half a second."""
    if scope["type"] != "http":
        return
    while (await receive()).get("more_body"):
        pass
    await asyncio.sleep(0.5 if scope["path"] == "/slow" else 0)
    body = bytes(LARGE) if scope["path"] == "/large" else b"ok"
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": 200, "headers": [length]})
    await send({"type": "http.response.body", "body": body})


class Running:
    def __init__(self, server: connections.Server, listening: socket.socket) -> None:
        self.server, self.address = server, address_of(listening)
        self.place: tuple[str, int] = listening.getsockname()[:2]
        self.thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        self.thread.start()

    def connect(self, said: bytes = b"") -> socket.socket:
        line = socket.create_connection(self.place, timeout=5)
        line.sendall(said)
        return line

    def get(self, path: str = "/") -> str:
        return httpx.get(f"{self.address}{path}", trust_env=False, timeout=5).text

    def stop(self) -> float:
        """Seconds until it has ended."""
        began = time.perf_counter()
        self.server.should_exit = True
        self.thread.join(20)
        assert not self.thread.is_alive()
        return time.perf_counter() - began


@contextmanager
def running(most: int | None = None) -> Iterator[Running]:
    with listen("127.0.0.1", 0) as listening:
        found = Running(connections.server(answer, grace_seconds=20, most=most), listening)
        try:
            assert found.get() == "ok"
            yield found
        finally:
            found.stop()


def is_closed(line: socket.socket) -> bool:
    try:
        return line.recv(1000) == b""
    except ConnectionResetError:
        return True


def until_ok(line: socket.socket) -> bool:
    said = b""
    while not said.endswith(b"ok") and (part := line.recv(1000)):
        said += part
    return said.endswith(b"ok")


def dripping(line: socket.socket, seconds: float) -> bool:
    """Whether a client that sends a byte of a header now and then is cut off."""
    ends = time.perf_counter() + seconds
    try:
        while time.perf_counter() < ends:
            line.sendall(b"x")
            time.sleep(0.05)
    except OSError:
        return True
    return False


def test_headers_that_do_not_come_in_time_end_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.4)
    with running() as server:
        for said in (b"", HALF_A_HEAD):
            with server.connect(said) as line:
                assert is_closed(line)
        with server.connect(HALF_A_HEAD) as line:
            assert dripping(line, 5)
        with server.connect(HALF_A_HEAD + b"\r\n") as line:  # the second request of a connection, too
            assert until_ok(line)
            line.sendall(HALF_A_HEAD)
            assert dripping(line, 5)
        assert server.get("/slow") == "ok", "the time for headers is none for the answer"


def test_a_client_that_does_not_read_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.3)
    with running() as server, server.connect(b"GET /large HTTP/1.1\r\nhost: localhost\r\n\r\n") as line:
        received, deadline = len(line.recv(1000)), time.perf_counter() + 5
        while server.server.server_state.connections and time.perf_counter() < deadline:
            time.sleep(0.05)
        assert not server.server.server_state.connections
        while part := _receive(line):
            received += len(part)
        assert received < LARGE


def _receive(line: socket.socket) -> bytes:
    try:
        return line.recv(1 << 20)
    except ConnectionResetError:
        return b""


def test_a_slow_reader_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.5)
    with running() as server, server.connect(b"GET /large HTTP/1.1\r\nhost: localhost\r\n\r\n") as line:
        received = 0
        for _ in range(20):
            received += len(line.recv(1 << 20))
            time.sleep(0.05)
        while received < LARGE and (part := line.recv(1 << 20)):
            received += len(part)
        assert received > LARGE


def test_new_clients_take_the_place_of_those_silent_longest() -> None:
    with running(most=5) as server, ExitStack() as stack:
        body = stack.enter_context(server.connect(HALF_A_BODY))
        server.get()  # by now the server has seen it
        silent = [stack.enter_context(server.connect()) for _ in range(20)]
        assert server.get() == "ok"
        assert all(map(is_closed, silent[:15]))
        assert len(server.server.server_state.connections) <= 5
        body.sendall(bytes(49))
        assert until_ok(body), "a request that has begun keeps its place"


def test_bodies_that_stall_leave_places_for_others() -> None:
    with running(most=3) as server, ExitStack() as stack:
        for _ in range(9):
            stack.enter_context(server.connect(HALF_A_BODY))
        assert server.get() == "ok"


@pytest.mark.parametrize("said", [b"", HALF_A_HEAD, HALF_A_BODY, b"GET /large HTTP/1.1\r\nhost: localhost\r\n\r\n"])
def test_a_stalled_client_does_not_delay_the_end(monkeypatch: pytest.MonkeyPatch, said: bytes) -> None:
    monkeypatch.setattr(connections, "STALLED_SECONDS", 0.5)
    with running() as server, server.connect(said):
        server.get()  # by now the server has seen it
        assert server.stop() < 3


def test_arrived_requests_are_answered_at_shutdown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "STALLED_SECONDS", 0.1)
    with running() as server, server.connect(b"GET /slow HTTP/1.1\r\nhost: localhost\r\n\r\n") as line:
        server.get()
        server.stop()
        assert until_ok(line)


def test_connections_stay_below_the_limit_on_files(monkeypatch: pytest.MonkeyPatch) -> None:
    def most(limit: int) -> int:
        monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
        return connections.most_connections()

    used = len(list(Path("/dev/fd").iterdir()))
    assert most(1_000_000) == most(resource.RLIM_INFINITY) == connections.MOST_CONNECTIONS
    assert 300 - used - 80 < most(300) < 300 - used
    assert most(10) == 4


def test_failures_to_accept_are_logged_as_one_line_per_period(caplog: pytest.LogCaptureFixture) -> None:
    errors, loop = connections.AcceptErrors(), asyncio.new_event_loop()
    try:
        for _ in range(1000):
            errors(loop, {"message": "socket.accept()", "exception": OSError(errno.EMFILE, "too many open files")})
        assert [record.getMessage() for record in caplog.records if record.name == "ricnet.server"] == [
            "a connection could not be accepted (too many open files); raise the limit on open files."
        ]
        errors(loop, {"message": "something else", "exception": ValueError("told")})
        assert "told" in caplog.text
    finally:
        loop.close()


@contextmanager
def limited(most_files: int, log: Path, *arguments: object) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A process that may have so many files open, and where it listens."""
    command: Sequence[object] = (sys.executable, "-m", "ricnet", *arguments)
    shell = ["sh", "-c", f'ulimit -n {most_files}; exec "$@"', "sh", *map(str, command)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with log.open("wb") as file, subprocess.Popen(shell, stderr=file, env=environment) as process:
        try:
            for _ in range(600):
                if found := re.search(r"page +(http://\S+)", log.read_text()):
                    yield process, found[1]
                    break
                assert process.poll() is None, log.read_text()
                time.sleep(0.1)
        finally:
            process.kill()


def test_silent_connections_do_not_block_others(digits_run: Path, tmp_path: Path) -> None:
    """More than the process can have files open; some of them with half a request."""
    log = tmp_path / "log"
    served = limited(128, log, "serve", digits_run, "--port", "0", "--device", "cpu")
    with served as (process, address), ExitStack() as stack:
        url = httpx.URL(address)
        place = (url.host, url.port or 0)
        stalled = HALF_A_BODY.replace(b"POST /", b"POST /v1/predict")
        for said in (*[b""] * 150, *[HALF_A_HEAD] * 150, *[stalled] * 5):
            stack.enter_context(socket.create_connection(place, timeout=5)).sendall(said)
        for _ in range(5):
            began = time.perf_counter()
            assert httpx.get(f"{address}/healthz", trust_env=False, timeout=20).json()["status"] == "ok"
            asked = httpx.post(f"{address}/v1/predict", json={"images": ["AAAA"]}, trust_env=False, timeout=20)
            assert "images[0] is not a readable image" in json.loads(asked.text)["error"]
            assert time.perf_counter() - began < 0.8 * connections.HEADER_SECONDS, "waited for silent connections"
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == -signal.SIGTERM
    assert log.stat().st_size < 20_000
    assert "Traceback" not in log.read_text()


def test_answers_go_out_at_once() -> None:
    """Small packets are not held back, on the connections as asyncio makes them of what listens."""
    held_back: list[bool] = []

    async def meet() -> None:
        async def note(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            line = writer.get_extra_info("socket")
            held_back.append(not line.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        with listen("127.0.0.1", 0) as listening:
            async with await asyncio.start_server(note, sock=listening):
                reader, writer = await asyncio.open_connection(*listening.getsockname())
                await reader.read()
                writer.close()
                await writer.wait_closed()

    asyncio.run(meet())
    assert held_back == [False]


def test_addresses_are_such_as_a_browser_takes() -> None:
    with listen("127.0.0.1", 0) as listening:
        assert address_of(listening) == f"http://127.0.0.1:{listening.getsockname()[1]}"
    with listen("0.0.0.0", 0) as listening:
        assert address_of(listening).startswith("http://127.0.0.1:")


@pytest.mark.parametrize("host", ["nowhere.invalid", "a..b", "x" * 70, "\ud800"])
def test_a_host_that_is_none_is_one_sentence(host: str) -> None:
    with refusal("--host"):
        listen(host, 0)


# The guard around every request


def test_bodies_that_are_too_large(client: httpx.Client) -> None:
    megabyte = bytes(1_000_000)

    def pieces() -> Iterator[bytes]:
        yield b'--x\r\ncontent-disposition: form-data; name="images"; filename="a.png"\r\n\r\n'
        for _ in range(20):
            yield megabyte

    form = {"content-type": "multipart/form-data; boundary=x"}
    assert "1 MB" in refused(client.post("/v1/predict", content=megabyte * 100, headers=form), 413)
    assert "1 MB" in refused(client.post("/v1/predict", content=pieces(), headers=form), 413)
    as_json = {"content-type": "application/json"}
    assert "1 MB" in refused(client.post("/v1/predict", content=pieces(), headers=as_json), 413)


def test_other_sites_cannot_read_or_frame_the_page(client: httpx.Client) -> None:
    """No other site may read answers, or show the page in a frame of its own."""
    response = client.get("/", headers={"origin": "https://elsewhere.example"})
    assert not [name for name in response.headers if name.startswith("access-control")]
    assert "frame-ancestors 'none'" in response.headers["content-security-policy"]
    assert response.headers["x-content-type-options"] == "nosniff"


def test_a_full_house_and_a_stalled_guest(features: Classifier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "BODY_SECONDS", 0.8)
    with serving(features, max_waiting=1) as client, open_request(client, 50) as stalled:
        response = client.post("/v1/predict", json={"features": [1, 2, 3, 4]})
        assert "try again" in refused(response, 429)
        assert response.headers["retry-after"] == "1"
        assert client.get("/healthz").status_code == 200
        assert b"408" in stalled.recv(4096)
        assert client.post("/v1/predict", json={"features": [1, 2, 3, 4]}).status_code == 200


def test_refused_requests_do_not_count_as_in_progress(features: Classifier) -> None:
    """Their bodies are still awaited, for seconds, when others come."""

    def status() -> int:
        return client.post("/v1/predict", json={"features": [1, 2, 3, 4]}).status_code

    with serving(features, max_waiting=1, max_body_mb=0.001) as client, open_request(client, 2000, b"{"):
        assert status() == 200
        open_request(client, 50, b"{").close()  # who hangs up is forgotten
        assert 200 in (status() for _ in range(200))
        with open_request(client, 50, b"{") as guest, open_request(client, 50, b"{"):
            assert status() == 429
            guest.close()
            assert 200 in (status() for _ in range(200))


def test_our_own_failures_go_to_the_log(
    features: Classifier, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(application.Decisions, "answers", fail)
    with caplog.at_level(logging.INFO, "ricnet.server"), serving(features) as client:
        response = client.post("/v1/predict", json={"features": [1, 2, 3, 4]})
    sentence = refused(response, 500)
    assert "secret" not in response.text
    assert response.headers["x-request-id"] in sentence
    assert "ZeroDivisionError: secret" in caplog.text
    assert f"{response.headers['x-request-id']} POST /v1/predict 500" in caplog.text


def test_the_log_is_one_line_a_request(client: httpx.Client, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "ricnet.server"):
        response = client.get("/v1%0a%0dmodel\u00e9")
        client.get("/healthz")
    lines = [
        record.getMessage() for record in caplog.records if response.headers["x-request-id"] in record.getMessage()
    ]
    assert len(lines) == 1
    assert "GET /v1%0a%0dmodel%C3%A9 404" in lines[0]
