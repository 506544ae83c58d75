import csv
import io
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from made_runs import collapse, groups_of, write_system
from ricnet.report.comparison import ECE, Comparison, compare, interval_of
from ricnet.report.runs import RunGroup, RunRecord, read_runs
from ricnet.report.statistics import Difference, Percentiles
from ricnet.report.tables import (
    contrasts_caption,
    contrasts_grid,
    csv_text,
    escape_latex,
    latex,
    markdown,
    results_caption,
    results_grid,
    run_table,
    terminal_table,
    without_equal_data,
)


def measured(run: RunRecord, **test: Any) -> RunRecord:
    return replace(run, evaluation={**run.evaluation, "test": {**run.test, **test}})


@pytest.fixture
def pair(make_run: Callable[..., Path]) -> list[RunRecord]:
    ric, sl = read_runs([make_run("ric"), make_run("sl", method="supervised")])
    return [
        measured(ric, accuracy=0.98444, ece=0.0181, nll=0.0611, brier=0.031, mean_steps=8.94, n=450),
        measured(sl, accuracy=0.98667, ece=0.0309, nll=0.0614, brier=0.027, mean_steps=1.0, n=450),
    ]


def printed(table: object, width: int) -> str:
    console = Console(width=width)
    with console.capture() as captured:
        console.print(terminal_table(table) if isinstance(table, Comparison) else table)
    return captured.get()


def single(runs: list[RunRecord]) -> Comparison:
    """One system per run, nothing tested."""
    return Comparison(tuple(RunGroup(run.label, (run,)) for run in runs))


def test_numbers_of_runs_and_the_best_in_bold(pair: list[RunRecord]) -> None:
    grid = results_grid(single(pair))
    ric, sl = grid.rows
    assert list(grid.titles[:4]) == ["System", "Data", "Test accuracy (%)", "ECE"]
    assert [cell.text for cell in ric][:7] == ["RIC", "digits", "98.44", "0.018", "0.061", "0.031", "8.9"]
    assert [cell.best for cell in ric][2:] == [False, True, True, False, False, False, False]
    assert [cell.best for cell in sl][2:] == [True, False, True, True, False, False, False]  # 0.061 ties
    assert [row[-1].text for row in grid.rows] == ["61", "61"]
    derived = results_grid(single([replace(pair[1], derived_from="base")]))
    assert derived.rows[0][-1].text == "–"  # a derived run has no seconds
    nothing = [measured(run, nll=float("nan")) for run in pair]
    rows = results_grid(single([nothing[0], pair[1]])).rows
    assert (rows[0][4].text, rows[0][4].best, rows[1][4].best) == ("–", False, True)
    assert not any(row[4].best for row in results_grid(single(nothing)).rows)


def test_a_calibrated_system_has_a_row_as_trained(pair: list[RunRecord]) -> None:
    raw = {split: {**pair[0].test, "ece": 0.25} for split in ("train", "test")}
    calibrated = replace(pair[0], evaluation={**pair[0].evaluation, "raw": raw})
    for runs in ((calibrated,), (calibrated, replace(calibrated, config={**calibrated.config, "seed": 1}))):
        found = Comparison((RunGroup("RIC", runs),))
        texts = [[cell.text for cell in row] for row in results_grid(found).rows]
        assert [row[0] for row in texts] == ["RIC", "RIC, raw"]
        assert "0.250" in texts[1][3] + texts[1][4]
        assert "Raw: as trained" in results_caption(found)


def test_nothing_is_best_alone_or_on_other_data(pair: list[RunRecord]) -> None:
    elsewhere = replace(pair[1], config={**pair[1].config, "data": "svhn"})
    for runs in (pair[:1], [pair[0], elsewhere]):
        assert not any(cell.best for cells in results_grid(single(runs)).rows for cell in cells)
        assert "Bold" not in results_caption(single(runs))
    assert "Bold: the best on the same data." in results_caption(single(pair))


def test_runs_in_markdown_and_in_the_terminal(pair: list[RunRecord]) -> None:
    lines = markdown(single(pair)).splitlines()
    assert lines[2].startswith("| RIC | digits | 98.44 | **0.018** | **0.061** |")
    assert len({line.count("|") for line in lines[:4]}) == 1
    assert lines[-1] == results_caption(single(pair))
    assert r"a\|b &lt;i>" in markdown(single([replace(pair[0], label="a|b <i>")]))
    assert "[red]x" in printed(single([replace(pair[0], label="[red]x"), pair[1]]), 120)
    narrow = printed(single([pair[0], replace(pair[1], label="PonderNet")]), 80)
    assert sum("98." in line and line.rstrip().endswith("61") for line in narrow.splitlines()) == 2


