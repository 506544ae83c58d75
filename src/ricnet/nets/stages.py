"""Stages of an encoder with exits: what divides it, what is read off each stage, and what each costs."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, pairwise
from typing import Literal, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Num
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from ricnet.errors import RicnetError, setting
from ricnet.nets.embedding import example_input, in_eval_mode

PLACES = 2
"""Positions per side that the features of an image keep."""

Exits = Literal["none", "stage", "block"]


@runtime_checkable
class InStages(Protocol):
    """An encoder that can be left early."""

    def stages(self, exits: Exits) -> Sequence[nn.Module]:
        """Its parts in order, which together are the encoder up to its pooling; large ones for "stage", small ones for
        "block". A part may have a method `pool` to (batch, features), which replaces `pool_features`."""


def divide(encoder: nn.Module, exits: Exits) -> tuple[nn.Module, ...]:
    """The stages of an encoder; of an nn.Sequential without `stages`, its modules."""
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
    """Feature maps pooled to PLACES × PLACES, the mean over tokens, or the vector itself."""
    if seen.ndim == 4:
        high, wide = seen.shape[2:]
        rows, columns = min(PLACES, high), min(PLACES, wide)
        if seen.is_cuda and high % rows == wide % columns == 0:  # equal, and at 32 × 32 pixels twice as fast
            return F.avg_pool2d(seen, (high // rows, wide // columns)).flatten(1)
        return F.adaptive_avg_pool2d(seen, (rows, columns)).flatten(1)
    return seen.mean(1) if seen.ndim == 3 else seen.flatten(1)


def features_of(stage: nn.Module, seen: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch features"]:
    """The features read off the output of a stage."""
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


def known(encoder: nn.Module, input_shape: tuple[int, ...], exits: Exits) -> Known:
    """The stand-in for an encoder, measured on an example."""
    return Known(*zip(*measure(divide(encoder, exits), example_input(encoder, input_shape)), strict=True))
