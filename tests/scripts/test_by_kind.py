"""scripts/by_kind.py: the table of each kind of data is what the files give."""

import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"


@pytest.fixture(scope="module")
def tool() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "scripts" / "by_kind.py"))


def test_texts_are_means_over_seeds_and_then_over_corpora(tool: dict[str, Any]) -> None:
    def run(accuracy: float, nll: float) -> dict[str, float]:
        return {"accuracy": accuracy, "nll": nll, "ece": 0.1, "seconds": 3.0}

    corpora = {"subj": {"SL": {"0": run(0.5, 1.0), "1": run(0.7, 2.0)}}, "20ng": {"SL": {"0": run(0.8, 0.5)}}}
    corpora["mr"] = {"SL": {"0": run(0.1, 9.0)}}  # it chose the recipe
    assert tool["_texts"](corpora) == [["SL", "1", "70.00", "1.000", "0.100", "3.0"]]


def test_tables_are_means_over_folds_and_then_over_tables(tool: dict[str, Any]) -> None:
    part = {"accuracy": [0.5, 0.7], "log_loss": [1.0, 2.0], "ece": [0.1, 0.1], "seconds": [1.0, 3.0]}
    other = {"accuracy": [0.8], "log_loss": [0.5], "ece": [0.3], "seconds": [4.0]}
    names = {name: {"tae": part, "ring": other} for name in tool["OF_TABLES"].values()}
    names["MLPClassifier"] = {"tae": part}  # which other tables do not have
    rows = tool["_tables"](names, ("tae", "ring"))
    assert [row[0] for row in rows] == [name for name in tool["OF_TABLES"] if name != "MLPClassifier"]
    assert rows[0][1:] == ["1 or 2 folds", "70.00", "1.000", "0.200", "3.0"]


def test_images_have_seconds_only_where_they_were_trained(tool: dict[str, Any]) -> None:
    rows = {row[0]: row for row in tool["_images"]("cifar10-resnet34-fast", RESULTS)}
    assert rows["SL"][1] == rows["RIC, on-policy"][1] == "5"
    assert rows["SL"][-1] != "–"
    assert rows["SL + temperature"][-1] == rows["RIC, on-policy, calibrated"][-1] == "–"


def test_every_kind_has_sl_and_ric(tool: dict[str, Any]) -> None:
    table, page = tool["by_kind"](RESULTS), (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    for kind in ("Photographs", "Small images", "Tables", "Larger tables", "Texts"):
        assert f"| {kind} |" in table
        assert f"- **{kind}**: " in page
    assert table.count("| RIC, on-policy |") == 5
