"""No file makes transformers fetch code from the Hub: kernels for attention or experts, quantization, adapters."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

transformers = pytest.importorskip("transformers", reason="transformers is not installed (ricnet[hf])")

STUB = '''
"""Stands in for the package `kernels`: asks the Hub as that does, and would run what comes back."""
import os
import urllib.request
import huggingface_hub
__version__ = "{version}"
class Anything:
    def __init__(self, *args, **kwargs): pass
    def __class_getitem__(cls, item): return cls
    def __getattr__(self, name): return Anything()
    def __call__(self, *args, **kwargs): return args[0] if args else Anything()
def get_kernel(name, *args, **kwargs):
    urllib.request.urlopen(os.environ["HF_ENDPOINT"] + "/api/kernels/" + name).read()
    raise RuntimeError("the Hub was asked for " + name)
def _decorator(*args, **kwargs):
    return lambda it: it
use_kernel_forward_from_hub = use_kernelized_func = replace_kernel_forward_from_hub = _decorator
def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return Anything
'''


@pytest.fixture
def hub() -> Iterator[tuple[str, list[str]]]:
    """The address of a hub on this machine, and what it was asked for."""
    asked: list[str] = []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(404)

        do_HEAD = do_POST = do_GET  # noqa: N815

        def log_message(self, *_: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()
        thread.join()


def test_no_configuration_causes_a_request_to_the_hub(hub: tuple[str, list[str]], tmp_path: Path) -> None:
    address, asked = hub
    minimum = pytest.importorskip("transformers.utils.import_utils").KERNELS_MIN_VERSION
    layer = tmp_path / "stub" / "kernels" / "layer"
    layer.mkdir(parents=True)
    (layer.parent / "__init__.py").write_text(STUB.replace("{version}", minimum))
    (layer / "__init__.py").touch()
    (layer / "mode.py").write_text("class Mode: INFERENCE = TRAINING = 0")
    paths = [str(tmp_path / "stub"), str(Path(__file__).parents[1]), *sys.path]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    environment |= {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "home"), "PYTHONPATH": os.pathsep.join(paths)}
    script = Path(__file__).with_name("kernel_requests.py")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", script, tmp_path / "work"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert asked == []
    ends = {tuple(line[:3]): line[3] for line in map(json.loads, done.stdout.splitlines())}
    fetching = {("yoso", "by itself", "run"), ("rwkv", "by itself", "run")}
    assert {key for key, end in ends.items() if end != "built"} == fetching
    assert all("fetch code from the Hub" in ends[key] for key in fetching)
