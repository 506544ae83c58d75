from pathlib import Path

import numpy as np
import torch

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
