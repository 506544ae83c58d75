"""scripts/compare_estimators.py on a small part of its data."""

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_wine
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression

SCRIPT = Path(__file__).parents[2] / "scripts" / "compare_estimators.py"


@pytest.fixture(scope="module")
def tool() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


def test_no_table_both_chose_and_judged(tool: dict[str, Any]) -> None:
    assert len({*tool["CHOSEN_ON"], *tool["JUDGED_ON"]}) == 16


def test_the_interval_knows_that_training_sets_overlap(tool: dict[str, Any]) -> None:
    """Nadeau and Bengio by hand: s = 1, t(4) = 2.7764, √(1/5 + 1/4) = 0.67082."""
    values = np.array([-1, -1, 0, 1, 1])  # Σx² = 4 = n − 1
    assert tool["interval"](values.tolist()) == pytest.approx(2.7764 * 0.67082, abs=1e-4)


def test_all_are_measured_on_the_same_folds(tool: dict[str, Any]) -> None:
    x, y = load_wine(return_X_y=True, as_frame=True)
    scores = [tool["measure"](lambda _: DummyClassifier(strategy="prior"), x, y.to_numpy()) for _ in range(2)]
    assert scores[0]["accuracy"] == scores[1]["accuracy"]
    assert {len(values) for values in scores[0].values()} == {5}
    assert np.mean(scores[0]["accuracy"]) == pytest.approx(71 / 178, abs=0.005)  # the most frequent of the classes
    assert max(scores[0]["ece"]) < 0.04  # always as sure as that class is frequent


def test_words_are_spread_out_for_those_who_read_numbers(tool: dict[str, Any]) -> None:
    frame = pd.DataFrame({"size": np.arange(40.0), "colour": ["red", "blue"] * 20})
    fitted = tool["encoded"](LogisticRegression()).fit(frame, np.array([0, 1] * 20))
    assert fitted[-1].coef_.shape == (1, 3)
    assert fitted.score(frame, np.array([0, 1] * 20)) == 1


def test_a_column_says_where_ric_wins_and_where_not(tool: dict[str, Any]) -> None:
    def scores(nll: list[float]) -> dict[str, list[float]]:
        return {"log_loss": nll, "accuracy": [0.9] * 5, "ece": [0.1] * 5, "seconds": [2.0] * 5}

    hard = np.array([0.3, 0.4, 0.5, 0.6, 0.7])
    small = np.array([0.001, -0.001, 0.002, 0, 0.001])
    by_name = {
        "RIC, on-policy": hard,
        "SL": hard + 0.1 + small,
        "MLPClassifier": hard - 0.1 + small,
        "logistic regression": hard + small * 10,
    }
    found = {name: dict.fromkeys(tool["JUDGED_ON"], scores(list(nll))) for name, nll in by_name.items()}
    sizes = {data: {"rows": 1000, "columns": 7, "classes": 2} for data in tool["JUDGED_ON"]}
    lines = tool["tables"](found, sizes)
    row = "| australian | 1,000 × 7, 2 | 0.506 | 0.401 | 0.601 | 0.500 | SL | MLPClassifier |"
    assert lines[2] == row
    assert lines[0].startswith(
        "| Log-loss | rows × columns, classes | logistic regression | MLPClassifier | SL | RIC, on-policy |"
    )
    assert len({line.count("|") for line in lines[:-1]}) == 1
    assert lines[10] == "| **mean log-loss** |  | 0.506 | 0.401 | 0.601 | 0.500 |  |  |"
    assert lines[11] == "| **mean accuracy (%)** |  | 90.0 | 90.0 | 90.0 | 90.0 |  |  |"
