import csv
import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from ricnet.report.comparison import Comparison, compare
from ricnet.report.runs import RunRecord, read_runs
from ricnet.report.statistics import Difference, Interval, Percentiles
from ricnet.report.tables import (
    contrasts_caption,
    contrasts_grid,
    csv_rows,
    csv_text,
    escape_latex,
    latex,
    markdown,
    runs_caption,
    runs_grid,
    runs_markdown,
    runs_table,
    systems_caption,
    systems_grid,
    terminal_table,
)

from .conftest import MakeRun
from .systems import groups_of, write_system


def measured(run: RunRecord, **test: Any) -> RunRecord:
    return replace(run, evaluation={**run.evaluation, "test": {**run.test, **test}})


@pytest.fixture
def pair(make_run: MakeRun) -> list[RunRecord]:
    ric, sl = read_runs([make_run("ric"), make_run("sl", method="supervised")])
    return [
        measured(ric, accuracy=0.98444, ece=0.0181, nll=0.0611, brier=0.031, mean_steps=8.94, n=450),
        measured(sl, accuracy=0.98667, ece=0.0309, nll=0.0614, brier=0.027, mean_steps=1.0, n=450),
    ]


def test_numbers_and_bold(pair: list[RunRecord]) -> None:
    grid = runs_grid(pair)
    ric, sl = grid.rows
    assert {"ECE (15 bins)", "Run seconds"} <= set(grid.titles)
    assert runs_caption(pair).endswith("Run seconds include measuring each epoch.")
    assert [cell.text for cell in ric][:7] == ["RIC", "digits", "98.44 %", "0.018", "0.061", "0.031", "8.9"]
    assert [cell.best for cell in ric][2:] == [False, True, True, False, False, False, False]
    assert [cell.best for cell in sl][2:] == [True, False, True, True, False, False, False]  # 0.061 ties


def test_nothing_is_best_alone_or_on_other_data(pair: list[RunRecord]) -> None:
    ric, sl = pair
    elsewhere = replace(sl, config={**sl.config, "data": "svhn"})
    for runs in ([ric], [ric, elsewhere]):
        assert not any(cell.best for cells in runs_grid(runs).rows for cell in cells)
        assert "Bold" not in runs_caption(runs)


def test_a_derived_run_took_no_seconds(pair: list[RunRecord]) -> None:
    ric, sl = runs_grid([pair[0], replace(pair[1], derived_from="base")]).rows
    assert (ric[-1].text, sl[-1].text) == ("61", "–")


def test_a_missing_score_never_wins(pair: list[RunRecord]) -> None:
    runs = [measured(pair[0], nll=float("nan")), pair[1]]
    rows = runs_grid(runs).rows
    assert (rows[0][4].text, rows[0][4].best, rows[1][4].best) == ("–", False, True)
    assert not any(row[4].best for row in runs_grid([measured(run, nll=float("nan")) for run in pair]).rows)


def test_markdown(pair: list[RunRecord]) -> None:
    lines = runs_markdown(pair).splitlines()
    assert lines[2].startswith("| RIC | digits | 98.44 % | **0.018** | **0.061** |")
    assert len({line.count("|") for line in lines[:4]}) == 1
    assert "n = 450" in lines[-1]


def test_markdown_escapes_what_would_break_it(pair: list[RunRecord]) -> None:
    assert r"a\|b &lt;i>" in runs_markdown([replace(pair[0], label="a|b <i>")])


def test_terminal_table(pair: list[RunRecord]) -> None:
    console = Console(width=120)
    with console.capture() as captured:
        console.print(runs_table([replace(pair[0], label="[red]x"), pair[1]]))
    assert "98.44 %" in captured.get()
    assert "[red]x" in captured.get()


def test_caption_tells_size_error_and_seeds(pair: list[RunRecord]) -> None:
    assert runs_caption(pair).startswith(
        "Test set: digits, n = 450 (standard error of an accuracy: about 0.56 points)."
    )
    assert "One seed each (0)." in runs_caption(pair)
    other = replace(pair[0], config={**pair[0].config, "seed": 7})
    assert "Seeds: RIC on digits: 0, 7; SL on digits: 0." in runs_caption([*pair, other])
    assert "Seeds 0 and 7 each." in runs_caption([pair[0], other])


