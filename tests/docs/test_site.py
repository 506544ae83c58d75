"""The site builds without warnings, loads nothing from other sites, and its API page lists all public names."""

import re
from pathlib import Path

import pytest

import ricnet

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    out = tmp_path_factory.mktemp("site")
    build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(out)))  # strict: a dead link is an error
    return out


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::PendingDeprecationWarning")
def test_every_page_and_figure_is_there(site: Path) -> None:
    pages = {path.relative_to(site).with_suffix("") for path in site.rglob("*.html")}
    assert {path.relative_to(ROOT / "docs").with_suffix("") for path in (ROOT / "docs").rglob("*.md")} <= pages
    for page in site.rglob("*.html"):
        for source in re.findall(r'<img[^>]* src="([^"]+)"', page.read_text(encoding="utf-8")):
            assert (page.parent / source).is_file(), f"{page.name}: {source}"


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        loaded = re.findall(
            r'<(?:script|link|img)[^>]* (?:src|href)="(https?://[^"]+)"', page.read_text(encoding="utf-8")
        )
        assert loaded == [], page.name


def test_every_public_name_is_on_the_api_page() -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"^::: \S+\.(\w+)$", page, re.MULTILINE))
    estimators = {name for name in re.findall(r"`(\w+)`", page) if name.endswith("Classifier")}
    for name in set(ricnet.__all__) - {"__version__"}:
        assert name in documented or name in estimators, name


def test_every_page_says_for_whom_it_is_and_what_they_can_do_afterwards() -> None:
    pages = [page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "archive"]
    for page in pages:
        opening = page.read_text(encoding="utf-8").split("\n## ")[0]
        assert re.search(r"^# .+\n\nFor ", opening), page
        assert "After this page you" in opening, page
