import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from ricnet.apps.hub_card import hub_card
from ricnet.errors import RicnetError
from ricnet.report import page
from ricnet.report.comparison import compare_as_far_as_possible, has_seeds
from ricnet.report.examples import BARS
from ricnet.report.page import command, page_html, page_title, refinement_words, results_html, systems_html, write_page
from ricnet.report.runs import RunGroup, group_seeds, read_run, read_runs
from ricnet.report.tables import Cell, Grid, details, html_table, paragraph, scrolling, terms

from .conftest import MakeRun, rewrite

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


def test_systems_stand_with_their_intervals(systems: list[RunGroup]) -> None:
    html = results_html(systems)
    shares = [100 * run.test["accuracy"] for run in systems[0].runs]
    half = 4.30265 * np.std(shares, ddof=1) / np.sqrt(3)
    assert f"<td>{np.mean(shares):.2f} ± {half:.2f}</td>" in html
    assert html.count('<th scope="row" class="word">RIC</th>') == 1
    assert "3 systems, 3 seeds each: 9 runs" in html
    assert "Differences from RIC" in html
    assert "too few seeds (3)" in html


def test_one_run_of_each_is_shown_as_it_is(systems: list[RunGroup]) -> None:
    single = [RunGroup(group.label, group.runs[:1]) for group in systems]
    assert has_seeds(systems)
    assert not has_seeds(single)
    html = results_html(single)
    assert f"<td>{100 * systems[0].first.test['accuracy']:.2f} %</td>" in html
    assert "±" not in html
    assert "3 systems: 3 runs" in html


def test_runs_that_cannot_be_paired_are_summed_up(systems: list[RunGroup], tmp_path: Path) -> None:
    ric, sl, _ = systems
    uneven = RunGroup("SL", sl.runs[:2])
    found, excuse = compare_as_far_as_possible([ric, uneven])
    assert len(found.systems) == 2
    assert not found.contrasts
    assert excuse.startswith("Differences are not tested. SL (seeds 0 and 1")
    old = RunGroup("SL", tuple(replace(run, path=tmp_path) for run in sl.runs))
    assert "predictions.npz" in results_html([ric, old])


def test_one_system_of_several_seeds(systems: list[RunGroup]) -> None:
    html = results_html(systems[:1])
    assert "One system, 3 seeds: 3 runs" in html
    assert "Differences" not in html


def test_a_derived_run_was_not_trained_in_any_time(systems: list[RunGroup]) -> None:
    run = replace(systems[1].first, derived_from="base")
    assert "trained in" not in results_html([RunGroup("SL", (run,))])
    assert "trained in" in results_html([RunGroup("SL", systems[1].runs[:1])])


def test_repeats_are_named(systems: list[RunGroup]) -> None:
    sl = systems[1]
    for kept in (sl.runs[:1], sl.runs[:2]):
        group = RunGroup("SL", kept, repeats=(replace(sl.first, path=Path("a/again")),))
        assert "those of another run: again." in results_html([group])


def test_the_command_is_safe_to_paste(make_run: MakeRun) -> None:
    run = replace(read_run(make_run()), path=Path("my runs; rm x/a"))
    assert command(run) == "ric train --config 'my runs; rm x/a/config.json' --out a-again"


def test_seeds_are_rows_and_settings_are_said_once(systems: list[RunGroup]) -> None:
    html = systems_html(systems)
    assert html.count("<details") == 3
    assert html.count("<dt>batch_size</dt>") == 3
    assert "<dt>seed</dt>" not in html
    assert html.count("Add --seed for the others, 1 and 2.") == 3
    assert "digits, 3 seeds of about 61 s on a CPU" in html
    for run in systems[0].runs:
        assert f"<td>{100 * run.test['accuracy']:.2f} %</td>" in html


def test_a_derived_system_says_whose_weights_it_has_and_has_no_command(systems: list[RunGroup]) -> None:
    sl = systems[1]
    borrowed = replace(sl, runs=tuple(replace(run, derived_from=f"sl-{k}") for k, run in enumerate(sl.runs)))
    html = systems_html([borrowed])
    assert "The weights of sl-0, sl-1 and sl-2, read out differently." in html
    assert "digits, 3 seeds, not trained" in html
    assert "ric train" not in html
    assert "61" not in re.sub(r"<dd>.*?</dd>", "", html)


def test_one_run_stands_open(systems: list[RunGroup]) -> None:
    html = systems_html([RunGroup("RIC", systems[0].runs[:1])])
    assert '<details class="system" open>' in html
    assert "<dt>seed</dt><dd>0</dd>" in html
    assert "the others" not in html


