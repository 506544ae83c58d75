import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from ricnet.core.logistic_normal import LogisticNormal
from ricnet.core.simplex import Dirichlet


def policy(classes: int, variance: float, seed: int = 0, rows: int = 1) -> LogisticNormal:
    logits = torch.randn(classes, generator=torch.Generator().manual_seed(seed)).double()
    return LogisticNormal(logits.log_softmax(-1).expand(rows, -1), torch.full((rows,), variance, dtype=torch.float64))


@given(st.integers(2, 8), st.floats(0.1, 5), st.integers(0, 100))
def test_density_agrees_with_a_normal_on_additive_log_ratios(classes: int, variance: float, seed: int) -> None:
    """The textbook route: log(a_k/a_K) is normal with covariance σ²(I + 11ᵀ), and the Jacobian is 1/Π a_k."""
    ours = policy(classes, variance, seed)
    log_action = torch.tensor(np.log(np.random.default_rng(seed).dirichlet(np.ones(classes)))).unsqueeze(0)
    covariance = variance * (np.eye(classes - 1) + 1)
    ratios = (log_action[0, :-1] - log_action[0, -1]).numpy()
    centre = (ours.log_mu[0, :-1] - ours.log_mu[0, -1]).numpy()
    reference = stats.multivariate_normal(centre, covariance).logpdf(ratios) - log_action.sum().item()
    assert ours.log_prob(log_action).item() == pytest.approx(reference, rel=1e-9, abs=1e-9)


def test_density_integrates_to_one_over_two_classes() -> None:
    grid = torch.linspace(1e-4, 1 - 1e-4, 20_001).double()
    log_actions = torch.stack([grid.log(), (1 - grid).log()], -1)
    density = policy(2, 0.5, rows=1).log_prob(log_actions).exp()
    assert torch.trapezoid(density, grid).item() == pytest.approx(1, abs=1e-3)


def test_the_ratio_is_the_difference_of_the_densities() -> None:
    new, old = policy(5, 0.7, 1, rows=9), policy(5, 1.3, 2, rows=9)
    log_action = old.sample()
    torch.testing.assert_close(new.log_ratio(old, log_action), new.log_prob(log_action) - old.log_prob(log_action))


def test_samples_have_the_density_they_claim() -> None:
    """E[π_new/π_old] = 1 under π_old, and the log-ratios of the classes have variance 2σ²."""
    torch.manual_seed(0)
    old, new = policy(4, 1.0, 1, rows=200_000), policy(4, 0.8, 1, rows=200_000)
    draws = old.sample()
    assert new.log_ratio(old, draws).exp().mean().item() == pytest.approx(1, abs=0.02)
    assert (draws[:, 0] - draws[:, 1]).var().item() == pytest.approx(2.0, rel=0.02)
    assert draws.logsumexp(-1).abs().max().item() < 1e-12


@pytest.mark.parametrize("variance", [0.01, 0.1, 0.3])
def test_expected_score_penalty_and_entropy_are_right_to_second_order(variance: float) -> None:
    torch.manual_seed(1)
    ours = policy(5, variance, 3, rows=200_000)
    labels = torch.full((200_000,), 2)
    draws = ours.sample()
    tolerance = 0.25 * variance**2 + 4 * math.sqrt(variance / 200_000)
    assert ours.expected_log_score(labels)[0].item() == pytest.approx(draws[:, 2].mean().item(), abs=tolerance)
    penalty = (ours.log_mu[:, 2] - draws[:, 2]).mean().item()
    assert ours.variance_penalty(labels)[0].item() == pytest.approx(penalty, abs=tolerance)
    assert ours.entropy()[0].item() == pytest.approx(-ours.log_prob(draws).mean().item(), abs=5 * tolerance + 0.02)


def test_its_spread_is_the_dirichlets_at_the_uniform_belief() -> None:
    """σ² = K/c is the leading term of Var(log a_i − log a_j)/2 = ψ'(c/K)."""
    uniform, concentration = torch.full((4,), 0.25).double().log(), torch.tensor(400.0).double()
    ours = LogisticNormal.around(uniform, concentration)
    theirs = Dirichlet.around(uniform, concentration, 0.0)
    assert ours.variance.item() == pytest.approx(torch.polygamma(1, theirs.alpha[0]).item(), rel=0.01)


def test_gradient_reaches_mean_and_variance() -> None:
    logits, concentration = torch.randn(3, 4, requires_grad=True), torch.full((3,), 5.0, requires_grad=True)
    ours = LogisticNormal.around(logits.log_softmax(-1), concentration)
    ours.log_prob(ours.sample()).sum().backward()
    assert logits.grad is not None
    assert concentration.grad is not None
    assert logits.grad.abs().min() > 0
    assert concentration.grad.abs().min() > 0


def test_a_thousand_classes_keep_their_digits_in_float32() -> None:
    logits = 3 * torch.randn(64, 1000)
    moved = logits + 0.01 * torch.randn_like(logits)

    def around(of: torch.Tensor) -> LogisticNormal:
        return LogisticNormal.around(of.log_softmax(-1), torch.full((64,), 5000.0, dtype=of.dtype))

    old = around(logits)
    actions = old.sample()
    expected = around(moved.double()).log_ratio(around(logits.double()), actions.double())
    torch.testing.assert_close(around(moved).log_ratio(old, actions).double(), expected, atol=2e-3, rtol=0)
    assert (old.log_ratio(old, actions) == 0).all()
    torch.testing.assert_close(around(moved).entropy().double(), around(moved.double()).entropy(), atol=0.05, rtol=1e-5)
