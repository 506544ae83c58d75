"""Encoders by name: options, registry, and the networks that are trained from scratch.

An encoder is any module whose output `backbone.as_embedding` accepts. One for texts reads token ids (batch, tokens),
padded with 0 or its own padding id, and has an attribute `vocabulary`, the number of ids. To add one from outside the
package:

    @register_encoder("mine")
    def mine(options: EncoderOptions, input_shape: tuple[int, ...]) -> nn.Module: ...
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ricnet.errors import RicnetError, first_line, require, require_finite, setting, what_else
from ricnet.nets.backbone import Backbone as Backbone
from ricnet.nets.backbone import Exits
from ricnet.nets.fused import can_fuse, fold, fused
from ricnet.nets.tabular import ColumnFeatures
from ricnet.nets.whitened import WIDTHS, build_whitened
from ricnet.nets.words import TfIdf, Words

SMALL_IMAGE = 64
"""Images up to this many pixels a side keep their resolution through the stem."""
TINY_IMAGE = 16
"""Images up to this many pixels a side are too small for the four stages of a ResNet."""
BLOCKS_PER_STAGE = {"resnet10": (1, 1, 1, 1), "resnet18": (2, 2, 2, 2), "resnet34": (3, 4, 6, 3)}
READ_TEXTS = ("tfidf", "words")
PRETRAINED = ("hf:", "timm:")
"""Prefixes of the names of pretrained encoders (`pretrained`)."""


@dataclass(frozen=True)
class EncoderOptions:
    encoder: str = "auto"
    """Network that reads the input: auto, conv, resnet10, resnet18, resnet34, whitened or whitened-deep for images,
    tabular or mlp for tables, tfidf or words for texts, or a pretrained one (hf:NAME, timm:NAME). The whitened ones are
    for small images and short runs: a whitening convolution computed from the data, then three blocks. auto takes conv
    for images of up to 16 pixels a side and resnet18 above, tfidf for texts, and for tables tabular (preset fast) or
    mlp (paper). Above 16 pixels the preset fast takes resnet10 of half the --width for fewer than 5,000 images; on a
    CPU it takes whitened of a quarter of the width up to 32 pixels (conv of half for fewer than 1,000 images or with
    exits), and resnet10 of a quarter above. Pretrained encoders: hf:FOLDER
    or hf:USER/NAME (transformers), timm:NAME or timm:NAME@FILE.safetensors (timm)."""
    width: float = 1.0
    """Multiplies every layer's width. Raise it for accuracy, lower it for speed; the thought grows with it."""
    activation: Literal["relu", "silu"] = "relu"
    """Non-linearity of the encoder; the paper swept both."""
    stem: Literal["auto", "small", "half", "original"] = "auto"
    """First layer of a ResNet: small (3×3, stride 1; auto up to 64 pixels), half (3×3, stride 1, pooling) or original
    (7×7, stride 2, pooling; auto above). small divides the sides of an image by 1, half by 2, original by 4. Less
    reduction keeps finer detail and is slower."""
    freeze: bool = False
    """Do not train a pretrained encoder: its features are computed once and cached, and only the layers after it are
    trained, in seconds. The preset fast freezes with fewer than 5,000 rows, on a CPU always. --no-freeze trains it too
    (see --encoder-lr): better with much data and a GPU."""
    exits: Exits = "none"
    """Where an example may leave the encoder: none (each step reads the whole encoder, as in the paper), or after each
    stage or block. Each step then reads the next one, and later ones are computed only if needed. Of a transformer, a
    block is a layer, and a stage a quarter of its layers."""
    steps_per_exit: int = 1
    """Steps at each exit. Raise it to refine longer before the next stage is computed."""

    def __post_init__(self) -> None:
        require_finite(self)
        require(self.width > 0, "width", self.width, "above 0")
        require(self.steps_per_exit >= 1, "steps_per_exit", self.steps_per_exit, "at least 1")
        if self.exits == "none":
            require(self.steps_per_exit == 1, "steps_per_exit", self.steps_per_exit, f"1 without {setting('exits')}")
        if self.freeze and not (is_pretrained(self.encoder) or self.encoder == "custom"):
            raise RicnetError(
                f"{setting('freeze', True)} needs a pretrained encoder (hf:…, timm:…, or a module of your own), but "
                f"{setting('encoder', self.encoder)} starts from random weights; leave it out."
            )

    @property
    def pretrained(self) -> bool:
        """Whether the encoder was trained before this run: hf:…, timm:…, or frozen."""
        return self.freeze or is_pretrained(self.encoder)