def test_the_terminal_table_fits_eighty_columns(pair: list[RunRecord]) -> None:
    console = Console(width=80)
    with console.capture() as captured:
        console.print(runs_table([pair[0], replace(pair[1], label="PonderNet")]))
    lines = captured.get().splitlines()
    assert sum("98." in line and line.rstrip().endswith("61") for line in lines) == 2
    assert "…" not in captured.get()


HOSTILE = "50 % of_a\\b & {c} #1 $x$ ~^ <i> |pipe| *star* [red]"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    root = tmp_path_factory.mktemp("runs")
    over_confident = write_system(root, "supervised", seeds=5, n=300, skill=1.0, sharpness=4.0)
    return compare(groups_of(*over_confident, *write_system(root, "ric", seeds=5, n=300)))


@pytest.fixture(scope="module")
def spelled(found: Comparison) -> Comparison:
    """The same with numbers that can be read off the page."""
    sl, ric = found.systems
    intervals = {
        **{"train_accuracy": Interval(0.99, 0.001, 5), "accuracy": Interval(0.98444, 0.0031, 5)},
        **{"ece": Interval(0.0181, 0.0024, 5), "nll": Interval(0.0611, None, 1)},
        **{"brier": Interval(float("nan"), float("nan"), 5), "mean_steps": Interval(8.94, 1.25, 5)},
    }
    better = replace(ric, intervals=intervals)
    first, second, *_ = found.contrasts
    contrasts = (
        replace(first, system=better, seeds=Difference(0.0052, 0.0031, 0.001, 5), examples=Percentiles(-0.001, 0.012)),
        replace(second, system=better, seeds=Difference(-0.02, 0.004, 1e-5, 5), examples=Percentiles(-0.03, -0.0001)),
    )
    corrected = (replace(contrasts[0], p_corrected=0.0421), replace(contrasts[1], p_corrected=2e-5))
    return Comparison((sl, better), corrected)


def renamed(comparison: Comparison, label: str) -> Comparison:
    sl, ric = comparison.systems
    stranger = replace(ric, group=replace(ric.group, label=label))
    return replace(
        comparison,
        systems=(sl, stranger),
        contrasts=tuple(replace(contrast, system=stranger) for contrast in comparison.contrasts),
    )


def printed(comparison: Comparison, width: int) -> str:
    console = Console(width=width)
    with console.capture() as captured:
        console.print(terminal_table(comparison))
    return captured.get()


def test_the_means(spelled: Comparison) -> None:
    row = systems_grid(spelled).rows[1]
    assert [cell.text for cell in row] == [
        *("RIC", "digits", "5", "99.00 ± 0.10", "98.44 ± 0.31", "0.018 ± 0.002", "0.061", "–", "8.9 ± 1.2"),
    ]
    assert [cell.best for cell in row] == [False] * 5 + [True] + [False] * 3


def test_the_differences(spelled: Comparison) -> None:
    accuracy, ece = ([cell.text for cell in row] for row in contrasts_grid(spelled).rows)
    assert accuracy == [
        *("RIC − SL", "digits", "Test accuracy (points)", "+0.52 ± 0.31", "0.042"),
        *("−0.10 to +1.20", "no difference shown"),
    ]
    assert ece == ["RIC − SL", "digits", "ECE", "−0.020 ± 0.004", "< 0.001", "−0.030 to 0.000", "better"]


def test_captions_say_what_the_numbers_are(found: Comparison) -> None:
    assert systems_caption(found) == (
        "Mean ± half-width of the 95 % Student-t interval over seeds. Test examples: digits, n = 300. "
        "ECE with 15 bins of equal width. Bold: better than SL by the verdict on the difference."
    )
    text = contrasts_caption(found)
    for said in ("95 % Student-t", "95 % percentile interval over test examples", "2,000 resamples", "Holm for the 4 "):
        assert said in text
    assert "from 5 seeds on, and only where both agree" in text


def test_captions_claim_no_interval_and_no_bold_where_there_is_none(tmp_path: Path) -> None:
    single = compare(groups_of(*write_system(tmp_path, "ric", seeds=1), *write_system(tmp_path, "act", seeds=1)))
    assert systems_caption(single) == "One seed each. Test examples: digits, n = 80. ECE with 15 bins of equal width."
    assert "One seed says nothing about other seeds. Bootstrap" in contrasts_caption(single)
    assert [cell.text for cell in contrasts_grid(single).rows[0]][4] == "–"


def test_without_differences_there_is_one_table(found: Comparison) -> None:
    alone = replace(found, contrasts=())
    assert latex(alone).count(r"\begin{table}") == 1
    assert "Verdict" not in markdown(alone) + printed(alone, 120)


