"""From raw input to embedding: encoders by name, and the backbone that normalises and encodes. (Encoders that others
have trained are in `pretrained`.)

An encoder is any module from a batch of inputs to a batch of embeddings, or to something in which `as_embedding` finds
them. One that reads texts takes token ids (batch, tokens), 0 or its own number for padding, and has an attribute
`vocabulary`, how many ids it knows. To add an encoder from outside the package:

    @register_encoder("mine")
    def mine(options: EncoderOptions, input_shape: tuple[int, ...]) -> nn.Module: ...
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, Literal, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Integer, Num
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from ricnet.errors import RicnetError, first_line, require, require_finite, setting, what_else
from ricnet.nets.fused import can_fuse, fold, fused

SMALL_IMAGE = 64
"""Images up to this many pixels a side keep their resolution through the stem."""
TINY_IMAGE = 16
"""Images up to this many pixels a side have nothing left for a ResNet's four stages to halve."""
BLOCKS_PER_STAGE = {"resnet10": (1, 1, 1, 1), "resnet18": (2, 2, 2, 2), "resnet34": (3, 4, 6, 3)}
CPU_BATCH = 64
"""A narrow ResNet-18 took 1.3 to 2 times as long for each image in batches of 512."""
GPU_BATCH = 512
FEATURE_SAMPLE = 256
"""Training rows whose features say how features are normalised, where those of all rows are not at hand."""
TABLE_ROWS = 1 << 15
"""Vectors that the words of all texts share: two words with the same one are told apart by their neighbours."""
PRETRAINED = ("hf:", "timm:")
"""What the names of encoders begin with that others have trained (nets/pretrained.py)."""
POOLED, TOKENS = "pooler_output", "last_hidden_state"
"""What the transformers library calls the vector of an input, and those of its tokens or places."""


Exits = Literal["none", "stage", "block"]