def test_rows_are_named_in_full_on_a_narrow_screen(pair: list[RunRecord]) -> None:
    """The widest table, with exits and two data sets: columns are left out instead of wrapping names."""
    ric = replace(measured(pair[0], mean_cost=0.5), label="RIC, closed form, logistic-normal + temperature")
    folder = replace(pair[1], config={**pair[1].config, "data": "a-long-name-of-a-folder"})
    narrow = printed(single([ric, folder]), 80)
    assert "…" not in narrow
    lines = [line[:48].rstrip() for line in narrow.split("Test set")[0].splitlines() if line.strip()]
    assert lines[-4:] == [ric.label, " on digits", "SL", " on a-long-name-of-a-folder"]
    assert all(whole in narrow for whole in ("98.44", "0.018", "0.061"))
    assert "compute" not in narrow
    wide = printed(single([ric, folder]), 130)
    assert all(title in wide for title in ("compute", "Brier", "seconds"))


def test_a_run_names_its_balanced_accuracy_where_it_differs(pair: list[RunRecord]) -> None:
    for balanced, said in ((0.71, True), (pair[0].test["accuracy"] - 0.005, False)):
        shown = printed(run_table(measured(pair[0], balanced_accuracy=balanced)), 80)
        assert ("Balanced accuracy" in " ".join(shown.split())) is said


def test_the_mark_of_a_collapse_is_at_the_run_that_its_note_names(pair: list[RunRecord]) -> None:
    fallen = replace(pair[0], collapses=({"epoch": 7, "accuracy": 0.2, "best_accuracy": 0.5},))
    for run, marks in ((pair[0], 0), (fallen, 2), (replace(fallen, label=f"{fallen.label} †"), 2)):
        assert printed(run_table(run), 80).count("†") == marks


def test_captions_tell_size_and_error(pair: list[RunRecord]) -> None:
    """√(0.98444 · 0.01556 / 450) = 0.58 points, of SL 0.54; about 0.56."""
    caption = results_caption(single(pair))
    assert "Test set: digits, n = 450 (standard error of an accuracy: 0.56 points). ECE with 15 bins." in caption
    assert "seed" not in caption


@pytest.fixture(scope="module")
def found(five_seeds: Path) -> Comparison:
    return compare(groups_of(*(five_seeds / f"{name}-{seed}" for name in ("supervised", "ric") for seed in range(5))))


@pytest.fixture(scope="module")
def spelled(found: Comparison) -> Comparison:
    """The same comparison with given numbers."""
    sl, ric = found.systems
    accuracies = (0.98, 0.98222, 0.98444, 0.98666, 0.98888)
    test = {"ece": 0.0181, "nll": 0.0611, "brier": float("nan"), "mean_steps": 8.94}
    better = replace(
        ric, runs=tuple(measured(r, accuracy=a, **test) for r, a in zip(ric.runs, accuracies, strict=True))
    )
    numbers = [
        (Difference(0.0052, 0.0031, 0.001, 5), Percentiles(-0.001, 0.012), 0.0421),
        (Difference(-0.02, 0.004, 1e-5, 5), Percentiles(-0.03, -0.0001), 2e-5),
    ]
    contrasts = tuple(
        replace(one, system=better, seeds=seeds, examples=examples, p_corrected=p)
        for one, (seeds, examples, p) in zip(found.contrasts[:2], numbers, strict=True)
    )
    return Comparison((sl, better), contrasts)


def renamed(comparison: Comparison, label: str) -> Comparison:
    sl, ric = comparison.systems
    stranger = replace(ric, label=label)
    contrasts = tuple(replace(contrast, system=stranger) for contrast in comparison.contrasts)
    return replace(comparison, systems=(sl, stranger), contrasts=contrasts)


def test_means_and_differences(spelled: Comparison) -> None:
    """s of the accuracies is 0.351 points; 2.776 · 0.351 / √5 = 0.44."""
    row = results_grid(spelled).rows[1]
    numbers = ["98.44 ± 0.44", "0.018 ± 0.000", "0.061 ± 0.000", "–", "8.9 ± 0.0"]
    assert [cell.text for cell in row][:8] == ["RIC", "digits", "5", *numbers]
    assert [cell.best for cell in row] == [False] * 4 + [True] + [False] * 5
    accuracy, ece = ([cell.text for cell in row] for row in contrasts_grid(spelled).rows)
    numbers = ["+0.52 ± 0.31", "0.042", "−0.10 to +1.20", "no difference shown"]
    assert accuracy == ["RIC − SL", "digits", "Test accuracy (points)", *numbers]
    assert ece == ["RIC − SL", "digits", "ECE", "−0.020 ± 0.004", "< 0.001", "−0.030 to 0.000", "better"]


