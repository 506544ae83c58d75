from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

from ricnet.methods import ACT, METHODS, RIC, Anytime, Method, PonderNet, Supervised, register_method
from ricnet.methods.method import weighted_mean
from ricnet.methods.ric import Rollout
from ricnet.nets.encoders import Backbone
from ricnet.nets.refiner import Heads
from ricnet.training.config import from_json, to_json
from ricnet.training.presets import TYPICAL, preset

CLASSES, BATCH = 3, 6
COUNTS = torch.tensor([1, 2, 5, 1, 3, 1])
WEIGHTS = COUNTS / COUNTS.double().mean()
REPEATED = torch.arange(BATCH).repeat_interleave(COUNTS)
DETERMINISTIC = [
    Supervised(),
    Supervised(label_smoothing=0.1, uniform_mix=0.05),
    Supervised(objective="evidential"),
    Anytime(horizon=3),
    ACT(horizon=3, halting_bias=-1.0),
    PonderNet(horizon=3),
]
EAGER = RIC(horizon=4, rollouts=3)
VARIANTS = [EAGER, replace(RIC.fast(100, CLASSES), horizon=4), replace(EAGER, objective="ppo", entropy_coef=0.1)]


def network(method: Method[nn.Module]) -> nn.Module:
    return method.build(Backbone(nn.Sequential(nn.Linear(7, 8), nn.Tanh()), (7,)), CLASSES).double()


def gradient(loss: Tensor, model: nn.Module) -> Tensor:
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return torch.cat([part.flatten() for part in torch.autograd.grad(loss, parameters)])


@pytest.mark.parametrize("method", DETERMINISTIC, ids=lambda method: method.name)
def test_a_weight_counts_as_so_many_rows(method: Method[nn.Module]) -> None:
    model, inputs, labels = network(method), torch.randn(BATCH, 7).double(), torch.randint(CLASSES, (BATCH,))
    weighted, _ = method.loss(model, model, inputs, labels, WEIGHTS)
    repeated, _ = method.loss(model, model, inputs[REPEATED], labels[REPEATED])
    torch.testing.assert_close(weighted, repeated)
    torch.testing.assert_close(gradient(weighted, model), gradient(repeated, model))
    alike, _ = method.loss(model, model, inputs, labels, torch.ones(BATCH).double())
    torch.testing.assert_close(alike, method.loss(model, model, inputs, labels)[0])
    assert abs(weighted.item() - alike.item()) > 1e-3


def heads() -> Heads:
    return Heads(
        *(torch.randn(4, 3, BATCH, *rest).double().requires_grad_() for rest in ((CLASSES,), (), ()))  # type: ignore[arg-type]
    )


def taken(parts: Heads, rows: Tensor) -> Heads:
    return Heads(*(part[:, :, rows] for part in parts))


@pytest.mark.parametrize("method", VARIANTS)
@pytest.mark.parametrize("normalize", [False, True])
def test_rics_loss_weighs_surrogate_and_value_by_example(method: RIC, normalize: bool) -> None:
    """The same roll-out, weighted or repeated. The spread of normalised advantages divides by one less than there are
    of them, which repeating changes; the surrogate is in proportion to that."""
    method = replace(method, normalize_advantages=normalize, entropy_coef=0.0 if normalize else method.entropy_coef)
    new, old, labels = heads(), heads(), torch.randint(CLASSES, (BATCH,))
    log_actions, values = method.policy(old).sample().detach(), torch.randn(5, 3, BATCH).double()

    def losses(rows: Tensor, weights: Tensor | None) -> tuple[float, float]:
        rollout = Rollout(log_actions[:, :, rows], method.policy(taken(old, rows)), values[:, :, rows])
        estimates = method.estimate_advantages(rollout, labels[rows], weights)
        loss, metrics = method.actor_critic_loss(taken(new, rows), rollout, estimates, labels[rows], weights)
        value_loss = metrics["value_loss"].item()
        return value_loss, method.value_coef * value_loss - loss.item()

    (value_loss, surrogate), (repeated_value, repeated_surrogate) = (
        losses(torch.arange(BATCH), WEIGHTS),
        losses(REPEATED, None),
    )
    assert value_loss == pytest.approx(repeated_value)
    terms, more = (12 * count for count in (BATCH, len(REPEATED)))
    correction = ((terms / (terms - 1)) / (more / (more - 1))) ** 0.5 if normalize else 1.0
    assert surrogate * correction == pytest.approx(repeated_surrogate, rel=1e-6)
    assert losses(torch.arange(BATCH), torch.ones(BATCH).double()) == pytest.approx(losses(torch.arange(BATCH), None))
    assert abs(surrogate - losses(torch.arange(BATCH), None)[1]) > 1e-3


def test_rics_loss_hands_the_weights_on() -> None:
    """Where a row counts for everything, the loss is that of this row alone, in expectation over roll-outs."""
    method = RIC(horizon=2, rollouts=400, normalize_advantages=False)
    model, inputs, labels = network(method), torch.randn(2, 7).double(), torch.tensor([0, 1])
    only = method.loss(model, model, inputs, labels, torch.tensor([2.0, 0.0]).double())[0]
    alone = method.loss(model, model, inputs[:1], labels[:1])[0]
    assert only.item() == pytest.approx(alone.item(), rel=0.2)


def test_weighted_mean_by_hand() -> None:
    terms = torch.tensor([[1.0, 2.0], [3.0, 6.0]])
    assert weighted_mean(terms, None) == 3
    assert weighted_mean(terms, torch.tensor([0.5, 1.5])) == (0.5 + 3 + 1.5 + 9) / 4


def test_a_method_from_outside_is_found_by_its_name_and_survives_its_json(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True)
    class Mine(Supervised):
        name: ClassVar[str] = "mine"
        depth: int = 3

    @dataclass(frozen=True)
    class Titled(Mine):
        name: ClassVar[str] = "titled"
        title: ClassVar[str] = "My method"
        colour: ClassVar[str] = "#123456"

    monkeypatch.setitem(METHODS, "mine", METHODS["ric"])  # so that it is forgotten afterwards
    assert register_method(Mine) is Mine
    config = preset("fast", "mine", TYPICAL)
    assert config.method == Mine(depth=3)
    assert from_json(to_json(config), "config.json") == config
    assert (Mine.title, Mine.about, Mine.colour) == ("mine", "mine", None)  # not those of SL, which it extends
    assert (Titled.title, Titled.about, Titled.colour) == ("My method", "My method", "#123456")


def test_methods_can_be_told_apart_in_tables_and_figures() -> None:
    for attribute in ("name", "title", "about", "colour"):
        assert len({getattr(method, attribute) for method in METHODS.values()}) == len(METHODS)
    assert all(method.search_space for method in METHODS.values())
