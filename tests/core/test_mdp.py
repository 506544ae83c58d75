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
    assert mdp.rewards(scores, -math.log(3)).squeeze().tolist() == pytest.approx(expected)


@given(st.lists(st.floats(-50, 0), min_size=1, max_size=20), st.integers(2, 1000))
def test_rewards_telescope(scores: list[float], classes: int) -> None:
    series = torch.tensor(scores, dtype=torch.float64)
    assert mdp.rewards(series, -math.log(classes)).sum().item() == pytest.approx(
        scores[-1] + math.log(classes), abs=1e-9
    )


@given(st.lists(st.floats(-20, 0), min_size=1, max_size=15), st.floats(0.05, 0.95))
def test_discounted_return_is_the_log_score_at_a_geometric_horizon(scores: list[float], gamma: float) -> None:
    """Lemma 1 and Eq. 2, with the belief standing still after the last step."""
    steps, series = len(scores), torch.tensor(scores, dtype=torch.float64)
    left = mdp.discounted_return(mdp.rewards(series, -math.log(10)), gamma)
    stop_at = mdp.geometric_weights(steps, gamma)
    tail = gamma**steps * series[-1]
    assert left.item() == pytest.approx((stop_at @ series + tail + math.log(10)).item(), abs=1e-9)


def test_returns_and_weights_by_hand() -> None:
    """A normalised return is 0 for the uniform belief and 1 for certainty."""
    assert mdp.discounted_return(torch.tensor([1.0, 2.0, 4.0]), 0.5).item() == 1 + 1 + 1
    assert mdp.geometric_weights(3, 0.8).tolist() == pytest.approx([0.2, 0.16, 0.128])
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


def test_mean_and_std_are_joint_over_all_axes_and_count_examples_by_their_weight() -> None:
    """1 and 5 of weight 1.5, 3 and 7 of weight 0.5: mean (1.5·6 + 0.5·10)/4 = 3.5, squares 1.5·(6.25 + 2.25) +
    0.5·(0.25 + 12.25) = 19 over 3, which is one less than there are."""
    estimates, weights = torch.tensor([[[1.0, 3.0]], [[5.0, 7.0]]]), torch.tensor([1.5, 0.5])
    assert mdp.std(estimates).item() == pytest.approx((20 / 3) ** 0.5)
    for scale in (1.0, 10.0):
        assert mdp.mean(estimates, scale * weights).item() == pytest.approx(3.5)
        assert mdp.std(estimates, scale * weights).item() == pytest.approx((19 / 3) ** 0.5)
    alike = torch.ones(2)
    assert mdp.mean(estimates, alike).item() == pytest.approx(mdp.mean(estimates).item())
    assert mdp.std(estimates, alike).item() == pytest.approx(mdp.std(estimates).item())
    assert mdp.std(estimates, torch.zeros(2)).isfinite()


def test_leave_one_out_by_hand() -> None:
    """Outcomes 1, 2, 6 against the others' means 4, 3.5, 1.5."""
    outcomes = torch.tensor([1.0, 2.0, 6.0]).view(1, 3, 1)
    assert mdp.leave_one_out(outcomes).flatten().tolist() == pytest.approx([-3, -1.5, 4.5])


