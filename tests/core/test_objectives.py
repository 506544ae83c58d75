import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ricnet.core import objectives

epsilons = st.floats(0.05, 0.5)
nonzero = st.floats(0.1, 5) | st.floats(-5, -0.1)


def test_spo_by_hand() -> None:
    """A = 2, ρ = 1.1, ε = 0.2: 2.2 − 2·0.01/0.4 = 2.15; A = −2: −2.2 − 0.05."""
    value = objectives.spo(torch.tensor([1.1, 1.1]), torch.tensor([2.0, -2.0]), epsilon=0.2)
    assert value.tolist() == pytest.approx([2.15, -2.25])


@given(nonzero, epsilons)
def test_spo_is_largest_at_one_plus_sign_times_epsilon(advantage: float, epsilon: float) -> None:
    ratio = torch.linspace(0, 2, 20_001, dtype=torch.float64)
    best = ratio[objectives.spo(ratio, torch.tensor(advantage).double().expand_as(ratio), epsilon).argmax()]
    assert best.item() == pytest.approx(1 + (epsilon if advantage > 0 else -epsilon), abs=2e-4)


@given(st.floats(0.01, 3), nonzero, epsilons)
def test_ppo_is_the_worse_of_clipped_and_unclipped(ratio: float, advantage: float, epsilon: float) -> None:
    clipped = max(min(ratio, 1 + epsilon), 1 - epsilon)
    value = objectives.ppo(torch.tensor(ratio).double(), torch.tensor(advantage).double(), epsilon)
    assert value.item() == pytest.approx(min(ratio * advantage, clipped * advantage), rel=1e-6)


@given(nonzero, epsilons)
def test_both_have_the_policy_gradient_at_the_old_policy(advantage: float, epsilon: float) -> None:
    for objective in (objectives.spo, objectives.ppo):
        ratio = torch.ones((), dtype=torch.float64, requires_grad=True)
        objective(ratio, torch.tensor(advantage).double(), epsilon).backward()
        assert ratio.grad.item() == pytest.approx(advantage)


def test_value_loss_and_explained_variance() -> None:
    targets = torch.tensor([1.0, 2.0, 3.0])
    assert objectives.value_loss(torch.tensor([0.0, 2.0, 5.0]), targets).tolist() == [1, 0, 4]
    assert objectives.explained_variance(targets + 5, targets).item() == pytest.approx(1)
    assert objectives.explained_variance(torch.zeros(3), targets).item() == pytest.approx(0)
