import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ricnet.errors import RicnetError
from ricnet.methods.anytime import Anytime
from ricnet.nets.encoders import Backbone
from ricnet.nets.refiner import RecurrentClassifier

CLASSES, BATCH = 4, 30
SMALL = Anytime(horizon=6)
MATCHED = Anytime(horizon=6, step_weight="uniform", uniform_mix=0.1, value_coef=0.3, gamma=0.7, gae_lambda=0.6)
"""With all that RIC has but reinforcement."""


def network(method: Anytime = SMALL) -> RecurrentClassifier:
    """Untrained, but of different opinions about different inputs and steps, and of second thoughts."""
    model = method.build(Backbone(nn.Sequential(nn.Linear(7, 8), nn.Tanh()), (7,)), CLASSES).double()
    with torch.no_grad():
        model.refiner.from_belief.weight.mul_(10)
    return model


def batch() -> tuple[Tensor, Tensor]:
    return torch.randn(BATCH, 7).double(), torch.randint(CLASSES, (BATCH,))


@pytest.mark.parametrize("gamma", [0.1, 0.8, 0.99])
def test_loss_and_gradient_agree_with_a_plain_loop(gamma: float) -> None:
    model, (inputs, labels) = network(), batch()
    context = model.refiner.read(model.backbone(inputs))
    thought, belief = torch.zeros(BATCH, 8).double(), torch.full((BATCH, CLASSES), 0.25).double()
    expected = torch.zeros(()).double()
    for t in range(6):
        thought = model.refiner.think(context, thought, belief)
        belief = model.refiner.policy(thought).softmax(-1)
        expected = expected - (1 - gamma) * gamma**t * belief[range(BATCH), labels].log().mean()
    loss, metrics = Anytime(horizon=6, gamma=gamma).loss(model, model, inputs, labels)
    torch.testing.assert_close(loss, expected)
    used = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for ours, theirs in zip(torch.autograd.grad(loss, used), torch.autograd.grad(expected, used), strict=True):
        torch.testing.assert_close(ours, theirs)
    assert metrics["accuracy"].item() == pytest.approx((belief.argmax(-1) == labels).double().mean().item())
    assert metrics["logit_norm"].item() == pytest.approx(model.refiner.policy(thought).norm(dim=-1).mean().item())
    assert metrics["classifier_norm"].item() == pytest.approx(model.refiner.policy.weight.norm().item())
    assert not any(metric.requires_grad for metric in metrics.values())


def written_out(
    method: Anytime, model: RecurrentClassifier, inputs: Tensor, labels: Tensor, weights: Tensor
) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """Loss, beliefs and values, one example and step at a time."""
    context = model.refiner.read(model.backbone(inputs))
    thought, belief = torch.zeros(BATCH, 8).double(), torch.full((BATCH, CLASSES), 1 / CLASSES).double()
    beliefs, values = [], []
    for _ in range(method.horizon + 1):
        thought = model.refiner.think(context, thought, belief)
        belief = (1 - method.uniform_mix) * model.refiner.policy(thought).softmax(-1) + method.uniform_mix / CLASSES
        beliefs.append(belief)
        values.append(model.refiner.value(thought)[:, 0])
    loss = torch.zeros(()).double()
    for i in range(BATCH):
        for t in range(method.horizon):
            weight = 1 / 6 if method.step_weight == "uniform" else (1 - method.gamma) * method.gamma**t
            loss = loss - weights[i] * weight * beliefs[t][i, labels[i]].log() / BATCH
            target = values[t][i].item()
            for u in range(t, method.horizon):
                before = beliefs[u - 1][i, labels[i]].item() if u else 1 / CLASSES
                gain = math.log(beliefs[u][i, labels[i]].item() / before)
                surprise = gain + method.gamma * values[u + 1][i].item() - values[u][i].item()
                target += (method.gamma * method.gae_lambda) ** (u - t) * surprise
            error = (values[t][i] - target) ** 2
            loss = loss + weights[i] * method.value_coef * error / (BATCH * method.horizon)
    return loss, beliefs[:-1], values[:-1]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    "changes",
    [{}, {"step_weight": "geometric"}, {"uniform_mix": 0.0}, {"value_coef": 0.0}],
    ids=["matched", "geometric", "no cap", "no value"],
)
def test_what_it_takes_over_from_ric_is_as_written_out(changes: dict[str, Any], weighted: bool) -> None:
    method = replace(MATCHED, **changes)
    model, (inputs, labels) = network(method), batch()
    weights = torch.rand(BATCH).double() if weighted else torch.ones(BATCH).double()
    loss, _ = method.loss(model, model, inputs, labels, weights if weighted else None)
    expected, beliefs, values = written_out(method, model, inputs, labels, weights)
    torch.testing.assert_close(loss, expected)
    used = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for ours, theirs in zip(torch.autograd.grad(loss, used), torch.autograd.grad(expected, used), strict=True):
        torch.testing.assert_close(ours, theirs)
    path = method.refine(model, inputs)
    torch.testing.assert_close(path.log_beliefs.exp(), torch.stack(beliefs))
    if method.value_coef:
        torch.testing.assert_close(path.values, torch.stack(values))


