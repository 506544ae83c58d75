import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import settings

from ricnet.machine import usable_cores

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# Scripts find each other as scripts do.
sys.path.append(str(Path(__file__).parents[1] / "scripts"))

# Shared machines are too noisy for deadlines, and a red build should be red again when it is repeated.
settings.register_profile("ricnet", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("ricnet")

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
