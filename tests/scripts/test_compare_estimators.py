"""scripts/compare_estimators.py on a small part of its data."""

import copy
import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_wine
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression

import ricnet

SCRIPT = Path(__file__).parents[2] / "scripts" / "compare_estimators.py"


@pytest.fixture(scope="module")
def tool() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


def test_no_table_both_chose_and_judged(tool: dict[str, Any]) -> None:
    judges = [*tool["JUDGED_ON"], *tool["LARGER"]]
    assert not {*tool["CHOSEN_ON"], *tool["SEEN"]} & {*judges}
    assert len({*judges}) == 8 + 7


def test_the_interval_knows_that_training_sets_overlap(tool: dict[str, Any]) -> None:
    """Nadeau and Bengio by hand: s = 1, t(4) = 2.7764, √(1/5 + 1/4) = 0.67082."""
    values = np.array([-1, -1, 0, 1, 1])  # Σx² = 4 = n − 1
    assert tool["interval"](values.tolist()) == pytest.approx(2.7764 * 0.67082, abs=1e-4)


def test_all_are_measured_on_the_same_folds(tool: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = load_wine(return_X_y=True, as_frame=True)
    monkeypatch.setitem(tool["ESTIMATORS"], "prior", lambda _: DummyClassifier(strategy="prior"))
    scores, again = (tool["measure"]("prior", x, y.to_numpy())["prior"] for _ in range(2))
    assert scores["accuracy"] == again["accuracy"]
    assert {len(values) for values in scores.values()} == {5}
    assert np.mean(scores["accuracy"]) == pytest.approx(71 / 178, abs=0.005)  # the most frequent of the classes
    assert max(scores["ece"]) < 0.04  # always as sure as that class is frequent


def test_ours_are_also_read_as_trained(tool: dict[str, Any]) -> None:
    x, y = load_wine(return_X_y=True, as_frame=True)
    fitted = ricnet.SupervisedClassifier(epochs=2, random_state=0, device="cpu").fit(x, y)
    warm = copy.copy(fitted)
    warm.classifier_ = replace(fitted.classifier_, temperature=2.0)
    plain = replace(fitted.classifier_, temperature=1.0)
    found = tool["answers"]("SL", warm, x)
    np.testing.assert_allclose(found["SL, as trained"], plain.predict_proba(x.to_numpy()), atol=1e-6)
    assert (found["SL"].max(1) < found["SL, as trained"].max(1)).all()


def test_words_are_spread_out_for_those_who_read_numbers(tool: dict[str, Any]) -> None:
    frame = pd.DataFrame({"size": np.arange(40.0), "colour": ["red", "blue"] * 20})
    fitted = tool["encoded"](LogisticRegression()).fit(frame, np.array([0, 1] * 20))
    assert fitted[-1].coef_.shape == (1, 3)
    assert fitted.score(frame, np.array([0, 1] * 20)) == 1


def test_differences_have_intervals_and_bold_is_what_excludes_0(tool: dict[str, Any]) -> None:
    def scores(nll: np.ndarray) -> dict[str, list[float]]:
        return {"log_loss": list(nll), "accuracy": [0.9] * 5, "ece": [0.1] * 5, "seconds": [2.0] * 5}

    hard, small = np.array([0.3, 0.4, 0.5, 0.6, 0.7]), np.array([0.001, -0.001, 0.002, 0, 0.001])
    columns = tool["readings"](tool["ESTIMATORS"])
    by_name = dict.fromkeys(columns, hard) | {"SL": hard + 0.1 + small, "gradient boosting": hard + 10 * small}
    found = {name: dict.fromkeys(tool["JUDGED_ON"], scores(nll)) for name, nll in by_name.items()}
    sizes = {data: {"rows": 1000, "columns": 7, "classes": 2} for data in tool["JUDGED_ON"]}
    lines = tool["tables"]({"scores": found, "tables": sizes}, tool["JUDGED_ON"], tool["ESTIMATORS"])
    half = tool["interval"](list(small))
    row = "| tae | 1,000 × 7, 2 | 0.500 | 0.500 | 0.506 | 0.500 | 0.601 | 0.500 | 0.500 | "
    assert lines[2] == f"{row}−0.006 ± {10 * half:.3f} | **−0.101 ± {half:.3f}** |"
    assert lines[0].startswith("| Log-loss | rows × columns, classes | logistic regression | MLPClassifier |")
    assert len({line.count("|") for line in lines if line}) == 1
    assert lines[10].startswith("| **mean log-loss** |  | 0.500 | 0.500 | 0.506 |")
    assert lines[11].startswith("| **mean ECE (15 bins)** |  | 0.100 |")
    assert lines[16].endswith("| 90.0 | +0.0 ± 0.0 | +0.0 ± 0.0 |")
