from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from ricnet.report.runs import RunRecord, read_runs
from ricnet.report.tables import caption, comparison, comparison_markdown, comparison_table

from .conftest import MakeRun


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
    columns, (ric, sl) = comparison(pair)
    assert {"ECE (15 bins)", "Run seconds"} <= {column.title for column in columns}
    assert caption(pair).endswith("Run seconds include measuring each epoch.")
    assert [cell.text for cell in ric][:7] == ["RIC", "digits", "98.44 %", "0.018", "0.061", "0.031", "8.9"]
    assert [cell.best for cell in ric][2:] == [False, True, True, False, False, False, False]
    assert [cell.best for cell in sl][2:] == [True, False, True, True, False, False, False]  # 0.061 ties


def test_nothing_is_best_alone_or_on_other_data(pair: list[RunRecord]) -> None:
    ric, sl = pair
    elsewhere = replace(sl, config={**sl.config, "data": "svhn"})
    for runs in ([ric], [ric, elsewhere]):
        assert not any(cell.best for cells in comparison(runs)[1] for cell in cells)
        assert "Bold" not in caption(runs)


def test_a_derived_run_took_no_seconds(pair: list[RunRecord]) -> None:
    ric, sl = comparison([pair[0], replace(pair[1], derived_from="base")])[1]
    assert (ric[-1].text, sl[-1].text) == ("61", "–")


def test_a_missing_score_never_wins(pair: list[RunRecord]) -> None:
    runs = [measured(pair[0], nll=float("nan")), pair[1]]
    rows = comparison(runs)[1]
    assert (rows[0][4].text, rows[0][4].best, rows[1][4].best) == ("–", False, True)
    assert not any(row[4].best for row in comparison([measured(run, nll=float("nan")) for run in pair])[1])


def test_markdown(pair: list[RunRecord]) -> None:
    lines = comparison_markdown(pair).splitlines()
    assert lines[2].startswith("| RIC | digits | 98.44 % | **0.018** | **0.061** |")
    assert len({line.count("|") for line in lines[:4]}) == 1
    assert "n = 450" in lines[-1]


def test_markdown_escapes_what_would_break_it(pair: list[RunRecord]) -> None:
    assert r"a\|b &lt;i>" in comparison_markdown([replace(pair[0], label="a|b <i>")])


def test_terminal_table(pair: list[RunRecord]) -> None:
    console = Console(width=120)
    with console.capture() as captured:
        console.print(comparison_table([replace(pair[0], label="[red]x"), pair[1]]))
    assert "98.44 %" in captured.get()
    assert "[red]x" in captured.get()


def test_caption_tells_size_error_and_seeds(pair: list[RunRecord]) -> None:
    assert caption(pair).startswith("Test set: digits, n = 450 (standard error of an accuracy: about 0.56 points).")
    assert "One seed each (0)." in caption(pair)
    other = replace(pair[0], config={**pair[0].config, "seed": 7})
    assert "Seeds: RIC on digits: 0, 7; SL on digits: 0." in caption([*pair, other])
    assert "Seeds 0 and 7 each." in caption([pair[0], other])


def test_the_terminal_table_fits_eighty_columns(pair: list[RunRecord]) -> None:
    console = Console(width=80)
    with console.capture() as captured:
        console.print(comparison_table([pair[0], replace(pair[1], label="PonderNet")]))
    lines = captured.get().splitlines()
    assert sum("98." in line and line.rstrip().endswith("61") for line in lines) == 2
    assert "…" not in captured.get()
