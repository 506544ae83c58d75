from pathlib import Path

import pytest

from made_runs import write_system
from problems import MadeOnce
from ricnet.report.page import page_html
from ricnet.report.runs import RunGroup


@pytest.fixture(scope="session")
def comparison_file(systems: list[RunGroup], made_once: MadeOnce) -> Path:
    """The page of three systems with all its figures, rendered once for all tests that read it."""
    page = made_once("page", lambda folder: (folder / "report.html").write_text(page_html(systems), encoding="utf-8"))
    return page / "report.html"


@pytest.fixture(scope="session")
def comparison_page(comparison_file: Path) -> str:
    return comparison_file.read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def five_seeds(made_once: MadeOnce) -> Path:
    """Five seeds of three systems: SL is over-confident, ACT is as good as RIC but for chance."""

    def write(folder: Path) -> None:
        write_system(folder, "ric", seeds=5)
        write_system(folder, "supervised", seeds=5, skill=2.0, sharpness=4.0)
        write_system(folder, "act", seeds=5)

    return made_once("five seeds", write)
