"""Pretrained encoders: modules that map inputs of a data set to embeddings with a network of transformers or timm. The
scaling and normalisation of images comes from the checkpoint and is part of the module."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64, Integer, Num
from safetensors.torch import load_file
from torch import Tensor, nn

from ricnet.errors import RicnetError, first_line, listed, require_extra, setting
from ricnet.nets import checkpoints
from ricnet.nets.backbone import Exits, as_embedding
from ricnet.nets.checkpoints import Architecture, OverLimit, count_weights, limit_for

ROUNDING = 1e-4
"""Maximum difference between a network and its stages, relative to the largest output."""
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".pkl", ".ckpt", ".tar")
BATCH_COUNTER = "num_batches_tracked"
"""A counter of batch norm that nothing reads; some files of timm lack it."""
GROUPS = 4
"""Stages of a transformer, as many as a ResNet has."""

Part = Callable[[Tensor], Any]


class Pretrained(nn.Module):
    """A network of another library. It stays in eval mode, also while it is fine-tuned: batch norm keeps its averages,
    and without dropout the network and its snapshot see the same features."""

    def __init__(self, network: nn.Module, architecture: Architecture) -> None:
        super().__init__()
        self.network, self.architecture = network, architecture
        self.eval()

    def train(self, mode: bool = True) -> "Pretrained":
        return super().train(False)

    @torch.no_grad()
    def stages(self, exits: Exits) -> list[nn.Module]:
        """Its layers in order, up to the hidden states before pooling; the last part includes the final norm. With
        `block` a part is a layer or residual block, with `stage` a stage, or a quarter of the layers of a transformer.
        Layers are found by name, and used only if they reproduce the network's output on an example."""
        example = self._example().to(next(self.parameters()).device)
        expected = self._hidden(example)
        for division in divisions(self.network, exits):
            stages, seen = [self._stage(parts, place == 0) for place, parts in enumerate(division)], example
            with suppress(Exception):  # another network with parts of the same names
                for stage in stages:
                    seen = stage(seen)
                gap = (seen[..., : expected.shape[-1]] - expected).abs().max()
                if gap <= ROUNDING * expected.abs().max():
                    return stages
        raise RicnetError(
            f"{setting('exits', exits)}: the stages of a {type(self.network).__name__} are not known; leave it out, or "
            "choose another encoder."
        )

    @abstractmethod
    def _example(self) -> Tensor:
        """Inputs that the network can read."""

    @abstractmethod
    def _hidden(self, inputs: Tensor) -> Tensor:
        """Output of the network before pooling."""

    @abstractmethod
    def _stage(self, parts: list[Part], first: bool) -> nn.Module: ...


class ImageEncoder(Pretrained):
    """Images of any size, grey or in colour, with pixels from 0 to 255, to embeddings."""

    mean: Tensor
    std: Tensor

    def __init__(self, network: nn.Module, architecture: Architecture) -> None:
        super().__init__(network, architecture)
        self.register_buffer("mean", 255 * torch.tensor(architecture.mean).view(-1, 1, 1))
        self.register_buffer("std", 255 * torch.tensor(architecture.std).view(-1, 1, 1))

    def pixels(self, images: Num[Tensor, "batch channels h w"]) -> Float[Tensor, "batch colours h2 w2"]:
        """Images as the network reads them: normalised and resized."""
        pixels = (images.to(self.mean.dtype).expand(-1, len(self.mean), -1, -1) - self.mean) / self.std
        height, width = self.architecture.size
        if pixels.shape[2:] != (height, width):
            smaller = height < pixels.shape[2] or width < pixels.shape[3]
            pixels = F.interpolate(pixels, (height, width), mode="bicubic", antialias=smaller)
        return pixels

    def forward(self, images: Num[Tensor, "batch channels h w"]) -> Float[Tensor, "batch embedding"]:
        output = self.network(self.pixels(images))
        tokens = getattr(output, "last_hidden_state", None)
        if not self.architecture.pooler and tokens is not None and tokens.ndim == 3:
            return tokens[:, 0]  # type: ignore[no-any-return]  # the class token, which the classifier on top reads
        return as_embedding(output)

    def _example(self) -> Num[Tensor, "1 channels h w"]:
        height, width = self.architecture.size
        return torch.linspace(0, 255, len(self.mean) * height * width).view(1, -1, height, width)

    def _hidden(self, images: Num[Tensor, "batch channels h w"]) -> Float[Tensor, "batch ..."]:
        network: Any = self.network
        pixels = self.pixels(images)
        found = network(pixels).last_hidden_state if self.architecture.library == "transformers" else None
        return network.forward_features(pixels) if found is None else found  # type: ignore[no-any-return]

    def _stage(self, parts: list[Part], first: bool) -> "ImageStage":
        tokens: Any = getattr(self.network, "embeddings", self.network)
        class_token = any(getattr(tokens, name, None) is not None for name in ("cls_token", "class_embedding"))
        return ImageStage([self.pixels, *parts] if first else parts, class_token)


