import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from ricnet.errors import RicnetError
from ricnet.report import page
from ricnet.report.page import page_html, page_title, write_page
from ricnet.report.runs import RunGroup, read_run
from ricnet.report.thumbnails import BARS

from .conftest import MakeRun

VOID = {"meta", "path", "use", "image", "img", "rect", "br"}


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


def test_a_comparison_page(comparison_page: str) -> None:
    page, found = comparison_page, outline(comparison_page)
    assert found.headings == [
        "RIC, SL and ACT on digits",
        "Differences from RIC",
        *("How it refines", "Examples, right and wrong"),
        *("RIC", "SL", "ACT"),
        *("Is its confidence worth believing?", "When is it better not to answer?"),
        *("What it confuses", "RIC", "SL", "ACT"),
        *("Steps and halting", "Training"),
        *("What was run", "RIC", "SL", "ACT"),
    ]
    assert len(found.ids) == len(set(found.ids))
    assert page.count('<div class="scroll" role="region" tabindex="0" aria-label="') == 7 + 12  # figures and tables
    assert "prefers-color-scheme: dark" in page


def test_means_over_seeds_stand_in_the_table_of_steps(systems: list[RunGroup], comparison_page: str) -> None:
    means = [
        f"{np.mean([run.test[key] for run in systems[0].runs]):.1f}"
        for key in ("mean_steps", "mean_steps_correct", "mean_steps_wrong", "mean_cell_evaluations")
    ]
    assert f'<th scope="row" class="word">RIC</th><td>{"</td><td>".join(means)}</td></tr>' in comparison_page


def test_nothing_is_loaded_from_elsewhere(comparison_page: str) -> None:
    found = outline(comparison_page)
    assert not re.search(r"https?://|@import|<script|<link", comparison_page)
    assert all(link.startswith(("#", "data:image/png;base64,")) for link in found.links)
    assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', comparison_page)) <= set(found.ids)


def test_strings_from_strangers_are_escaped(make_run: MakeRun, tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    path = make_run(class_names=[evil, '" onload="x', "--><i>", *"3456789"], data=evil, encoder="$css", **{evil: evil})
    page = write_page([read_run(path)], tmp_path).read_text()
    assert outline(page).headings[0] == "RIC on script>"
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert 'onload="x' not in page
    assert "<i>" not in page
    assert "<dd>$css</dd>" in page


def test_pages_without_steps_examples_predictions_or_metrics(make_run: MakeRun, tmp_path: Path) -> None:
    path = make_run(method="supervised")
    (path / "examples.npz").unlink()
    (path / "predictions.npz").unlink()
    (path / "metrics.jsonl").write_text("")
    found = outline(write_page([read_run(path)], tmp_path / "report.html").read_text())
    assert found.headings == ["SL on digits", "Is its confidence worth believing?", "What was run", "SL"]


def test_a_number_stays_with_its_sign(comparison_page: str) -> None:
    assert re.search(r"\d %", comparison_page) is None
    assert "80\N{NO-BREAK SPACE}% sure" in comparison_page


def test_rows_are_explained_where_there_are_any(systems: list[RunGroup]) -> None:
    run = systems[0].first
    assert run.examples is not None
    flat = replace(run.examples, inputs=run.examples.inputs.reshape(len(run.examples.labels), -1))
    rows = RunGroup("RIC", (replace(run, examples=flat),))
    assert BARS in page._section("gallery", [], [rows])
    assert BARS not in page._section("gallery", [], systems)


def test_the_same_run_gives_the_same_page(systems: list[RunGroup]) -> None:
    assert page_html(systems[1:2]) == page_html(systems[1:2])


def test_many_systems_are_counted_not_listed(systems: list[RunGroup]) -> None:
    sl = systems[1].first
    runs = [replace(sl, config={**sl.config, "method": {"name": f"m{i}"}}) for i in range(6)]
    assert page_title([RunGroup(run.method, (run,)) for run in runs]) == "6 systems on digits"


def test_a_page_that_cannot_be_written_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "page_html", lambda _: "<html>")
    with pytest.raises(RicnetError, match=r"full could not be written \(No space left on device\)"):
        write_page([], Path("/dev/full"))
    (tmp_path / "file").write_text("")
    with pytest.raises(RicnetError, match=r"page\.html could not be written \(Not a directory\)"):
        write_page([], tmp_path / "file" / "sub" / "page.html")
