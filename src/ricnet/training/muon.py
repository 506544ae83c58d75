"""Muon (K. Jordan, 2024): momentum whose update of a matrix is orthogonalised, so that all its directions move equally.

Other parameters are updated as by AdamW. Updates of matrices are scaled to the root mean square of AdamW's, about 0.2,
so that the same learning rate and weight decay suit both (Liu et al. 2025).
"""

from collections.abc import Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

COEFFICIENTS = 3.4445, -4.7750, 2.0315
"""Coefficients of the quintic polynomial that moves singular values towards 1."""
STEPS = 5
"""Applications of the polynomial."""
ROOT_MEAN_SQUARE = 0.2
"""Root mean square of an update of a matrix, before the learning rate."""
BETAS, EPSILON = (0.9, 0.999), 1e-8


def orthogonalized(matrix: Float[Tensor, "rows columns"]) -> Float[Tensor, "rows columns"]:
    """U·Vᵀ of the singular value decomposition U·S·Vᵀ, approximately: singular values end between about 0.7 and 1.2, or
    lower if they are tiny beside the largest. On a GPU in bfloat16."""
    a, b, c = COEFFICIENTS
    wide = matrix if len(matrix) <= matrix.shape[1] else matrix.mT
    x: Tensor = wide.bfloat16() if wide.is_cuda else wide
    x = x / (x.norm() + 1e-7)
    for _ in range(STEPS):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return (x if wide is matrix else x.mT).to(matrix.dtype)


def muon_matrices(module: nn.Module) -> list[nn.Parameter]:
    """Trainable parameters of two or more axes: linear layers and convolutions."""
    return [parameter for parameter in module.parameters() if parameter.ndim > 1 and parameter.requires_grad]


class Muon(torch.optim.Optimizer):
    """Groups with `muon` hold matrices or convolutions, which are read as matrices with one row per output. Rates may
    be tensors on the device, and nothing waits for the device, so that a CUDA graph can record a step."""

    def __init__(
        self, groups: Iterable[dict[str, Any]], lr: float | Tensor, momentum: float, weight_decay: float
    ) -> None:
        super().__init__(groups, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "muon": False})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                update = self._muon if group["muon"] else self._adam
                change = update(parameter, self.state[parameter], group)
                parameter.mul_(1 - group["lr"] * group["weight_decay"]).sub_(group["lr"] * change)

    def _muon(self, parameter: Tensor, state: dict[str, Tensor], group: dict[str, Any]) -> Tensor:
        gradient, momentum = parameter.grad, group["momentum"]
        assert gradient is not None
        if not state:
            state["average"] = torch.zeros_like(parameter)
        average = state["average"].lerp_(gradient, 1 - momentum)
        update = gradient.lerp(average, momentum).flatten(1)  # Nesterov's momentum
        scale: float = ROOT_MEAN_SQUARE * max(update.shape) ** 0.5
        return scale * orthogonalized(update).view_as(parameter)

    def _adam(self, parameter: Tensor, state: dict[str, Tensor], group: dict[str, Any]) -> Tensor:
        gradient, (first, second) = parameter.grad, BETAS
        assert gradient is not None
        if not state:
            state |= {name: torch.zeros_like(parameter) for name in ("mean", "square")}
            state["steps"] = torch.zeros((), device=parameter.device)
        steps = state["steps"].add_(1)
        mean = state["mean"].lerp_(gradient, 1 - first) / (1 - first**steps)
        square = state["square"].lerp_(gradient.square(), 1 - second) / (1 - second**steps)
        return mean / (square.sqrt() + EPSILON)
