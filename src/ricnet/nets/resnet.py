"""Residual networks of basic blocks (He et al. 2016), with the stem the paper uses for small images."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

BLOCKS_PER_STAGE = {"resnet10": (1, 1, 1, 1), "resnet18": (2, 2, 2, 2), "resnet34": (3, 4, 6, 3)}


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
        inner = self.activation(self.norm1(self.conv1(x)))
        return self.activation(self.norm2(self.conv2(inner)) + self.shortcut(x))  # type: ignore[no-any-return]


class ResNet(nn.Module):
    """(batch, channels, h, w) → (batch, 8·width): four stages, then the mean over all places."""

    def __init__(
        self, channels: int, blocks: tuple[int, ...], width: int, activation: type[nn.Module], small_stem: bool
    ) -> None:
        super().__init__()
        self.stem = _stem(channels, width, activation, small_stem)
        stages, inputs = [], width
        for stage, count in enumerate(blocks):
            outputs = width * 2**stage
            for block in range(count):
                stride = 2 if stage > 0 and block == 0 else 1
                stages.append(BasicBlock(inputs, outputs, stride, activation))
                inputs = outputs
        self.blocks = nn.Sequential(*stages)
        self.apply(_initialize)

    def forward(self, x: Float[Tensor, "batch channels h w"]) -> Float[Tensor, "batch embedding"]:
        return self.blocks(self.stem(x)).mean((2, 3))  # type: ignore[no-any-return]


def _stem(channels: int, width: int, activation: type[nn.Module], small: bool) -> nn.Sequential:
    """3×3 at stride 1 keeps small images whole; the original 7×7 at stride 2 with max-pool quarters each side."""
    if small:
        return nn.Sequential(nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), activation())
    wide = nn.Conv2d(channels, width, 7, stride=2, padding=3, bias=False)
    return nn.Sequential(wide, nn.BatchNorm2d(width), activation(), nn.MaxPool2d(3, stride=2, padding=1))


@torch.no_grad()
def _initialize(module: nn.Module) -> None:
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
