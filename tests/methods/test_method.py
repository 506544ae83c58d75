"""The interface of all methods."""

import copy
import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import networks
import pytest
import torch
from torch import Tensor, nn

from refusals import refusal
from ricnet.methods import (
    ACT,
    METHODS,
    RIC,
    Anytime,
    ClosedForm,
    Method,
    OnPolicy,
    PonderNet,
    Supervised,
    register_method,
)
from ricnet.methods.method import weighted_mean
from ricnet.methods.ric import Rollout
from ricnet.models.config import from_json, to_json
from ricnet.nets.backbone import Backbone
from ricnet.nets.refiner import Heads
from ricnet.training.recipes import TYPICAL, preset

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
FAST = OnPolicy(horizon=4, rollouts=2, label_baseline=True, reward_floor=1e-4)
VARIANTS = [EAGER, FAST, replace(EAGER, objective="ppo", entropy_coef=0.1)]


def network(method: Method[nn.Module]) -> nn.Module:
    return networks.network(method, CLASSES)


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


def test_methods_are_found_by_name_and_can_be_told_apart_in_tables_and_figures() -> None:
    assert METHODS.keys() >= {"ric", "ric-on-policy", "ric-closed-form", "supervised", "anytime", "act", "pondernet"}
    assert all(name == method.name and method.search_space for name, method in METHODS.items())
    for attribute in ("name", "title", "about"):
        assert len({getattr(method, attribute) for method in METHODS.values()}) == len(METHODS)
    assert len({method.colour for method in METHODS.values()}) == len(METHODS) - 2  # the algorithms of RIC share one


NORMS = {"accuracy", "logit_norm", "classifier_norm"}
SIX = {"horizon": 6}
HEADS = [
    (RIC(rollouts=3, **SIX), (), NORMS),
    (Anytime(**SIX), ("concentration", "value"), NORMS),
    (Anytime(value_coef=0.3, **SIX), ("concentration",), NORMS | {"value_loss", "explained_variance"}),
    (ACT(halting_bias=-1.0, **SIX), ("concentration",), NORMS | {"mean_steps", "remainder"}),
    (PonderNet(**SIX), ("concentration",), NORMS | {"mean_steps", "kl"}),
    *((method, (), NORMS) for method in DETERMINISTIC if isinstance(method, Supervised)),
    (Supervised(objective="logitnorm"), (), NORMS),
]


@pytest.mark.parametrize(("method", "unused", "measured"), HEADS)
def test_used_weights_are_trained_unused_heads_stay_as_they_are_and_metrics_are_plain_numbers(
    method: Method[Any], unused: tuple[str, ...], measured: set[str]
) -> None:
    model, (inputs, labels) = networks.network(method), networks.batch()
    loss, metrics = method.loss(model, copy.deepcopy(model), inputs, labels)
    loss.backward()
    for name, parameter in model.named_parameters():
        used = not any(head in name for head in unused)
        assert parameter.requires_grad == used
        assert (parameter.grad is not None and bool(parameter.grad.abs().sum() > 0)) == used, name
    assert measured <= metrics.keys()
    assert all(number.ndim == 0 and number.is_floating_point() for number in metrics.values())
    assert not any(number.requires_grad for number in metrics.values())
    beliefs = method.refine(model, inputs).final.exp()
    torch.testing.assert_close(beliefs.sum(-1), torch.ones(networks.BATCH).double())


HALTS = [
    *(RIC(halt_threshold=threshold, **SIX) for threshold in (-10.0, -0.05, 0.0, 0.05, 10.0)),
    *(Anytime(confidence_threshold=threshold, **SIX) for threshold in (None, 0.01, 0.5, 0.7, 1.0)),
    *(ACT(halting_bias=bias, **SIX) for bias in (-8.0, -1.0, 1.0, 8.0)),
    *(PonderNet(halting=rule, **SIX) for rule in ("median", "sample")),
    Supervised(),
]