def test_captions_explain_the_numbers(found: Comparison, tmp_path: Path) -> None:
    """They mention no interval and no bold text if there is none."""
    for said in ("95 % Student-t interval over seeds", "digits, n = 300", "15 bins", "Bold: better than SL"):
        assert said in results_caption(found)
    for said in (
        "95 % Student-t",
        "95 % percentile interval",
        "2,000 resamples",
        "Holm correction",
        "at least 5 seeds",
    ):
        assert said in contrasts_caption(found)
    alone = compare(groups_of(*(write_system(tmp_path, method, seeds=1)[0] for method in ("ric", "act"))))
    assert "Student" not in results_caption(alone) + contrasts_caption(alone)
    assert contrasts_grid(alone).rows[0][4].text == "–"


def test_terminal_on_wide_and_narrow_screens(spelled: Comparison) -> None:
    wide = printed(spelled, 140)
    assert re.search(r"98\.44 .*\n.*±0\.44", wide)
    narrow = printed(renamed(spelled, "PonderNet"), 80)
    assert max(map(len, narrow.splitlines())) <= 80
    assert "…" not in narrow
    for whole in ("98.44", "±0.44", "0.018", "±0.000", "PonderNet", "accuracy", "better"):
        assert re.search(rf"(?<!\S){re.escape(whole)}(?!\S)", narrow), whole


def test_the_terminal_names_the_data_only_where_it_differs(spelled: Comparison) -> None:
    sl, ric = spelled.systems
    run = replace(ric.first, config={**ric.first.config, "data": "svhn"})
    two = Comparison((sl, replace(ric, runs=(run,))))
    assert "on digits" not in printed(spelled, 140).split("Mean ±")[0]
    assert all(name in printed(two, 140).split("Mean ±")[0] for name in (" on digits", " on svhn"))
    assert "Data" in markdown(spelled)
    assert "Verdict" not in markdown(two) + printed(two, 140)  # without differences there is one table
    assert latex(two).count(r"\begin{table}") == 1


HOSTILE = "50 % of_a\\b & {c} #1 $x$ ~^ <i> |pipe| *star* [red]"


def test_untrusted_names_are_escaped(spelled: Comparison) -> None:
    for comparison in (spelled, renamed(spelled, HOSTILE)):
        rows = [line for line in markdown(comparison).splitlines() if line.startswith("|")]
        assert [len(re.findall(r"(?<!\\)\|", row)) for row in rows] == [11] * 4 + [8] * 4
    assert "| **0.018 ± 0.000** |" in markdown(spelled)
    hostile = renamed(spelled, HOSTILE[:38])
    assert r"50 % of\_a\\b & {c} #1 $x$ ~^ &lt;i> \|pip" in markdown(hostile)
    assert r"50 \% of\_a\textbackslash{}b \& \{c\} \#1 \$x\$" in latex(hostile)
    assert "[red]" in printed(renamed(spelled, "[red]x"), 140)


def test_csv_holds_everything_unrounded(found: Comparison, spelled: Comparison) -> None:
    rows = list(csv.DictReader(io.StringIO(csv_text(found))))
    assert len(rows) == 14
    by_key = {(row["system"], row["metric"]): row for row in rows}
    ric, interval = by_key["RIC", "ece"], interval_of(found.systems[1], ECE)
    one = next(c for c in found.contrasts if c.metric.name == "ece")
    expected = {
        **{"mean": interval.mean, "half_width": interval.half_width, "difference": one.seeds.mean},
        **{"difference_half_width": one.seeds.half_width, "p_value": one.seeds.p_value, "p_holm": one.p_corrected},
        **{"bootstrap_low": one.examples.low, "bootstrap_high": one.examples.high},
    }
    assert {name: float(ric[name]) for name in expected} == expected
    assert (ric["seeds"], ric["n_test"], ric["reference"]) == ("0 1 2 3 4", "300", "SL")
    assert ric["verdict"] == one.verdict
    assert by_key["SL", "ece"]["difference"] == by_key["RIC", "mean_steps"]["verdict"] == ""
    brier = next(
        r for r in csv.DictReader(io.StringIO(csv_text(spelled))) if (r["system"], r["metric"]) == ("RIC", "brier")
    )
    assert (brier["mean"], brier["half_width"]) == ("", "")