Builder = Callable[[EncoderOptions, tuple[int, ...]], nn.Module]
_BUILDERS: dict[str, Builder] = {}


def register_encoder(name: str) -> Callable[[Builder], Builder]:
    """Make an encoder available under a name; a decorator."""

    def register(builder: Builder) -> Builder:
        _BUILDERS[name] = builder
        return builder

    return register


def is_pretrained(name: str) -> bool:
    return name.startswith(PRETRAINED)


def is_registered_outside(name: str) -> bool:
    """Whether an encoder of this name was added from outside the package."""
    return name in _BUILDERS and not is_ours(_BUILDERS[name])


def is_ours(code: Any) -> bool:
    """Whether a function or class is part of this package."""
    return str(code.__module__).split(".")[0] == __name__.split(".")[0]


def choose_encoder(name: str, input_shape: tuple[int, ...]) -> str:
    """The name, with `auto` resolved for inputs of this shape."""
    if name in _BUILDERS or is_pretrained(name):
        return name
    if name != "auto" and "/" in name:  # a repository on the Hub, or a folder
        owner, _, rest = name.partition("/")
        meant = f"timm:{rest}" if owner == "timm" else f"hf:{name}"
        raise RicnetError(f"{setting('encoder', name)} is unknown; did you mean {meant}?")
    if name != "auto":
        raise RicnetError(f"{setting('encoder', name)} is unknown; {what_else(name, ['auto', *sorted(_BUILDERS)])}")
    if len(input_shape) == 1:
        return "mlp"
    return "conv" if max(input_shape[1:]) <= TINY_IMAGE else "resnet18"


def build_encoder(options: EncoderOptions, input_shape: tuple[int, ...]) -> nn.Module:
    """The part with random weights: the encoder, or the MLP on the features of a pretrained one."""
    name = "mlp" if options.pretrained else choose_encoder(options.encoder, input_shape)
    options = replace(options, freeze=False)
    if len(input_shape) == 1 and name in (*BLOCKS_PER_STAGE, *WIDTHS, "conv"):
        raise RicnetError(
            f"{setting('encoder', name)} reads images, but inputs are rows of {input_shape[0]} numbers; leave it out."
        )
    if len(input_shape) != 1 and name in (*READ_TEXTS, "tabular"):
        kind = "tables" if name == "tabular" else "texts"
        raise RicnetError(f"{setting('encoder', name)} reads {kind}, but the inputs are images; leave it out.")
    try:
        return _BUILDERS[name](replace(options, encoder=name), input_shape)
    except (RuntimeError, MemoryError) as error:  # sizes beyond memory or int64
        raise RicnetError(
            f"{setting('encoder', name)} of {setting('width', options.width)} cannot be built for inputs of shape "
            f"{input_shape} ({first_line(error)}); lower {setting('width')}."
        ) from error


def _activation(options: EncoderOptions) -> type[nn.Module]:
    return {"relu": nn.ReLU, "silu": nn.SiLU}[options.activation]


def _scaled(size: int, options: EncoderOptions) -> int:
    return max(1, round(min(size * options.width, 2**62)))


def _resnet(options: EncoderOptions, input_shape: tuple[int, ...]) -> nn.Module:
    stem = options.stem
    if stem == "auto":
        stem = "small" if max(input_shape[1:]) <= SMALL_IMAGE else "original"
    return ResNet(input_shape[0], BLOCKS_PER_STAGE[options.encoder], _scaled(64, options), _activation(options), stem)


