"""scripts/study_wrong_labels.py: flipped labels, intervals and the table of the page."""

import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_wine
from sklearn.dummy import DummyClassifier

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture(scope="module")
def tool() -> dict[str, Any]:
    sys.path.insert(0, str(SCRIPTS))  # it imports compare_estimators
    try:
        return runpy.run_path(str(SCRIPTS / "study_wrong_labels.py"))
    finally:
        sys.path.remove(str(SCRIPTS))


def test_no_table_of_the_study_chose_a_recipe(tool: dict[str, Any]) -> None:
    chosen_on = sys.modules["compare_estimators"].CHOSEN_ON
    assert not {*tool["TABLES"]} & {*chosen_on, "magic", "penbased", "letter"}


def test_flipped_labels_are_another_class_in_the_given_share(tool: dict[str, Any]) -> None:
    y = np.repeat(np.arange(4), 5_000)
    wrong = tool["flipped"](y, 0.2, seed=0)
    changed = wrong != y
    assert changed.mean() == pytest.approx(0.2, abs=0.01)
    moves = (wrong - y)[changed] % 4
    assert np.bincount(moves, minlength=4)[1:] / changed.sum() == pytest.approx(np.full(3, 1 / 3), abs=0.03)
    assert (tool["flipped"](y, 0.0, seed=0) == y).all()


def test_test_rows_are_judged_by_given_and_by_true_labels(tool: dict[str, Any]) -> None:
    """A classifier that always answers class 1 is right as often as its label occurs."""
    x, y = load_wine(return_X_y=True, as_frame=True)
    scores = tool["measure"](lambda _: DummyClassifier(strategy="constant", constant=1), x, y.to_numpy(), 0.5, 0)
    assert scores["accuracy_true"] == pytest.approx(21 / 54)  # true class 1 among 54 test rows
    assert scores["accuracy"] != scores["accuracy_true"]


def test_the_interval_knows_that_training_sets_overlap(tool: dict[str, Any]) -> None:
    """By hand: s = 1, t(4) = 2.7764, √(1/5 + 3/7) = 0.79282."""
    share = tool["TEST_SHARE"]
    assert tool["interval"]([-1.0, -1.0, 0.0, 1.0, 1.0], share / (1 - share)) == pytest.approx(
        2.7764 * 0.79282, abs=1e-4
    )


def test_differences_are_paired_by_seed(tool: dict[str, Any]) -> None:
    parts = ("log_loss", "log_loss_true", "accuracy_true", "seconds")
    runs = {
        f"{table}, {share:g} wrong, seed {seed}, {name}": dict.fromkeys(parts, seed + (0.1 if name == "SL" else 0.0))
        for table in tool["TABLES"]
        for share in tool["SHARES"]
        for seed in range(3)
        for name in (tool["OURS"], *tool["OTHERS"])
    }
    text = tool["report"]({"runs": runs, "made_with": {"torch": "PyTorch 2.13"}})
    row = next(line for line in text.splitlines() if line.startswith("| splice, 10%"))
    assert row.split(" | ")[1:3] == ["1.000", "−0.100 ± 0.000"]
