import json
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from made_runs import add_costs, collapse, groups_of, rewrite, section_html
from refusals import refusal
from ricnet.report.examples import NUMBERS
from ricnet.report.page import command, page_html, page_title, refinement_words, render, write_page
from ricnet.report.runs import RunGroup, RunRecord, read_run

MakeRun = Callable[..., Path]

VOID = {"meta", "path", "use", "image", "img", "rect", "br"}


class Outline(HTMLParser):
    """Checks that tags nest, and collects ids, links and headings."""

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


def results_html(groups: list[RunGroup]) -> str:
    return render(groups, []).split("<main>")[0]


def systems_html(groups: list[RunGroup]) -> str:
    return section_html(groups, "systems")


def test_a_comparison_page(systems: list[RunGroup], comparison_page: str) -> None:
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
    assert page.count('<div class="scroll" role="region" tabindex="0" aria-label="') == 6 + 12  # figures and tables
    assert "prefers-color-scheme: dark" in page
    assert NUMBERS not in page
    assert re.search(r"\d %", page) is None  # a number stays with its sign
    assert "confidence 80\N{NO-BREAK SPACE}%" in page
    means = [
        f"{np.mean([run.test[key] for run in systems[0].runs]):.1f}"
        for key in ("mean_steps", "mean_steps_correct", "mean_steps_wrong", "mean_cell_evaluations")
    ]
    assert f'<th scope="row" class="word">RIC</th><td>{"</td><td>".join(means)}</td></tr>' in page


def test_nothing_is_loaded_from_elsewhere(comparison_page: str) -> None:
    found = outline(comparison_page)
    assert not re.search(r"https?://|@import|<script|<link", comparison_page)
    assert all(link.startswith(("#", "data:image/png;base64,")) for link in found.links)
    assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', comparison_page)) <= set(found.ids)