for _name in BLOCKS_PER_STAGE:
    register_encoder(_name)(_resnet)


@register_encoder("conv")
def _conv(options: EncoderOptions, input_shape: tuple[int, ...]) -> nn.Module:
    """For tiny images: two convolutions, the second of stride 2, and a linear layer over all positions."""
    narrow, wide, embedding = _scaled(32, options), _scaled(64, options), _scaled(128, options)
    activation = _activation(options)
    height, width = ((side + 1) // 2 for side in input_shape[1:])
    return Layers(
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


@register_encoder("whitened")
@register_encoder("whitened-deep")
def _whitened(options: EncoderOptions, input_shape: tuple[int, ...]) -> nn.Module:
    return build_whitened(options.encoder, options.width, input_shape)


def mlp_size(options: EncoderOptions) -> int:
    return _scaled(128, options)


@register_encoder("mlp")
def _mlp(options: EncoderOptions, input_shape: tuple[int, ...]) -> nn.Module:
    """Two hidden layers over the flattened input."""
    size, inputs = mlp_size(options), int(torch.Size(input_shape).numel())
    activation = _activation(options)
    return Layers(nn.Flatten(), nn.Linear(inputs, size), activation(), nn.Linear(size, size), activation())


@register_encoder("tabular")
def _tabular(options: EncoderOptions, input_shape: tuple[int, ...]) -> nn.Module:
    """An MLP on the features of all columns."""
    features = ColumnFeatures(input_shape[0])
    return Layers(features, *_mlp(options, (features.size,)).children())


class Layers(nn.Sequential):
    """Layers in sequence; each stage ends with an activation."""

    def stages(self, exits: Exits) -> list[nn.Module]:
        ends = [place for place, layer in enumerate(self, 1) if isinstance(layer, nn.ReLU | nn.SiLU)]
        return [self[start:end] for start, end in pairwise([0, *ends])]


@register_encoder("words")
def _words(options: EncoderOptions, input_shape: tuple[int, ...]) -> nn.Module:
    return Words(_scaled(64, options), _activation(options))


@register_encoder("tfidf")
def _tf_idf(options: EncoderOptions, input_shape: tuple[int, ...]) -> nn.Module:
    return TfIdf(_scaled(64, options))


# ResNets of basic blocks (He et al. 2016)


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
        self, channels: int, blocks: tuple[int, ...], width: int, activation: type[nn.Module], stem: str
    ) -> None:
        super().__init__()
        self.stem = _stem(channels, width, activation, stem)
        layers, inputs = [], width
        for stage, count in enumerate(blocks):
            outputs = width * 2**stage
            for block in range(count):
                stride = 2 if stage > 0 and block == 0 else 1
                layers.append(BasicBlock(inputs, outputs, stride, activation))
                inputs = outputs
        self.blocks = nn.Sequential(*layers)
        self.counts = blocks
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Float[Tensor, "batch channels h w"]) -> Float[Tensor, "batch embedding"]:
        return self.blocks(self.stem(x)).mean((2, 3))  # type: ignore[no-any-return]

    def stages(self, exits: Exits) -> list[nn.Module]:
        """Its stages or blocks; the first includes the stem."""
        counts = self.counts if exits == "stage" else (1,) * len(self.blocks)
        parts = [[*self.blocks][start:end] for start, end in pairwise([0, *accumulate(counts)])]
        return [nn.Sequential(self.stem, *parts[0]), *(nn.Sequential(*part) for part in parts[1:])]


def _stem(channels: int, width: int, activation: type[nn.Module], kind: str) -> nn.Sequential:
    """small keeps the resolution, half and original divide each side by 2 and 4."""
    size, stride = (7, 2) if kind == "original" else (3, 1)
    first = nn.Conv2d(channels, width, size, stride, padding=size // 2, bias=False)
    pooling = [] if kind == "small" else [nn.MaxPool2d(3, stride=2, padding=1)]
    return nn.Sequential(first, nn.BatchNorm2d(width), activation(), *pooling)
