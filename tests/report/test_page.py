import re
from html.parser import HTMLParser
from pathlib import Path

from ricnet.report.page import command, write_page
from ricnet.report.runs import read_run, read_runs

from .conftest import MakeRun

VOID = {"meta", "path", "use", "image", "rect", "br"}


class Outline(HTMLParser):
    """Checks that tags nest, and collects what the tests ask about."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.headings: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.ids += [given["id"] or ""] if "id" in given else []
        self.links += [value or "" for key, value in attrs if key in ("href", "src", "xlink:href", "srcset")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("h1", "h2", "h3"):
            self.headings.append(data)


def outline(page: str) -> Outline:
    found = Outline()
    found.feed(page)
    assert found.open == []
    return found


def test_a_comparison_page(make_run: MakeRun, tmp_path: Path) -> None:
    runs = read_runs([make_run("ric"), make_run("sl", method="supervised")])
    page = write_page(runs, tmp_path / "out" / "report.html").read_text()
    found = outline(page)
    assert found.headings == [
        "RIC and SL on digits",
        *("How it refines", "Is its confidence worth believing?", "Steps and halting", "Training", "What was run"),
        *("RIC", "SL"),
    ]
    assert len(found.ids) == len(set(found.ids))
    assert f"<strong>{100 * runs[0].test['accuracy']:.2f} %</strong>" in page
    assert page.count('role="img" aria-label="') == 5
    assert "prefers-color-scheme: dark" in page


def test_nothing_is_loaded_from_elsewhere(make_run: MakeRun, tmp_path: Path) -> None:
    page = write_page([read_run(make_run())], tmp_path).read_text()
    assert (tmp_path / "report.html").exists()
    assert not re.search(r"https?://|@import|<script|<link", page)
    assert all(link.startswith(("#", "data:image/png;base64,")) for link in outline(page).links)
    ids = set(outline(page).ids)
    assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', page)) <= ids


def test_strings_from_strangers_are_escaped(make_run: MakeRun, tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    path = make_run(class_names=[evil, '" onload="x', "--><b>", *"3456789"], data=evil, encoder="$css", **{evil: evil})
    page = write_page([read_run(path)], tmp_path / "report.html").read_text()
    outline(page)
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert 'onload="x' not in page
    assert "<b>" not in page
    assert "<dd>$css</dd>" in page


def test_pages_without_steps_examples_or_metrics(make_run: MakeRun, tmp_path: Path) -> None:
    path = make_run(method="supervised")
    (path / "examples.npz").unlink()
    (path / "metrics.jsonl").write_text("")
    found = outline(write_page([read_run(path)], tmp_path / "report.html").read_text())
    assert found.headings == ["SL on digits", "Is its confidence worth believing?", "What was run", "SL"]


def test_the_same_run_gives_the_same_page(make_run: MakeRun, tmp_path: Path) -> None:
    runs = [read_run(make_run())]
    assert write_page(runs, tmp_path / "a.html").read_bytes() == write_page(runs, tmp_path / "b.html").read_bytes()


def test_the_command_is_safe_to_paste(make_run: MakeRun) -> None:
    run = read_run(make_run(data="my photos; rm x", seed=3))
    assert command(run) == "ric train 'my photos; rm x' --method ric --preset fast --encoder conv --seed 3"
