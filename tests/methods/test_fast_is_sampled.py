"""The preset `fast` learns from beliefs that were drawn, not from their expectation."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from ricnet.methods import RIC
from ricnet.nets.backbone import Backbone

FAST = RIC.fast(50_000, 10)


def noise(method: RIC) -> float:
    """How far the policy's gradient is from its mean over draws, relative to that mean."""
    torch.manual_seed(0)
    model = method.build(Backbone(nn.Sequential(nn.Linear(7, 16), nn.Tanh()), (7,)), 10)
    inputs, labels = torch.randn(64, 7), torch.randint(10, (64,))

    def gradient() -> Tensor:
        loss, _ = method.loss(model, model, inputs, labels)
        return torch.autograd.grad(loss, model.refiner.policy.weight)[0]

    draws = torch.stack([gradient() for _ in range(20)])
    return float((draws - draws.mean(0)).square().sum((1, 2)).mean().sqrt() / draws.mean(0).norm())


def test_the_gradient_of_fast_depends_on_what_was_drawn() -> None:
    method = replace(FAST, horizon=5, value_coef=0.0)
    assert not method.exact_gain
    assert method.objective in ("spo", "ppo")
    assert noise(method) > 3 * noise(replace(method, exact_gain=True))
