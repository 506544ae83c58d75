import torch
from torch import nn

from ricnet.methods import METHODS, Supervised
from ricnet.nets.backbone import Backbone


def test_loss_is_cross_entropy_and_the_trajectory_has_one_step() -> None:
    method = Supervised()
    model = method.build(Backbone(nn.Linear(3, 5), (3,)), 4)
    inputs, labels = torch.randn(6, 3), torch.randint(4, (6,))
    loss, metrics = method.loss(model, model, inputs, labels)
    beliefs = model(inputs).softmax(-1)
    torch.testing.assert_close(loss, -beliefs[range(6), labels].log().mean())
    path = method.refine(model, inputs, max_steps=7, halt=True)
    torch.testing.assert_close(path.final.exp(), beliefs)
    assert path.steps == 1
    assert path.cell_evaluations.tolist() == [1] * 6
    assert metrics["accuracy"].item() == (beliefs.argmax(-1) == labels).float().mean().item()
    assert method.snapshot_period(10) is None


def test_methods_are_found_by_name() -> None:
    assert METHODS["supervised"] is Supervised
    assert all(name == method.name for name, method in METHODS.items())
