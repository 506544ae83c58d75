from pathlib import Path

import numpy as np
import pytest
import torch

from made_runs import rewrite_arrays
from refusals import refusal
from ricnet.core.trajectory import Trajectory, halting_step
from ricnet.evaluation.evaluate import Outcome, read_predictions, save_predictions


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
    np.testing.assert_allclose(np.exp(test.log_beliefs), [[0.9, 0.1], [0.3, 0.7]], rtol=1e-6)
    np.testing.assert_allclose(np.exp(test.step_scores), [[0.6, 0.3], [0.9, 0.5]], rtol=1e-6)
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
        {"test_colour": np.zeros(2)},
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, changes: dict[str, np.ndarray | None]) -> None:
    path = tmp_path / "predictions.npz"
    save_predictions({"test": outcome(True)}, path)
    rewrite_arrays(path, **changes)
    with refusal("predictions.npz"):
        read_predictions(tmp_path)


def test_what_is_no_file_of_predictions(tmp_path: Path) -> None:
    with refusal(tmp_path, "predictions.npz"):
        read_predictions(tmp_path)
    for content in (b"", b"no archive"):
        (tmp_path / "predictions.npz").write_bytes(content)
        with refusal("predictions.npz"):
            read_predictions(tmp_path)
