import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from networks import BATCH, CLASSES, assert_same_loss, batch, network
from torch import Tensor

from ricnet.methods.anytime import Anytime
from ricnet.nets.refiner import RecurrentClassifier

SMALL = Anytime(horizon=6)
MATCHED = Anytime(horizon=6, step_weight="uniform", uniform_mix=0.1, value_coef=0.3, gamma=0.7, gae_lambda=0.6)
"""With all that RIC has but reinforcement."""


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


PLAIN = {"step_weight": "geometric", "uniform_mix": 0.0, "value_coef": 0.0, "gamma": 0.95}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    "changes",
    [{}, {"step_weight": "geometric"}, {"uniform_mix": 0.0}, {"value_coef": 0.0}, PLAIN],
    ids=["matched", "geometric", "no cap", "no value", "plain"],
)
def test_loss_and_beliefs_are_as_written_out(changes: dict[str, Any], weighted: bool) -> None:
    method = replace(MATCHED, **changes)
    model, (inputs, labels) = network(method, from_belief=10), batch()
    weights = torch.rand(BATCH).double() if weighted else torch.ones(BATCH).double()
    loss, metrics = method.loss(model, model, inputs, labels, weights if weighted else None)
    expected, beliefs, values = written_out(method, model, inputs, labels, weights)
    assert_same_loss(loss, expected, model)
    path = method.refine(model, inputs)
    torch.testing.assert_close(path.log_beliefs.exp(), torch.stack(beliefs))
    if method.value_coef:
        torch.testing.assert_close(path.values, torch.stack(values))
    if not weighted:
        assert metrics["accuracy"].item() == pytest.approx((beliefs[-1].argmax(-1) == labels).double().mean().item())


@pytest.mark.parametrize("value_coef", [0.0, 0.3])
def test_a_value_is_trained_only_where_it_is_learned(value_coef: float) -> None:
    model = network(replace(MATCHED, value_coef=value_coef))
    assert model.refiner.value.weight.requires_grad is (value_coef > 0)


def test_halts_by_the_value_it_learned_as_ric_does() -> None:
    model, (inputs, _) = network(MATCHED, from_belief=10), batch()
    values = MATCHED.refine(model, inputs).values
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


def test_the_cap_limits_the_compared_confidence() -> None:
    method = Anytime(horizon=6, uniform_mix=0.2, confidence_threshold=0.851)
    model, (inputs, _) = network(method, from_belief=10, policy=1e4), batch()
    path = method.refine(model, inputs)
    assert path.log_beliefs.exp().max().item() == pytest.approx(0.8 + 0.2 / CLASSES)
    assert path.halt_step.tolist() == [6] * BATCH
    assert replace(method, confidence_threshold=0.849).refine(model, inputs).halt_step.tolist() == [1] * BATCH


def test_runs_all_steps_without_a_confidence_threshold() -> None:
    model, (inputs, _) = network(SMALL, from_belief=10), batch()
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
