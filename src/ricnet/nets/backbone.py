"""The part of a network before its heads: it normalises and encodes the inputs, with exits in stages.

An encoder is any module that maps a batch of inputs to one vector per input: a tensor, or an output that contains one
(`as_embedding`).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64, Num
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from ricnet.errors import RicnetError, setting
from ricnet.nets.fitted import FittedLayer

FEATURE_SAMPLE = 256
"""Training rows whose features are measured for normalisation."""
STATISTICS_ROWS = 10_000
"""Statistics of inputs are computed from this many training rows, or up to twice as many."""
PLACES = 2
"""Feature maps are pooled to PLACES × PLACES positions."""

Exits = Literal["none", "stage", "block"]


class Backbone(nn.Module):
    """Encoder with normalisation, from uint8 images, float features or token ids to embeddings."""

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
        """`features` is a pretrained network, not trained further if `frozen`; its outputs are normalised and encoded
        instead of the inputs. With exits, its stages replace `encoder`, and `size` is the size of the thought."""
        super().__init__()
        self.features, self.frozen = features, frozen
        if features is not None:
            features.requires_grad_(not frozen)
        self.encoder = encoder
        self.input_shape = input_shape
        self.stages = () if exits == "none" else divide(self.reader, exits)
        """Parts of the same network, sharing its weights; empty without exits."""
        self.steps_per_exit = steps_per_exit
        measured = measure(self.stages, self.example) if self.stages else []
        self.feature_sizes = [size for size, _ in measured]
        self.flops = features.flops if isinstance(features, CachedFeatures) else tuple(flops for _, flops in measured)
        """Multiply-adds of each stage."""
        self.parts: list[slice] = []
        """Entries of `mean` and `std` for each stage; empty if inputs are normalised."""
        read = input_shape
        if features is not None and self.stages:
            ends = accumulate(self.feature_sizes)
            self.parts = [slice(end - size, end) for size, end in zip(self.feature_sizes, ends, strict=True)]
            read = (sum(self.feature_sizes),)
        elif features is not None:
            read = (embedding_size(features, input_shape),)
        self.embedding_size = size if size is not None else embedding_size(encoder, read)
        self.normalizes = features is not None or not reads_tokens(encoder)
        normalized = read[0] if self.normalizes else 0
        self.register_buffer("mean", torch.zeros(normalized))
        self.register_buffer("std", torch.ones(normalized))
        self.autocast: torch.dtype | None = None
        """Lower precision for the trained part of the encoder; everything after it stays in float32."""

    @property
    def reader(self) -> nn.Module:
        """The module that reads the inputs."""
        return self.encoder if self.features is None else self.features

    @property
    def frozen_encoder(self) -> nn.Module | None:
        """The pretrained encoder if it is frozen, else None."""
        return self.features if self.frozen else None

    @property
    def example(self) -> Num[Tensor, "1 ..."]:
        return example_input(self.reader, self.input_shape)

    def fit_normalization(self, inputs: Num[Tensor, "n ..."], labels: Int64[Tensor, "n"] | None = None) -> None:
        """Set mean and standard deviation per channel or column to those of training inputs, or of their features. Then
        fit the layers that are computed from training rows."""
        if self.normalizes:
            mean, std = channel_statistics(inputs if self.features is None else self._sample_features(inputs))
            self.mean.copy_(mean)
            self.std.copy_(std)
        for layer in self.encoder.modules() if self.features is None else ():
            if isinstance(layer, FittedLayer):
                step = 1 if layer.rows_to_fit is None else max(1, len(inputs) // layer.rows_to_fit)
                layer.fit(self.normalized(inputs[::step]), None if labels is None else labels[::step])

    @torch.no_grad()
    def _sample_features(self, inputs: Num[Tensor, "n ..."]) -> Float[Tensor, "some features"]:
        assert self.features is not None
        network = partial(all_features, self.stages) if self.stages else self.features
        return encode(network, self.centre(inputs[:: max(1, len(inputs) // FEATURE_SAMPLE)]))

    def centre(self, inputs: Num[Tensor, "batch ..."]) -> Num[Tensor, "batch ..."]:
        """The central pixels of images that are stored larger than the encoder reads them. Training crops already have
        its size; they and all other inputs are returned unchanged."""
        if inputs.ndim != 4 or len(self.input_shape) != 3:
            return inputs
        height, width = self.input_shape[1:]
        top, left = (inputs.shape[2] - height) // 2, (inputs.shape[3] - width) // 2
        return inputs[:, :, top : top + height, left : left + width]

    def normalized(self, inputs: Num[Tensor, "batch ..."]) -> Num[Tensor, "batch ..."]:
        inputs = self.centre(inputs)
        if self.parts or not self.normalizes:
            return inputs
        shape = (1, -1) + (1,) * (inputs.ndim - 2)
        return (inputs.to(self.mean.dtype) - self.mean.view(shape)) / self.std.view(shape)

    def forward(self, inputs: Num[Tensor, "batch ..."]) -> Float[Tensor, "batch embedding"]:
        if self.features is not None:
            with self._autocast(inputs, full=self.frozen):
                inputs = as_embedding(self.features(self.centre(inputs)))
        with self._autocast(inputs):
            embedding = as_embedding(self.encoder(self.normalized(inputs)))
        return embedding.to(self.mean.dtype)

    def _autocast(self, inputs: Tensor, full: bool = False) -> AbstractContextManager[Any]:
        """`full` switches it off: features of a frozen encoder are cached in full precision."""
        enabled = self.autocast is not None and not full
        return torch.autocast(inputs.device.type, dtype=self.autocast, enabled=enabled)

    def run_stage(self, stage: int, seen: Num[Tensor, "batch ..."]) -> tuple[Tensor, Float[Tensor, "batch features"]]:
        """Output and features of a stage, from the output of the stage before (for the first the normalised inputs)."""
        with self._autocast(seen, full=self.frozen):
            seen = self.stages[stage](seen)
        features = features_of(self.stages[stage], seen).to(self.mean.dtype)
        if self.parts:
            features = (features - self.mean[self.parts[stage]]) / self.std[self.parts[stage]]
        return seen, features

    def stage_outputs(
        self, inputs: Num[Tensor, "batch ..."]
    ) -> Iterator[tuple[Tensor, Float[Tensor, "batch features"]]]:
        """Output and features of each stage."""
        seen = self.normalized(inputs)
        for stage in range(len(self.stages)):
            seen, features = self.run_stage(stage, seen)
            yield seen, features

    @torch.no_grad()
    def example_outputs(self) -> Iterator[tuple[Tensor, Float[Tensor, "1 features"]]]:
        """Output and features of each stage for one example."""
        with in_eval_mode(self):
            yield from self.stage_outputs(self.example)

    @torch.no_grad()
    def count_costs(self, read: Callable[[int, Tensor], Tensor], step: Callable[[Tensor], object]) -> tuple[float, ...]:
        """Cumulative share of all multiply-adds after each step. `read` is called once with the features of a stage,
        `step` with its result for each step at the exit."""
        spent = []
        with counting() as counter:
            for stage, size in enumerate(self.feature_sizes):
                context = read(stage, torch.zeros(1, size, dtype=self.mean.dtype))
                for _ in range(self.steps_per_exit):
                    step(context)
                    spent.append(counter.get_total_flops() + sum(self.flops[: stage + 1]))
        return tuple(flops / spent[-1] for flops in spent)


def channel_statistics(
    inputs: Num[Tensor, "n channels ..."],
) -> tuple[Float[Tensor, "channels"], Float[Tensor, "channels"]]:
    """Mean and standard deviation of each channel over about `STATISTICS_ROWS` rows; 1 for the deviation of a constant
    channel."""
    others = [dim for dim in range(inputs.ndim) if dim != 1]
    parts = [part.double() for part in inputs[:: max(1, len(inputs) // STATISTICS_ROWS)].split(500)]  # limits memory
    rows = sum(map(len, parts))
    mean = torch.stack([len(part) * part.mean(others) for part in parts]).sum(0) / rows
    shape = (1, -1) + (1,) * (inputs.ndim - 2)
    squares = [len(part) * (part - mean.view(shape)).square().mean(others) for part in parts]
    std = (torch.stack(squares).sum(0) / rows).sqrt()
    return mean, torch.where(std > 1e-9 * mean.abs(), std, torch.ones_like(std))


class Staged(nn.Module, ABC):
    """A network that may have an exit after each stage of its encoder."""

    costs: tuple[float, ...]
    """Cumulative share of the network's multiply-adds after each step; empty without exits."""

    def __init__(self, backbone: Backbone, classes: int) -> None:
        super().__init__()
        self.backbone, self.classes = backbone, classes

    @property
    def has_exits(self) -> bool:
        return len(self.backbone.stages) > 0

    def run_stage(self, stage: int, seen: Num[Tensor, "batch ..."]) -> tuple[Tensor, Float[Tensor, "batch read"]]:
        """Output of a stage, from that of the stage before, and the input of the steps at its exit."""
        seen, features = self.backbone.run_stage(stage, seen)
        return seen, self.read(stage, features)

    @abstractmethod
    def read(self, stage: int, features: Float[Tensor, "batch features"]) -> Float[Tensor, "batch read"]:
        """Input of the steps at an exit, computed from the features of its stage."""


