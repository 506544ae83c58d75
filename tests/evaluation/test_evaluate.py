import json
import math
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

from ricnet.core.trajectory import Trajectory, halting_step
from ricnet.data import Split
from ricnet.evaluation.evaluate import observe, pool_size, report, summarize
from ricnet.methods import Supervised

# Two steps, three examples, two classes; the value stops the second example after one step.
BELIEFS = torch.tensor(
    [
        [[0.6, 0.4], [0.3, 0.7], [0.5, 0.5]],
        [[0.9, 0.1], [0.1, 0.9], [0.2, 0.8]],
    ]
)
VALUES = torch.tensor([[1.0, 1.0, 1.0], [1.0, -1.0, 1.0]])
LABELS = torch.tensor([0, 1, 0])


class Scripted(Supervised):
    """A method that answers what the test says, whatever the input, which holds the row numbers."""

    modes: ClassVar[list[bool]] = []

    def refine(self, model: nn.Module, inputs: Tensor, max_steps: int | None = None, halt: bool = False) -> Trajectory:
        self.modes.append(model.training)
        rows = inputs[:, 0].long()
        return Trajectory(BELIEFS[:, rows].log(), halting_step(VALUES[:, rows]), VALUES[:, rows])


@pytest.fixture
def entry() -> dict:
    split = Split(torch.arange(3).float().unsqueeze(1), LABELS)
    model = nn.Linear(1, 1).train()
    outcome = observe(Scripted(), model, split, pool=2)
    assert Scripted.modes[-2:] == [False, False]
    assert model.training
    return report(outcome)


def test_numbers_at_the_halt(entry: dict) -> None:
    """Answers (0.9, 0.1), (0.3, 0.7), (0.2, 0.8): right, right, wrong."""
    scores = [math.log(0.9), math.log(0.7), math.log(0.2)]
    assert entry["accuracy"] == pytest.approx(2 / 3)
    assert entry["mean_confidence"] == pytest.approx((0.9 + 0.7 + 0.8) / 3)
    assert entry["ece_signed"] == pytest.approx(0.8 - 2 / 3)
    assert entry["nll"] == pytest.approx(-sum(scores) / 3)
    assert entry["normalized_return"] == pytest.approx(1 + sum(scores) / 3 / math.log(2), abs=1e-6)
    assert entry["brier"] == pytest.approx((2 * 0.1**2 + 2 * 0.3**2 + 2 * 0.8**2) / 3)
    assert entry["ece"] == pytest.approx((0.1 + 0.3 + 0.8) / 3)
    assert (entry["n"], entry["ece_bins"]) == (3, 15)


def test_steps_and_their_cost(entry: dict) -> None:
    assert entry["mean_steps"] == pytest.approx((2 + 1 + 2) / 3)
    assert entry["mean_cell_evaluations"] == pytest.approx((2 + 2 + 2) / 3)
    assert entry["mean_steps_correct"] == pytest.approx(1.5)
    assert entry["mean_steps_wrong"] == pytest.approx(2)
    assert entry["halting"] == [{"step": 1, "correct": 1, "wrong": 0}, {"step": 2, "correct": 1, "wrong": 1}]


def test_per_step_ignores_the_halt(entry: dict) -> None:
    assert [row["mean_confidence"] for row in entry["per_step"]] == pytest.approx([0.6, 2.6 / 3])
    assert entry["per_step"][1]["nll"] == pytest.approx(-(math.log(0.9) + math.log(0.9) + math.log(0.2)) / 3)


def test_entry_has_the_documented_keys_and_is_json(entry: dict) -> None:
    documented = (
        "accuracy, ece, ece_bins, ece_classwise, ece_signed, nll, brier, mean_confidence, normalized_return, "
        "mean_steps, mean_steps_correct, mean_steps_wrong, mean_cell_evaluations, aurc, auroc, n, per_step"
    )
    assert set(documented.split(", ")) <= set(json.loads(json.dumps(entry, allow_nan=False)))


def test_pools_shrink_as_classes_grow() -> None:
    assert [pool_size(classes) for classes in (2, 100, 256, 1000, 10_000)] == [8192, 8192, 4096, 1048, 512]


def test_all_right_has_no_wrong_steps_and_no_auroc() -> None:
    split = Split(torch.zeros(2, 1), torch.zeros(2, dtype=torch.int64))
    outcome = observe(Scripted(), nn.Linear(1, 1), split)
    assert report(outcome)["mean_steps_wrong"] is None
    assert report(outcome)["auroc"] is None
    assert summarize(outcome)["accuracy"] == 1
