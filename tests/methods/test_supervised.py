from typing import Any

import pytest
import torch
from torch import nn

from ricnet.core import losses
from ricnet.errors import RicnetError
from ricnet.methods import METHODS, Supervised
from ricnet.nets.encoders import Backbone

VARIANTS: list[dict[str, Any]] = [
    {},
    {"label_smoothing": 0.1},
    {"uniform_mix": 0.05},
    {"objective": "logitnorm"},
    {"objective": "evidential"},
]


def network(method: Supervised) -> nn.Sequential:
    return method.build(Backbone(nn.Linear(3, 5), (3,)), 4)


def test_loss_is_cross_entropy_and_the_trajectory_has_one_step() -> None:
    method = Supervised()
    model = network(method)
    inputs, labels = torch.randn(6, 3), torch.randint(4, (6,))
    loss, metrics = method.loss(model, model, inputs, labels)
    beliefs = model(inputs).softmax(-1)
    torch.testing.assert_close(loss, -beliefs[range(6), labels].log().mean())
    path = method.refine(model, inputs, max_steps=7, halt=True)
    torch.testing.assert_close(path.final.exp(), beliefs)
    assert path.steps == 1
    assert path.cell_evaluations.tolist() == [1] * 6
    assert metrics["accuracy"].item() == (beliefs.argmax(-1) == labels).float().mean().item()
    assert metrics["logit_norm"].item() == pytest.approx(model(inputs).square().sum(-1).sqrt().mean().item())
    assert metrics["classifier_norm"].item() == pytest.approx(model[-1].weight.square().sum().sqrt().item())  # type: ignore[union-attr, operator]
    assert method.snapshot_period(10) is None


@pytest.mark.parametrize("changes", VARIANTS)
def test_every_variant_reports_a_belief_and_trains_all_weights(changes: dict[str, Any]) -> None:
    method = Supervised(**changes)
    model, inputs, labels = network(method), torch.randn(6, 3), torch.randint(4, (6,))
    loss, metrics = method.loss(model, model, inputs, labels)
    loss.backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())
    assert metrics.keys() == {"accuracy", "logit_norm", "classifier_norm"}
    assert not any(metric.requires_grad for metric in metrics.values())
    path = method.refine(model, inputs)
    torch.testing.assert_close(path.final.exp().sum(-1), torch.ones(6))
    assert torch.equal(path.final.argmax(-1), model(inputs).argmax(-1))


def test_label_smoothing_spreads_its_share_over_all_classes() -> None:
    method = Supervised(label_smoothing=0.2)
    model, inputs, labels = network(method), torch.randn(6, 3), torch.randint(4, (6,))
    log_beliefs = model(inputs).log_softmax(-1)
    target = 0.8 * torch.eye(4)[labels] + 0.2 / 4
    loss, _ = method.loss(model, model, inputs, labels)
    torch.testing.assert_close(loss, -(target * log_beliefs).sum(-1).mean())
    torch.testing.assert_close(method.refine(model, inputs).final, log_beliefs)


def test_logitnorm_trains_and_reports_the_normalised_logits() -> None:
    method = Supervised(objective="logitnorm", logitnorm_temperature=0.5)
    model, inputs, labels = network(method), torch.randn(6, 3), torch.randint(4, (6,))
    logits = model(inputs)
    beliefs = (logits / (0.5 * logits.square().sum(-1, keepdim=True).sqrt())).softmax(-1)
    loss, _ = method.loss(model, model, inputs, labels)
    torch.testing.assert_close(loss, -beliefs[range(6), labels].log().mean())
    torch.testing.assert_close(method.refine(model, inputs).final.exp(), beliefs)


def test_uniform_mix_is_trained_through() -> None:
    method = Supervised(uniform_mix=0.3)
    model, inputs, labels = network(method), torch.randn(6, 3), torch.randint(4, (6,))
    beliefs = 0.7 * model(inputs).softmax(-1) + 0.3 / 4
    loss, _ = method.loss(model, model, inputs, labels)
    torch.testing.assert_close(loss, -beliefs[range(6), labels].log().mean())
    torch.testing.assert_close(method.refine(model, inputs).final.exp(), beliefs)


def test_evidential_reports_the_mean_and_pays_for_wrong_evidence() -> None:
    model, inputs, labels = network(Supervised()), torch.randn(6, 3), torch.randint(4, (6,))
    alpha = 1 + (1 + model(inputs).exp()).log()
    method = Supervised(objective="evidential", evidence_kl=0.3)
    loss, _ = method.loss(model, model, inputs, labels)
    torch.testing.assert_close(loss, losses.evidential(alpha, labels, 0.3).mean())
    torch.testing.assert_close(method.refine(model, inputs).final.exp(), alpha / alpha.sum(-1, keepdim=True))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"label_smoothing": 1.0}, "--label-smoothing 1.0"),
        ({"uniform_mix": -0.1}, "--uniform-mix -0.1"),
        ({"logitnorm_temperature": 0.0}, "--logitnorm-temperature 0.0"),
        ({"evidence_kl": -1.0}, "--evidence-kl -1.0"),
        ({"objective": "evidential", "label_smoothing": 0.1}, "--label-smoothing 0.1.*evidential"),
        ({"objective": "evidential", "uniform_mix": 0.1}, "--uniform-mix 0.1.*evidential"),
    ],
)
def test_bad_hyper_parameters_are_refused_by_flag(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(RicnetError, match=message):
        Supervised(**changes)


@pytest.mark.parametrize("changes", VARIANTS)
def test_learns_to_tell_apart_what_can_be_told_apart(changes: dict[str, Any]) -> None:
    method = Supervised(**changes)
    labels = torch.randint(2, (128,))
    inputs = torch.randn(128, 2) * 0.3 + (2 * labels[:, None] - 1)
    model = method.build(Backbone(nn.Sequential(nn.Linear(2, 16), nn.Tanh()), (2,)), 2)
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    for _ in range(60):
        optimizer.zero_grad()
        method.loss(model, model, inputs, labels)[0].backward()
        optimizer.step()
    path = method.refine(model, inputs)
    assert (path.final.argmax(-1) == labels).float().mean() > 0.98


def test_methods_are_found_by_name() -> None:
    assert METHODS["supervised"] is Supervised
    assert METHODS.keys() == {"ric", "supervised", "anytime", "act", "pondernet"}
    assert all(name == method.name for name, method in METHODS.items())
