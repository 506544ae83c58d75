"""Small networks and batches, for the tests of methods."""

from typing import Any

import torch
from torch import Tensor, nn

from ricnet.methods import Method
from ricnet.nets.backbone import Backbone

CLASSES, BATCH = 4, 30


def network(method: Method[Any], classes: int = CLASSES, **scales: float) -> Any:
    """Untrained; `scales` multiply the weights of parts of the refiner, so that examples and steps differ more."""
    model = method.build(Backbone(nn.Sequential(nn.Linear(7, 8), nn.Tanh()), (7,)), classes).double()
    with torch.no_grad():
        for part, scale in scales.items():
            model.refiner.get_submodule(part).weight.mul_(scale)
    return model


def batch(rows: int = BATCH, classes: int = CLASSES) -> tuple[Tensor, Tensor]:
    return torch.randn(rows, 7).double(), torch.randint(classes, (rows,))


def assert_same_loss(loss: Tensor, expected: Tensor, model: nn.Module) -> None:
    """With the same gradient."""
    torch.testing.assert_close(loss, expected)
    used = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for ours, theirs in zip(torch.autograd.grad(loss, used), torch.autograd.grad(expected, used), strict=True):
        torch.testing.assert_close(ours, theirs)
