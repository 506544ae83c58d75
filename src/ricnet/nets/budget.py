"""How much memory a network may take that a file from a stranger describes: a few bytes can ask for terabytes."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

SLACK = 1 << 24
"""Numbers that a network may make beside its weights: tables of positions, masks, what an example needs on its way."""
_MAKERS = (torch.empty, torch.zeros, torch.ones)


class OverBudget(Exception):
    pass


@contextmanager
def budget(numbers: int) -> Iterator[None]:
    """Raise `OverBudget` before the tensors made within have more than so many numbers together."""
    with _Counting(numbers):
        yield


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
                raise OverBudget
        return function(*args, **(kwargs or {}))
