"""Labels that are distributions over classes: label smoothing and mixup, for every method."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import networks
import pytest
import torch
from torch import Tensor, nn

from refusals import cases, refusal
from ricnet.core import mdp
from ricnet.methods import ACT, RIC, Anytime, ClosedForm, Method, OnPolicy, PonderNet, Supervised
from ricnet.methods.ric import Rollout
from ricnet.models.config import Config, Optimization

CLASSES = networks.CLASSES
MARGINAL = OnPolicy(horizon=3, rollouts=2, credit="marginal", label_baseline=True)
METHODS = [
    Supervised(),
    Supervised(objective="logitnorm", uniform_mix=0.05),
    Anytime(horizon=3, value_coef=0.5),
    ACT(horizon=3, halting_bias=-1.0),
    PonderNet(horizon=3),
    RIC(horizon=3, reward_floor=1e-3),
    replace(RIC(horizon=3, rollouts=2, credit="marginal"), log_ratio_clamp=0.5),
    MARGINAL,
    OnPolicy(horizon=3, objective="expected"),
    OnPolicy(horizon=3, head="logistic-normal"),
    ClosedForm(horizon=3, rollouts=2),
]


def loss(method: Method[Any], model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    torch.manual_seed(0)
    older = copy.deepcopy(model).requires_grad_(False)
    with torch.no_grad():
        for parameter in older.parameters():
            parameter.mul_(0.9)
    return method.loss(model, older if type(method) is RIC else model, inputs, labels)[0]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_certain_soft_labels_are_hard_ones(method: Method[Any]) -> None:
    model, (inputs, labels) = networks.network(method), networks.batch()
    certain = nn.functional.one_hot(labels, CLASSES).double()
    networks.assert_same_loss(loss(method, model, inputs, certain), loss(method, model, inputs, labels), model)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_smoothing_is_training_on_smoothed_labels(method: Any) -> None:
    model, (inputs, labels) = networks.network(method), networks.batch()
    soft = 0.7 * nn.functional.one_hot(labels, CLASSES).double() + 0.3 / CLASSES
    expected = loss(method, model, inputs, soft)
    smooth = loss(replace(method, label_smoothing=0.3), model, inputs, labels)
    networks.assert_same_loss(smooth, expected, model)
    assert (expected - loss(method, model, inputs, labels)).abs().item() > 1e-4
    parts = [(inputs[:10], labels[:10]), (inputs[10:], labels[10:])]
    if not isinstance(method, RIC):
        return
    torch.manual_seed(0)
    each = list(replace(method, label_smoothing=0.3).losses(model, model, parts))
    torch.manual_seed(0)
    whole = replace(method, label_smoothing=0.3).loss(model, model, inputs, labels)[0]
    torch.testing.assert_close(sum(part[0] * n for part, n in zip(each, (10, 20), strict=True)) / 30, whole)


@pytest.mark.parametrize(("quieter", "noise"), [({"kind": ClosedForm}, 0.6), ({"credit": "marginal"}, 0.95)])
def test_every_credit_has_the_same_expected_gradient(quieter: dict[str, Any], noise: float) -> None:
    """Of the reward Σ_k q_k log a_k; closed form and marginal credit with less noise than joint credit."""
    torch.manual_seed(1)
    settings: dict[str, Any] = {"horizon": 3, "rollouts": 4, "normalize_advantages": False, "value_coef": 0.0}
    method = OnPolicy(**settings, alpha_floor=0.3)
    model, inputs = networks.network(method), torch.randn(2, 7).double()
    with torch.no_grad():
        model.refiner.policy.weight.mul_(50)
    labels = torch.tensor([[0.6, 0.3, 0.1, 0.0], [0.05, 0.05, 0.8, 0.1]]).double()
    inputs, labels = inputs.repeat(100, 1), labels.repeat(100, 1)

    def gradients(method: RIC, draws: int = 40) -> Tensor:
        losses = (method.loss(model, model, inputs, labels)[0] for _ in range(draws))
        return torch.stack([torch.autograd.grad(loss, model.refiner.policy.weight)[0].flatten() for loss in losses])

    quiet_kind = quieter.pop("kind", OnPolicy)
    plain, quiet = gradients(method), gradients(quiet_kind(**settings, alpha_floor=0.3, **quieter))
    error = (plain.var(0) / 40 + quiet.var(0) / 40).sqrt()
    assert ((plain.mean(0) - quiet.mean(0)) / error).square().mean() < 2.5
    assert quiet.var(0).sum() < noise * plain.var(0).sum()
    assert quiet.mean(0).norm() > 3 * error.norm()


def test_the_floor_of_the_reward_is_one_of_each_class() -> None:
    """log a = (−20, 0) with weights (0.25, 0.75): the first counts as log 1e-4."""
    method = OnPolicy(horizon=1, reward_floor=1e-4)
    log_actions = torch.tensor([[[[-20.0, -2e-9]]]])
    rollout = Rollout(log_actions, method.policy, torch.zeros(2, 1, 1))  # type: ignore[arg-type]  # not asked
    scores, initial = method._log_scores(rollout, torch.tensor([[0.25, 0.75]]))
    assert scores.item() == pytest.approx(0.25 * -9.2103, abs=1e-3)
    assert initial.item() == pytest.approx(-0.6931, abs=1e-4)


class Own(OnPolicy):
    name: ClassVar[str] = "own reward"

    def score(self, log_beliefs: Tensor, labels: Tensor) -> Tensor:
        return mdp.log_scores(log_beliefs, labels).exp()


SMOOTHING = ("label_smoothing", "from 0 to below 1")
EVIDENTIAL, MIXING = Supervised(objective="evidential"), Optimization(mixup=0.2)


@pytest.mark.parametrize(
    ("make", "named"),
    cases(
        {
            "smooth for a reward of one's own": (lambda: Own(label_smoothing=0.1), ("label_smoothing", "own reward")),
            "mix for a reward of one's own": (lambda: Config(method=Own(), optimization=MIXING), ("mixup", Own.name)),
            "mix for Dirichlets": (lambda: Config(method=EVIDENTIAL, optimization=MIXING), ("mixup", EVIDENTIAL.name)),
            "mix with weights": (
                lambda: Config(optimization=MIXING, class_weight="balanced"),
                ("mixup", "class_weight"),
            ),
            "mix by -1": (lambda: Optimization(mixup=-1.0), ("mixup", "0 or more")),
            **{
                f"smooth {kind.name} by 1": (lambda kind=kind: kind(label_smoothing=1.0), SMOOTHING)
                for kind in (RIC, Anytime, ACT, PonderNet)
            },
        }
    ),
)
def test_soft_labels_that_cannot_be_read_are_refused(make: Callable[[], object], named: tuple[str, ...]) -> None:
    with refusal(named):
        make()
