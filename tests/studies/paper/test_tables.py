from dataclasses import replace
from pathlib import Path

import pandas as pd

from ricnet.report.tables import Cell, Grid
from ricnet.studies.paper.kit import METRICS, measure, write_cell, write_latex, write_markdown

from .conftest import pick, record

GRID = Grid(["System", "9 % flipped"], [[Cell("SL"), Cell("98.9 ± 0.3", best=True)], [Cell("RIC"), Cell("–")]])


def test_markdown() -> None:
    assert write_markdown(GRID, "A note.").splitlines() == [
        "| System | 9 % flipped |",
        "| :--- | ---: |",
        "| SL | **98.9 ± 0.3** |",
        "| RIC | – |",
        "",
        "A note.",
    ]


def test_latex_is_escaped_and_closed() -> None:
    text = write_latex(GRID, "Table_1", "95 % of a & b.", [r"System & 9 \% flipped \\"])
    assert r"SL & \textbf{98.9 $\pm$ 0.3} \\" in text
    assert r"RIC & -- \\" in text
    assert r"\caption{\textbf{Table\_1.} 95 \% of a \& b.}" in text
    for name in ("table", "tabular"):
        assert text.count(rf"\begin{{{name}}}") == text.count(rf"\end{{{name}}}") == 1
    assert text.count("{") == text.count("}")


def test_every_metric_is_of_the_split_that_it_names(tmp_path: Path) -> None:
    splits = {
        name: {"accuracy": place, "nll": 10 + place, "ece": 20 + place, "ece_signed": 30 + place, "mean_steps": 40}
        for place, name in enumerate(("train", "val", "test"))
    }
    splits["test"] |= {"n": 90, "ece_bins": 15}
    found = measure([replace(record(tmp_path), evaluation=splits)], METRICS)
    assert dict(zip(found["quantity"], found["value"], strict=True)) == {
        **{"train accuracy": 0, "val accuracy": 1, "test accuracy": 2},
        **{"val nll": 11, "test nll": 12, "test ece": 22, "test ece signed": 32, "mean steps": 40},
    }
    assert (set(found["examples"]), set(found["bins"])) == ({90}, {15})


def test_shares_are_written_in_percent() -> None:
    table = pd.DataFrame({"quantity": ["a"], "mean": [0.9123], "half_width": [0.001]})
    assert write_cell(METRICS["test accuracy"], table) == "91.23 ± 0.10"
    assert write_cell(METRICS["test ece"], table, intervals=False) == "0.912"
    assert write_cell(METRICS["test ece"], pick(table, quantity="b")) == "–"
