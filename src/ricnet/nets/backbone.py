"""The part of a network before its heads: inputs as the dataset holds them are normalised and encoded, in stages if it
has exits."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from jaxtyping import Float, Num
from torch import Tensor, nn

from ricnet.nets.embedding import as_embedding, embedding_size, encode, example_input, in_eval_mode, reads_tokens
from ricnet.nets.stages import Exits, Known, all_features, counting, divide, features_of, measure

FEATURE_SAMPLE = 256
"""Training rows whose features are measured for normalisation."""


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
        instead of the inputs. With exits its stages are used, `encoder` is not, and `size` is that of the thought."""
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
        self.flops = features.flops if isinstance(features, Known) else tuple(flops for _, flops in measured)
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
        """Lower precision for what is trained of the encoder; everything after it stays in float32."""

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

    def fit_normalization(self, inputs: Num[Tensor, "n ..."]) -> None:
        """Set mean and standard deviation per channel or column to those of training inputs, or of their features."""
        if not self.normalizes:
            return
        if self.features is not None:
            network = partial(all_features, self.stages) if self.stages else self.features
            with torch.no_grad():
                inputs = encode(network, inputs[:: max(1, len(inputs) // FEATURE_SAMPLE)])
        mean, std = channel_statistics(inputs)
        self.mean.copy_(mean)
        self.std.copy_(std)

    def normalized(self, inputs: Num[Tensor, "batch ..."]) -> Num[Tensor, "batch ..."]:
        if self.parts or not self.normalizes:
            return inputs
        shape = (1, -1) + (1,) * (inputs.ndim - 2)
        return (inputs.to(self.mean.dtype) - self.mean.view(shape)) / self.std.view(shape)

    def forward(self, inputs: Num[Tensor, "batch ..."]) -> Float[Tensor, "batch embedding"]:
        if self.features is not None:
            with self._autocast(inputs, full=self.frozen):
                inputs = as_embedding(self.features(inputs))
        with self._autocast(inputs):
            embedding = as_embedding(self.encoder(self.normalized(inputs)))
        return embedding.to(self.mean.dtype)

    def _autocast(self, inputs: Tensor, full: bool = False) -> AbstractContextManager[Any]:
        """`full`: in full precision, as the features of a frozen encoder are cached."""
        enabled = self.autocast is not None and not full
        return torch.autocast(inputs.device.type, dtype=self.autocast, enabled=enabled)

    def look(self, stage: int, seen: Num[Tensor, "batch ..."]) -> tuple[Tensor, Float[Tensor, "batch features"]]:
        """Output and features of a stage, from the output of the stage before (for the first the normalised inputs)."""
        with self._autocast(seen, full=self.frozen):
            seen = self.stages[stage](seen)
        features = features_of(self.stages[stage], seen).to(self.mean.dtype)
        if self.parts:
            features = (features - self.mean[self.parts[stage]]) / self.std[self.parts[stage]]
        return seen, features

    def walk(self, inputs: Num[Tensor, "batch ..."]) -> Iterator[tuple[Tensor, Float[Tensor, "batch features"]]]:
        """Output and features of each stage."""
        seen = self.normalized(inputs)
        for stage in range(len(self.stages)):
            seen, features = self.look(stage, seen)
            yield seen, features

    @torch.no_grad()
    def walk_once(self) -> Iterator[tuple[Tensor, Float[Tensor, "1 features"]]]:
        """The same for one example."""
        with in_eval_mode(self):
            yield from self.walk(self.example)

    @torch.no_grad()
    def count_costs(self, read: Callable[[int, Tensor], Tensor], step: Callable[[Tensor], object]) -> tuple[float, ...]:
        """Cumulative share of all multiply-adds after each step; the features of a stage are `read` once, and each step
        at its exit uses the result."""
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
    """Mean and standard deviation of each channel over about 10,000 rows; 1 for the deviation of a constant channel."""
    others = [dim for dim in range(inputs.ndim) if dim != 1]
    parts = [part.double() for part in inputs[:: max(1, len(inputs) // 10_000)].split(500)]  # limits memory
    rows = sum(map(len, parts))
    mean = torch.stack([len(part) * part.mean(others) for part in parts]).sum(0) / rows
    shape = (1, -1) + (1,) * (inputs.ndim - 2)
    squares = [len(part) * (part - mean.view(shape)).square().mean(others) for part in parts]
    std = (torch.stack(squares).sum(0) / rows).sqrt()
    return mean, torch.where(std > 1e-9 * mean.abs(), std, torch.ones_like(std))


class Staged(nn.Module, ABC):
    """A network that may be left after each stage of its encoder."""

    costs: tuple[float, ...]
    """Cumulative share of the network's multiply-adds after each step; empty without exits."""

    def __init__(self, backbone: Backbone, classes: int) -> None:
        super().__init__()
        self.backbone, self.classes = backbone, classes

    @property
    def has_exits(self) -> bool:
        return len(self.backbone.stages) > 0

    def look(self, stage: int, seen: Num[Tensor, "batch ..."]) -> tuple[Tensor, Float[Tensor, "batch read"]]:
        """Output of a stage, from that of the stage before, and what the steps at its exit read."""
        seen, features = self.backbone.look(stage, seen)
        return seen, self.read(stage, features)

    @abstractmethod
    def read(self, stage: int, features: Float[Tensor, "batch features"]) -> Float[Tensor, "batch read"]:
        """What the steps at an exit read of the features of its stage."""
