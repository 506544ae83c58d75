import pytest
import torch
from networks import BATCH, batch, network

from ricnet.methods import act
from ricnet.methods.act import ACT
from ricnet.nets.refiner import Heads

SMALL = ACT(horizon=6, halting_bias=-1.0)


def test_loss_and_gradient_of_an_example_worked_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """h = .3, .5, .4 gives N = 3, R = .2. Logits (2, 0), (0, 1), (1, 3) average to .6 + 0 + .2 = .8 and
    0 + .5 + .6 = 1.1. With y = 0 the cross-entropy is log(1 + e^.3) = .85436, and the ponder cost .1·(3 + .2) = .32."""
    h = torch.tensor([[0.3], [0.5], [0.4]], dtype=torch.float64, requires_grad=True)
    logits = torch.tensor([[[2.0, 0.0]], [[0.0, 1.0]], [[1.0, 3.0]]], dtype=torch.float64, requires_grad=True)
    monkeypatch.setattr(act, "unroll", lambda *_: Heads(logits, h, h.logit()))
    model = network(SMALL)
    loss, metrics = ACT(horizon=3, ponder_cost=0.1).loss(model, model, torch.zeros(1, 7), torch.tensor([0]))
    assert loss.item() == pytest.approx(0.85436 + 0.32, abs=1e-5)
    assert [metrics[name].item() for name in ("mean_steps", "remainder", "accuracy")] == pytest.approx([3, 0.2, 0])
    assert metrics["logit_norm"].item() == pytest.approx((0.8**2 + 1.1**2) ** 0.5)
    loss.backward()
    wrong = torch.tensor(0.3).sigmoid().item()  # the belief in class 1
    assert logits.grad[:, 0, 1].tolist() == pytest.approx([w * wrong for w in (0.3, 0.5, 0.2)])
    # More h_n moves weight from the last logits to these, and makes R smaller. h_3 itself counts for nothing.
    moved = [wrong * (margin - 2) - 0.1 for margin in (-2, 1)]
    assert h.grad.flatten().tolist() == pytest.approx([*moved, 0])


def test_weights_count_for_the_answer_and_for_the_ponder_cost() -> None:
    """With weights 2 and 0 the mean over two examples is the loss of the first alone."""
    model, (inputs, labels) = network(SMALL, policy=100, value=5), batch()
    steps = SMALL.refine(model, inputs).halt_step
    other = int((steps != steps[0]).nonzero()[0])
    rows, weights = torch.tensor([0, other]), torch.tensor([2.0, 0.0]).double()
    both, _ = SMALL.loss(model, model, inputs[rows], labels[rows], weights)
    alone, _ = SMALL.loss(model, model, inputs[:1], labels[:1])
    torch.testing.assert_close(both, alone)


def test_halting_starts_with_its_bias() -> None:
    assert [network(method).refiner.value.bias.item() for method in (ACT(), SMALL)] == [1, -1]


def test_refine_answers_as_the_loss_does() -> None:
    model, (inputs, labels) = network(SMALL, policy=100, value=5), batch()
    path = SMALL.refine(model, inputs)
    loss, metrics = SMALL.loss(model, model, inputs, labels)
    ponder = 0.223 * (metrics["mean_steps"] + metrics["remainder"])
    torch.testing.assert_close(-path.final[range(BATCH), labels].mean(), loss.detach() - ponder)
    assert path.halt_step.double().mean().item() == pytest.approx(metrics["mean_steps"].item())
    assert len(path.halt_step.unique()) > 2


def test_beliefs_are_the_answers_if_stopped_at_each_step() -> None:
    model, (inputs, _) = network(SMALL, policy=100, value=5), batch()
    path = SMALL.refine(model, inputs)
    for steps in range(1, 7):
        torch.testing.assert_close(SMALL.refine(model, inputs, max_steps=steps).final, path.at(steps))
    torch.testing.assert_close(path.at(6), path.final)
    torch.testing.assert_close(path.log_beliefs.exp().sum(-1), torch.ones(6, BATCH).double())