def test_terminal_on_wide_and_narrow_screens(spelled: Comparison) -> None:
    wide = printed(spelled, 140)
    assert re.search(r"98\.44 .*\n.*±0\.31", wide)
    assert "Ranks on digits by mean test accuracy: 1 RIC; 2 SL" in wide
    narrow = printed(renamed(spelled, "PonderNet"), 80)
    assert max(map(len, narrow.splitlines())) <= 80
    assert "…" not in narrow
    for whole in ("98.44", "±0.31", "0.018", "±0.002", "PonderNet", "accuracy", "better"):
        assert re.search(rf"(?<!\S){re.escape(whole)}(?!\S)", narrow), whole


def test_the_terminal_names_the_data_only_where_it_differs(spelled: Comparison) -> None:
    sl, ric = spelled.systems
    run = replace(ric.group.first, config={**ric.group.first.config, "data": "svhn"})
    two = Comparison((sl, replace(ric, group=replace(ric.group, runs=(run,)))))
    assert "Data" not in printed(spelled, 140)
    assert re.search(r"System +Data +Seeds", printed(two, 140))
    assert "Data" in markdown(spelled)


def test_markdown_rows_have_as_many_cells_as_titles(spelled: Comparison) -> None:
    for comparison in (spelled, renamed(spelled, HOSTILE)):
        rows = [line for line in markdown(comparison).splitlines() if line.startswith("|")]
        counts = [len(re.findall(r"(?<!\\)\|", row)) for row in rows]
        assert counts == [10] * 4 + [8] * 4
    assert "| **0.018 ± 0.002** |" in markdown(spelled)


def test_strangers_names_do_no_harm(spelled: Comparison) -> None:
    hostile = renamed(spelled, HOSTILE[:38])
    assert r"50 % of\_a\\b & {c} #1 $x$ ~^ &lt;i> \|pip" in markdown(hostile)
    assert r"50 \% of\_a\textbackslash{}b \& \{c\} \#1 \$x\$" in latex(hostile)
    assert "[red]" in printed(renamed(spelled, "[red]x"), 140)


def test_csv_holds_everything_unrounded(found: Comparison) -> None:
    rows = list(csv.DictReader(io.StringIO(csv_text(found))))
    assert len(rows) == 12
    by_key = {(row["system"], row["metric"]): row for row in rows}
    ric = by_key["RIC", "ece"]
    one = next(c for c in found.contrasts if c.metric.name == "ece")
    assert float(ric["mean"]) == found.systems[1].intervals["ece"].mean
    assert float(ric["half_width"]) == found.systems[1].intervals["ece"].half_width
    assert (ric["seeds"], ric["n_test"], ric["reference"]) == ("0 1 2 3 4", "300", "SL")
    numbers = [float(ric[key]) for key in ("difference", "difference_half_width", "p_value", "p_holm")]
    assert numbers == [one.seeds.mean, one.seeds.half_width, one.seeds.p_value, one.p_corrected]
    assert [float(ric["bootstrap_low"]), float(ric["bootstrap_high"])] == [one.examples.low, one.examples.high]
    assert ric["verdict"] == one.verdict
    assert by_key["SL", "ece"]["difference"] == by_key["RIC", "mean_steps"]["verdict"] == ""


def test_csv_leaves_missing_numbers_empty(spelled: Comparison) -> None:
    brier = next(row for row in csv_rows(spelled) if (row["system"], row["metric"]) == ("RIC", "brier"))
    assert brier["mean"] is None
    assert brier["half_width"] is None


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
    assert r"98.44 $\pm$ 0.31 & \textbf{0.018 $\pm$ 0.002} & 0.061 & -- & 8.9 $\pm$ 1.2 \\" in text
    assert r"RIC $-$ SL & digits & ECE & $-$0.020 $\pm$ 0.004" in text
    assert r"\usepackage{booktabs}" in text


@given(st.text())
def test_escaped_text_commands_nothing(text: str) -> None:
    """Once the escapes we write are taken away, no character that LaTeX acts upon is left."""
    escaped = escape_latex(text)
    rest = re.sub(r"\\(text(backslash|asciitilde|asciicircum)|ldots)\{\}|\$\\pm\$|\$-\$|\\[&%$#_{}]", "", escaped)
    assert not set(rest) & set("\\&%$#_{}~^")
    assert all(c.isascii() or ord(c) < 0x180 for c in escaped)
