from pathlib import Path

import pytest

import write_evidence
from ricnet.report.statistics import Difference, Interval
from write_evidence import NOT_RUN, PAGE, RESULTS, fill, is_early_peak, likeness, rows, tuning, verdict


def test_the_page_is_what_the_files_give() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert fill(text, RESULTS) == text


@pytest.mark.parametrize(
    ("mean", "half_width", "n", "said"),
    [
        (-0.1, 0.05, 3, "**reproduced** (3 seeds)"),
        (0.1, 0.05, 3, "**contradicted** (3 seeds)"),
        (-0.1, 0.2, 5, "**undecided** (5 seeds)"),
        (-0.1, 0.05, 2, "**undecided** (2 seeds, agrees)"),
        (0.1, None, 1, "**undecided** (one seed, disagrees)"),
    ],
)
def test_a_verdict_takes_three_seeds_and_an_interval_without_0(
    mean: float, half_width: float | None, n: int, said: str
) -> None:
    assert verdict(Interval(mean, half_width, n), -1) == said


def test_an_early_peak_is_high_early_and_falls() -> None:
    assert is_early_peak([0.1, 0.6, 0.3, 0.2, 0.1, 0.05, 0.03, 0.02])
    assert not is_early_peak([0.1, 0.6, 0.3, 0.2, 0.1, 0.05, 0.03, 0.2])
    assert not is_early_peak([0.1, 0.1, 0.2, 0.3, 0.6, 0.2, 0.1, 0.05])
    assert not is_early_peak([0.01, 0.02, 0.01, 0.0, 0.0, 0.0, 0.0, 0.0])


@pytest.mark.parametrize(
    ("mean", "half_width", "n", "said"),
    [
        (0.002, 0.005, 3, "reproduced"),
        (0.002, 0.009, 3, "undecided"),
        (0.03, 0.01, 3, "contradicted"),
        (0.0, 0.001, 2, "undecided"),
        (0.0, None, 1, "undecided"),
    ],
)
def test_alike_takes_an_interval_within_the_margin(mean: float, half_width: float | None, n: int, said: str) -> None:
    assert likeness(Difference(mean, half_width, None, n)) == said


def test_every_claim_of_the_paper_has_a_row_and_every_cell_a_verdict() -> None:
    found = {row[0]: row[1:] for row in rows(RESULTS)}
    asked = ("Accuracy above", "ECE below SL's, ", "Under-confident at first", "wrong labels", "Figure 5b", "Figure 5c")
    asked += ("SPO", "Dirichlet", "equal training accuracy", "ACT's ECE", "PonderNet's ECE")
    assert [sum(words in claim for claim in found) for words in asked] == [3, 3, 1, 2, 1, 1, 1, 1, 2, 1, 1]
    for cells in found.values():
        assert all("**" in cell and (cell.startswith(NOT_RUN) or "`" in cell) for cell in cells)


def test_searches_are_counted_without_derived_runs() -> None:
    lines = tuning(RESULTS).splitlines()[2:]
    assert "| 8 | 2 |" in next(line for line in lines if "resnet18-paper" in line)


def test_what_was_not_run_is_said(tmp_path: Path) -> None:
    metric, pairing = write_evidence.ACCURACY, write_evidence.Pairing("nothing", "ric-seed{}", "supervised-seed{}")
    assert write_evidence.difference(tmp_path, metric, 1, [pairing]) == "**not run**"
    assert write_evidence.early_peak(tmp_path, [pairing]) == "**not run**"


def test_a_cell_marks_runs_that_collapsed() -> None:
    named = write_evidence.Pairing("imagewoof-resnet34-fast", "ric-on-policy-seed{}", "supervised-seed{}")
    cell = write_evidence.difference(RESULTS, write_evidence.ACCURACY, 1, [named])
    assert cell.endswith("`imagewoof-resnet34-fast/ric-on-policy-seed[0-2]` †")
    fine = write_evidence.Pairing("imagewoof-resnet34-fast", "ric-marginal-seed{}", "supervised-seed{}")
    assert "†" not in write_evidence.difference(RESULTS, write_evidence.ACCURACY, 1, [fine])