def test_untrusted_strings_are_escaped(make_run: MakeRun, tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    names = [evil, '" onload="x', "--><i>", *"3456789"]
    run = read_run(make_run(class_names=names, tabular=True, data=evil, encoder="$css", **{evil: evil}))
    page = write_page([run], tmp_path / "report.html").read_text()
    assert outline(page).headings[0] == "RIC on script>"
    assert not any(harm in page for harm in ("<script", 'onload="x', "<i>"))
    assert "&lt;script&gt;" in page
    assert "<dd>$css</dd>" in page
    assert NUMBERS in page
    pasted = command(replace(run, path=Path("my runs; rm x/a")))
    assert pasted == "ric train --config 'my runs; rm x/a/config.json' --out a-again"


def test_a_page_without_steps_examples_predictions_or_metrics(make_run: MakeRun, tmp_path: Path) -> None:
    path = make_run(method="supervised")
    (path / "examples.npz").unlink()
    (path / "predictions.npz").unlink()
    (path / "metrics.jsonl").write_text("")
    run = read_run(path)
    page = write_page([run], tmp_path / "report.html").read_text()
    assert outline(page).headings == ["SL on digits", "Is its confidence worth believing?", "What was run", "SL"]
    assert write_page([run], tmp_path / "again.html").read_text() == page


@pytest.mark.parametrize(("path", "named"), [("/dev/full", "/dev/full"), ("file/sub/page.html", "page.html")])
def test_a_page_that_cannot_be_written_is_named(
    path: str, named: str, ric: RunRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ricnet.report.page.page_html", lambda groups: "a page")
    (tmp_path / "file").write_text("")
    with refusal(named):
        write_page([ric], tmp_path / path)


def test_many_systems_are_counted_not_listed(ric: RunRecord) -> None:
    runs = [replace(ric, config={**ric.config, "method": {"name": f"m{i}"}}) for i in range(6)]
    assert page_title([RunGroup(run.method, (run,)) for run in runs]) == "6 systems on digits"


def test_systems_stand_with_their_intervals(systems: list[RunGroup]) -> None:
    html = results_html(systems)
    shares = [100 * run.test["accuracy"] for run in systems[0].runs]
    half = 4.30265 * np.std(shares, ddof=1) / np.sqrt(3)
    assert f"<td>{np.mean(shares):.2f} ± {half:.2f}</td>" in html
    assert html.count('<th scope="row" class="word">RIC</th>') == 1
    for said in ("3 systems, 3 seeds each: 9 runs", "Differences from RIC", "too few seeds (3)"):
        assert said in html
    html = results_html(systems[:1])
    assert "One system, 3 seeds: 3 runs" in html
    assert "Differences" not in html


def test_one_run_of_each_is_shown_as_it_is(systems: list[RunGroup]) -> None:
    single = [RunGroup(group.label, group.runs[:1]) for group in systems]
    html = results_html(single)
    assert f"{100 * systems[0].first.test['accuracy']:.2f}<" in html
    assert "±" not in html
    assert "3 systems: 3 runs" in html
    assert "<dt>Run seconds</dt><dd>61</dd>" in results_html(single[:1])
    derived = RunGroup("RIC", (replace(systems[0].first, derived_from="base"),))
    assert "<dt>Run seconds</dt>" not in results_html([derived])


def test_runs_that_cannot_be_paired_are_summed_up(systems: list[RunGroup], tmp_path: Path) -> None:
    ric, sl, _ = systems
    html = results_html([ric, RunGroup("SL", sl.runs[:2])])
    assert "Differences are not tested. SL (seeds 0 and 1" in html
    old = RunGroup("SL", tuple(replace(run, path=tmp_path) for run in sl.runs))
    assert "predictions.npz" in results_html([ric, old])
    for kept in (sl.runs[:1], sl.runs[:2]):
        group = RunGroup("SL", kept, repeats=(replace(sl.first, path=Path("a/again")),))
        assert "those of another run: again." in results_html([group])


def test_seeds_are_rows_and_settings_are_said_once(systems: list[RunGroup]) -> None:
    html = systems_html(systems)
    assert html.count("<details") == html.count("<dt>batch_size</dt>") == 3
    assert "<dt>seed</dt>" not in html
    assert html.count("Add --seed for the others, 1 and 2.") == 3
    assert "digits, 3 seeds, 61 s on a CPU" in html
    assert all(f"<td>{100 * run.test['accuracy']:.2f}\N{NO-BREAK SPACE}%</td>" in html for run in systems[0].runs)
    html = systems_html([RunGroup("RIC", systems[0].runs[:1])])
    assert '<details class="system" open>' in html
    assert "<dt>seed</dt><dd>0</dd>" in html
    assert "the others" not in html


def test_a_derived_system_says_whose_weights_it_has_and_has_no_command(systems: list[RunGroup]) -> None:
    sl = systems[1]
    borrowed = replace(sl, runs=tuple(replace(run, derived_from=f"sl-{k}") for k, run in enumerate(sl.runs)))
    html = systems_html([borrowed])
    assert "sl-0, sl-1 and sl-2" in html
    assert "digits, 3 seeds, not trained" in html
    assert "ric train" not in html
    assert ">61<" not in html


def test_a_report_of_a_run_whose_later_steps_are_worse_says_so(make_run: MakeRun) -> None:
    """Nothing on the page may say that its steps improve anything, or that it stops by itself."""
    groups = groups_of(make_run(worse=True))
    test = groups[0].first.test
    first, best = test["per_step"][0]["nll"], min(test["per_step"], key=lambda step: step["nll"])
    assert test["nll"] > first + 0.1
    page = page_html(groups)
    assert "it ends worse than its first step" in page
    assert f"NLL {first:.3f} after the first, {test['nll']:.3f} where it stops" in page
    lowest = f"the lowest NLL would be {best['nll']:.3f}, after {best['step']} step."
    assert f"If all examples stopped at the same step, {lowest}" in page
    assert "changes it in up to 20 steps; it always takes all of them." in page
    for claim in ("improve", "better than its first", "by itself", "the most gained after"):
        assert claim not in page, claim


def test_a_report_of_a_run_whose_steps_help_says_by_how_much(make_run: MakeRun) -> None:
    folder = make_run()
    (group,) = groups_of(folder)
    first, halt = group.first.test["per_step"][0]["nll"], group.first.test["nll"]
    assert halt < first
    words = refinement_words(group)
    assert f"it ends better than its first step: NLL {first:.3f} after the first, {halt:.3f} where it stops" in words
    assert f"stops after {group.first.test['mean_steps']:.1f} on average" in words
    rewrite(folder / "evaluation.json", lambda evaluation: evaluation["test"].update(nll=first + 1e-9))
    assert "change little" in refinement_words(*groups_of(folder))  # numbers are compared as written


FITTED = {
    "halting": {
        **{"halt_threshold": -1.5, "max_steps": 2, "reached": False, "nll": 0.51, "mean_steps": 2.0},
        **{"nll_before": 0.62, "steps_before": 7.5, "n": 135},
    },
    "calibration": {
        **{"temperature": 1.25, "nll_before": 0.51, "nll_after": 0.49, "n": 135, "found": True, "kept": True},
        **{"gain": 0.018, "gain_error": 0.004},
    },
}


def test_choices_on_validation_data_are_on_the_page(make_run: MakeRun) -> None:
    path = make_run() / "evaluation.json"
    raw = json.loads(path.read_text())
    rewrite(path, lambda evaluation: evaluation.update(raw=raw, fitted=FITTED))
    (group,) = groups_of(path.parent)
    assert (group.first.halt_threshold, group.first.max_steps) == (-1.5, 2)
    page = render([group], [])
    for said in (
        "changes it in up to 2 steps",
        "Halting: at V &lt; -1.5, at most 2 steps; NLL 0.6200 → 0.5100 on 135 validation examples.",
        "Temperature 1.250: NLL 0.5100 → 0.4900 on 135 validation examples.",
        "RIC, raw",
    ):
        assert said in page
    rewrite(path, lambda evaluation: evaluation["fitted"]["halting"].update(max_steps="two"))
    with refusal("evaluation.json", "fitted.halting.max_steps"):
        read_run(path.parent)


def test_notes_hints_and_baselines_are_on_the_page_and_harmless(make_run: MakeRun) -> None:
    scores = {"accuracy": 0.97, "ece": 0.01, "nll": 0.1, "brier": 0.2, "seconds": 1.0, "advantage": 0.1}
    entry = scores | {"advantage_error": 0.01, "n": 300, "rows": 1212, "library": "scikit-learn 1.6"}

    def said(evaluation: dict[str, Any]) -> None:
        evaluation["test"] |= {"base_rate": 0.123, "base_rate_nll": 2.5}
        evaluation |= {"notes": ["<b>Classes</b> are uneven"], "hints": ["a \x1b[1msimpler model is better"]}
        evaluation |= {"baselines": {"<i>Logistic": entry}, "baselines_note": "learned from a sample"}

    folder = make_run()
    rewrite(folder / "evaluation.json", said)
    page = render(groups_of(folder), [])
    assert "Note: &lt;b&gt;Classes&lt;/b&gt; are uneven" in page
    assert "Hint: a �[1msimpler model is better" in page
    assert "Note: learned from a sample" in page
    assert "12.30\N{NO-BREAK SPACE}%" in page
    assert "&lt;i&gt;Logistic" in page
    assert "<i>" not in page
    rewrite(folder / "evaluation.json", lambda evaluation: evaluation["baselines"]["<i>Logistic"].pop("nll"))
    with refusal("evaluation.json", "baselines"):
        read_run(folder)


def test_a_collapse_is_marked_in_tables_and_explained_below(make_run: MakeRun) -> None:
    alone = render(groups_of(collapse(make_run("alone"))), [])
    assert "RIC †" in alone
    assert "† Training collapsed: alone (epoch 30: training accuracy 65.0" in alone
    groups = groups_of(
        *(make_run(f"sl{seed}", "supervised", seed=seed) for seed in range(2)),
        *(collapse(make_run(f"ric{seed}", seed=seed)) if seed else make_run(f"ric{seed}") for seed in range(2)),
    )
    results = results_html(groups)
    assert "RIC †" in results
    assert "SL †" not in results
    assert "† Training collapsed: ric1 (epoch 30" in results
    seeds = re.findall(r"<t[dh][^>]*>([01](?: †)?)</t", systems_html(groups))
    assert seeds == ["0", "1", "0", "1 †"]


def test_the_page_has_the_share_of_compute(make_run: MakeRun) -> None:
    group = groups_of(add_costs(make_run()))[0]
    mean = f"{100 * group.first.test['mean_cost']:.0f}"
    cells = "</td><td>".join(f"{share}\N{NO-BREAK SPACE}%" for share in (mean, 21, 43))
    assert f"<td>{cells}</td></tr>" in section_html([group], "steps")
