"""Stages of an encoder with exits: their division, features and costs. The stages of pretrained networks are their
layers, found by the names that libraries give them (LAYOUTS)."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, pairwise
from operator import attrgetter
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64, Integer, Num
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from ricnet.errors import RicnetError, setting

PLACES = 2
"""Positions per side that the features of an image keep."""

Exits = Literal["none", "stage", "block"]


def divide(encoder: nn.Module, exits: Exits) -> tuple[nn.Module, ...]:
    """The stages of an encoder, which together are the encoder up to its pooling; of an nn.Sequential without a method
    `stages`, its modules. A stage may have a method `pool` to (batch, features), which replaces `pool_features`."""
    made: Any = encoder
    if not (hasattr(made, "stages") or isinstance(made, nn.Sequential)):
        raise RicnetError(
            f"{setting('exits', exits)} needs an encoder with known stages, but {type(encoder).__name__} has none; "
            f"choose another, for texts {setting('encoder', 'hf:NAME')}, or give it a method stages(exits) that "
            "returns its parts in order."
        )
    stages: tuple[nn.Module, ...] = tuple(made.stages(exits) if hasattr(made, "stages") else made)
    if len(stages) < 2:
        raise RicnetError(f"{setting('exits', exits)} needs an encoder of two stages or more; this one has one.")
    return stages


def pool_features(seen: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch features"]:
    """Feature maps pooled to PLACES × PLACES, the mean over tokens, or the vector itself."""
    if seen.ndim == 4:
        high, wide = seen.shape[2:]
        rows, columns = min(PLACES, high), min(PLACES, wide)
        if seen.is_cuda and high % rows == wide % columns == 0:  # equal, and at 32 × 32 pixels twice as fast
            return F.avg_pool2d(seen, (high // rows, wide // columns)).flatten(1)
        return F.adaptive_avg_pool2d(seen, (rows, columns)).flatten(1)
    return seen.mean(1) if seen.ndim == 3 else seen.flatten(1)


def features_of(stage: nn.Module, seen: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch features"]:
    """Features computed from the output of a stage."""
    pool: Callable[[Tensor], Tensor] = getattr(stage, "pool", pool_features)
    return pool(seen)


def all_features(stages: Sequence[nn.Module], seen: Num[Tensor, "batch ..."]) -> Float[Tensor, "batch features"]:
    """The features of all stages, concatenated."""
    found = []
    for stage in stages:
        seen = stage(seen)
        found.append(features_of(stage, seen))
    return torch.cat(found, 1)


@contextmanager
def counting() -> Iterator[FlopCounterMode]:
    """Count multiply-adds. Attention uses the math kernel, because the counter does not know that of a CPU."""
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        yield counter


@torch.no_grad()
def measure(stages: Sequence[nn.Module], seen: Num[Tensor, "1 ..."]) -> list[tuple[int, int]]:
    """Number of features and multiply-adds of each stage."""
    found = []
    with in_eval_mode(*stages):
        for stage in stages:
            with counting() as counter:
                seen = stage(seen)
            found.append((features_of(stage, seen).shape[1], counter.get_total_flops()))
    return found


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


class Known(nn.Module):
    """Stands for a frozen encoder with exits whose features are cached: its inputs are the features of all stages,
    concatenated, and each stage selects its own."""

    def __init__(self, sizes: Sequence[int], flops: Sequence[int]) -> None:
        super().__init__()
        self.sizes = tuple(sizes)
        self.flops = tuple(flops)
        """Multiply-adds of each stage of the encoder."""

    def stages(self, exits: Exits) -> list[nn.Module]:
        return [KnownStage(slice(start, end)) for start, end in pairwise([0, *accumulate(self.sizes)])]


class KnownStage(nn.Identity):
    def __init__(self, columns: slice) -> None:
        super().__init__()
        self.columns = columns

    def pool(self, seen: Float[Tensor, "batch features"]) -> Float[Tensor, "batch part"]:
        return seen[:, self.columns]


# Layers of pretrained networks


GROUPS = 4
"""Stages of a transformer, as many as a ResNet has."""

Part = Callable[[Tensor], Any]


class Layout(NamedTuple):
    """Names of a network's attributes. The first of the stem and all layers are required."""

    stem: tuple[str, ...]
    layers: tuple[str, ...]
    """One list of layers or stages, or each stage by name."""
    end: tuple[str, ...] = ()


LAYOUTS = (
    Layout(("embeddings",), ("encoder.layer",), ("layernorm",)),  # transformers: BERT, RoBERTa, ELECTRA, DINOv2
    Layout(("embeddings",), ("transformer.layer",)),  # DistilBERT
    Layout(("embeddings",), ("layers",), ("layernorm",)),  # ViT, DeiT
    Layout(("embedder",), ("encoder.stages",)),  # ResNet, RegNet
    Layout(("embeddings",), ("encoder.stages",)),  # ConvNeXt
    Layout(("patch_embed", "_pos_embed", "patch_drop", "norm_pre"), ("blocks",), ("norm",)),  # timm: ViT, DINOv2
    Layout(("conv1", "bn1", "act1", "maxpool"), ("layer1", "layer2", "layer3", "layer4")),  # ResNet
    Layout(("stem",), ("stages",), ("norm_pre",)),  # ConvNeXt
    Layout(("conv_stem", "bn1"), ("blocks",), ("conv_head", "bn2")),  # EfficientNet
)


