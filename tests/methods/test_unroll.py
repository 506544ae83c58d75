import pytest
import torch
from torch import Tensor, nn

from ricnet.methods.unroll import norms, unroll, unroll_until
from ricnet.nets.backbone import Backbone
from ricnet.nets.refiner import Heads, RecurrentClassifier

CLASSES, BATCH, STEPS = 4, 30, 5


def network() -> RecurrentClassifier:
    model = RecurrentClassifier(Backbone(nn.Sequential(nn.Linear(7, 8), nn.Tanh()), (7,)), 8, CLASSES).double()
    with torch.no_grad():
        model.refiner.policy.weight.mul_(100)
    return model


def count(progress: Tensor, heads: Heads) -> Tensor:
    return progress + 1


def test_softmax_is_fed_back_with_gradient() -> None:
    model, inputs = network(), torch.randn(BATCH, 7).double()
    context = model.refiner.read(model.backbone(inputs))
    thought, belief = torch.zeros(BATCH, 8).double(), torch.full((BATCH, CLASSES), 0.25).double()
    expected = []
    for _ in range(STEPS):
        thought = model.refiner.think(context, thought, belief)
        heads = model.refiner.heads(thought)
        belief = heads.logits.exp() / heads.logits.exp().sum(-1, keepdim=True)
        expected.append(heads)
    ours = unroll(model, inputs, STEPS)
    for t, heads in enumerate(expected):
        torch.testing.assert_close(ours.logits[t], heads.logits)
        torch.testing.assert_close(ours.value[t], heads.value)
    parameter = model.refiner.from_belief.weight  # it sees every belief, the constant first one included
    last = (ours.logits[-1], expected[-1].logits)
    torch.testing.assert_close(*(torch.autograd.grad(logits.square().sum(), parameter)[0] for logits in last))


def test_examples_stop_at_their_own_level_or_at_the_last_step() -> None:
    model, inputs = network(), torch.randn(4, 7).double()
    level = torch.tensor([0.5, 2.0, 2.5, 99.0]).double()
    path = unroll_until(model, inputs, STEPS, count, level, halt=False)
    assert path.halt_step.tolist() == [1, 2, 3, 5]
    torch.testing.assert_close(path.logits, unroll(model, inputs, STEPS).logits)
    assert unroll_until(model, inputs, STEPS, count, 3.0, halt=False).halt_step.tolist() == [3] * 4


def test_halted_examples_leave_the_batch_and_repeat_their_last_step(monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = network(), torch.randn(BATCH, 7).double()
    level = torch.randint(1, STEPS + 3, (BATCH,)).double()
    full = unroll_until(model, inputs, STEPS, count, level, halt=False)
    rows: list[int] = []
    think = model.refiner.think
    monkeypatch.setattr(model.refiner, "think", lambda c, t, b: (rows.append(len(t)), think(c, t, b))[1])
    halted = unroll_until(model, inputs, STEPS, count, level, halt=True)
    assert torch.equal(halted.halt_step, full.halt_step)
    assert sum(rows) == full.halt_step.sum().item()
    held = torch.arange(STEPS).unsqueeze(1).minimum(full.halt_step - 1)
    torch.testing.assert_close(halted.logits, full.logits[held, torch.arange(BATCH)])
    torch.testing.assert_close(halted.value, full.value[held, torch.arange(BATCH)])


def test_norms_by_hand() -> None:
    model = network()
    measured = norms(model, torch.tensor([[3.0, 4.0, 0, 0], [0, 0, 0, 1]]).requires_grad_())
    assert measured["logit_norm"].item() == 3
    frobenius = model.refiner.policy.weight.square().sum().sqrt()
    assert measured["classifier_norm"].item() == pytest.approx(frobenius.item())
    assert not any(metric.requires_grad for metric in measured.values())
