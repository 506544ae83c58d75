import torch

from ricnet.core.trajectory import Trajectory
from ricnet.evaluation.evaluate import Outcome
from ricnet.evaluation.examples import pick_rows


def test_examples_are_the_quick_the_thoughtful_and_the_wrong() -> None:
    """Class 0 is right everywhere. Row 2 gains most after its first step; rows 1 and 4 are wrong, 4 the surer."""
    first = torch.tensor([0.9, 0.4, 0.1, 0.6, 0.3])
    last = torch.tensor([0.9, 0.4, 0.8, 0.7, 0.2])
    beliefs = torch.stack([torch.stack([p, 1 - p], dim=-1) for p in (first, last)]).log()
    path = Trajectory(beliefs, torch.tensor([1, 2, 2, 2, 2]))
    outcome = Outcome.of(path, torch.zeros(5, dtype=torch.int64))
    assert pick_rows(outcome, each=1).tolist() == [0, 2, 4]
    assert pick_rows(outcome, each=2).tolist() == [0, 2, 3, 4, 1]


def test_nothing_wrong_leaves_out_the_wrong() -> None:
    beliefs = torch.tensor([[[0.9, 0.1], [0.8, 0.2]]]).log()
    outcome = Outcome.of(Trajectory(beliefs, torch.ones(2, dtype=torch.int64)), torch.zeros(2, dtype=torch.int64))
    assert pick_rows(outcome, each=2).tolist() == [0, 1]
