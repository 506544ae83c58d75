"""Pages of docs/questions/: short, with every measured number taken from its file."""

import re
from pathlib import Path

import pytest

from study_choices import MARKED as CHOICES
from write_questions import MARKED, PAGES, RESULTS, ROOT, fill, gap, mean
from write_questions import SCORE as THREE

NUMBER = re.compile(r"(?<![\w.])[−+-]?\d*\.\d+|\d+ %")
"""A decimal or a share in per cent: outside of the tables there is none, so that none can go stale."""
NAMES = sorted(path.name for path in PAGES.glob("*.md"))


@pytest.mark.parametrize("name", NAMES)
def test_a_page_is_what_the_files_give(name: str) -> None:
    text = (PAGES / name).read_text(encoding="utf-8")
    assert fill(text, RESULTS) == text, "run scripts/write_questions.py"


@pytest.mark.parametrize("name", NAMES)
def test_numbers_stand_in_tables_only(name: str) -> None:
    text = (PAGES / name).read_text(encoding="utf-8")
    assert MARKED.search(text) or CHOICES.search(text)
    prose = CHOICES.sub("", MARKED.sub("", text))
    prose = re.sub(r"`[^`]*`|\]\([^)]*\)|PyTorch \d+\.\d+|95 % Student-t interval", "", prose)
    assert NUMBER.findall(prose) == []


@pytest.mark.parametrize("name", NAMES)
def test_a_page_says_for_whom_it_is_and_where_it_ends(name: str) -> None:
    text = (PAGES / name).read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 60
    assert text.split("\n\n")[1].startswith("For users who")
    assert "After this page you" in text
    assert "## Limits" in text
    assert "Not measured:" in text


def test_a_changed_number_is_noticed() -> None:
    page = PAGES / "parity.md"
    text = page.read_text(encoding="utf-8")
    changed = text.replace("| SL | 3 |", "| SL | 4 |")
    assert changed != text
    assert fill(changed, RESULTS) == text


def test_the_pages_are_in_the_navigation_and_the_archive_is_last() -> None:
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("theme:")[0]
    assert all(f"questions/{name}" in nav for name in NAMES)
    assert nav.rstrip().endswith("archive/experiments.md")


def test_intervals_are_those_of_student_over_seeds() -> None:
    assert mean([1.0, 2.0, 3.0], THREE) == "2.000 ± 2.484"
    assert gap([1.0, 2.0, 4.0], [1.0, 1.0, 1.0], THREE) == "+1.333 ± 3.795"
    assert mean([1.0], THREE) == "1.000"


def test_the_archive_says_what_it_is() -> None:
    head = (ROOT / "docs" / "archive" / "experiments.md").read_text(encoding="utf-8").splitlines()[:4]
    assert "0.1.0" in head[2]
    assert "supersede" in head[3]
    assert not Path(ROOT / "docs" / "experiments.md").exists()
