"""Test servers: uvicorn on a local port, in a thread."""

import faulthandler
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch

import ricnet
from problems import MadeOnce
from ricnet.apps.server import connections
from ricnet.apps.server.application import build
from ricnet.apps.server.connections import address_of, listen
from ricnet.apps.server.limits import Limits
from ricnet.evaluation.costs import Costs
from ricnet.models.classifier import Classifier


@contextmanager
def serving(classifier: Classifier, costs: Costs | None = None, **limits: float) -> Iterator[httpx.Client]:
    """A client of a server that is shut down in the end as a signal would do it."""
    with listen("127.0.0.1", 0) as listening:
        app = build(classifier, "tested", Limits(**limits), costs=costs)
        server = connections.server(app, grace_seconds=5)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        try:
            with httpx.Client(base_url=address_of(listening), timeout=20, trust_env=False) as client:
                yield client
        finally:
            server.should_exit = True
            thread.join(timeout=60)
            if thread.is_alive():
                faulthandler.dump_traceback()  # of all threads: what it waits for
                raise RuntimeError("the server did not end")


@pytest.fixture(scope="session")
def digits(digits_run: Path) -> Classifier:
    """It stops after two or three of its four steps: the threshold lies between values that it has."""
    found = ricnet.load(digits_run)
    values = found.refine(np.load(digits_run / "examples.npz")["x"], halt=False).values
    assert values is not None
    return replace(found, method=replace(found.method, halt_threshold=values[2].median().item()))  # type: ignore[call-arg]


@pytest.fixture(scope="session")
def client(digits: Classifier) -> Iterator[httpx.Client]:
    """Of one server for all tests that leave it as it was."""
    with serving(digits, max_body_mb=1.0, max_megapixels=1.0, max_batch=8) as found:
        yield found


@pytest.fixture(scope="session")
def features(made_once: MadeOnce) -> Classifier:
    """Three clouds of points."""

    def train(folder: Path) -> None:
        random = np.random.default_rng(0)
        y = np.arange(90) % 3
        np.savez(folder / "clouds.npz", x=(random.normal(size=(90, 4)) + y[:, None]).astype(np.float32), y=y)
        ricnet.train(folder / "clouds.npz", out=folder / "run", epochs=2, horizon=3, encoder="mlp", device="cpu")

    return ricnet.load(made_once("features", train) / "run")


@pytest.fixture
def two_classes(tmp_path: Path) -> Classifier:
    y = np.arange(60) % 2
    x = np.random.default_rng(0).integers(0, 100, (60, 8, 8)) + 100 * y[:, None, None]
    np.savez(tmp_path / "two.npz", x=x.astype(np.uint8), y=y)
    return ricnet.train(tmp_path / "two.npz", out=tmp_path / "run", epochs=1, horizon=3, width=0.1, device="cpu")


@pytest.fixture(scope="session")
def numbers_client(features: Classifier) -> Iterator[httpx.Client]:
    with serving(features) as found:
        yield found


@pytest.fixture(scope="session")
def inputs(digits_run: Path) -> torch.Tensor:
    return torch.from_numpy(np.load(digits_run / "examples.npz")["x"])


@pytest.fixture(scope="session")
def table(made_once: MadeOnce) -> Classifier:
    """Fruit by weight, some of them not weighed, and colour."""

    def train(folder: Path) -> None:
        random = np.random.default_rng(0)
        rows = ["weight,colour,fruit"]
        for i in range(120):
            fruit, weight, colour = [("plum", 40, "blue"), ("apple", 150, "red"), ("melon", 900, "green")][i % 3]
            rows.append(f"{'' if i % 10 == 9 else round(weight * random.uniform(0.8, 1.2), 1)},{colour},{fruit}")
        (folder / "fruit.csv").write_text("\n".join(rows))
        ricnet.train(f"{folder / 'fruit.csv'}#fruit", out=folder / "run", epochs=2, horizon=3, device="cpu")

    return ricnet.load(made_once("fruit", train) / "run")


@pytest.fixture(scope="session")
def table_client(table: Classifier) -> Iterator[httpx.Client]:
    with serving(table) as found:
        yield found


@pytest.fixture(autouse=True)
def _still_alive(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "client" in request.fixturenames:
        assert request.getfixturevalue("client").get("/healthz").json()["status"] == "ok"
