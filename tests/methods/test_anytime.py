from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from ricnet.errors import RicnetError
from ricnet.methods.anytime import Anytime
from ricnet.nets.backbone import Backbone
from ricnet.nets.refiner import RecurrentClassifier

CLASSES, BATCH = 4, 30
SMALL = Anytime(horizon=6)


def network() -> RecurrentClassifier:
    """Untrained, but of different opinions about different inputs and steps, and of second thoughts."""
    model = SMALL.build(Backbone(nn.Sequential(nn.Linear(7, 8), nn.Tanh()), (7,)), CLASSES).double()
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
