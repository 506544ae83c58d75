"""The parts of an update that are many small kernels, compiled into few.

A ResNet is compiled block by block: convolutions are library calls, across which nothing can be fused anyway, and
blocks of the same shape share their code, so that compiling takes seconds instead of minutes. Of RIC's update it is one
step of the roll-out and the judgement of all steps; its recurrence already runs in fused kernels (see nets/gru.py).
"""

import copy
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import nn

from ricnet.methods import RIC, Method
from ricnet.nets.resnet import ResNet

SPECIAL_CASES = 64
"""Variants of one function (shapes, strides, with gradient or without) that torch may compile before it gives up."""

AnyMethod = TypeVar("AnyMethod", bound=Method[Any])


def compile_encoder(encoder: nn.Module) -> None:
    """From now on `encoder` trains with compiled code; evaluation, whose batches vary in size, stays as it was.

    Call it after all copies of the network have been made: a copy would run the original's code.
    """
    parts = [encoder.stem, *encoder.blocks] if isinstance(encoder, ResNet) else [encoder]
    for part in parts:
        part.forward = _in_training(part, part.forward)


def compile_method(method: AnyMethod) -> AnyMethod:
    """The same method, for one size of batch."""
    if not isinstance(method, RIC):
        return method
    fast = copy.copy(method)
    for name in ("explore", "judge"):
        object.__setattr__(fast, name, _compiled(getattr(method, name)))
    return fast


def _in_training(module: nn.Module, plain: Callable[..., Any]) -> Callable[..., Any]:
    compiled = _compiled(plain)
    return lambda *inputs: (compiled if module.training else plain)(*inputs)


def _compiled(plain: Callable[..., Any]) -> Callable[..., Any]:
    """What cannot be compiled (no compiler on this machine, say) runs as it is; torch logs why."""
    compiled = torch.compile(plain, dynamic=False)

    def run(*inputs: Any) -> Any:
        with torch._dynamo.config.patch(recompile_limit=SPECIAL_CASES, suppress_errors=True):
            return compiled(*inputs)

    return run