def unescaped(sign: str, text: str) -> int:
    return len(re.findall(rf"(?<!\\){re.escape(sign)}", text))


@pytest.mark.parametrize("label", ["RIC", HOSTILE[:38], "Größe 中 {{{ \\\\ %", "\\end{table}"])
def test_latex_is_well_formed(spelled: Comparison, label: str) -> None:
    text = latex(renamed(spelled, label)).split("\n", 1)[1]  # without the comment on packages
    assert unescaped("%", text) == 0
    assert unescaped("$", text) % 2 == 0
    assert unescaped("{", text) == unescaped("}", text)
    assert text.count(r"\begin{table}") == text.count(r"\end{table}") == 2
    for body in re.findall(r"\\begin\{tabular\}\{([lr]+)\}(.*?)\\end\{tabular\}", text, re.DOTALL):
        rows = [line for line in body[1].splitlines() if line.endswith(r"\\")]
        assert {unescaped("&", row) for row in rows} == {len(body[0]) - 1}
        assert [rule in body[1] for rule in (r"\toprule", r"\midrule", r"\bottomrule")] == [True] * 3


def test_latex_numbers(spelled: Comparison) -> None:
    text = latex(spelled)
    assert r"98.44 $\pm$ 0.44 & \textbf{0.018 $\pm$ 0.000} & 0.061 $\pm$ 0.000 & -- & 8.9 $\pm$ 0.0 &" in text
    assert r"RIC $-$ SL & digits & ECE & $-$0.020 $\pm$ 0.004" in text
    assert r"\usepackage{booktabs}" in text


@given(st.text())
def test_escaped_text_commands_nothing(text: str) -> None:
    """Without our escapes, no character remains that LaTeX interprets."""
    escaped = escape_latex(text)
    rest = re.sub(r"\\(text(backslash|asciitilde|asciicircum)|ldots)\{\}|\$\\pm\$|\$-\$|\\[&%$#_{}]", "", escaped)
    assert not set(rest) & set("\\&%$#_{}~^")
    assert all(c.isascii() or ord(c) < 0x180 for c in escaped)


def test_a_name_does_not_repeat_the_column_of_data(make_run: Callable[..., Path]) -> None:
    """The label has the name of the data, in which the first two runs differ; the third has other settings."""
    folders = [make_run("a"), make_run("b", data="/home/ada/k.csv#Ziel / Klasse"), make_run("c", preset="paper")]
    groups = groups_of(*folders)
    assert "k.csv#Ziel / Klasse" in groups[1].label
    rows = [[cell.text for cell in row[:2]] for row in results_grid(Comparison(tuple(groups))).rows[:3]]
    assert [name for name, _ in rows] == ["RIC", "RIC", groups[2].label]
    assert rows[1][1] == "k.csv#Ziel / Klasse"


def test_data_that_is_the_same_in_all_rows_needs_no_column(
    pair: list[RunRecord], make_run: Callable[..., Path]
) -> None:
    same = results_grid(single(pair))
    assert without_equal_data(same).titles == [title for title in same.titles if title != "Data"]
    several = results_grid(Comparison(tuple(groups_of(pair[0].path, make_run("b", data="cifar10")))))
    assert without_equal_data(several) is several


def test_a_mark_is_explained_below_every_table(make_run: Callable[..., Path]) -> None:
    runs = read_runs([make_run("sl", "supervised"), collapse(make_run("ric"))])
    assert "| RIC † | digits |" in markdown(single(runs))
    assert "† Training collapsed: ric (epoch 30: training accuracy 65.0 %" in results_caption(single(runs))
    groups = groups_of(*(run.path for run in runs))
    found = compare(groups, "RIC")  # also by the name without the mark
    assert [row[0].text for row in results_grid(found).rows] == ["SL", "RIC †"]
    assert "† Training collapsed: ric (epoch 30" in results_caption(found)
    assert r"RIC $\dagger$" in latex(found)
    assert {row["system"] for row in csv.DictReader(io.StringIO(csv_text(found)))} == {"SL", "RIC †"}
    shown = Console(file=io.StringIO(), width=80)
    shown.print(terminal_table(single(runs)))
    assert "RIC †" in shown.file.getvalue()  # type: ignore[attr-defined]
