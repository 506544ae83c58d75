"""Encoders by name, and the one door to them: `build_encoder`.

An encoder is any module from a batch of inputs to a batch of embeddings, or to something in which `embedding` finds
them. To add one from outside the package:

    @register_encoder("mine")
    def mine(options: EncoderOptions, input_shape: tuple[int, ...]) -> nn.Module: ...
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import nn

from ricnet.errors import RicnetError, require, require_finite, setting, what_else
from ricnet.nets.embedding import as_embedding
from ricnet.nets.resnet import BLOCKS_PER_STAGE, ResNet

SMALL_IMAGE = 64
"""Images up to this many pixels a side keep their resolution through the stem."""
TINY_IMAGE = 16
"""Images up to this many pixels a side have nothing left for a ResNet's four stages to halve."""


@dataclass(frozen=True)
class EncoderOptions:
    encoder: str = "auto"
    """resnet10, resnet18, resnet34, conv, mlp, or auto: mlp for tables, conv up to 16 pixels, resnet18 above. The
    preset fast takes resnet10 for fewer than 5,000 images above 16 pixels, of half the --width; on a CPU of a quarter,
    and up to 32 pixels conv."""
    width: float = 1.0
    """Multiplies every layer's width. Raise it for accuracy, lower it for speed; the thought grows with it."""
    activation: Literal["relu", "silu"] = "relu"
    """Non-linearity of the encoder; the paper swept both."""
    stem: Literal["auto", "small", "original"] = "auto"
    """First layer of a ResNet: small (3×3, stride 1, no pooling; auto up to 64 pixels) or original (7×7, pooling)."""

    def __post_init__(self) -> None:
        require_finite(self)
        require(self.width > 0, "width", self.width, "above 0")


Builder = Callable[[EncoderOptions, tuple[int, ...]], nn.Module]
_BUILDERS: dict[str, Builder] = {}


def register_encoder(name: str) -> Callable[[Builder], Builder]:
    """Make an encoder available under a name; a decorator."""

    def register(builder: Builder) -> Builder:
        _BUILDERS[name] = builder
        return builder

    return register


def encoder_names() -> list[str]:
    return sorted(_BUILDERS)


def choose_encoder(name: str, input_shape: tuple[int, ...]) -> str:
    """What `auto` means for inputs of this shape; any other known name means itself."""
    if name in _BUILDERS:
        return name
    if name != "auto":
        raise RicnetError(f"{setting('encoder', name)} is unknown; {what_else(name, ['auto', *encoder_names()])}")
    if len(input_shape) == 1:
        return "mlp"
    return "conv" if max(input_shape[1:]) <= TINY_IMAGE else "resnet18"


def build_encoder(options: EncoderOptions, input_shape: tuple[int, ...]) -> nn.Module:
    name = choose_encoder(options.encoder, input_shape)
    if len(input_shape) == 1 and name in (*BLOCKS_PER_STAGE, "conv"):
        raise RicnetError(
            f"{setting('encoder', name)} reads images, but each input is a row of {input_shape[0]} features; use mlp."
        )
    try:
        return _BUILDERS[name](replace(options, encoder=name), input_shape)
    except (RuntimeError, MemoryError) as error:  # torch's own kinds for a size that no memory holds, or no number
        raise RicnetError(
            f"{setting('encoder', name)} of {setting('width', options.width)} cannot be built for inputs of shape "
            f"{input_shape} "
            f"({str(error).splitlines()[0][:200]}); lower {setting('width')}."
        ) from error


def embedding_size(encoder: nn.Module, input_shape: tuple[int, ...]) -> int:
    """How many numbers the encoder makes of one input; asked of the module itself, so that any module will do."""
    was_training = encoder.training
    device = next((parameter.device for parameter in encoder.parameters()), None)
    with torch.no_grad():
        embedding = as_embedding(encoder.eval()(torch.zeros(1, *input_shape, device=device)))
    encoder.train(was_training)
    return int(embedding.shape[1])


def _activation(options: EncoderOptions) -> type[nn.Module]:
    return {"relu": nn.ReLU, "silu": nn.SiLU}[options.activation]


def _scaled(size: int, options: EncoderOptions) -> int:
    return max(1, round(min(size * options.width, 2**62)))


def _resnet(options: EncoderOptions, input_shape: tuple[int, ...]) -> nn.Module:
    small = options.stem == "small" or (options.stem == "auto" and max(input_shape[1:]) <= SMALL_IMAGE)
    return ResNet(input_shape[0], BLOCKS_PER_STAGE[options.encoder], _scaled(64, options), _activation(options), small)


for _name in BLOCKS_PER_STAGE:
    register_encoder(_name)(_resnet)


@register_encoder("conv")
def _conv(options: EncoderOptions, input_shape: tuple[int, ...]) -> nn.Module:
    """Three convolutions, halving once, and a linear layer that still knows where things are: for tiny images."""
    narrow, wide, embedding = _scaled(32, options), _scaled(64, options), _scaled(128, options)
    activation = _activation(options)
    height, width = ((side + 1) // 2 for side in input_shape[1:])
    return nn.Sequential(
        nn.Conv2d(input_shape[0], narrow, 3, padding=1, bias=False),
        nn.BatchNorm2d(narrow),
        activation(),
        nn.Conv2d(narrow, wide, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(wide),
        activation(),
        nn.Flatten(),
        nn.Linear(wide * height * width, embedding, bias=False),
        nn.BatchNorm1d(embedding),
        activation(),
    )


@register_encoder("mlp")
def _mlp(options: EncoderOptions, input_shape: tuple[int, ...]) -> nn.Module:
    """Two hidden layers over the flattened input."""
    size, inputs = _scaled(128, options), int(torch.Size(input_shape).numel())
    activation = _activation(options)
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, size), activation(), nn.Linear(size, size), activation())
