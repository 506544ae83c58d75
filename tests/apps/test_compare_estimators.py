"""The comparison with scikit-learn's own, on as much of it as takes no time."""

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.dummy import DummyClassifier

SCRIPT = Path(__file__).parents[2] / "scripts" / "compare_estimators.py"


@pytest.fixture(scope="module")
def tool() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


def test_the_interval_knows_that_training_sets_overlap(tool: dict[str, Any]) -> None:
    """Nadeau and Bengio by hand: s = 1, t(24) = 2.0639, √(1/25 + 1/4) = 0.53852."""
    values = np.r_[np.full(12, 1.0), 0.0, np.full(12, -1.0)]  # Σx² = 24 = n − 1
    assert tool["interval"](values.tolist()) == pytest.approx(2.0639 * 0.53852, abs=1e-4)


def test_all_are_measured_on_the_same_splits(tool: dict[str, Any]) -> None:
    scores = [tool["measure"](lambda _: DummyClassifier(strategy="prior"), "wine") for _ in range(2)]
    assert scores[0]["accuracy"] == scores[1]["accuracy"]
    assert len(scores[0]["log_loss"]) == 25
    assert np.mean(scores[0]["accuracy"]) == pytest.approx(71 / 178, abs=0.005)  # the most frequent of the classes


def test_a_row_of_the_table_waits_until_all_sets_are_measured(tool: dict[str, Any]) -> None:
    whole = {"accuracy": [0.9] * 25, "log_loss": [0.25] * 25, "seconds": [2.0] * 25}
    scores = {"RICClassifier": dict.fromkeys(tool["DATA"], whole), "MLPClassifier": {"wine": whole}}
    lines = tool["rows"](scores)
    assert len(lines) == 3
    assert lines[2].startswith("| RICClassifier | 90.0 ± 0.0 | 0.250 ± 0.000 |")
    assert lines[2].endswith("| 2.0, 2.0, 2.0 |")
    assert len({line.count("|") for line in lines}) == 1


def test_differences_are_taken_fold_by_fold(tool: dict[str, Any]) -> None:
    theirs = {"accuracy": np.linspace(0.5, 0.9, 25).tolist(), "log_loss": [0.25] * 25, "seconds": [2.0] * 25}
    ours = theirs | {"accuracy": (np.linspace(0.5, 0.9, 25) + 0.02).tolist(), "log_loss": [0.2] * 25}
    scores = {"RICClassifier": dict.fromkeys(tool["DATA"], ours), "MLPClassifier": dict.fromkeys(tool["DATA"], theirs)}
    lines = tool["rows"](scores)
    assert lines[-1].startswith("| MLPClassifier | +2.0 ± 0.0 | -0.050 ± 0.000 |")
    assert len({line.count("|") for line in lines[-3:]}) == 1
