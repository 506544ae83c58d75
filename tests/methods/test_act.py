import pytest
import torch
from torch import Tensor, nn

from ricnet.errors import RicnetError
from ricnet.methods import act
from ricnet.methods.act import ACT
from ricnet.nets.encoders import Backbone
from ricnet.nets.refiner import Heads, RecurrentClassifier

CLASSES, BATCH = 4, 30
SMALL = ACT(horizon=6, halting_bias=-1.0)


def network(method: ACT = SMALL) -> RecurrentClassifier:
    """Untrained, but of different opinions about different inputs and steps."""
    model = method.build(Backbone(nn.Sequential(nn.Linear(7, 8), nn.Tanh()), (7,)), CLASSES).double()
    with torch.no_grad():
        model.refiner.policy.weight.mul_(100)
        model.refiner.value.weight.mul_(5)
    return model


def batch() -> tuple[Tensor, Tensor]:
    return torch.randn(BATCH, 7).double(), torch.randint(CLASSES, (BATCH,))


def test_loss_and_gradient_of_an_example_worked_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """h = .3, .5, .4 gives N = 3, R = .2. Logits (2, 0), (0, 1), (1, 3) average to .6 + 0 + .2 = .8 and
    0 + .5 + .6 = 1.1. With y = 0 the cross-entropy is log(1 + e^.3) = .85436, and the ponder cost .1·(3 + .2) = .32."""
    h = torch.tensor([[0.3], [0.5], [0.4]], dtype=torch.float64, requires_grad=True)
    logits = torch.tensor([[[2.0, 0.0]], [[0.0, 1.0]], [[1.0, 3.0]]], dtype=torch.float64, requires_grad=True)
    monkeypatch.setattr(act, "unroll", lambda *_: Heads(logits, h, h.logit()))
    loss, metrics = ACT(horizon=3, ponder_cost=0.1).loss(network(), network(), torch.zeros(1, 7), torch.tensor([0]))
    assert loss.item() == pytest.approx(0.85436 + 0.32, abs=1e-5)
    assert [metrics[name].item() for name in ("mean_steps", "remainder", "accuracy")] == pytest.approx([3, 0.2, 0])
    assert metrics["logit_norm"].item() == pytest.approx((0.8**2 + 1.1**2) ** 0.5)
    loss.backward()
    wrong = torch.tensor(0.3).sigmoid().item()  # the belief in class 1
    assert logits.grad is not None
    assert logits.grad[:, 0, 1].tolist() == pytest.approx([w * wrong for w in (0.3, 0.5, 0.2)])
    # More h_n moves weight from the last logits to these, and makes R smaller. h_3 itself counts for nothing.
    moved = [wrong * (margin - 2) - 0.1 for margin in (-2, 1)]
    assert h.grad is not None
    assert h.grad.flatten().tolist() == pytest.approx([*moved, 0])


def test_halting_starts_with_its_bias_and_the_unused_head_stays_as_it_is() -> None:
    model, (inputs, labels) = network(), batch()
    assert network(ACT()).refiner.value.bias.item() == 1
    assert model.refiner.value.bias.item() == -1
    SMALL.loss(model, model, inputs, labels)[0].backward()
    for name, parameter in model.named_parameters():
        used = "concentration" not in name
        assert parameter.requires_grad == used
        assert (parameter.grad is not None and bool(parameter.grad.abs().sum() > 0)) == used, name


def test_metrics_have_no_gradient() -> None:
    model, (inputs, labels) = network(), batch()
    _, metrics = SMALL.loss(model, model, inputs, labels)
    assert metrics.keys() == {"accuracy", "logit_norm", "classifier_norm", "mean_steps", "remainder"}
    assert all(
        metric.ndim == 0 and metric.is_floating_point() and not metric.requires_grad for metric in metrics.values()
    )


def test_refine_answers_as_the_loss_does() -> None:
    model, (inputs, labels) = network(), batch()
    path = SMALL.refine(model, inputs)
    loss, metrics = SMALL.loss(model, model, inputs, labels)
    ponder = 0.223 * (metrics["mean_steps"] + metrics["remainder"])
    torch.testing.assert_close(-path.final[range(BATCH), labels].mean(), loss.detach() - ponder)
    assert path.halt_step.double().mean().item() == pytest.approx(metrics["mean_steps"].item())
    assert len(path.halt_step.unique()) > 2


def test_beliefs_are_what_it_would_answer_if_stopped_there() -> None:
    model, (inputs, _) = network(), batch()
    path = SMALL.refine(model, inputs)
    for steps in range(1, 7):
        short = SMALL.refine(model, inputs, max_steps=steps)
        torch.testing.assert_close(short.log_beliefs, path.log_beliefs[:steps])
        torch.testing.assert_close(short.final, path.at(steps))
        assert torch.equal(short.halt_step, path.halt_step.clamp(max=steps))
    torch.testing.assert_close(path.at(6), path.final)
    torch.testing.assert_close(path.log_beliefs.exp().sum(-1), torch.ones(6, BATCH).double())


@pytest.mark.parametrize("bias", [-8.0, -1.0, 1.0, 8.0])
def test_halted_inference_equals_the_masked_version(bias: float) -> None:
    model, (inputs, _) = network(ACT(horizon=6, halting_bias=bias)), batch()
    full, halted = SMALL.refine(model, inputs), SMALL.refine(model, inputs, halt=True)
    assert torch.equal(halted.halt_step, full.halt_step)
    torch.testing.assert_close(halted.log_beliefs, full.log_beliefs)
    assert full.halt_probability is not None
    assert halted.halt_probability is not None
    taken = torch.arange(6).unsqueeze(1) < full.halt_step
    torch.testing.assert_close(halted.halt_probability[taken], full.halt_probability[taken])


@pytest.mark.parametrize(
    ("changes", "flag"),
    [
        ({"horizon": 0}, "--horizon 0"),
        ({"ponder_cost": -1.0}, "--ponder-cost -1.0"),
        ({"epsilon": 1.0}, "--epsilon 1.0"),
        ({"halting_bias": float("nan")}, "--halting-bias nan"),
    ],
)
def test_bad_hyper_parameters_are_refused_by_flag(changes: dict[str, float], flag: str) -> None:
    with pytest.raises(RicnetError, match=flag):
        ACT(**changes)  # type: ignore[arg-type]


def test_learns_to_tell_apart_what_can_be_told_apart_and_to_be_quick() -> None:
    labels = torch.randint(2, (128,))
    inputs = torch.randn(128, 2) * 0.3 + (2 * labels[:, None] - 1)
    method = ACT(horizon=4, halting_bias=-1.0)
    model = method.build(Backbone(nn.Sequential(nn.Linear(2, 16), nn.Tanh()), (2,)), 2)
    before = method.refine(model, inputs).halt_step.float().mean()
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    for _ in range(60):
        optimizer.zero_grad()
        method.loss(model, model, inputs, labels)[0].backward()
        optimizer.step()
    path = method.refine(model, inputs)
    assert (path.final.argmax(-1) == labels).float().mean() > 0.98
    assert path.halt_step.float().mean() < before - 1