def test_halts_by_the_value_it_learned_as_ric_does() -> None:
    model, (inputs, _) = network(MATCHED), batch()
    values = MATCHED.refine(model, inputs).values
    assert values is not None
    threshold = values[1:].amin(0).median().item()
    method = replace(MATCHED, halt_threshold=threshold)
    path = method.refine(model, inputs)
    for row, seen in enumerate(values.T.tolist()):
        assert path.halt_step[row].item() == next((n for n in range(1, 6) if seen[n] < threshold), 6)
    assert len(path.halt_step.unique()) > 1
    assert torch.equal(path.cell_evaluations, path.halt_step + (path.halt_step < 6))
    halted = method.refine(model, inputs, halt=True)
    assert torch.equal(halted.halt_step, path.halt_step)
    torch.testing.assert_close(halted.log_beliefs, path.frozen().log_beliefs)
    by_confidence = replace(MATCHED, confidence_threshold=0.01).refine(model, inputs)
    assert by_confidence.halt_step.tolist() == [1] * BATCH
    assert by_confidence.values is None


def test_the_cap_holds_and_is_what_confidence_is_compared_with() -> None:
    method = Anytime(horizon=6, uniform_mix=0.2, confidence_threshold=0.851)
    model, (inputs, _) = network(method), batch()
    with torch.no_grad():
        model.refiner.policy.weight.mul_(1e4)
    path = method.refine(model, inputs)
    assert path.log_beliefs.exp().max().item() == pytest.approx(0.8 + 0.2 / CLASSES)
    assert path.halt_step.tolist() == [6] * BATCH
    assert replace(method, confidence_threshold=0.849).refine(model, inputs).halt_step.tolist() == [1] * BATCH


def test_unused_heads_stay_as_they_are() -> None:
    model, (inputs, labels) = network(), batch()
    SMALL.loss(model, model, inputs, labels)[0].backward()
    for name, parameter in model.named_parameters():
        used = "concentration" not in name and "value" not in name
        assert parameter.requires_grad == used
        assert (parameter.grad is not None and bool(parameter.grad.abs().sum() > 0)) == used, name


def test_runs_all_steps_unless_told_how_sure_is_enough() -> None:
    model, (inputs, _) = network(), batch()
    path = SMALL.refine(model, inputs)
    assert path.halt_step.tolist() == [6] * BATCH
    assert path.values is None
    assert torch.equal(SMALL.refine(model, inputs, max_steps=2).halt_step, torch.full((BATCH,), 2))
    confidence = path.log_beliefs.exp().amax(-1)
    threshold = confidence.median().item()
    assert ((confidence[:-1] >= threshold) & (confidence[1:] < threshold)).any()  # some grow unsure again
    halts = replace(SMALL, confidence_threshold=threshold).refine(model, inputs).halt_step
    for row, sure in enumerate(confidence.T.tolist()):
        assert halts[row].item() == next((n + 1 for n in range(6) if sure[n] >= threshold), 6)
    assert len(halts.unique()) > 2


@pytest.mark.parametrize("threshold", [None, 0.01, 0.5, 0.7, 1.0])
def test_halted_inference_equals_the_masked_version(threshold: float | None) -> None:
    method = replace(SMALL, confidence_threshold=threshold)
    model, (inputs, _) = network(), batch()
    full, halted = method.refine(model, inputs), method.refine(model, inputs, halt=True)
    assert torch.equal(halted.halt_step, full.halt_step)
    torch.testing.assert_close(halted.log_beliefs, full.frozen().log_beliefs)
    torch.testing.assert_close(halted.final, full.final)


@pytest.mark.parametrize(
    ("changes", "flag"),
    [
        ({"horizon": 0}, "--horizon 0"),
        ({"gamma": 1.0}, "--gamma 1.0"),
        ({"confidence_threshold": 1.5}, "--confidence-threshold 1.5"),
        ({"uniform_mix": 1.0}, "--uniform-mix 1.0"),
        ({"value_coef": -1.0}, "--value-coef -1.0"),
        ({"gae_lambda": 2.0}, "--gae-lambda 2.0"),
        ({"halt_threshold": 0.1}, "--value-coef"),
    ],
)
def test_bad_hyper_parameters_are_refused_by_flag(changes: dict[str, float], flag: str) -> None:
    with pytest.raises(RicnetError, match=flag):
        Anytime(**changes)  # type: ignore[arg-type]


def test_learns_at_every_step_what_can_be_told_apart() -> None:
    labels = torch.randint(2, (128,))
    inputs = torch.randn(128, 2) * 0.3 + (2 * labels[:, None] - 1)
    method = Anytime(horizon=4)
    model = method.build(Backbone(nn.Sequential(nn.Linear(2, 16), nn.Tanh()), (2,)), 2)
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    for _ in range(60):
        optimizer.zero_grad()
        method.loss(model, model, inputs, labels)[0].backward()
        optimizer.step()
    path = method.refine(model, inputs)
    assert all((path.at(step).argmax(-1) == labels).float().mean() > 0.98 for step in (1, 4))
