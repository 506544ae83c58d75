"""Two small runs, of a table and of images, whose copies are attacked."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import ricnet
from made_runs import without_manifest
from problems import MadeOnce

LINES = pytest.StashKey[list[str]]()


@pytest.fixture
def summary(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Adds a line to what is printed at the end."""
    return request.config.stash.setdefault(LINES, []).append


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for number, line in enumerate(config.stash.get(LINES, [])):
        if not number:
            terminalreporter.section("attacks")
        terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def table_run(made_once: MadeOnce) -> Path:
    return made_once("attacked table", train_on_table) / "run"


def train_on_table(folder: Path) -> None:
    lines = [f"{i % 7},{'red' if i % 2 else 'blue'},{'ab'[i % 2]}" for i in range(60)]
    (folder / "my.csv").write_text("\n".join(["size,colour,kind", *lines]))
    ricnet.train(f"{folder}/my.csv#kind", out=folder / "run", epochs=1, horizon=2, width=0.05, device="cpu")


@pytest.fixture(scope="session")
def image_run(made_once: MadeOnce) -> Path:
    return made_once("attacked images", train_on_images) / "run"


def train_on_images(folder: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (40, 8, 8), dtype=np.uint8)
    np.savez(folder / "my.npz", x=pixels, y=np.arange(40) % 2)
    ricnet.train(folder / "my.npz", out=folder / "run", epochs=1, horizon=2, width=0.05, device="cpu")


@pytest.fixture
def copy(table_run: Path, tmp_path: Path) -> Path:
    return without_manifest(shutil.copytree(table_run, tmp_path / "run"))
