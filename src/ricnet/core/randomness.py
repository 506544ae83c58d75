"""Random numbers of a run, drawn from a generator of its own.

torch's global generator is shared by all threads: a run that drew from it would depend on what other threads draw, and
they on the run. So a trainer on a CPU has a generator, and what draws during training asks for it here. On a GPU, where
updates are recorded as graphs, the device's default generator is used: `current` is None there.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_CURRENT: ContextVar[torch.Generator | None] = ContextVar("generator", default=None)


def current() -> torch.Generator | None:
    """What to draw from in this thread, as the `generator` of a torch function; None is torch's global one."""
    return _CURRENT.get()


@contextmanager
def drawing_from(generator: torch.Generator | None) -> Iterator[None]:
    token = _CURRENT.set(generator)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def building_with(generator: torch.Generator | None) -> AbstractContextManager[Any]:
    """Modules that are made within draw their first weights from a CPU generator. They take no generator themselves, so
    every torch function that draws, and is called from Python in this thread, is given it."""
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
        draws = "generator" in options or getattr(function, "__name__", "") in _DRAWS  # torch.nn.init hands it down
        if draws and options.get("generator") is None and _is_on_cpu(args, options):
            options["generator"] = self.generator
        return function(*args, **options)


def _is_on_cpu(args: Sequence[Any], options: Mapping[str, Any]) -> bool:
    tensor = next((value for value in (*args, *options.values()) if isinstance(value, torch.Tensor)), None)
    device = tensor.device if tensor is not None else options.get("device")
    return device is None or torch.device(device).type == "cpu"