def divisions(network: nn.Module, exits: Exits) -> Iterator[list[list[Part]]]:
    """The parts of each stage, for every layout whose names the network has."""
    for layout in LAYOUTS:
        if not all(_has(network, name) for name in (layout.stem[0], *layout.layers)):
            continue
        stem, end = ([attrgetter(n)(network) for n in names if _has(network, n)] for names in (layout.stem, layout.end))
        found = [attrgetter(name)(network) for name in layout.layers]
        stages = _stages([*found[0]] if len(found) == 1 else found, exits)
        stages[0], stages[-1] = [*stem, *stages[0]], [*stages[-1], *end]
        yield stages


def _has(network: nn.Module, name: str) -> bool:
    try:
        return attrgetter(name)(network) is not None
    except AttributeError:
        return False


def _stages(layers: Sequence[Part], exits: Exits) -> list[list[Part]]:
    """Layers grouped by stage or by block; every layer of a transformer is a block."""
    blocks = [_blocks(layer) for layer in layers]
    if exits == "block":
        return [block for some in blocks for block in some]
    if all(len(some) == 1 for some in blocks):
        groups = np.array_split(np.arange(len(layers)), min(GROUPS, len(layers)))
        return [[layers[place] for place in group] for group in groups]
    return [[part for block in some for part in block] for some in blocks]


def _blocks(stage: Any) -> list[list[Part]]:
    """The blocks of a stage, the first with its downsampling; a module without blocks is one block."""
    if isinstance(stage, nn.Sequential):
        return [[block] for block in stage]
    inner = getattr(stage, "layers", None) or getattr(stage, "blocks", None)
    if not isinstance(inner, nn.Sequential | nn.ModuleList):
        return [[stage]]
    smaller = [part for name, part in stage.named_children() if name in ("downsampling_layer", "downsample")]
    first = [step for part in smaller for step in (part if isinstance(part, nn.ModuleList) else [part])]
    return [[*first, inner[0]], *([block] for block in [*inner][1:])]


class ImageStage(nn.Module):
    """From the output of the stage before, feature maps or tokens, to that of this one."""

    def __init__(self, parts: Sequence[Part], class_token: bool) -> None:
        super().__init__()
        self.parts, self.class_token = tuple(parts), class_token

    def forward(self, seen: Num[Tensor, "batch ..."]) -> Float[Tensor, "batch ..."]:
        for part in self.parts:
            seen = _tensor(part(seen))
        return seen

    def pool(self, seen: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch features"]:
        """The class token if there is one, else the mean over all positions."""
        if seen.ndim == 4:
            return seen.mean((2, 3))
        return seen[:, 0] if self.class_token else seen.mean(1)


class TextStage(nn.Module):
    """The same for texts. The last feature of each position is 1 for a token and 0 for padding."""

    def __init__(self, parts: Sequence[Part], pad: int | None) -> None:
        """`pad` is the id of padding for the first stage, which reads ids, and None for the others."""
        super().__init__()
        self.parts, self.pad = tuple(parts), pad

    def forward(
        self, seen: Integer[Tensor, "batch tokens"] | Float[Tensor, "batch tokens size"]
    ) -> Float[Tensor, "batch tokens size2"]:
        there = seen[..., -1] if self.pad is None else (seen != self.pad).float()
        most, tokens = longest(there > 0), seen.shape[1]
        seen, there = seen[:, :most], there[:, :most]
        hidden = seen[..., :-1] if self.pad is None else _tensor(self.parts[0](seen.long()))
        hide = ((1 - there) * torch.finfo(hidden.dtype).min)[:, None, None]  # (batch, heads, from, to)
        for part in self.parts if self.pad is None else self.parts[1:]:
            hidden = _tensor(part(hidden) if isinstance(part, nn.LayerNorm) else part(hidden, hide))  # type: ignore[call-arg]
        made = torch.cat([hidden, there.unsqueeze(-1).to(hidden.dtype)], -1)
        return F.pad(made, (0, 0, 0, tokens - most))  # the shape stays that of the batch

    def pool(self, seen: Float[Tensor, "batch tokens size"]) -> Float[Tensor, "batch features"]:
        return mean_of_tokens(seen[..., :-1], seen[..., -1])


def lengths(there: Bool[Tensor, "batch tokens"]) -> Int64[Tensor, "batch"]:
    """Number of positions up to the last that is not padding, at least 1."""
    places = torch.arange(1, there.shape[1] + 1, device=there.device)
    return (places * there).amax(1).clamp(min=1)


def longest(there: Bool[Tensor, "batch tokens"]) -> int:
    """Positions to compute: those up to the last token of the longest text on a CPU; all of them on a GPU, which would
    have to be synchronised, and in an exported network, whose shapes are fixed."""
    if there.device.type != "cpu" or torch.compiler.is_compiling():
        return there.shape[1]
    return int(lengths(there).amax())


def mean_of_tokens(
    hidden: Float[Tensor, "batch tokens size"], there: Float[Tensor, "batch tokens"]
) -> Float[Tensor, "batch size"]:
    weights = there.unsqueeze(-1)
    return (hidden * weights).sum(1) / weights.sum(1).clamp(min=1)


def _tensor(output: Any) -> Tensor:
    """The hidden states; some layers return them in a tuple with their attention."""
    made: Tensor = output[0] if isinstance(output, tuple) else output
    return made
