import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from server import Load, press


@pytest.fixture
def fragile() -> Iterator[str]:
    """Refuses every third request, and says that the model took a tenth of a second for each of the others."""
    asked = iter(range(1, 10_000))
    done = {"inputs": 0, "batches": 0, "model_seconds": 0.0}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._send(200, json.dumps(done).encode())

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            answered = next(asked) % 3 != 0
            if answered:
                done.update(inputs=done["inputs"] + 1, batches=1, model_seconds=done["model_seconds"] + 0.1)
            self._send(200 if answered else 503, b"{}")

        def _send(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as stand_in:
        thread = threading.Thread(target=stand_in.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{stand_in.server_port}"
        stand_in.shutdown()
        thread.join()


def test_refusals_are_counted_as_failures(fragile: str) -> None:
    load = Load(fragile)
    press(load, [(b"x", {}), (b"y", {})], clients=1, seconds=0.2)
    asked = len(load.waits) + load.failed
    assert load.failed == asked // 3 > 0
    assert load.inputs == len(load.waits)
    row = load.row("fragile")
    assert row["inputs/model s"] == pytest.approx(10)
    assert 0 < row["p50 ms"] <= row["p99 ms"]  # type: ignore[operator]
    assert row["inputs/s"] == pytest.approx(len(load.waits) / load.seconds)
