import pytest
import torch
from torch import Tensor, nn

from ricnet.methods.inference import Pool
from ricnet.methods.iterative import initial_state, norms, step_until_level, unroll
from ricnet.nets.backbone import Backbone
from ricnet.nets.refiner import Heads, RecurrentClassifier

CLASSES, BATCH, STEPS = 4, 30, 5


def _count(progress: Tensor, heads: Heads) -> Tensor:
    return progress + 1


def network() -> RecurrentClassifier:
    model = RecurrentClassifier(Backbone(nn.Sequential(nn.Linear(7, 8), nn.Tanh()), (7,)), 8, CLASSES).double()
    with torch.no_grad():
        model.refiner.policy.weight.mul_(100)
    return model


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


def test_a_step_towards_a_level_is_one_of_the_unrolled() -> None:
    """The same logits; an example goes on while its progress, here one a step, is below its level."""
    model, inputs = network(), torch.randn(3, 7).double()
    context, level = model.context(inputs), torch.tensor([0.5, 2.0, 2.5]).double()
    pool = Pool(context, *initial_state(model, context), (torch.zeros(3).double(), level))
    expected = unroll(model, inputs, 3)
    for t, going in enumerate(([False, True, True], [False, False, True], [False, False, False])):
        pool, logits, value, more = step_until_level(model, pool, _count)
        torch.testing.assert_close(logits, expected.logits[t])
        torch.testing.assert_close(value, expected.value[t])
        assert more.tolist() == going
        assert pool.memory[0].tolist() == [t + 1] * 3
        assert pool.memory[1] is level


def test_norms_by_hand() -> None:
    model = network()
    measured = norms(model, torch.tensor([[3.0, 4.0, 0, 0], [0, 0, 0, 1]]).requires_grad_())
    assert measured["logit_norm"].item() == 3
    frobenius = model.refiner.policy.weight.square().sum().sqrt()
    assert measured["classifier_norm"].item() == pytest.approx(frobenius.item())
    assert not any(metric.requires_grad for metric in measured.values())
