import contextlib
import importlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import settings

# Before ricnet, whose modules jaxtyping checks: what they import would be compiled anew, for a cache of its own.
for _name in ("fastapi", "matplotlib.pyplot", "optuna", "pandas", "scipy.stats", "sklearn.model_selection"):
    with contextlib.suppress(ImportError):  # an extra
        importlib.import_module(_name)

from ricnet.machine import usable_cores  # noqa: E402

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from problems import MadeOnce
    from ricnet.data import Dataset
    from ricnet.models.run import RunFolder
    from ricnet.report.runs import RunGroup, RunRecord

# Scripts find each other as scripts do.
sys.path.append(str(Path(__file__).parents[1] / "scripts"))

# Shared machines are too noisy for deadlines, and a red build should be red again when it is repeated.
settings.register_profile("ricnet", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("ricnet")

# pytest-xdist sets it in its workers, and output is wrapped at it.
os.environ.pop("COLUMNS", None)

# Tensors here are tiny: a second thread costs more than it brings, most of all where tests share the machine.
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")  # for the processes that they start


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """`-n auto`: what the container may run, which may be less than the machine has."""
    return usable_cores()


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Features and weights of encoders are kept there, and not in the user's cache."""
    os.environ["RICNET_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    """Chromium, for tests of pages; without it, or without playwright, they are skipped."""
    playwright = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("there is no chromium on this machine")
    flags = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking")
    flags += ("--disable-component-update", "--disable-sync", "--no-first-run")
    with playwright.sync_playwright() as running:
        opened = running.chromium.launch(executable_path=chromium, args=list(flags))
        yield opened
        opened.close()


@pytest.fixture
def no_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    from made_runs import draw_no_pages

    draw_no_pages(monkeypatch)


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    """Writes a run folder of this name, made up."""
    from made_runs import write_run

    return lambda folder="run", *args, **settings: write_run(tmp_path / folder, *args, **settings)


def _stamps(folder: Path) -> dict[Path, tuple[int, int]]:
    """Size and time of each file."""
    found = {path: path.stat() for path in folder.rglob("*") if path.is_file()}
    return {path: (stat.st_size, stat.st_mtime_ns) for path, stat in found.items()}


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[MadeOnce]":
    """Makes a folder of this name once for all workers of pytest-xdist. Tests read it; to change it, copy it."""
    from filelock import FileLock

    root = tmp_path_factory.getbasetemp()
    shared = (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / "made-once"
    shared.mkdir(exist_ok=True)
    as_made: dict[Path, dict[Path, tuple[int, int]]] = {}

    def folder(name: str, make: Callable[[Path], object]) -> Path:
        place, done = shared / name, shared / f"{name}.done"
        with FileLock(shared / f"{name}.lock"):
            if not done.exists():
                shutil.rmtree(place, ignore_errors=True)  # of a worker that failed
                place.mkdir()
                make(place)
                done.touch()
        as_made[place] = _stamps(place)
        return place

    yield folder
    changed = [place for place, stamps in as_made.items() if _stamps(place) != stamps]
    assert changed == [], "tests have changed folders that others read"


@pytest.fixture(scope="session")
def systems(made_once: "MadeOnce") -> "list[RunGroup]":
    """Three seeds each of RIC, SL and ACT, made up; tests read them and leave them alone."""
    from made_runs import groups_of, write_system

    methods = ("ric", "supervised", "act")
    root = made_once("systems", lambda folder: [write_system(folder, method) for method in methods])
    return groups_of(*(root / f"{method}-{seed}" for method in methods for seed in range(3)))


@pytest.fixture(scope="session")
def ric(systems: "list[RunGroup]") -> "RunRecord":
    return systems[0].first


@pytest.fixture(scope="session")
def digits_run(made_once: "MadeOnce") -> Path:
    """A small run, trained, without a page; tests read it and leave it alone."""
    from made_runs import draw_no_pages
    from ricnet.apps.cli import main

    tiny = ["--epochs", "2", "--width", "0.1", "--horizon", "4", "--device", "cpu"]
    with pytest.MonkeyPatch.context() as patch:
        draw_no_pages(patch)
        return made_once("digits", lambda folder: main(["train", "--out", str(folder / "digits"), *tiny])) / "digits"


@pytest.fixture(scope="session")
def dataset() -> "Dataset":
    """A tiny problem, learned in a fraction of a second."""
    from problems import blobs
    from ricnet.data import Dataset

    return Dataset("blobs", blobs(96, 0), blobs(30, 1), blobs(60, 2), ("a", "b", "c"))


@pytest.fixture(scope="session")
def finished(dataset: "Dataset", made_once: "MadeOnce") -> "Callable[[str], RunFolder]":
    """A finished run of a method; tests read it and leave it alone."""
    from problems import CPU, configured
    from ricnet.models.run import RunFolder
    from ricnet.training.api import run

    def train(folder: Path, method: str) -> None:
        run(configured(dataset, method), dataset, RunFolder(folder / "run"), CPU)

    return cache(lambda method: RunFolder(made_once(method, lambda folder: train(folder, method)) / "run"))
