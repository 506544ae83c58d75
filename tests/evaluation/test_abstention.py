from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ricnet.evaluation.evaluate import Predictions, select_validation, validation_sentence

CONFIDENCE = np.array([[0.4, 0.6, 0.5, 0.9], [0.7, 0.8, 0.95, 0.95]])
CORRECT = np.array([[True, False, False, True], [True, True, False, True]])
FOUND = Predictions(
    labels=np.zeros(4, int),
    log_beliefs=np.zeros((4, 2)),
    halt_step=np.array([2, 1, 2, 1]),
    cell_evaluations=np.ones(4, int),
    step_scores=np.zeros((2, 4)),
    step_confidence=CONFIDENCE,
    step_correct=CORRECT,
    step_entropy=np.zeros((2, 4)),
)
"""At their own halts: 0.7 right, 0.6 wrong, 0.95 wrong, 0.9 right."""


@pytest.mark.parametrize(
    ("threshold", "answered", "wrong"), [(0.5, 4, 2), (0.6, 4, 2), (0.61, 3, 1), (0.95, 1, 1), (0.96, 0, 0)]
)
def test_answers_are_counted_at_each_halt(threshold: float, answered: int, wrong: int) -> None:
    assert select_validation(FOUND, threshold) == (answered, wrong)


def test_fewer_steps_are_taken_into_account() -> None:
    """After one step: 0.4 right, 0.6 wrong, 0.5 wrong, 0.9 right."""
    assert select_validation(FOUND, 0.5, 1) == (3, 2)
    assert select_validation(FOUND, 0.5, 9) == select_validation(FOUND, 0.5)


def test_single_precision_is_compared_as_it_is() -> None:
    single = replace(FOUND, step_confidence=np.full((2, 4), 0.9, np.float32))
    assert select_validation(single, float(np.float32(0.9)))[0] == 4


def save(folder: Path, found: Predictions) -> None:
    arrays = {f"val_{name}": value for name, value in vars(found).items() if value is not None}
    np.savez(folder / "predictions.npz", **arrays)


def test_the_sentence_says_coverage_and_risk(tmp_path: Path) -> None:
    save(tmp_path, FOUND)
    assert validation_sentence(tmp_path, 0.61, None) == (
        "On validation data 3 of 4 answers had a confidence of 0.61 or more (coverage 75.0%), "
        "and 1 of them was wrong (risk 33.3%)."
    )
    assert "all 4 would be unsure" in validation_sentence(tmp_path, 1.0, None)
    save(tmp_path, replace(FOUND, step_correct=np.ones((2, 4), bool)))
    assert "0 of them were wrong (risk 0.0%)" in validation_sentence(tmp_path, 0.61, None)


def test_a_model_without_its_predictions_says_so(tmp_path: Path) -> None:
    assert "is not known" in validation_sentence(tmp_path, 0.9, None)
