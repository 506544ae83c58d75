import math
from dataclasses import replace

import networks
import pytest
import torch
from networks import BATCH, CLASSES, batch

from ricnet.core import halting
from ricnet.methods import pondernet
from ricnet.methods.pondernet import PonderNet
from ricnet.nets.refiner import Heads, RecurrentClassifier

SMALL = PonderNet(horizon=6)


def network() -> RecurrentClassifier:
    """Untrained, but of different opinions about different inputs and steps."""
    model = networks.network(SMALL, policy=100, value=5)
    torch.nn.init.constant_(model.refiner.value.bias, -1)
    return model


def test_loss_agrees_with_the_paper_written_out_example_by_example() -> None:
    model, (inputs, labels) = network(), batch()
    prior = torch.tensor([0.2 * 0.8**n for n in range(6)]).double()
    prior = prior / prior.sum()
    total = 0.0
    for x, y in zip(inputs, labels.tolist(), strict=True):
        context = model.refiner.read(model.backbone(x[None]))
        thought, belief, left = torch.zeros(1, 8).double(), torch.full((1, CLASSES), 0.25).double(), 1.0
        for n in range(6):
            thought = model.refiner.think(context, thought, belief)
            heads = model.refiner.heads(thought)
            belief = heads.logits.softmax(-1)
            p = left * heads.value.sigmoid().item() if n < 5 else left
            left -= p
            total += p * (-belief[0, y].log().item() + 0.01 * (torch.tensor(p).log() - prior[n].log()).item())
    loss, _ = SMALL.loss(model, model, inputs, labels)
    assert loss.item() == pytest.approx(total / BATCH, rel=1e-5)


def test_each_examples_loss_is_weighted_before_the_mean_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """One example stops at once and is right at once, the other stops and is right at the end: almost no loss. Had the
    cross-entropies been averaged over the batch first, half of each step's surprise would count."""
    value = torch.tensor([[20.0, -20.0], [0.0, 0.0]])
    logits = torch.tensor([[[20.0, 0.0], [0.0, 20.0]], [[0.0, 20.0], [20.0, 0.0]]])
    monkeypatch.setattr(pondernet, "unroll", lambda *_: Heads(logits, value, value))
    loss, metrics = PonderNet(horizon=2, beta=0.0).loss(network(), network(), torch.zeros(2, 7), torch.tensor([0, 0]))
    assert loss.item() < 1e-3
    assert metrics["accuracy"].item() == 1
    assert metrics["mean_steps"].item() == pytest.approx(1.5)


def test_the_gradient_moves_probability_to_the_step_that_surprises_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two steps: the loss is λ·s_1 + (1 − λ)·s_2 with λ = σ(v), so ∂/∂v = λ(1 − λ)(s_1 − s_2). At v = 0, with beliefs
    of 1/2 and 3/4 in the truth, that is (log 2 − log 4/3) / 4. The last step takes the rest, whatever its own v."""
    value = torch.zeros(2, 1, dtype=torch.float64, requires_grad=True)
    logits = torch.tensor([[[0.0, 0.0]], [[math.log(3), 0.0]]]).double()
    monkeypatch.setattr(pondernet, "unroll", lambda *_: Heads(logits, value, value))
    loss, _ = PonderNet(horizon=2, beta=0.0).loss(network(), network(), torch.zeros(1, 7), torch.tensor([0]))
    assert loss.item() == pytest.approx((math.log(2) + math.log(4 / 3)) / 2)
    loss.backward()
    assert value.grad.flatten().tolist() == pytest.approx([(math.log(2) - math.log(4 / 3)) / 4, 0])


def test_beta_weighs_the_kl_and_metrics_by_their_definitions() -> None:
    model, (inputs, labels) = network(), batch()
    (plain, metrics), (heavy, _) = (replace(SMALL, beta=b).loss(model, model, inputs, labels) for b in (0.0, 2.0))
    path = SMALL.refine(model, inputs)
    log_p = halting.log_halting(path.halt_probability.logit())
    kl = halting.kl(log_p, halting.log_geometric(6, 0.2)).mean()
    assert (heavy - plain).item() == pytest.approx(2 * kl.item())
    by_hand = {
        "kl": kl,
        "mean_steps": sum((n + 1) * log_p[n].exp() for n in range(6)).mean(),
        "accuracy": (path.final.argmax(-1) == labels).double().mean(),
        "classifier_norm": model.refiner.policy.weight.norm(),
    }
    assert metrics.keys() == by_hand.keys() | {"logit_norm"}
    for name, value in by_hand.items():
        assert metrics[name].item() == pytest.approx(value.item()), name


def test_answers_at_the_median_of_its_own_distribution() -> None:
    model, (inputs, _) = network(), batch()
    path = SMALL.refine(model, inputs)
    for row, rates in enumerate(path.halt_probability.T.tolist()):
        stopped = [1.0 - torch.tensor([1 - rate for rate in rates[: n + 1]]).double().prod().item() for n in range(6)]
        assert path.halt_step[row].item() == next((n + 1 for n in range(5) if stopped[n] >= 0.5), 6)
    assert len(path.halt_step.unique()) > 2


def test_sampled_halting_follows_its_distribution() -> None:
    model, inputs = network(), torch.randn(1, 7).double().expand(4000, -1)
    path = replace(SMALL, halting="sample").refine(model, inputs)
    assert (SMALL.draws, replace(SMALL, halting="sample").draws) == (False, True)
    p = halting.log_halting(path.halt_probability[:, 0].logit()).exp()
    frequency = path.halt_step.bincount(minlength=7)[1:] / 4000
    assert frequency.tolist() == pytest.approx(p.tolist(), abs=0.03)
    assert p.max() < 0.9
