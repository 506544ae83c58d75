import torch

from ricnet.core.trajectory import Trajectory
from ricnet.evaluation.evaluate import Outcome
from ricnet.evaluation.examples import pick_rows


def outcome_of(*beliefs: list[float], halt: list[int]) -> Outcome:
    """Of two classes, of which class 0 is always true; its belief after each step."""
    trajectory = torch.stack([torch.stack([p, 1 - p], dim=-1) for p in torch.tensor(beliefs)]).log()
    return Outcome.of(Trajectory(trajectory, torch.tensor(halt)), torch.zeros(len(halt), dtype=torch.int64))


def test_examples_are_easy_then_hard_then_wrong() -> None:
    """Rows 2 and 3 gain 0.7 and 0.1 after their first step; rows 1 and 4 are wrong, 4 the surer; 5 is surer than 0."""
    first, last = [0.9, 0.4, 0.1, 0.6, 0.3, 0.95], [0.9, 0.4, 0.8, 0.7, 0.2, 0.95]
    outcome = outcome_of(first, last, halt=[1, 2, 2, 2, 2, 1])
    assert pick_rows(outcome, each=1).tolist() == [5, 2, 4]
    assert pick_rows(outcome).tolist() == [5, 0, 2, 3, 4, 1]


def test_no_example_is_of_two_kinds() -> None:
    """Both gain after their first step: the one that gains more is hard, and the other is left to be easy."""
    outcome = outcome_of([0.5, 0.6], [0.7, 0.9], halt=[2, 2])
    assert pick_rows(outcome, each=1).tolist() == [0, 1]
    assert pick_rows(outcome, each=2).tolist() == [0, 1]


def test_with_one_step_the_least_sure_are_hard() -> None:
    assert pick_rows(outcome_of([0.9, 0.6, 0.7, 0.2], halt=[1] * 4), each=1).tolist() == [0, 1, 3]


def test_nothing_wrong_leaves_out_the_wrong() -> None:
    beliefs = torch.tensor([[[0.9, 0.1], [0.8, 0.2]]]).log()
    outcome = Outcome.of(Trajectory(beliefs, torch.ones(2, dtype=torch.int64)), torch.zeros(2, dtype=torch.int64))
    assert pick_rows(outcome, each=2).tolist() == [0, 1]