# The stages of an encoder with exits


def divide(encoder: nn.Module, exits: Exits) -> tuple[nn.Module, ...]:
    """The stages of an encoder, which in sequence compute its output before pooling. They come from its method
    `stages`, or are the modules of an nn.Sequential. A stage may have a method `pool`, from its output to (batch,
    features), which replaces `pool_features`."""
    made: Any = encoder
    if not (hasattr(made, "stages") or isinstance(made, nn.Sequential)):
        raise RicnetError(
            f"{setting('exits', exits)} needs an encoder with known stages, but {type(encoder).__name__} has none; "
            f"choose another, for texts {setting('encoder', 'hf:NAME')}, or give it a method stages(exits) that "
            "returns its parts in order."
        )
    stages: tuple[nn.Module, ...] = tuple(made.stages(exits) if hasattr(made, "stages") else made)
    if len(stages) < 2:
        kind = type(encoder).__name__
        raise RicnetError(f"{setting('exits', exits)} needs an encoder of two stages or more, but {kind} has one.")
    return stages


def pool_features(seen: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch features"]:
    """Feature maps pooled to PLACES × PLACES, the mean over tokens, or the vector itself."""
    if seen.ndim == 4:
        high, wide = seen.shape[2:]
        rows, columns = min(PLACES, high), min(PLACES, wide)
        if seen.is_cuda and high % rows == wide % columns == 0:  # the same result, twice as fast at 32 × 32 pixels
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
    """Count multiply-adds. Attention uses the math kernel, because the counter does not know the kernel of a CPU."""
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


class CachedFeatures(nn.Module):
    """Replaces a frozen encoder with exits whose features are cached: its inputs are the features of all stages,
    concatenated, and each of its stages selects its own."""

    def __init__(self, sizes: Sequence[int], flops: Sequence[int]) -> None:
        super().__init__()
        self.sizes = tuple(sizes)
        self.flops = tuple(flops)
        """Multiply-adds of each stage of the encoder."""

    def stages(self, exits: Exits) -> list[nn.Module]:
        return [CachedStage(slice(start, end)) for start, end in pairwise([0, *accumulate(self.sizes)])]


class CachedStage(nn.Identity):
    def __init__(self, columns: slice) -> None:
        super().__init__()
        self.columns = columns

    def pool(self, seen: Float[Tensor, "batch features"]) -> Float[Tensor, "batch part"]:
        return seen[:, self.columns]


# The embedding of an encoder


CPU_BATCH = 64
"""A narrow ResNet-18 took 1.3 to 2 times as long per image in batches of 512."""
GPU_BATCH = 512


def encode(
    network: Callable[[Num[Tensor, "batch ..."]], Float[Tensor, "batch size"]], inputs: Num[Tensor, "n ..."]
) -> Float[Tensor, "n size"]:
    """`network(inputs)` in batches, for a network in eval mode."""
    rows = CPU_BATCH if inputs.device.type == "cpu" else GPU_BATCH
    return torch.cat([network(batch) for batch in inputs.split(rows)])


def reads_tokens(encoder: nn.Module) -> bool:
    return hasattr(encoder, "vocabulary")


def example_input(encoder: nn.Module, input_shape: tuple[int, ...]) -> Num[Tensor, "1 ..."]:
    """An input on the device of the encoder: zeros, or for texts its id `word` at every position."""
    device = next((parameter.device for parameter in encoder.parameters()), None)
    if reads_tokens(encoder):
        return torch.full((1, *input_shape), getattr(encoder, "word", 0), device=device, dtype=torch.int32)
    return torch.zeros(1, *input_shape, device=device)


def cached_features(encoder: nn.Module, input_shape: tuple[int, ...], exits: Exits) -> CachedFeatures:
    """The replacement of an encoder; the sizes of its features and the costs of its stages are measured on an
    example."""
    return CachedFeatures(*zip(*measure(divide(encoder, exits), example_input(encoder, input_shape)), strict=True))


def embedding_size(encoder: nn.Module, input_shape: tuple[int, ...]) -> int:
    """Length of the vector of one input, measured on an example."""
    with in_eval_mode(encoder), torch.no_grad():
        return int(as_embedding(encoder(example_input(encoder, input_shape))).shape[1])


def as_embedding(output: Any) -> Float[Tensor, "batch embedding"]:
    """The output if it is a tensor; else its pooled vector, else its only matrix, else the mean over tokens."""
    parts = {} if isinstance(output, Tensor) else _tensors(output)
    embedding = output if isinstance(output, Tensor) else _pick(parts)
    if embedding is None or embedding.ndim != 2:
        found = ", ".join(f"{name} {tuple(part.shape)}" for name, part in parts.items()) or "no tensor of numbers"
        returned = tuple(output.shape) if isinstance(output, Tensor) else f"a {type(output).__name__} with {found}"
        raise RicnetError(
            f"the encoder must return one vector per input, shape (batch, size); it returned {returned}; wrap it in a "
            "module that returns such a tensor."
        )
    return embedding


def _tensors(output: Any) -> dict[str, Tensor]:
    """Floating-point tensors of an output by name; masks and indices are left out."""
    if isinstance(output, Mapping):
        found = {str(name): part for name, part in output.items()}
    elif hasattr(output, "_asdict"):
        found = output._asdict()
    elif isinstance(output, tuple | list):
        found = {str(place): part for place, part in enumerate(output)}
    else:
        found = getattr(output, "__dict__", {})
    return {name: part for name, part in found.items() if isinstance(part, Tensor) and part.dtype.is_floating_point}


def _pick(parts: Mapping[str, Tensor]) -> Tensor | None:
    """The embedding among the tensors of an output, by the names that transformers gives them; None if it is
    ambiguous."""
    if "pooler_output" in parts:
        return parts["pooler_output"].flatten(1)  # convolutional networks return (batch, size, 1, 1)
    matrices = [part for part in parts.values() if part.ndim == 2]
    if matrices:
        return matrices[0] if len(matrices) == 1 else None
    tokens = parts.get("last_hidden_state")
    if tokens is None or tokens.ndim not in (3, 4):
        return None
    return tokens.mean(1) if tokens.ndim == 3 else tokens.mean((2, 3))  # (batch, tokens, size) or (batch, size, h, w)