class TextEncoder(Pretrained):
    """Token ids, padded with `pad`, to the mean over the tokens of each text."""

    def __init__(self, network: nn.Module, architecture: Architecture) -> None:
        super().__init__(network, architecture)
        self.vocabulary = int(architecture.network["vocab_size"])

    def forward(self, tokens: Integer[Tensor, "batch tokens"]) -> Float[Tensor, "batch embedding"]:
        tokens = self.cut(tokens)
        hidden = self._hidden(tokens)
        return mean_of_tokens(hidden, (tokens != self.architecture.pad).to(hidden.dtype))

    def lengths(self, tokens: Integer[Tensor, "batch tokens"]) -> Int64[Tensor, "batch"]:
        return lengths(tokens != self.architecture.pad)

    def cut(self, tokens: Integer[Tensor, "batch tokens"]) -> Integer[Tensor, "batch most"]:
        """Without the columns that are padding in all texts."""
        return tokens[:, : longest(tokens != self.architecture.pad)]

    @property
    def word(self) -> int:
        """An id that is not padding."""
        return int(self.architecture.pad == 0)

    def _example(self) -> Integer[Tensor, "2 tokens"]:
        """Two texts of different lengths."""
        ids = [token for token in range(self.vocabulary) if token != self.architecture.pad][:6]
        short = [*ids[:-2], *[self.architecture.pad] * len(ids[-2:])]
        return torch.tensor([ids, short])

    def _hidden(self, tokens: Integer[Tensor, "batch tokens"]) -> Float[Tensor, "batch tokens size"]:
        ids = tokens.long()
        mask = (ids != self.architecture.pad).long()
        return self.network(input_ids=ids, attention_mask=mask).last_hidden_state  # type: ignore[no-any-return]

    def _stage(self, parts: list[Part], first: bool) -> "TextStage":
        return TextStage(parts, self.architecture.pad if first else None)


def read_hf(folder: Path) -> Pretrained:
    """The encoder in a folder as transformers saves it."""
    return _wrapped(*checkpoints.read(folder))


def build(architecture: Architecture) -> Pretrained:
    """The encoder with random weights."""
    if architecture.library == "transformers":
        return _wrapped(checkpoints.build(architecture), architecture)
    return _wrapped(_create_timm(str(architecture.network.get("name"))), architecture)


def _wrapped(network: nn.Module, architecture: Architecture) -> Pretrained:
    return (ImageEncoder if architecture.reads == "images" else TextEncoder)(network, architecture)


def rebuild(architecture: Architecture, weights: Mapping[str, Tensor], source: str) -> Pretrained:
    """The encoder with the weights of its `state_dict`; `source` names their file in errors."""
    try:
        with limit_for(sum(tensor.numel() for tensor in weights.values())):
            encoder = build(architecture)
        encoder.load_state_dict(weights)
    except RicnetError:
        raise
    except Exception as error:  # a network of any kind and of any version of its library
        raise RicnetError(f"{source} does not fit its encoder ({first_line(error)}); restore it.") from error
    return encoder


# timm


def read_timm(name: str, file: Path) -> Pretrained:
    """The network of that name with the weights of a safetensors file, whose keys must match; those of the classifier
    on top are ignored."""
    if file.suffix.lower() in PICKLE_SUFFIXES:
        raise RicnetError(f"{file} may run code when it is read; save its weights as safetensors.")
    architecture = timm_architecture(name)
    try:
        with limit_for(count_weights(file)):
            network = _create_timm(name)
    except OverLimit as error:
        raise RicnetError(
            f"{file} holds fewer weights than {name} of timm has; give the file of that network."
        ) from error
    on_top: Any = network.pretrained_cfg["classifier"]
    heads = tuple(f"{head}." for head in ([on_top] if isinstance(on_top, str) else on_top or ()))
    weights = {key: tensor.float() for key, tensor in load_file(file).items() if not key.startswith(heads)}
    own = {key: tensor for key, tensor in network.state_dict().items() if not key.endswith(BATCH_COUNTER)}
    odd = sorted(own.keys() ^ {key for key in weights if not key.endswith(BATCH_COUNTER)})
    odd = odd or [key for key, tensor in own.items() if tensor.shape != weights[key].shape]
    if odd:
        raise RicnetError(f"{file} does not hold the weights of {name} of timm (see {listed(odd)}); give another file.")
    network.load_state_dict(weights, strict=False)
    return _wrapped(network, architecture)


def timm_architecture(name: str) -> Architecture:
    found = _create_timm(name).pretrained_cfg
    return Architecture("timm", {"name": name}, "images", found["input_size"][1:], found["mean"], found["std"])


def timm_source(name: str) -> str | None:
    """The repository on the Hub with the weights of a network."""
    source = _create_timm(name).pretrained_cfg.get("hf_hub_id")
    return source if isinstance(source, str) else None


def _create_timm(name: str) -> Any:
    """A network of timm with random weights and without a classifier on top."""
    require_extra(f"{setting('encoder')} timm:…", "timm", "timm", "torchvision")
    try:
        import timm
    except Exception as error:  # a torchvision built for another torch raises any kind of error
        raise RicnetError(
            f"timm cannot be imported ({first_line(error)}); install the version of torchvision for torch "
            f"{torch.__version__}."
        ) from error
    if not timm.is_model(name):
        close = timm.list_models(f"*{name.split('.')[0]}*")
        known = f"it has {listed(close)}" if close else "timm.list_models() lists its networks"
        raise RicnetError(f"{setting('encoder', f'timm:{name[:80]}')} is unknown to timm {timm.__version__}; {known}.")
    return timm.create_model(name, pretrained=False, num_classes=0)


# Layers of transformers and timm


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
    """A stage of an image encoder: maps the output of the stage before, feature maps or tokens, to its own."""

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
    """A stage of a text encoder. Its outputs have a last feature that is 1 for a token and 0 for padding."""

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
