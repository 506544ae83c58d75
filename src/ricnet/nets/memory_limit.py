"""Limit of the memory of a network that is built from an untrusted file: a few bytes can ask for terabytes."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

SLACK = 1 << 24
"""Numbers that a network may allocate beside its weights: position tables, masks, activations of one example."""
_MAKERS = (torch.empty, torch.zeros, torch.ones)


class OverLimit(Exception):
    pass


@contextmanager
def memory_limit(numbers: int) -> Iterator[None]:
    """Raise `OverLimit` before the tensors made within exceed so many numbers together."""
    with _Counting(numbers):
        yield


def limit_for(weights: int) -> AbstractContextManager[None]:
    """The limit for a network with so many weights."""
    return memory_limit(4 * weights + SLACK)


class _Counting(TorchFunctionMode):
    def __init__(self, left: int) -> None:
        super().__init__()
        self.left = left

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if function in _MAKERS:
            size = args[0] if args and isinstance(args[0], Sequence) else args
            self.left -= math.prod(size)
            if self.left < 0:
                raise OverLimit
        return function(*args, **(kwargs or {}))