@dataclass(frozen=True)
class EncoderOptions:
    encoder: str = "auto"
    """resnet10, resnet18, resnet34, conv, mlp, words (for texts), or auto: mlp for tables, conv up to 16 pixels,
    resnet18 above. The preset fast takes resnet10 for fewer than 5,000 images above 16 pixels, of half the --width; on
    a CPU of a quarter, and up to 32 pixels conv. One that has learned from other data: hf:FOLDER or hf:USER/NAME
    (transformers), timm:NAME or timm:NAME@FILE.safetensors (timm)."""
    width: float = 1.0
    """Multiplies every layer's width. Raise it for accuracy, lower it for speed; the thought grows with it."""
    activation: Literal["relu", "silu"] = "relu"
    """Non-linearity of the encoder; the paper swept both."""
    stem: Literal["auto", "small", "original"] = "auto"
    """First layer of a ResNet: small (3×3, stride 1, no pooling; auto up to 64 pixels) or original (7×7, pooling)."""
    freeze: bool = False
    """Leave an encoder that others have trained as it is: what it says of each image is computed once and kept, and
    only what comes after it learns, in seconds. The preset fast does with fewer than 5,000 rows, on a CPU always.
    --no-freeze trains it too (see --encoder-lr): better with much data and a GPU."""
    exits: Exits = "none"
    """Where thinking may end before the encoder does: none (each step reads the whole encoder, as in the paper), or
    after each stage or block of it. Steps then read one after the other, and what is not needed is not computed. Of a
    transformer a block is a layer, and a stage a quarter of its layers."""
    steps_per_exit: int = 1
    """Steps at each exit. Raise it to think longer about what was seen before looking at more."""

    def __post_init__(self) -> None:
        require_finite(self)
        require(self.width > 0, "width", self.width, "above 0")
        require(self.steps_per_exit >= 1, "steps_per_exit", self.steps_per_exit, "at least 1")
        if self.exits == "none":
            require(self.steps_per_exit == 1, "steps_per_exit", self.steps_per_exit, f"1 without {setting('exits')}")
        if self.freeze and not (is_pretrained(self.encoder) or self.encoder == "custom"):
            raise RicnetError(
                f"{setting('freeze', True)} is for an encoder that has learned already (hf:…, timm:…, or a module of "
                f"your own), and {setting('encoder', self.encoder)} starts from nothing; leave it out."
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


def encoder_names() -> list[str]:
    return sorted(_BUILDERS)


def is_pretrained(name: str) -> bool:
    return name.startswith(PRETRAINED)


def is_registered_outside(name: str) -> bool:
    """Whether an encoder of this name was added from outside the package."""
    return name in _BUILDERS and not is_ours(_BUILDERS[name])


def is_ours(code: Any) -> bool:
    """Whether a function or class is part of this package."""
    return str(code.__module__).split(".")[0] == __name__.split(".")[0]


def choose_encoder(name: str, input_shape: tuple[int, ...]) -> str:
    """What `auto` means for inputs of this shape; any other known name means itself."""
    if name in _BUILDERS or is_pretrained(name):
        return name
    if name != "auto" and "/" in name:  # a repository on the Hub, or a folder
        owner, _, rest = name.partition("/")
        meant = f"timm:{rest}" if owner == "timm" else f"hf:{name}"
        raise RicnetError(f"{setting('encoder', name)} is unknown; did you mean {meant}?")
    if name != "auto":
        raise RicnetError(f"{setting('encoder', name)} is unknown; {what_else(name, ['auto', *encoder_names()])}")
    if len(input_shape) == 1:
        return "mlp"
    return "conv" if max(input_shape[1:]) <= TINY_IMAGE else "resnet18"


def build_encoder(options: EncoderOptions, input_shape: tuple[int, ...]) -> nn.Module:
    """The part that learns from nothing: of an encoder that others have trained what follows it, over its features."""
    features = options.pretrained
    name = "mlp" if features else choose_encoder(options.encoder, input_shape)
    options = replace(options, freeze=False)
    if len(input_shape) == 1 and name in (*BLOCKS_PER_STAGE, "conv"):
        raise RicnetError(
            f"{setting('encoder', name)} reads images, but each input is a row of {input_shape[0]} features; use mlp."
        )
    if len(input_shape) != 1 and name == "words":
        raise RicnetError(f"{setting('encoder', name)} reads texts, but the inputs are images; leave it out.")
    try:
        return _BUILDERS[name](replace(options, encoder=name), input_shape)
    except (RuntimeError, MemoryError) as error:  # torch's own kinds for a size that no memory holds, or no number
        raise RicnetError(
            f"{setting('encoder', name)} of {setting('width', options.width)} cannot be built for inputs of shape "
            f"{input_shape} ({first_line(error)}); lower {setting('width')}."
        ) from error


PLACES = 2
"""An image's features keep so many places a side: where something is seen helps to tell what it is."""


@runtime_checkable
class InStages(Protocol):
    """An encoder that can be left early."""

    def stages(self, exits: Exits) -> Sequence[nn.Module]:
        """Its parts in order: one after the other they do its work, up to its pooling. `exits` asks for large parts or
        for small ones, where there is a difference. One may have a method `pool`, from what it makes to (batch,
        features), where that of `pool_features` does not suit it."""


def divide(encoder: nn.Module, exits: Exits) -> tuple[nn.Module, ...]:
    """The stages that an encoder says it has; of an nn.Sequential that does not say, each part is one."""
    stages: tuple[nn.Module, ...]
    if isinstance(encoder, InStages):
        stages = tuple(encoder.stages(exits))
    elif isinstance(encoder, nn.Sequential):
        stages = tuple(encoder)
    else:
        raise RicnetError(
            f"{setting('exits', exits)} needs an encoder that says where it can be left, but {type(encoder).__name__} "
            f"does not; take one that does, for texts {setting('encoder', 'hf:NAME')}, or give it stages(exits), "
            "a method that returns its parts in order."
        )
    if len(stages) < 2:
        raise RicnetError(f"{setting('exits', exits)} needs an encoder of two stages or more; this one has one.")
    return stages


def pool_features(seen: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch features"]:
    """Of images a few places, of tokens their mean; a vector is itself."""
    if seen.ndim == 4:
        high, wide = seen.shape[2:]
        rows, columns = min(PLACES, high), min(PLACES, wide)
        if seen.is_cuda and high % rows == wide % columns == 0:  # the same, at 32 × 32 pixels in half the time
            return F.avg_pool2d(seen, (high // rows, wide // columns)).flatten(1)
        return F.adaptive_avg_pool2d(seen, (rows, columns)).flatten(1)
    return seen.mean(1) if seen.ndim == 3 else seen.flatten(1)


def features_of(stage: nn.Module, seen: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch features"]:
    """What is read off what a stage has made."""
    pool: Callable[[Tensor], Tensor] = getattr(stage, "pool", pool_features)
    return pool(seen)


def all_features(stages: Sequence[nn.Module], seen: Num[Tensor, "batch ..."]) -> Float[Tensor, "batch features"]:
    """Those of all stages, side by side."""
    found = []
    for stage in stages:
        seen = stage(seen)
        found.append(features_of(stage, seen))
    return torch.cat(found, 1)


@contextmanager
def counting() -> Iterator[FlopCounterMode]:
    """Counts multiply-adds, those of attention too, for which a CPU has a kernel that does not say."""
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        yield counter


class Known(nn.Module):
    """In place of a frozen encoder with exits where what it says is known: inputs are the features of all its stages,
    side by side, and each stage has its part of them."""

    def __init__(self, sizes: Sequence[int], flops: Sequence[int]) -> None:
        super().__init__()
        self.sizes = tuple(sizes)
        self.flops = tuple(flops)
        """What each stage of that encoder costs."""

    def stages(self, exits: Exits) -> list[nn.Module]:
        ends = list(accumulate(self.sizes))
        return [KnownStage(start, end) for start, end in pairwise([0, *ends])]


class KnownStage(nn.Module):
    def __init__(self, start: int, end: int) -> None:
        super().__init__()
        self.place = slice(start, end)

    def forward(self, seen: Float[Tensor, "batch features"]) -> Float[Tensor, "batch features"]:
        return seen

    def pool(self, seen: Float[Tensor, "batch features"]) -> Float[Tensor, "batch part"]:
        return seen[:, self.place]


@contextmanager
def in_eval_mode(*networks: nn.Module) -> Iterator[None]:
    """Eval mode, in which batch norm does not update its statistics. Afterwards the mode of every module is restored:
    parts of a network may differ."""
    modes = {module: module.training for network in networks for module in network.modules()}
    for network in networks:
        network.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


def known(encoder: nn.Module, input_shape: tuple[int, ...], exits: Exits) -> Known:
    """What stands for an encoder in eval mode."""
    return Known(*zip(*measure(divide(encoder, exits), example_input(encoder, input_shape)), strict=True))


@torch.no_grad()
def measure(stages: Sequence[nn.Module], seen: Num[Tensor, "1 ..."]) -> list[tuple[int, int]]:
    """How many features each stage gives, and what it costs."""
    found = []
    with in_eval_mode(*stages):
        for stage in stages:
            with counting() as counter:
                seen = stage(seen)
            found.append((features_of(stage, seen).shape[1], counter.get_total_flops()))
    return found


def embedding_size(encoder: nn.Module, input_shape: tuple[int, ...]) -> int:
    """How many numbers the encoder makes of one input; asked of the module itself, so that any module will do."""
    with in_eval_mode(encoder), torch.no_grad():
        return int(as_embedding(encoder(example_input(encoder, input_shape))).shape[1])


def example_input(encoder: nn.Module, input_shape: tuple[int, ...]) -> Num[Tensor, "1 ..."]:
    """What an encoder can read, where its weights are: zeros, or a text of the same `word` all over."""
    device = next((parameter.device for parameter in encoder.parameters()), None)
    if reads_tokens(encoder):
        return torch.full((1, *input_shape), getattr(encoder, "word", 0), device=device, dtype=torch.int32)
    return torch.zeros(1, *input_shape, device=device)


def reads_tokens(encoder: nn.Module) -> bool:
    return hasattr(encoder, "vocabulary")


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


def mlp_size(options: EncoderOptions) -> int:
    return _scaled(128, options)


@register_encoder("mlp")
def _mlp(options: EncoderOptions, input_shape: tuple[int, ...]) -> nn.Module:
    """Two hidden layers over the flattened input."""
    size, inputs = mlp_size(options), int(torch.Size(input_shape).numel())
    activation = _activation(options)
    return Layers(nn.Flatten(), nn.Linear(inputs, size), activation(), nn.Linear(size, size), activation())


class Layers(nn.Sequential):
    """A plain chain. Each of its stages ends with an activation."""

    def stages(self, exits: Exits) -> list[nn.Module]:
        ends = [place for place, layer in enumerate(self, 1) if isinstance(layer, nn.ReLU | nn.SiLU)]
        return [self[start:end] for start, end in pairwise([0, *ends])]


@register_encoder("words")
def _words(options: EncoderOptions, input_shape: tuple[int, ...]) -> nn.Module:
    return Words(TABLE_ROWS, _scaled(64, options), _activation(options))


class Words(nn.Module):
    """Token ids (batch, tokens) → (batch, size): the mean vector of a text's words and word pairs, then a layer
    (fastText, Joulin et al. 2016). Ids are hashes: what is left of them modulo the rows of the table is their row."""

    vocabulary = 1 << 31

    def __init__(self, rows: int, size: int, activation: type[nn.Module]) -> None:
        super().__init__()
        self.table = nn.Embedding(rows, size, padding_idx=0)
        nn.init.uniform_(self.table.weight, -1 / size, 1 / size)  # as fastText begins: a larger start is over-fitted
        nn.init.zeros_(self.table.weight[0])
        self.layer = nn.Sequential(nn.Linear(size, size), activation())

    def forward(self, ids: Integer[Tensor, "batch tokens"]) -> Float[Tensor, "batch size"]:
        rows = torch.where(ids > 0, ids.long() % (self.table.num_embeddings - 1) + 1, 0)
        known = (rows > 0).sum(1, keepdim=True).clamp(min=1)
        return self.layer(self.table(rows).sum(1) / known)  # type: ignore[no-any-return]


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
        """Whether answers come from cuDNN's fused convolutions: on a GPU, in half precision, once it is trained."""
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
        self.counts = blocks
        self.apply(_initialize)

    def forward(self, x: Float[Tensor, "batch channels h w"]) -> Float[Tensor, "batch embedding"]:
        return self.blocks(self.stem(x)).mean((2, 3))  # type: ignore[no-any-return]

    def stages(self, exits: Exits) -> list[nn.Module]:
        """The first has the stem too."""
        counts = self.counts if exits == "stage" else (1,) * len(self.blocks)
        ends = list(accumulate(counts))
        parts = [[*self.blocks][start:end] for start, end in pairwise([0, *ends])]
        return [nn.Sequential(self.stem, *parts[0]), *(nn.Sequential(*part) for part in parts[1:])]


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


class Backbone(nn.Module):
    """Takes inputs as the data set holds them (uint8 images, float features, token ids), so a saved model needs nothing
    else."""

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        encoder: nn.Module,
        input_shape: tuple[int, ...],
        exits: Exits = "none",
        steps_per_exit: int = 1,
        features: nn.Module | None = None,
        frozen: bool = False,
        size: int | None = None,
    ) -> None:
        """`features` is a network that has learned already: what it makes of inputs is normalised and encoded in their
        place. If it is `frozen`, nothing of it learns. With exits it is left after its own stages, the features of each
        are normalised, and nothing encodes them; a thought then has the `size` that is given."""
        super().__init__()
        self.features, self.frozen = features, frozen
        if features is not None:
            features.requires_grad_(not frozen)
        self.encoder = encoder
        self.input_shape = input_shape
        self.stages = () if exits == "none" else divide(self.reader, exits)
        """The same in parts, for those who may not need all of it; they share its weights."""
        self.steps_per_exit = steps_per_exit
        self.flops = features.flops if isinstance(features, Known) else ()
        """What stages cost that were computed elsewhere (see `Known`)."""
        self.parts: list[slice] = []
        """Of `mean` and `std`, those of the features of each stage; empty where inputs are normalised."""
        read = input_shape
        if features is not None and self.stages:
            sizes = [size for size, _ in measure(self.stages, self.example)]
            self.parts = [slice(end - size, end) for size, end in zip(sizes, accumulate(sizes), strict=True)]
            read = (sum(sizes),)
        elif features is not None:
            read = (embedding_size(features, input_shape),)
        self.embedding_size = size if size is not None else embedding_size(encoder, read)
        self.normalizes = features is not None or not reads_tokens(encoder)
        """Ids stay as they are: an id has no mean."""
        normalized = read[0] if self.normalizes else 0
        self.register_buffer("mean", torch.zeros(normalized))
        self.register_buffer("std", torch.ones(normalized))
        self.autocast: torch.dtype | None = None
        """Lower precision for the encoder alone; what follows it stays in float32."""

    @property
    def reader(self) -> nn.Module:
        """What inputs go into."""
        return self.encoder if self.features is None else self.features

    @property
    def example(self) -> Num[Tensor, "1 ..."]:
        return example_input(self.reader, self.input_shape)

    def fit_normalization(self, inputs: Num[Tensor, "n ..."]) -> None:
        """Take mean and deviation of each channel (or column) from training inputs; a constant one is left unscaled."""
        if self.features is not None:  # as it comes, before any of it is trained further
            network = partial(all_features, self.stages) if self.stages else self.features
            with torch.no_grad():
                inputs = encode(network, inputs[:: max(1, len(inputs) // FEATURE_SAMPLE)])
        if not self.normalizes:
            return
        others = [dim for dim in range(inputs.ndim) if dim != 1]
        parts = [part.double() for part in inputs[:: max(1, len(inputs) // 10_000)].split(500)]  # never all at once
        mean = torch.stack([len(part) * part.mean(others) for part in parts]).sum(0) / sum(map(len, parts))
        shape = (1, -1) + (1,) * (inputs.ndim - 2)
        squares = [len(part) * (part - mean.view(shape)).square().mean(others) for part in parts]
        std = (torch.stack(squares).sum(0) / sum(map(len, parts))).sqrt()
        self.mean.copy_(mean)
        self.std.copy_(torch.where(std > 1e-9 * mean.abs(), std, torch.ones_like(std)))

    def normalized(self, inputs: Num[Tensor, "batch ..."]) -> Num[Tensor, "batch ..."]:
        if self.parts or not self.normalizes:
            return inputs
        shape = (1, -1) + (1,) * (inputs.ndim - 2)
        return (inputs.to(self.mean.dtype) - self.mean.view(shape)) / self.std.view(shape)

    def forward(self, inputs: Num[Tensor, "batch ..."]) -> Float[Tensor, "batch embedding"]:
        if self.features is not None:
            lower = self.autocast is not None and not self.frozen  # frozen features are kept in full precision
            with torch.autocast(inputs.device.type, dtype=self.autocast, enabled=lower):
                inputs = as_embedding(self.features(inputs))
        with torch.autocast(inputs.device.type, dtype=self.autocast, enabled=self.autocast is not None):
            embedding = as_embedding(self.encoder(self.normalized(inputs)))
        return embedding.to(self.mean.dtype)

    def look(self, stage: int, seen: Num[Tensor, "batch ..."]) -> tuple[Tensor, Float[Tensor, "batch features"]]:
        """From what the stage before has made (the normalised inputs for the first) to what this one makes, and to the
        features that are read off it."""
        lower = self.autocast is not None and not self.frozen
        with torch.autocast(seen.device.type, dtype=self.autocast, enabled=lower):
            seen = self.stages[stage](seen)
        features = features_of(self.stages[stage], seen).to(self.mean.dtype)
        if self.parts:
            features = (features - self.mean[self.parts[stage]]) / self.std[self.parts[stage]]
        return seen, features

    def walk(self, inputs: Num[Tensor, "batch ..."]) -> Iterator[tuple[Tensor, Float[Tensor, "batch features"]]]:
        """Through all stages: what each makes, and its features."""
        seen = self.normalized(inputs)
        for stage in range(len(self.stages)):
            seen, features = self.look(stage, seen)
            yield seen, features

    @torch.no_grad()
    def walk_once(self) -> Iterator[tuple[Tensor, Float[Tensor, "1 features"]]]:
        """With one input, to see what there is."""
        with in_eval_mode(self):
            yield from self.walk(self.example)

    @property
    def feature_sizes(self) -> list[int]:
        """How many features each stage gives."""
        return [features.shape[1] for _, features in self.walk_once()] if self.stages else []

    def count_costs(self, read: Callable[[int, Tensor], Tensor], step: Callable[[Tensor], object]) -> tuple[float, ...]:
        """The share of all multiply-adds that is spent after each step, where a stage's features are `read` once and
        each step at its exit works with that."""
        spent = []
        with counting() as counter, torch.no_grad():
            for stage, (_, features) in enumerate(self.walk_once()):
                context = read(stage, features)
                for _ in range(self.steps_per_exit):
                    step(context)
                    spent.append(counter.get_total_flops() + sum(self.flops[: stage + 1]))
        return tuple(flops / spent[-1] for flops in spent)


class Staged(nn.Module, ABC):
    """A network that may be left after each stage of its encoder."""

    costs: tuple[float, ...]
    """The share of the whole network's multiply-adds that is spent after each step; without exits not counted."""

    def __init__(self, backbone: Backbone, classes: int) -> None:
        super().__init__()
        self.backbone, self.classes = backbone, classes

    @property
    def has_exits(self) -> bool:
        return len(self.backbone.stages) > 0

    def look(self, stage: int, seen: Num[Tensor, "batch ..."]) -> tuple[Tensor, Float[Tensor, "batch read"]]:
        """The next stage: what it makes of what was seen, and what is read off it."""
        seen, features = self.backbone.look(stage, seen)
        return seen, self.read(stage, features)

    @abstractmethod
    def read(self, stage: int, features: Float[Tensor, "batch features"]) -> Float[Tensor, "batch read"]:
        """What a step there works with."""


def encode(
    network: Callable[[Num[Tensor, "batch ..."]], Float[Tensor, "batch size"]], inputs: Num[Tensor, "n ..."]
) -> Float[Tensor, "n size"]:
    """The same as `network(inputs)`, for a network in eval mode."""
    rows = CPU_BATCH if inputs.device.type == "cpu" else GPU_BATCH
    return torch.cat([network(batch) for batch in inputs.split(rows)])


def as_embedding(output: Any) -> Float[Tensor, "batch embedding"]:
    """The output if it is a tensor; else what it has pooled, else its only matrix, else the mean over tokens."""
    embedding = output if isinstance(output, Tensor) else _chosen(_named(output))
    if embedding is None or embedding.ndim != 2:
        raise RicnetError(
            f"the encoder must return one vector an input, shape (batch, size); it returned {_described(output)}; "
            "wrap it in a module that returns such a tensor."
        )
    return embedding


def _named(output: Any) -> dict[str, Tensor]:
    """The numbers in it by name; masks and the like are none of them."""
    if isinstance(output, Mapping):
        found = {str(name): part for name, part in output.items()}
    elif hasattr(output, "_asdict"):
        found = output._asdict()
    elif isinstance(output, tuple | list):
        found = {str(place): part for place, part in enumerate(output)}
    else:
        found = getattr(output, "__dict__", {})
    return {name: part for name, part in found.items() if isinstance(part, Tensor) and part.dtype.is_floating_point}


def _chosen(parts: Mapping[str, Tensor]) -> Tensor | None:
    """None where it would be a guess."""
    if POOLED in parts:
        return parts[POOLED].flatten(1)  # convolutional ones leave it (batch, size, 1, 1)
    matrices = [part for part in parts.values() if part.ndim == 2]
    if matrices:
        return matrices[0] if len(matrices) == 1 else None
    tokens = parts.get(TOKENS)
    if tokens is None or tokens.ndim not in (3, 4):
        return None
    return tokens.mean(1) if tokens.ndim == 3 else tokens.mean((2, 3))  # (batch, tokens, size) or (batch, size, h, w)


def _described(output: Any) -> str:
    if isinstance(output, Tensor):
        return str(tuple(output.shape))
    parts = ", ".join(f"{name} {tuple(part.shape)}" for name, part in _named(output).items())
    return f"something of type {type(output).__name__} with {parts or 'no tensor of numbers'}"
