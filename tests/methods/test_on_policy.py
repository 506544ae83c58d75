"""RIC on-policy without a replay: the roll-out carries the gradient that a replay would have."""

from dataclasses import replace
from typing import Any

import networks
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from ricnet.core import mdp
from ricnet.core.policies import current, drawing_from
from ricnet.distributed import Shard
from ricnet.methods import RIC, ClosedForm, OnPolicy
from ricnet.nets.backbone import Backbone
from ricnet.nets.encoders import Layers

METHODS: dict[str, OnPolicy] = {
    "joint": OnPolicy(horizon=2, rollouts=3),
    "joint, one roll-out, one step": OnPolicy(horizon=1),
    "floor and baseline": OnPolicy(horizon=2, rollouts=2, reward_floor=1e-4, label_baseline=True),
    "marginal": OnPolicy(horizon=2, rollouts=2, credit="marginal", c_max=100.0, alpha_floor=0.1, label_baseline=True),
    "logistic-normal": OnPolicy(horizon=2, rollouts=2, head="logistic-normal"),
    "entropy, discounted": OnPolicy(horizon=2, rollouts=2, entropy_coef=0.1, step_weight="discounted"),
    "expected": OnPolicy(horizon=2, rollouts=2, objective="expected"),
    "closed form": ClosedForm(horizon=2, rollouts=2, c_max=100.0, alpha_floor=0.1),
    "closed form with a price": ClosedForm(horizon=2, rollouts=3, compute_price=0.1),
}


def replayed(method: OnPolicy) -> OnPolicy:
    """The same method by Algorithm 1: a roll-out without gradient, a replay, ratios to the old policy, and SPO."""
    parts: dict[str, Any] = {name: getattr(RIC, name) for name in ("loss", "log_ratio", "marginal_log_ratio")}
    parts["surrogate"] = lambda self, ratio, advantages: mdp.spo(ratio, advantages, 0.2)
    kind = type(method)
    return type(kind.__name__, (kind,), parts)(**vars(method))  # type: ignore[no-any-return]


def build(method: OnPolicy, exits: bool) -> Any:
    encoder = Layers(nn.Linear(7, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU())
    backbone = Backbone(encoder, (7,), exits="stage" if exits else "none")
    model = method.build(backbone, networks.CLASSES).double()
    model.refiner.policy.weight.data.mul_(1 / method.head_gain)
    return model


def gradients(method: OnPolicy, model: Any, batch: tuple[torch.Tensor, ...], **options: Any) -> list[torch.Tensor]:
    """The loss, and the gradients of all parameters that learn."""
    with drawing_from(torch.Generator().manual_seed(5)):
        loss, _ = method.loss(model, model, *batch, **options)
    learn = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [loss.detach(), *torch.autograd.grad(loss, learn)]


@settings(max_examples=30, deadline=None)
@given(
    name=st.sampled_from(sorted(METHODS)),
    exits=st.booleans(),
    weighted=st.booleans(),
    rows=st.integers(2, 9),
    seed=st.integers(0, 99),
)
def test_the_gradient_is_that_of_a_replay(name: str, exits: bool, weighted: bool, rows: int, seed: int) -> None:
    torch.manual_seed(seed)
    method = METHODS[name]
    if exits:
        method = replace(method, horizon=2)  # two stages
    weights = [torch.rand(rows).double() + 0.5] if weighted else []
    model, batch = build(method, exits), (*networks.batch(rows), *weights)
    ours, theirs = (gradients(each, model, batch) for each in (method, replayed(method)))
    for own, reference in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own, reference)


def test_it_does_not_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    method = METHODS["joint"]
    model, batch = networks.network(method), networks.batch()
    monkeypatch.setattr(RIC, "replay", None)
    loss, metrics = method.loss(model, model, *batch)
    assert loss.requires_grad
    assert metrics["ratio_deviation"].item() == metrics["approx_kl"].item() == 0


def test_a_shard_of_all_rows_changes_nothing() -> None:
    method = METHODS["marginal"]
    model, batch = networks.network(method), networks.batch()
    alone, shared = (gradients(method, model, batch, shard=shard) for shard in (None, Shard(networks.BATCH)))
    assert all(map(torch.equal, alone, shared))
    assert current() is None


@pytest.mark.parametrize("name", ["joint", "marginal", "closed form"])
def test_the_parts_of_a_minibatch_add_up_to_its_gradient(name: str) -> None:
    """Parts are replayed, because the whole minibatch is rolled out without gradient."""
    method = METHODS[name]
    model, (inputs, labels) = networks.network(method), networks.batch()
    expected = gradients(method, model, (inputs, labels))
    learn = [parameter for parameter in model.parameters() if parameter.requires_grad]
    total = [torch.zeros_like(reference) for reference in expected]
    parts = list(zip(inputs.split(10), labels.split(10), strict=True))
    with drawing_from(torch.Generator().manual_seed(5)):
        for (part, _), (loss, _) in zip(parts, method.losses(model, model, parts), strict=False):
            for sum_, own in zip(total, [loss.detach(), *torch.autograd.grad(loss, learn)], strict=True):
                sum_ += own * len(part) / len(inputs)
    for own, reference in zip(total, expected, strict=True):
        torch.testing.assert_close(own, reference)
