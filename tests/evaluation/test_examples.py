from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ricnet.core.trajectory import Trajectory
from ricnet.data import Split
from ricnet.evaluation.evaluate import Outcome, Reading
from ricnet.evaluation.examples import pick_rows, save_examples
from ricnet.methods import Supervised


def trajectory_of(*beliefs: list[float], halt: list[int]) -> Trajectory:
    """Belief in the first of two classes after each step."""
    steps = [torch.stack([p, 1 - p], dim=-1) for p in torch.tensor(beliefs)]
    return Trajectory(torch.stack(steps).log(), torch.tensor(halt))


def outcome_of(*beliefs: list[float], halt: list[int]) -> Outcome:
    """Class 0 is always true."""
    return Outcome.of(trajectory_of(*beliefs, halt=halt), torch.zeros(len(halt), dtype=torch.int64))


FIRST, LAST, HALT = [0.9, 0.4, 0.1, 0.6, 0.3, 0.95], [0.9, 0.4, 0.8, 0.7, 0.2, 0.95], [1, 2, 2, 2, 2, 1]
"""Rows 2 and 3 gain 0.7 and 0.1 after their first step; 1 and 4 are wrong, 4 with more confidence; 5 exceeds 0."""


@pytest.mark.parametrize(
    ("beliefs", "halt", "each", "rows"),
    [
        ([FIRST, LAST], HALT, 1, [[5], [2], [4], [1]]),
        ([FIRST, LAST], HALT, 4, [[5, 0], [2, 3], [4, 1], []]),
        ([[0.5, 0.6], [0.7, 0.9]], [2, 2], 1, [[0], [1], [], []]),  # no example has two kinds
        ([[0.5, 0.6], [0.7, 0.9]], [2, 2], 2, [[0], [1], [], []]),
        ([[0.9, 0.6, 0.7, 0.2]], [1] * 4, 1, [[0], [1], [3], []]),  # with one step, the least confident are hard
        ([[0.9, 0.8], [0.95, 0.99]], [1, 1], 4, [[0, 1], [], [], []]),  # examples that take one step are never hard
    ],
)
def test_examples_are_easy_hard_wrong_and_confused(
    beliefs: list[list[float]], halt: list[int], each: int, rows: list[list[int]]
) -> None:
    names = ("easy", "hard", "wrong", "confused")
    assert pick_rows(outcome_of(*beliefs, halt=halt), each) == dict(zip(names, rows, strict=True))


@dataclass(frozen=True)
class Fickle(Supervised):
    """A method with given answers; its inputs are row numbers."""

    path: Trajectory = field(default_factory=lambda: trajectory_of([0.9], halt=[1]))

    def refine(self, model: nn.Module, inputs: Tensor, max_steps: int | None = None, halt: bool = False) -> Trajectory:
        rows = inputs[:, 0].long()
        return Trajectory(self.path.log_beliefs[:, rows], self.path.halt_step[rows])


def saved(path: Trajectory, outcome: Outcome, file: Path, temperature: float = 1.0) -> dict[str, np.ndarray]:
    labels = torch.zeros(len(outcome.labels), dtype=torch.int64)
    split = Split(torch.arange(len(labels)).float().unsqueeze(1), labels)
    save_examples(Fickle(path=path), nn.Linear(1, 1), split, outcome, file, Reading(temperature))
    return dict(np.load(file))


def test_kinds_are_stored_beside_the_examples(tmp_path: Path) -> None:
    stored = saved(trajectory_of(FIRST, LAST, halt=HALT), outcome_of(FIRST, LAST, halt=HALT), tmp_path / "examples.npz")
    assert stored["x"][:, 0].tolist() == [5, 0, 2, 3, 4, 1]
    assert stored["kind"].tolist() == [0, 0, 1, 1, 2, 2]
    assert stored["halt_step"].tolist() == [1, 1, 2, 2, 2, 2]
    np.testing.assert_allclose(np.exp(stored["log_beliefs"])[1, :, 0], [0.95, 0.9, 0.8, 0.7, 0.2, 0.4], rtol=1e-6)


def test_kinds_speak_of_the_beliefs_that_are_stored(tmp_path: Path) -> None:
    """Row 0 was right in the evaluation and is wrong when refined again; row 2 the reverse."""
    judged = outcome_of([0.9, 0.8, 0.2], halt=[1, 1, 1])
    stored = saved(trajectory_of([0.1, 0.8, 0.9], halt=[1, 1, 1]), judged, tmp_path / "examples.npz")
    right = np.exp(stored["log_beliefs"])[0, :, 0] > 0.5
    assert stored["x"][:, 0].tolist() == [2, 1, 0]
    assert stored["kind"].tolist() == [0, 1, 2]
    assert right.tolist() == [True, True, False]


def test_stored_beliefs_are_tempered(tmp_path: Path) -> None:
    """0.9 against 0.1 at T = 2 is 3 against 1."""
    path = trajectory_of([0.9], halt=[1])
    stored = saved(path, outcome_of([0.9], halt=[1]), tmp_path / "examples.npz", temperature=2.0)
    np.testing.assert_allclose(np.exp(stored["log_beliefs"])[0, 0], [0.75, 0.25], rtol=1e-6)


def test_mistakes_of_one_kind_have_examples() -> None:
    """Of three classes, 0 is taken for 1 three times, 1 for 2 twice and 2 for 0 once; the most confident first."""
    answers, labels = [1, 1, 1, 2, 2, 0], [0, 0, 0, 1, 1, 2]
    sure = torch.tensor([0.5, 0.7, 0.6, 0.5, 0.6, 0.9])
    beliefs = torch.stack([torch.full((3,), float((1 - p) / 2)) for p in sure])
    beliefs[torch.arange(6), torch.tensor(answers)] = sure
    path = Trajectory(beliefs.log().unsqueeze(0), torch.ones(6, dtype=torch.int64))
    kinds = pick_rows(Outcome.of(path, torch.tensor(labels)), each=1)
    assert kinds["wrong"] == [5]
    assert kinds["confused"] == [1, 2, 4, 3]
