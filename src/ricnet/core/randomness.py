"""The random generator of a run, which code gets from `current`.

torch's global generator is shared by all threads, so two runs in two threads would not be reproducible. A trainer on a
CPU therefore has its own generator. On a GPU, where updates are recorded as graphs, the device's default generator is
used and `current` returns None.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_CURRENT: ContextVar[torch.Generator | None] = ContextVar("generator", default=None)


def current() -> torch.Generator | None:
    """The `generator` argument for torch functions in this thread; None means torch's global generator."""
    return _CURRENT.get()


@contextmanager
def drawing_from(generator: torch.Generator | None) -> Iterator[None]:
    """Make `generator` the current one of this thread."""
    token = _CURRENT.set(generator)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def building_with(generator: torch.Generator | None) -> AbstractContextManager[Any]:
    """Context in which modules draw their initial weights from `generator`, a CPU generator. Constructors of modules
    take no generator, so it is passed to every torch function for random numbers that this thread calls."""
    return nullcontext() if generator is None else _Building(generator)


_DRAWS = {
    *("rand", "randn", "randint", "randperm", "normal", "bernoulli", "multinomial", "poisson"),
    *("uniform_", "normal_", "exponential_", "log_normal_", "cauchy_", "geometric_", "random_", "bernoulli_"),
}


class _Building(TorchFunctionMode):
    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.generator = generator

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        options = dict(kwargs or {})
        # functions of torch.nn.init pass on a `generator` that may be None
        draws = "generator" in options or getattr(function, "__name__", "") in _DRAWS
        if draws and options.get("generator") is None and _is_on_cpu(args, options):
            options["generator"] = self.generator
        return function(*args, **options)


def _is_on_cpu(args: Sequence[Any], options: Mapping[str, Any]) -> bool:
    tensor = next((value for value in (*args, *options.values()) if isinstance(value, torch.Tensor)), None)
    device = tensor.device if tensor is not None else options.get("device")
    return device is None or torch.device(device).type == "cpu"
