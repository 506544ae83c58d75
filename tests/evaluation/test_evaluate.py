import json
import math
import statistics
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

from ricnet.core.trajectory import Trajectory, halting_step
from ricnet.data import Split
from ricnet.evaluation.evaluate import report, summarize
from ricnet.evaluation.outcome import observe, pool_size
from ricnet.methods import Supervised

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


def test_numbers_at_the_halt_steps_and_their_cost_and_what_each_step_would_have_given() -> None:
    """Answers (0.9, 0.1), (0.3, 0.7), (0.2, 0.8): right, right, wrong. Per step, nobody halts."""
    model, scores = nn.Linear(1, 1).train(), [math.log(0.9), math.log(0.7), math.log(0.2)]
    entry = report(observe(Scripted(), model, Split(torch.arange(3).float().unsqueeze(1), LABELS), pool=2))
    assert (Scripted.modes[-2:], model.training) == ([False, False], True)
    by_hand = {
        "accuracy": 2 / 3,
        "mean_confidence": (0.9 + 0.7 + 0.8) / 3,
        "ece_signed": 0.8 - 2 / 3,
        "ece_signed_error": statistics.stdev([-0.1, -0.3, 0.8]) / math.sqrt(3),
        "nll": -sum(scores) / 3,
        "normalized_return": 1 + sum(scores) / 3 / math.log(2),
        "brier": (2 * 0.1**2 + 2 * 0.3**2 + 2 * 0.8**2) / 3,
        "ece": (0.1 + 0.3 + 0.8) / 3,
        "n": 3,
        "ece_bins": 15,
        "mean_steps": (2 + 1 + 2) / 3,
        "mean_cell_evaluations": (2 + 2 + 2) / 3,
        "mean_steps_correct": 1.5,
        "mean_steps_wrong": 2,
    }
    assert {name: entry[name] for name in by_hand} == pytest.approx(by_hand, abs=1e-6)
    assert entry["halting"] == [{"step": 1, "correct": 1, "wrong": 0}, {"step": 2, "correct": 1, "wrong": 1}]
    assert [row["mean_confidence"] for row in entry["per_step"]] == pytest.approx([0.6, 2.6 / 3])
    assert entry["per_step"][1]["nll"] == pytest.approx(-(math.log(0.9) + math.log(0.9) + math.log(0.2)) / 3)
    documented = by_hand.keys() | {"ece_classwise", "aurc", "auroc_correctness", "per_step"}
    assert documented <= json.loads(json.dumps(entry, allow_nan=False)).keys()


def test_all_right_has_no_wrong_steps_and_no_auroc_and_pools_shrink_as_classes_grow() -> None:
    outcome = observe(Scripted(), nn.Linear(1, 1), Split(torch.zeros(2, 1), torch.zeros(2, dtype=torch.int64)))
    assert (report(outcome)["mean_steps_wrong"], report(outcome)["auroc_correctness"]) == (None, None)
    assert summarize(outcome)["accuracy"] == 1
    assert [pool_size(classes) for classes in (2, 100, 256, 1000, 10_000)] == [8192, 8192, 4096, 1048, 512]