@given(st.integers(2, 5), st.integers(0, 1000))
def test_leave_one_out_forgets_the_start_of_a_step_and_how_easy_an_input_is(rollouts: int, seed: int) -> None:
    """A telescoped return, Σ_u γ^{u−t} r_u, holds −log a_{t−1,y}; the advantage does not change with it."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(4, rollouts, 5, generator=generator, dtype=torch.float64)

    def at_last_step(scores: torch.Tensor) -> torch.Tensor:
        return mdp.leave_one_out(mdp.rewards(scores, -math.log(10)) + mdp.previous_scores(scores, -math.log(10)))[-1]

    elsewhere = scores.clone()
    elsewhere[-2] += torch.randn(rollouts, 5, generator=generator, dtype=torch.float64)  # another start
    torch.testing.assert_close(at_last_step(elsewhere), at_last_step(scores))
    lucky = scores + 100 * torch.randn(5, generator=generator, dtype=torch.float64)  # an easier input
    torch.testing.assert_close(at_last_step(lucky), at_last_step(scores), atol=1e-9, rtol=0)
    assert not torch.allclose(mdp.rewards(elsewhere, -math.log(10))[-1], mdp.rewards(scores, -math.log(10))[-1])


epsilons = st.floats(0.05, 0.5)
nonzero = st.floats(0.1, 5) | st.floats(-5, -0.1)


def test_spo_by_hand() -> None:
    """A = 2, ρ = 1.1, ε = 0.2: 2.2 − 2·0.01/0.4 = 2.15; A = −2: −2.2 − 0.05."""
    value = mdp.spo(torch.tensor([1.1, 1.1]), torch.tensor([2.0, -2.0]), epsilon=0.2)
    assert value.tolist() == pytest.approx([2.15, -2.25])


@given(nonzero, epsilons)
def test_spo_is_largest_at_one_plus_sign_times_epsilon(advantage: float, epsilon: float) -> None:
    ratio = torch.linspace(0, 2, 20_001, dtype=torch.float64)
    best = ratio[mdp.spo(ratio, torch.tensor(advantage).double().expand_as(ratio), epsilon).argmax()]
    assert best.item() == pytest.approx(1 + (epsilon if advantage > 0 else -epsilon), abs=2e-4)


@given(st.floats(0.01, 3), nonzero, epsilons)
def test_ppo_is_the_worse_of_clipped_and_unclipped(ratio: float, advantage: float, epsilon: float) -> None:
    clipped = max(min(ratio, 1 + epsilon), 1 - epsilon)
    value = mdp.ppo(torch.tensor(ratio).double(), torch.tensor(advantage).double(), epsilon)
    assert value.item() == pytest.approx(min(ratio * advantage, clipped * advantage), rel=1e-6)


@given(nonzero, epsilons)
def test_both_have_the_policy_gradient_at_the_old_policy(advantage: float, epsilon: float) -> None:
    for objective in (mdp.spo, mdp.ppo):
        ratio = torch.ones((), dtype=torch.float64, requires_grad=True)
        objective(ratio, torch.tensor(advantage).double(), epsilon).backward()
        assert ratio.grad.item() == pytest.approx(advantage)


def test_explained_variance() -> None:
    targets = torch.tensor([1.0, 2.0, 3.0])
    assert mdp.explained_variance(targets + 5, targets).item() == pytest.approx(1)
    assert mdp.explained_variance(torch.zeros(3), targets).item() == pytest.approx(0)


def test_soft_labels_by_hand() -> None:
    """K = 4 and s = 0.2: 0.85 for the label, 0.05 for each other class; the score is the mean of log a under q."""
    labels = torch.tensor([2, 0])
    soft = mdp.smoothed(labels, 0.2, 4)
    torch.testing.assert_close(soft, torch.tensor([[0.05, 0.05, 0.85, 0.05], [0.85, 0.05, 0.05, 0.05]]))
    assert mdp.smoothed(labels, 0.0, 4) is labels
    torch.testing.assert_close(mdp.smoothed(torch.tensor([[0.5, 0.5]]), 0.1, 2), torch.tensor([[0.5, 0.5]]))
    log_beliefs = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.4, 0.3, 0.2, 0.1]]).log()
    by_hand = [0.05 * math.log(0.1 * 0.2 * 0.4) + 0.85 * math.log(0.3), 0.05 * math.log(0.3 * 0.2 * 0.1)]
    by_hand[1] += 0.85 * math.log(0.4)
    assert mdp.log_scores(log_beliefs, soft).tolist() == pytest.approx(by_hand)
    assert mdp.log_scores(log_beliefs.expand(3, 2, 4), soft).shape == (3, 2)
    assert mdp.accuracy(log_beliefs, soft).item() == 0.5
