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


@pytest.fixture(scope="session")
def systems(tmp_path_factory: pytest.TempPathFactory) -> "list[RunGroup]":
    """Three seeds each of RIC, SL and ACT, made up; tests read them and leave them alone."""
    from made_runs import groups_of, write_system

    root = tmp_path_factory.mktemp("systems")
    return groups_of(*(path for method in ("ric", "supervised", "act") for path in write_system(root, method)))


@pytest.fixture(scope="session")
def ric(systems: "list[RunGroup]") -> "RunRecord":
    return systems[0].first


@pytest.fixture(scope="session")
def digits_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run, trained; tests read it and leave it alone."""
    from ricnet.apps.cli import main

    out = tmp_path_factory.mktemp("runs") / "digits"
    main(["train", "--out", str(out), "--epochs", "2", "--width", "0.1", "--horizon", "4", "--device", "cpu"])
    return out


@pytest.fixture(scope="session")
def dataset() -> "Dataset":
    """A tiny problem, learned in a fraction of a second."""
    from problems import blobs
    from ricnet.data import Dataset

    return Dataset("blobs", blobs(96, 0), blobs(30, 1), blobs(60, 2), ("a", "b", "c"))


@pytest.fixture(scope="session")
def finished(dataset: "Dataset", tmp_path_factory: pytest.TempPathFactory) -> "Callable[[str], RunFolder]":
    """A finished run of a method; tests read it and leave it alone."""
    from problems import CPU, configured
    from ricnet.models.run import RunFolder
    from ricnet.training.api import run

    @cache
    def made(method: str) -> "RunFolder":
        folder = RunFolder(tmp_path_factory.mktemp(method) / "run")
        run(configured(dataset, method), dataset, folder, CPU)
        return folder

    return made