def test_a_report_of_a_run_whose_later_steps_are_worse_says_so(make_run: MakeRun) -> None:
    """Nothing on the page may say that its steps improve anything, or that it stops by itself."""
    folder = make_run(worse=True)
    test = json.loads((folder / "evaluation.json").read_text())["test"]
    first = test["per_step"][0]["nll"]
    best = min(test["per_step"], key=lambda step: step["nll"])
    assert test["nll"] > first + 0.1
    page = page_html(group_seeds(read_runs([folder])))
    assert (
        "On the test set it ends worse than its first step: "
        f"NLL {first:.3f} after the first, {test['nll']:.3f} where it stops, lowest after {best['step']} steps, "
        f"{best['nll']:.3f}."
    ) in page
    assert "changes it in up to 20 steps, which it always makes." in page
    for claim in ("improve", "better than its first", "by itself", "the most gained after"):
        assert claim not in page, claim


def test_a_report_of_a_run_whose_steps_help_says_by_how_much(make_run: MakeRun) -> None:
    group = group_seeds(read_runs([make_run()]))[0]
    first, halt = group.first.test["per_step"][0]["nll"], group.first.test["nll"]
    assert halt < first
    words = refinement_words(group)
    assert f"it ends better than its first step: NLL {first:.3f} after the first, {halt:.3f} where it stops" in words
    assert f"stops after {group.first.test['mean_steps']:.1f} on average" in words


def test_digits_that_are_not_shown_decide_nothing(make_run: MakeRun) -> None:
    folder = make_run()
    first = json.loads((folder / "evaluation.json").read_text())["test"]["per_step"][0]["nll"]
    rewrite(folder / "evaluation.json", lambda evaluation: evaluation["test"].update(nll=first + 1e-9))
    assert "the steps after the first change little" in refinement_words(group_seeds(read_runs([folder]))[0])


def test_a_card_promises_nothing_that_was_not_measured(make_run: MakeRun) -> None:
    run = read_run(make_run(worse=True))
    config = run.config | {"network": {"encoder": "conv"}, "method": {"name": "ric", "horizon": 4}}
    card = hub_card(config, run.data, "ada/digits", None)
    assert "changes it in up to" in card
    assert "step by step" not in card


FITTED = {
    "halting": {
        **{"halt_threshold": -1.5, "max_steps": 2, "reached": False, "nll": 0.51, "mean_steps": 2.0},
        **{"nll_before": 0.62, "steps_before": 7.5, "best_step": 2, "best_step_nll": 0.51, "n": 135},
    },
    "calibration": {
        **{"temperature": 1.25, "nll_before": 0.51, "nll_after": 0.49, "n": 135, "found": True, "kept": True},
        **{"gain": 0.018, "gain_error": 0.004},
    },
}


def fitted_run(folder: Path) -> Path:
    def change(evaluation: dict[str, object]) -> None:
        raw = {split: evaluation[split] for split in ("train", "val", "test")}
        evaluation |= {"raw": raw, "fitted": FITTED}

    rewrite(folder / "evaluation.json", change)
    return folder


def test_what_validation_data_chose_is_on_the_page(make_run: MakeRun) -> None:
    run = read_run(fitted_run(make_run()))
    assert (run.halt_threshold, run.max_steps) == (-1.5, 2)
    page = page_html(group_seeds([run]))
    assert "It stops after 2 steps; validation data chose that." in page
    assert "the gain still expected: it stops after 2 steps." in page
    assert "changes it in up to 2 steps" in page
    assert (
        "Stops after 2 steps, chosen on 135 validation examples: NLL 0.5100 there in 2.0 steps (V &lt; 0: 0.6200"
        in page
    )
    assert "Temperature 1.250, fitted on 135 validation examples: validation NLL 0.5100 → 0.4900." in page
    assert "RIC, raw" in page
    assert "Raw: as trained, with nothing chosen on validation data." in page


def test_a_rule_that_cannot_be_is_refused(make_run: MakeRun) -> None:
    folder = fitted_run(make_run())
    rewrite(folder / "evaluation.json", lambda evaluation: evaluation["fitted"]["halting"].update(max_steps="two"))
    with pytest.raises(RicnetError, match=r"fitted\.halting\.max_steps that cannot be"):
        read_run(folder)


EVIL = '<b> & "x"'
SAFE = "&lt;b&gt; &amp; &quot;x&quot;"


def test_text_is_escaped_wherever_it_goes() -> None:
    grid = html_table(EVIL, Grid([EVIL], [[Cell(EVIL)]]))
    parts = [paragraph(EVIL), scrolling(EVIL, ""), terms([(EVIL, EVIL)]), details(EVIL, EVIL, "", is_open=True), grid]
    for part in parts:
        assert SAFE in part
        assert "<b>" not in part


def test_a_row_s_first_cell_is_its_heading_and_merit_is_bold() -> None:
    grid = html_table("name", Grid(["System", "ECE"], [[Cell("RIC"), Cell("0.1", best=True)]]))
    assert '<th scope="row" class="word">RIC</th><td><strong>0.1</strong></td>' in grid
    assert '<th scope="col" class="word">System</th><th scope="col">ECE</th>' in grid


def test_nothing_is_said_in_no_paragraph() -> None:
    assert paragraph("") == ""
    assert "<dd>–</dd>" in terms([("x", None)])
    assert '<details class="system"><summary>' in details("a", "b", "", is_open=False)
