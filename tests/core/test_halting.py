import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import rel_entr
from torch import Tensor

from ricnet.core import halting

units = st.lists(st.floats(1e-6, 1 - 1e-6), min_size=1, max_size=12)
logits = st.lists(st.floats(-300, 300), min_size=1, max_size=12)


def column(entries: list[float]) -> Tensor:
    return torch.tensor(entries, dtype=torch.float64).unsqueeze(1)


def test_act_by_hand() -> None:
    """h = .3, .5, .4: Σh is .8 after two steps, 1.2 after three, so N = 3 and R = 1 − .8. h = .995: one step, R = 1.
    h = .1, .1, .1 never gets there: the last step takes .8."""
    h = torch.tensor([[0.3, 0.995, 0.1], [0.5, 0.5, 0.1], [0.4, 0.5, 0.1]])
    ponder = halting.act(h, epsilon=0.01)
    assert ponder.steps.tolist() == [3, 1, 3]
    torch.testing.assert_close(ponder.remainder, torch.tensor([0.2, 1.0, 0.8]))
    torch.testing.assert_close(ponder.weights, torch.tensor([[0.3, 1.0, 0.1], [0.5, 0.0, 0.1], [0.2, 0.0, 0.8]]))
    for epsilon, steps in ((0.01, 2), (0.4, 2), (0.6, 1)):
        assert halting.act(column([0.5, 0.495, 0.5]), epsilon).steps.item() == steps


def test_act_remainder_has_the_gradient_of_the_steps_before_the_last() -> None:
    h = column([0.3, 0.5, 0.4, 0.2]).requires_grad_()
    ponder = halting.act(h, 0.01)
    (ponder.steps + ponder.remainder).sum().backward()
    assert h.grad.flatten().tolist() == [-1, -1, 0, 0]


@given(units, st.floats(0.001, 0.5))
def test_act_agrees_with_a_plain_loop_and_its_weights_sum_to_one(h: list[float], epsilon: float) -> None:
    ponder = halting.act(column(h), epsilon)
    expected, spent = [0.0] * len(h), 0.0
    for n, unit in enumerate(h):
        last = n == len(h) - 1 or spent + unit >= 1 - epsilon
        expected[n] = 1 - spent if last else unit
        spent += unit
        if last:
            break
    assert ponder.weights.flatten().tolist() == pytest.approx(expected, abs=1e-12)
    assert ponder.steps.item() == n + 1
    assert ponder.weights.sum().item() == pytest.approx(1)
    assert ponder.remainder.item() == pytest.approx(expected[n])


@given(units)
def test_act_answers_equal_those_with_fewer_steps(h: list[float]) -> None:
    outputs = torch.arange(len(h) * 3, dtype=torch.float64).square().view(len(h), 1, 3)
    answers = halting.act_answers(column(h), outputs)
    for n in range(1, halting.act(column(h), 0.01).steps.item() + 1):
        weights = halting.act(column(h[:n]), 0.01).weights
        torch.testing.assert_close(answers[n - 1], (weights.unsqueeze(-1) * outputs[:n]).sum(0))


def test_halting_distribution_by_hand() -> None:
    """λ = .5, .25, .9: p = .5, .5·.25, and the rest, .5·.75, whatever the last λ."""
    p = halting.log_halting(column([0.5, 0.25, 0.9]).logit()).exp()
    assert p.flatten().tolist() == pytest.approx([0.5, 0.125, 0.375])


@given(logits)
def test_halting_distribution_sums_to_one_and_stays_finite(z: list[float]) -> None:
    log_p = halting.log_halting(column(z).requires_grad_())
    assert log_p.isfinite().all()
    assert log_p.exp().sum().item() == pytest.approx(1)
    prior = halting.log_geometric(len(z), 0.2)
    (gradient,) = torch.autograd.grad(halting.kl(log_p, prior).sum(), log_p)
    assert gradient.isfinite().all()


def test_prior_is_renormalised_and_its_mean_is_not_five() -> None:
    prior = halting.log_geometric(20, 0.2)
    assert prior.exp().sum().item() == pytest.approx(1)
    assert (prior[1:] - prior[:-1]).tolist() == pytest.approx([math.log(0.8)] * 19)
    by_hand = sum(n * 0.2 * 0.8 ** (n - 1) for n in range(1, 21)) / (1 - 0.8**20)
    assert by_hand == pytest.approx(4.77, abs=0.005)
    assert halting.expected_step(prior).item() == pytest.approx(by_hand)


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=12))
def test_kl_is_forward_and_agrees_with_scipy(z: list[float]) -> None:
    log_p, prior = halting.log_halting(column(z)), halting.log_geometric(len(z), 0.2)
    p, q = log_p.flatten().exp().numpy(), prior.exp().numpy()
    assert halting.kl(log_p, prior).item() == pytest.approx(rel_entr(p, q).sum(), abs=1e-9)


def test_kl_is_zero_at_the_prior() -> None:
    """The λ that make p the truncated prior: λ_n = p_n / Σ_{j≥n} p_j."""
    prior = halting.log_geometric(20, 0.2)
    rates = prior.exp() / prior.exp().flip(0).cumsum(0).flip(0)
    log_p = halting.log_halting(column([*rates[:-1].logit().tolist(), 0.0]))
    assert halting.kl(log_p, prior).item() == pytest.approx(0, abs=1e-12)


def test_quantile_step_is_the_median_or_a_draw() -> None:
    log_p = column([0.2, 0.3, 0.4, 0.1]).log()
    steps = {0.0: 1, 0.2: 1, 0.21: 2, 0.49: 2, 0.51: 3, 0.95: 4, 1.0: 4}
    assert {u: halting.quantile_step(log_p, u).item() for u in steps} == steps
    many = halting.quantile_step(log_p.expand(-1, 20_000), torch.rand(20_000).double())
    frequency = np.bincount(many.numpy(), minlength=5)[1:] / 20_000
    assert frequency.tolist() == pytest.approx([0.2, 0.3, 0.4, 0.1], abs=0.015)
