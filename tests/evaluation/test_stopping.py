import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ricnet.core.trajectory import Trajectory, halting_step
from ricnet.evaluation.evaluate import AS_TRAINED, Outcome, Reading
from ricnet.evaluation.fitting import THRESHOLDS, choose_halt


def outcome_of(beliefs: list[list[float]], values: list[list[float]]) -> Outcome:
    """Of examples of class 0 of two: what is believed of it, step by step."""
    sure = torch.tensor(beliefs, dtype=torch.float64)
    path = torch.stack([sure, 1 - sure], -1).log()
    v = torch.tensor(values, dtype=torch.float64)
    return Outcome.of(Trajectory(path, halting_step(v), v), torch.zeros(len(beliefs[0]), dtype=torch.int64))


def test_where_later_steps_are_worse_it_stops_after_the_first() -> None:
    """The value promises a gain at every step, and there is none."""
    choice = choose_halt(outcome_of([[0.8, 0.7], [0.6, 0.6], [0.5, 0.5]], [[1.0, 1.0]] * 3))
    first = -(np.log(0.8) + np.log(0.7)) / 2
    assert (choice.max_steps, choice.best_step, choice.mean_steps) == (1, 1, 1)
    assert choice.nll == choice.best_step_nll == pytest.approx(first)
    assert choice.nll_before == pytest.approx(-np.log(0.5))
    assert choice.steps_before == 3


def test_a_middle_step_that_is_best_for_all_is_the_largest() -> None:
    choice = choose_halt(outcome_of([[0.5, 0.5], [0.9, 0.9], [0.6, 0.6]], [[9.0, 9.0]] * 3))
    assert (choice.max_steps, choice.best_step) == (2, 2)
    assert not choice.reached


def test_a_value_that_knows_each_examples_best_step_is_heeded() -> None:
    """Stopping one after the first step and the other after the third beats any single step."""
    beliefs, values = [[0.9, 0.4], [0.5, 0.5], [0.4, 0.9]], [[1.0, 1.0], [-0.5, 1.0], [-0.5, 1.0]]
    choice = choose_halt(outcome_of(beliefs, values))
    assert (choice.max_steps, choice.mean_steps, choice.reached) == (3, 2, True)
    assert choice.nll == pytest.approx(-np.log(0.9))
    assert choice.nll < choice.best_step_nll


def test_the_papers_rule_stays_where_it_is_as_good_though_it_takes_more_steps() -> None:
    choice = choose_halt(outcome_of([[0.8, 0.8]] * 4, [[1.0, 1.0]] * 4))
    assert (choice.halt_threshold, choice.max_steps, choice.mean_steps) == (0.0, 4, 4)


def test_of_rules_that_are_about_as_good_the_one_with_fewest_steps_is_taken() -> None:
    """Steps 2 and 3 are alike, and better than the last, to which the value leads."""
    choice = choose_halt(outcome_of([[0.5, 0.6], [0.8, 0.81], [0.81, 0.8], [0.5, 0.6]], [[1.0, 1.0]] * 4))
    assert (choice.max_steps, choice.mean_steps) == (2, 2)


@given(st.integers(0, 10_000), st.integers(1, 6), st.integers(2, 30))
def test_it_is_never_worse_than_the_best_single_step_and_no_good_rule_has_fewer_steps(
    seed: int, steps: int, n: int
) -> None:
    """Against every rule written out in numpy."""
    rng = np.random.default_rng(seed)
    beliefs, values = rng.uniform(0.05, 0.95, (steps, n)), rng.normal(0, 0.2, (steps, n))
    choice = choose_halt(outcome_of(beliefs.tolist(), values.tolist()))

    def stops(threshold: float, most: int) -> list[int]:
        return [next((t for t in range(1, most) if values[t, i] < threshold), most) for i in range(n)]

    def losses(halts: list[int]) -> np.ndarray:
        return np.array([-np.log(beliefs[halt - 1, i]) for i, halt in enumerate(halts)])

    found = [stops(*rule) for rule in itertools.product((values.min() - 1, *THRESHOLDS), range(1, steps + 1))]
    least = min(map(losses, found), key=np.mean)

    best_step = min(-np.log(beliefs).mean(1))

    def good(halts: list[int]) -> bool:
        excess = losses(halts) - least
        return bool(
            losses(halts).mean() <= best_step + 5e-5
            and excess.mean() <= 1.000001 * max(excess.std(ddof=1) / np.sqrt(n), 5e-5)
        )

    chosen, usual = stops(choice.halt_threshold, choice.max_steps), stops(0.0, steps)
    assert choice.nll == pytest.approx(losses(chosen).mean())
    assert choice.best_step_nll == pytest.approx(best_step)
    assert good(chosen)
    if good(usual):
        assert chosen == usual
    else:
        assert np.mean(chosen) == pytest.approx(min(np.mean(halts) for halts in found if good(halts)))


def test_a_reading_stops_as_it_says_and_keeps_the_later_steps() -> None:
    values = torch.tensor([[1.0, 1.0], [-0.5, 1.0], [-0.5, 1.0], [0.0, 1.0]])
    path = Trajectory(torch.randn(4, 2, 3).log_softmax(-1), halting_step(values), values)
    assert AS_TRAINED.read(path).halt_step.tolist() == [1, 4]
    read = Reading(temperature=2.0, halt_threshold=-1.0, max_steps=3).read(path)
    assert read.halt_step.tolist() == [3, 3]
    assert read.steps == 4
    torch.testing.assert_close(read.log_beliefs, (path.log_beliefs / 2).log_softmax(-1))
    outcome = Outcome.of(Reading(max_steps=3).read(path), torch.zeros(2, dtype=torch.int64), 3)
    assert len(outcome.step_scores) == 4
    assert outcome.halt_step.tolist() == [1, 3]
    assert outcome.cell_evaluations.tolist() == [2, 3]  # who stops at the limit has not looked ahead
