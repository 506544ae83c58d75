from collections.abc import Callable

import pytest
import torch
from networks import BATCH, batch, network
from torch import Tensor

from ricnet.core import losses
from ricnet.methods import Supervised


def test_the_trajectory_has_one_step_and_metrics_are_what_their_names_say() -> None:
    method = Supervised()
    model, (inputs, labels) = network(method), batch()
    _, metrics = method.loss(model, model, inputs, labels)
    path, logits = method.refine(model, inputs, max_steps=7, halt=True), model(inputs)
    assert (path.steps, path.cell_evaluations.tolist()) == (1, [1] * BATCH)
    assert metrics["accuracy"].item() == pytest.approx((logits.argmax(-1) == labels).double().mean().item())
    assert metrics["logit_norm"].item() == pytest.approx(logits.square().sum(-1).sqrt().mean().item())
    assert metrics["classifier_norm"].item() == pytest.approx(model[-1].weight.square().sum().sqrt().item())
    assert method.snapshot_period(10) is None


def smoothed(log_beliefs: Tensor, labels: Tensor) -> Tensor:
    """Label smoothing spreads its share over all classes."""
    target = 0.8 * torch.eye(4).double()[labels] + 0.2 / 4
    return -(target * log_beliefs).sum(-1)


@pytest.mark.parametrize(
    ("method", "believed"),
    [
        (Supervised(), lambda z: z.softmax(-1)),
        (Supervised(uniform_mix=0.3), lambda z: 0.7 * z.softmax(-1) + 0.3 / 4),
        (Supervised(label_smoothing=0.2), lambda z: z.softmax(-1)),
        (
            Supervised(objective="logitnorm", logitnorm_temperature=0.5),
            lambda z: (z / (0.5 * z.square().sum(-1, keepdim=True).sqrt())).softmax(-1),
        ),
    ],
)
def test_loss_is_the_cross_entropy_of_the_belief(method: Supervised, believed: Callable[[Tensor], Tensor]) -> None:
    model, (inputs, labels) = network(method), batch()
    beliefs = believed(model(inputs))
    loss, _ = method.loss(model, model, inputs, labels)
    scores = -beliefs[range(BATCH), labels].log()
    torch.testing.assert_close(loss, (smoothed(beliefs.log(), labels) if method.label_smoothing else scores).mean())
    torch.testing.assert_close(method.refine(model, inputs).final.exp(), beliefs)


def test_evidential_reports_the_mean_and_pays_for_wrong_evidence() -> None:
    method = Supervised(objective="evidential", evidence_kl=0.3)
    model, (inputs, labels) = network(method), batch()
    alpha = 1 + (1 + model(inputs).exp()).log()
    loss, _ = method.loss(model, model, inputs, labels)
    torch.testing.assert_close(loss, losses.evidential(alpha, labels, 0.3).mean())
    torch.testing.assert_close(method.refine(model, inputs).final.exp(), alpha / alpha.sum(-1, keepdim=True))
