"""ResNets of basic blocks (He et al. 2016), with a stem for small images."""

from itertools import accumulate, pairwise

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ricnet.nets.fused import can_fuse, fold, fused
from ricnet.nets.stages import Exits


class BasicBlock(nn.Module):
    """Two 3×3 convolutions and a shortcut, which is a 1×1 convolution where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int, activation: type[nn.Module]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.activation = activation()
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Float[Tensor, "batch inputs h w"]) -> Float[Tensor, "batch outputs h2 w2"]:
        if self.fuses(x):
            return self._fused(x)
        inner = self.activation(self.norm1(self.conv1(x)))
        return self.activation(self.norm2(self.conv2(inner)) + self.shortcut(x))  # type: ignore[no-any-return]

    def fuses(self, x: Float[Tensor, "batch inputs h w"]) -> bool:
        """Whether cuDNN's fused convolutions are used: on a GPU, in half precision, in eval mode without gradients."""
        if self.training or torch.is_grad_enabled() or not x.is_cuda or not torch.is_autocast_enabled("cuda"):
            return False
        suits = self.conv1.in_channels % 8 == 0 and self.conv1.out_channels % 8 == 0
        return suits and isinstance(self.activation, nn.ReLU) and can_fuse(torch.get_autocast_dtype("cuda"), x.device)

    def _fused(self, x: Float[Tensor, "batch inputs h w"]) -> Float[Tensor, "batch outputs h2 w2"]:
        inner = fused(x, self.conv1, self.norm1)
        if isinstance(self.shortcut, nn.Identity):
            return fused(inner, self.conv2, self.norm2, (x, 0.0))
        assert isinstance(self.shortcut, nn.Sequential)
        weight, bias = fold(*self.shortcut)
        return fused(inner, self.conv2, self.norm2, (F.conv2d(x, weight, None, self.conv1.stride), bias))


class ResNet(nn.Module):
    """(batch, channels, h, w) → (batch, 8·width): four stages, then the mean over all positions."""

    def __init__(
        self, channels: int, blocks: tuple[int, ...], width: int, activation: type[nn.Module], small_stem: bool
    ) -> None:
        super().__init__()
        self.stem = _stem(channels, width, activation, small_stem)
        layers, inputs = [], width
        for stage, count in enumerate(blocks):
            outputs = width * 2**stage
            for block in range(count):
                stride = 2 if stage > 0 and block == 0 else 1
                layers.append(BasicBlock(inputs, outputs, stride, activation))
                inputs = outputs
        self.blocks = nn.Sequential(*layers)
        self.counts = blocks
        self.apply(_initialize)

    def forward(self, x: Float[Tensor, "batch channels h w"]) -> Float[Tensor, "batch embedding"]:
        return self.blocks(self.stem(x)).mean((2, 3))  # type: ignore[no-any-return]

    def stages(self, exits: Exits) -> list[nn.Module]:
        """Its stages or blocks; the first includes the stem."""
        counts = self.counts if exits == "stage" else (1,) * len(self.blocks)
        parts = [[*self.blocks][start:end] for start, end in pairwise([0, *accumulate(counts)])]
        return [nn.Sequential(self.stem, *parts[0]), *(nn.Sequential(*part) for part in parts[1:])]


def _stem(channels: int, width: int, activation: type[nn.Module], small: bool) -> nn.Sequential:
    """Small: 3×3 at stride 1 keeps the resolution. Original: 7×7 at stride 2 and max-pool divide each side by 4."""
    if small:
        return nn.Sequential(nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), activation())
    wide = nn.Conv2d(channels, width, 7, stride=2, padding=3, bias=False)
    return nn.Sequential(wide, nn.BatchNorm2d(width), activation(), nn.MaxPool2d(3, stride=2, padding=1))


def _initialize(module: nn.Module) -> None:
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
