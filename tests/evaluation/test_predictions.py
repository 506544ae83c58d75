from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from made_runs import rewrite_arrays
from refusals import refusal
from ricnet.core.trajectory import Trajectory, halting_step
from ricnet.evaluation.outcome import Outcome
from ricnet.evaluation.predictions import read_predictions, save_predictions, select_validation, validation_sentence


def outcome(with_values: bool) -> Outcome:
    values = torch.tensor([[1.0, 1.0], [1.0, -1.0]])
    beliefs = torch.tensor([[[0.6, 0.4], [0.3, 0.7]], [[0.9, 0.1], [0.5, 0.5]]])
    path = Trajectory(beliefs.log(), halting_step(values), values if with_values else None)
    return Outcome.of(path, torch.tensor([0, 0]))


def test_what_is_saved_is_read_back(tmp_path: Path) -> None:
    save_predictions({"val": outcome(False), "test": outcome(True)}, tmp_path / "predictions.npz")
    test = read_predictions(tmp_path)
    np.testing.assert_array_equal(test.labels, [0, 0])
    np.testing.assert_array_equal(test.halt_step, [2, 1])
    np.testing.assert_array_equal(test.cell_evaluations, [2, 2])
    np.testing.assert_allclose(test.log_beliefs.exp(), [[0.9, 0.1], [0.3, 0.7]], rtol=1e-6)
    np.testing.assert_allclose(test.step_scores.exp(), [[0.6, 0.3], [0.9, 0.5]], rtol=1e-6)
    np.testing.assert_allclose(test.step_confidence, [[0.6, 0.7], [0.9, 0.5]], rtol=1e-6)
    np.testing.assert_array_equal(test.step_correct[0], [True, False])
    entropy = -(0.6 * np.log(0.6) + 0.4 * np.log(0.4))
    np.testing.assert_allclose(test.step_entropy[0, 0], entropy, rtol=1e-6)
    np.testing.assert_array_equal(test.values, [[1, 1], [1, -1]])
    assert read_predictions(tmp_path, "val").values is None


@pytest.mark.parametrize(
    "changes",
    [
        {"test_labels": np.zeros(3, dtype=np.int64)},
        {"test_step_correct": np.zeros((3, 2), dtype=bool)},
        {"test_values": np.zeros((2, 3), dtype=np.float32)},
        {"test_halt_step": None},
        {"test_halt_step": np.array([1, 3])},
        {"test_labels": np.zeros(2)},
        {"test_costs": np.ones(3)},
        {"test_colour": np.zeros(2)},
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, changes: dict[str, np.ndarray | None]) -> None:
    path = tmp_path / "predictions.npz"
    save_predictions({"test": outcome(True)}, path)
    rewrite_arrays(path, **changes)
    with refusal("predictions.npz") as caught:
        read_predictions(tmp_path)
    # By the reader itself: outside of the tests nothing else checks types and shapes.
    assert isinstance(caught.value.__cause__, TypeError if "test_colour" in changes else (ValueError, KeyError))


def test_what_is_no_file_of_predictions(tmp_path: Path) -> None:
    with refusal(tmp_path, "predictions.npz"):
        read_predictions(tmp_path)
    for content in (b"", b"no archive"):
        (tmp_path / "predictions.npz").write_bytes(content)
        with refusal("predictions.npz"):
            read_predictions(tmp_path)


CONFIDENCE = torch.tensor([[0.4, 0.6, 0.5, 0.9], [0.7, 0.8, 0.95, 0.95]], dtype=torch.float64)

CORRECT = torch.tensor([[True, False, False, True], [True, True, False, True]])

FOUND = Outcome(
    labels=torch.zeros(4, dtype=torch.int64),
    log_beliefs=torch.zeros(4, 2),
    halt_step=torch.tensor([2, 1, 2, 1]),
    cell_evaluations=torch.ones(4, dtype=torch.int64),
    step_scores=torch.zeros(2, 4),
    step_confidence=CONFIDENCE,
    step_correct=CORRECT,
    step_entropy=torch.zeros(2, 4),
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
    single = replace(FOUND, step_confidence=torch.full((2, 4), 0.9))
    assert select_validation(single, float(np.float32(0.9)))[0] == 4


def save(folder: Path, found: Outcome) -> None:
    save_predictions({"val": found}, folder / "predictions.npz")


def test_the_sentence_says_coverage_and_risk(tmp_path: Path) -> None:
    save(tmp_path, FOUND)
    said = validation_sentence(tmp_path, 0.61, None)
    assert all(fact in said for fact in ("3 of 4", "0.61", "75.0%", "1 of them", "33.3%"))
    assert "all 4" in validation_sentence(tmp_path, 1.0, None)
    save(tmp_path, replace(FOUND, step_correct=torch.ones(2, 4, dtype=torch.bool)))
    assert "risk 0.0%" in validation_sentence(tmp_path, 0.61, None)


def test_a_model_without_its_predictions_says_so(tmp_path: Path) -> None:
    assert "is not known" in validation_sentence(tmp_path, 0.9, None)