@pytest.mark.parametrize("method", HALTS, ids=lambda method: method.name)
def test_halted_inference_equals_the_masked_version_and_fewer_steps_are_the_first_of_more(
    method: Method[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    scales = {"ric": {}, "anytime": {"from_belief": 10}, "supervised": {}}.get(method.name, {"policy": 100, "value": 5})
    model, (inputs, _) = networks.network(method, **scales), networks.batch()
    if method.name == "pondernet":
        nn.init.constant_(model.refiner.value.bias, -1)
    torch.manual_seed(1)
    full, rows = method.refine(model, inputs), list[int]()
    if method.name == "ric":
        think = model.refiner.think
        monkeypatch.setattr(model.refiner, "think", lambda c, t, b: (rows.append(len(t)), think(c, t, b))[1])
    torch.manual_seed(1)
    halted = method.refine(model, inputs, halt=True)
    assert torch.equal(halted.halt_step, full.halt_step)
    torch.testing.assert_close(halted.log_beliefs, full.frozen().log_beliefs)
    torch.testing.assert_close(halted.final, full.final)
    if method.name == "ric":  # the work of those that have stopped is skipped
        assert sum(rows) == full.cell_evaluations.sum().item()
        torch.testing.assert_close(halted.values, full.frozen().values)
    if full.halt_probability is not None:
        taken = torch.arange(6).unsqueeze(1) < full.halt_step
        torch.testing.assert_close(halted.halt_probability[taken], full.halt_probability[taken])
    if method.name != "supervised" and getattr(method, "halting", "median") == "median":
        short = method.refine(model, inputs, max_steps=2)
        torch.testing.assert_close(short.log_beliefs, full.log_beliefs[:2])
        assert torch.equal(short.halt_step, full.halt_step.clamp(max=2))


@pytest.mark.parametrize(
    ("method", "changes", "named"),
    [
        *((method, {"horizon": 0}, "horizon") for method in (RIC, Anytime, ACT, PonderNet)),
        (RIC, {"gamma": 1.5}, "gamma"),
        (RIC, {"c_min": 20.0}, "c_min"),
        (RIC, {"reward_floor": 2.0}, "reward_floor"),
        (RIC, {"value_coef": -1.0}, "value_coef"),
        (RIC, {"updates_per_snapshot": 0}, "updates_per_snapshot"),
        (RIC, {"updates_per_snapshot": 1}, "ric-on-policy"),
        (RIC, {"label_baseline": True, "rollouts": 1}, "rollouts"),
        (OnPolicy, {"label_baseline": True}, "rollouts"),
        (OnPolicy, {"head": "logistic-normal", "objective": "expected"}, "objective"),
        (ClosedForm, {"head": "logistic-normal"}, "ric-closed-form"),
        (RIC, {"head": "logistic-normal", "readout": "implied"}, "readout"),
        (OnPolicy, {"objective": "expected", "gamma": 1.0}, "gamma"),
        (Anytime, {"gamma": 1.0}, "gamma"),
        (Anytime, {"confidence_threshold": 1.5}, "confidence_threshold"),
        (Anytime, {"uniform_mix": 1.0}, "uniform_mix"),
        (Anytime, {"value_coef": -1.0}, "value_coef"),
        (Anytime, {"gae_lambda": 2.0}, "gae_lambda"),
        (Anytime, {"halt_threshold": 0.1}, "value_coef"),
        (ACT, {"ponder_cost": -1.0}, "ponder_cost"),
        (ACT, {"epsilon": 1.0}, "epsilon"),
        (ACT, {"halting_bias": math.nan}, "halting_bias"),
        (PonderNet, {"prior": 1.0}, "prior"),
        (PonderNet, {"beta": -0.1}, "beta"),
        (Supervised, {"label_smoothing": 1.0}, "label_smoothing"),
        (Supervised, {"uniform_mix": -0.1}, "uniform_mix"),
        (Supervised, {"logitnorm_temperature": 0.0}, "logitnorm_temperature"),
        (Supervised, {"evidence_kl": -1.0}, "evidence_kl"),
        (Supervised, {"objective": "evidential", "label_smoothing": 0.1}, "label_smoothing"),
        (Supervised, {"objective": "evidential", "uniform_mix": 0.1}, "uniform_mix"),
    ],
)
def test_hyper_parameters_that_cannot_be_are_refused_by_name(
    method: type[Method[Any]], changes: dict[str, Any], named: str
) -> None:
    with refusal(named):
        method(**changes)


@pytest.mark.parametrize(
    "method",
    [
        RIC(horizon=4, rollouts=2, updates_per_snapshot=2, reward_floor=1e-4),
        Anytime(horizon=4),
        ACT(horizon=4, halting_bias=-1.0),
        PonderNet(horizon=4, beta=1.0),
        Supervised(),
        Supervised(label_smoothing=0.1),
        Supervised(uniform_mix=0.05),
        Supervised(objective="logitnorm"),
        Supervised(objective="evidential"),
    ],
    ids=lambda method: method.name,
)
def test_learns_separable_classes(method: Method[Any]) -> None:
    """Two Gaussians; ACT learns to be quick too, and PonderNet to halt as its prior does."""
    labels = torch.randint(2, (128,))
    inputs = torch.randn(128, 2) * 0.3 + (2 * labels[:, None] - 1)
    model = method.build(Backbone(nn.Sequential(nn.Linear(2, 16), nn.Tanh()), (2,)), 2)
    before, snapshot = method.refine(model, inputs).halt_step.float().mean(), copy.deepcopy(model)
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    for update in range(60):
        if update % 2 == 0:
            snapshot.load_state_dict(model.state_dict())
        optimizer.zero_grad()
        loss, metrics = method.loss(model, snapshot, inputs, labels)
        loss.backward()
        optimizer.step()
    path = method.refine(model, inputs)
    for step in {1 if method.name == "anytime" else path.steps, path.steps}:
        assert (path.at(step).argmax(-1) == labels).float().mean() > 0.98
    assert (path.final.argmax(-1) == labels).float().mean() > 0.98
    assert method.name != "act" or path.halt_step.float().mean() < before - 1
    assert method.name != "pondernet" or metrics["kl"] < 0.02
    assert method.name != "ric" or path.final.exp().amax(-1).mean() > 0.7


def test_a_halting_rule_that_was_chosen_takes_the_place_of_its_own() -> None:
    for method in (RIC(), ClosedForm(), Anytime(value_coef=0.5)):
        chosen = method.stopping_by(0.3, 4)
        assert (chosen.halt_threshold, chosen.horizon) == (0.3, 4)
        assert replace(chosen, halt_threshold=0.0, horizon=20) == method
