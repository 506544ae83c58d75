import math
from dataclasses import replace

import pytest
import torch
from scipy import stats

from ricnet_paper.theory import known_truth

TRUTH = torch.tensor([[0.5, 0.25, 0.25], [0.8, 0.1, 0.1]], dtype=torch.float64)
METHOD = replace(known_truth.METHOD, horizon=2, rollouts=2)


def test_conditionals_are_distributions() -> None:
    torch.testing.assert_close(known_truth.CONDITIONALS.sum(1), torch.ones(4, dtype=torch.float64))
    assert (known_truth.CONDITIONALS > 0).all()


def test_entropy_and_divergence_agree_with_scipy() -> None:
    beliefs = torch.tensor([[0.4, 0.4, 0.2], [0.8, 0.1, 0.1]], dtype=torch.float64)
    assert known_truth.entropy(TRUTH).tolist() == pytest.approx(stats.entropy(TRUTH, axis=1))
    expected = stats.entropy(TRUTH, beliefs, axis=1)
    assert known_truth.divergence(TRUTH, beliefs.log()).tolist() == pytest.approx(expected)
    assert expected[1] == 0


def test_a_class_that_never_comes_costs_nothing() -> None:
    sure = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    assert known_truth.divergence(sure, torch.tensor([[0.5, 0.5]]).double().log()).item() == pytest.approx(math.log(2))


def test_labels_come_as_often_as_q_says() -> None:
    labels = known_truth.draw_labels(TRUTH, 10_000)
    shares = torch.stack([(labels == k).double().mean(1) for k in range(3)], 1)
    torch.testing.assert_close(shares, TRUTH, atol=0.02, rtol=0)


def test_training_repeats_moves_towards_q_and_leaves_the_random_state_alone() -> None:
    before = torch.get_rng_state()
    first, second = (known_truth.train_agent(METHOD, TRUTH, updates=20) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, other)
    inputs = known_truth.contexts(TRUTH)
    start = METHOD.refine(known_truth.untrained_agent(METHOD, TRUTH), inputs)
    reached = METHOD.refine(first, inputs)
    distances = [known_truth.divergence(TRUTH, path.final.double()).mean() for path in (reached, start)]
    assert distances[0] < 0.9 * distances[1]
