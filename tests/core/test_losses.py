import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import dirichlet

from ricnet.core import losses
from ricnet.core.policies import Dirichlet

logits = st.lists(st.floats(-20, 20), min_size=3, max_size=3).map(lambda z: torch.tensor([z], dtype=torch.float64))


def test_logitnorm_by_hand() -> None:
    """‖(3, 4)‖ = 5, so τ = 0.04 leaves (3, 4) / 0.2."""
    torch.testing.assert_close(losses.normalize_logits(torch.tensor([[3.0, 4.0]]), 0.04), torch.tensor([[15.0, 20.0]]))


@given(logits.filter(lambda z: bool(z.norm() > 0.1)), st.floats(0.5, 100))
def test_logitnorm_does_not_see_the_scale(z: torch.Tensor, scale: float) -> None:
    normal = losses.normalize_logits(z, 0.04)
    torch.testing.assert_close(losses.normalize_logits(scale * z, 0.04), normal, rtol=1e-5, atol=0)
    assert normal.norm().item() == pytest.approx(1 / 0.04, rel=1e-5)


def test_logitnorm_at_zero_is_uniform_with_a_gradient() -> None:
    z = torch.zeros(1, 3, requires_grad=True)
    belief = losses.normalize_logits(z, 0.04).softmax(-1)
    belief[0, 0].backward()
    torch.testing.assert_close(belief, torch.full((1, 3), 1 / 3))
    assert z.grad.isfinite().all()


@given(logits, st.floats(0.001, 0.9))
def test_uniform_mix_agrees_with_the_mixture_written_out(z: torch.Tensor, share: float) -> None:
    mixed = losses.mix_uniform(z.log_softmax(-1), share).exp()
    torch.testing.assert_close(mixed, (1 - share) * z.softmax(-1) + share / 3)


def test_uniform_mix_caps_as_the_mean_of_rics_dirichlet() -> None:
    """K = 10, c = 10, ε = 0.01: m = 0.1/10.1, and nothing above 10.01/10.1 = 0.9911."""
    log_mu = torch.tensor([100.0] + [0.0] * 9).double().log_softmax(-1)
    mixed = losses.mix_uniform(log_mu, 0.1 / 10.1)
    assert mixed.exp().max().item() == pytest.approx(0.9911, abs=5e-5)
    policy = Dirichlet.around(log_mu, torch.tensor(10.0).double(), 0.01)
    torch.testing.assert_close(mixed, policy.log_mean())


def test_uniform_mix_keeps_what_underflows_and_its_gradient() -> None:
    log_belief = torch.tensor([0.0, -500.0], requires_grad=True)
    mixed = losses.mix_uniform(log_belief, 0.01)
    mixed.sum().backward()
    assert mixed[1].item() == pytest.approx(math.log(0.005))
    assert log_belief.grad.isfinite().all()
    assert losses.mix_uniform(log_belief, 0.0) is log_belief


def test_evidence_is_never_negative_and_always_has_a_gradient() -> None:
    z = torch.tensor([[-30.0, 0.0, 30.0]], dtype=torch.float64, requires_grad=True)
    alpha = losses.evidential_alpha(z)
    assert alpha.flatten().tolist() == pytest.approx([1, 1 + math.log(2), 31])
    (gradient,) = torch.autograd.grad(alpha.sum(), z)
    assert (gradient > 0).all()


def test_evidential_by_hand() -> None:
    """α = (3, 1), y = 0: p̂ = (¾, ¼), S = 4; 2·(¼)² + 2·(3/16)/5 = 0.2; no wrong evidence. With y = 1 the KL is that of
    Dir(3, 1) from the uniform: log 3 − 2/3."""
    alpha = torch.tensor([[3.0, 1.0], [3.0, 1.0]]).double()
    loss = losses.evidential(alpha, torch.tensor([0, 1]), kl_weight=0.5)
    assert loss.tolist() == pytest.approx([0.2, 2 * 9 / 16 + 0.075 + 0.5 * (math.log(3) - 2 / 3)])


def test_evidential_agrees_with_scipy() -> None:
    alpha, labels = 1 + 5 * torch.rand(4, 3).double(), torch.tensor([0, 1, 2, 0])
    error, whole = (losses.evidential(alpha, labels, weight) for weight in (0.0, 1.0))
    for a, y, e, w in zip(alpha.numpy(), labels.tolist(), error.tolist(), whole.tolist(), strict=True):
        truth = np.eye(3)[y]
        mean, variance = dirichlet(a).mean(), dirichlet(a).var()
        assert e == pytest.approx(((truth - mean) ** 2 + variance).sum())
        wrong = dirichlet(np.where(truth == 1, 1, a))
        assert w - e == pytest.approx(-wrong.entropy() - math.log(2))  # the flat density is Γ(3) = 2


@given(st.lists(st.floats(1, 50), min_size=2, max_size=6))
def test_kl_from_flat_is_torchs(alpha: list[float]) -> None:
    ours = losses.kl_from_flat(torch.tensor(alpha).double()).item()
    flat, given_alpha = torch.ones(len(alpha)).double(), torch.tensor(alpha).double()
    expected = torch.distributions.kl_divergence(
        torch.distributions.Dirichlet(given_alpha), torch.distributions.Dirichlet(flat)
    )
    assert ours == pytest.approx(expected.item(), abs=1e-9)


def test_logitnorm_turns_the_logits_and_cannot_grow_them() -> None:
    """Its beliefs do not depend on the length of z, so the gradient is at right angles to it: also through the norm."""
    logits = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    losses.normalize_logits(logits, 0.04).log_softmax(-1)[:, 0].sum().backward()
    assert logits.grad.norm() > 1
    assert (logits.grad * logits).sum(-1).abs().max() < 1e-4
