import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ricnet.core import mdp


def test_reward_is_the_gain_in_log_score_of_the_true_class() -> None:
    beliefs = torch.tensor([[[0.5, 0.25, 0.25]], [[0.2, 0.7, 0.1]]]).log()
    scores = mdp.log_scores(beliefs, torch.tensor([1]))
    expected = [math.log(0.25) - math.log(1 / 3), math.log(0.7) - math.log(0.25)]
    assert mdp.rewards(scores, classes=3).squeeze().tolist() == pytest.approx(expected)


def test_reward_floor_limits_what_one_sample_can_cost() -> None:
    scores = torch.tensor([[-500.0], [math.log(0.5)]])
    limited = mdp.rewards(scores, classes=2, floor=1e-4).squeeze()
    assert limited.tolist() == pytest.approx([math.log(1e-4 / 0.5), math.log(0.5 / 1e-4)])


@given(
    st.lists(st.floats(-50, 0), min_size=1, max_size=20),
    st.integers(2, 1000),
    st.none() | st.floats(1e-9, 0.5),
)
def test_rewards_telescope(scores: list[float], classes: int, floor: float | None) -> None:
    series = torch.tensor(scores, dtype=torch.float64)
    last = series[-1] if floor is None else series[-1].clamp(min=math.log(floor))
    total = mdp.rewards(series, classes, floor).sum()
    assert total.item() == pytest.approx(last.item() + math.log(classes), abs=1e-9)


@given(st.lists(st.floats(-20, 0), min_size=1, max_size=15), st.floats(0.05, 0.95))
def test_discounted_return_is_the_log_score_at_a_geometric_horizon(scores: list[float], gamma: float) -> None:
    """Lemma 1 and Eq. 2, with the belief standing still after the last step."""
    steps, series = len(scores), torch.tensor(scores, dtype=torch.float64)
    left = mdp.discounted_return(mdp.rewards(series, classes=10), gamma)
    stop_at = mdp.geometric_weights(steps, gamma)
    tail = gamma**steps * series[-1]
    assert left.item() == pytest.approx((stop_at @ series + tail + math.log(10)).item(), abs=1e-9)


def test_discounted_return_by_hand() -> None:
    assert mdp.discounted_return(torch.tensor([1.0, 2.0, 4.0]), 0.5).item() == 1 + 1 + 1


def test_geometric_weights_by_hand() -> None:
    assert mdp.geometric_weights(3, 0.8).tolist() == pytest.approx([0.2, 0.16, 0.128])


def test_normalized_return_is_zero_for_uniform_and_one_for_certain() -> None:
    scores = torch.tensor([-math.log(10), 0.0, 2 * -math.log(10)])
    assert mdp.normalized_return(scores, 10).tolist() == pytest.approx([0, 1, -1], abs=1e-6)


def test_advantages_by_hand() -> None:
    """δ_1 = 1 + 0.5·3 − 2 = 0.5, δ_2 = 2 + 0.5·4 − 3 = 1, Â_2 = 1, Â_1 = 0.5 + 0.5·0.5·1."""
    estimates = mdp.advantages(torch.tensor([1.0, 2.0]), torch.tensor([2.0, 3.0, 4.0]), gamma=0.5, lam=0.5)
    assert estimates.tolist() == pytest.approx([0.75, 1.0])


@given(st.integers(1, 12), st.floats(0.1, 1.0), st.integers(0, 10_000))
def test_advantages_at_lambda_one_are_bootstrapped_returns(steps: int, gamma: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    rewards = torch.randn(steps, 3, generator=generator, dtype=torch.float64)
    values = torch.randn(steps + 1, 3, generator=generator, dtype=torch.float64)
    estimates = mdp.advantages(rewards, values, gamma, lam=1.0)
    for t in range(steps):
        to_go = mdp.discounted_return(rewards[t:], gamma) + gamma ** (steps - t) * values[-1]
        torch.testing.assert_close(estimates[t], to_go - values[t])


@given(st.integers(1, 12), st.integers(0, 10_000))
def test_advantages_at_lambda_zero_are_one_step_errors(steps: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    rewards, values = torch.randn(steps, generator=generator), torch.randn(steps + 1, generator=generator)
    expected = rewards + 0.8 * values[1:] - values[:-1]
    torch.testing.assert_close(mdp.advantages(rewards, values, 0.8, lam=0.0), expected)


def test_standardize_is_joint_over_all_axes() -> None:
    result = mdp.standardize(torch.randn(4, 2, 50) * 7 + 3)
    assert result.mean().item() == pytest.approx(0, abs=1e-5)
    assert result.std().item() == pytest.approx(1, abs=1e-5)
    assert result[0].mean().item() != pytest.approx(0, abs=1e-4)
