"""Faster training with the same results: recorded updates (CUDA graphs), compiled functions, prefetched inputs."""

import math
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import fields, replace
from typing import Any, TypeVar

import torch
from jaxtyping import Int64, Num
from torch import Tensor, nn

from ricnet.machine import SHARE, free_bytes
from ricnet.methods import Method
from ricnet.models.config import Config
from ricnet.models.recorded import WARM_UP, capture
from ricnet.nets.backbone import example_input, in_eval_mode
from ricnet.nets.encoders import ResNet

SPECIAL_CASES = 64
"""Variants of one function (shapes, strides, with gradient or without) that torch may compile before it gives up."""
THREADS = 8
"""Threads that read rows of a mapped file: a disk serves several readers better than one."""
FEWEST_ROWS = 8
"""Smallest batch size that memory may enforce; statistics of fewer rows are too noisy for batch norm."""
KEPT = 2
"""Bytes in use for each byte of the encoder's outputs. Measured on a CPU: 0.8 to 1.3 for ResNets; 3.5 for the smallest
encoder, whose batches are small beside any memory."""

AnyMethod = TypeVar("AnyMethod", bound=Method[Any])


class GraphedStep:
    """Records `step(rows)` once and replays it on other rows; all other tensors it uses must stay in place."""

    def __init__(self, step: Callable[[Int64[Tensor, "batch"]], None], rows: Int64[Tensor, "batch"]) -> None:
        self.rows = rows.clone()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                step(self.rows)
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with capture(self.graph):
            step(self.rows)

    def __call__(self, rows: Int64[Tensor, "batch"]) -> None:
        self.rows.copy_(rows)
        self.graph.replay()


def compile_encoder(encoder: nn.Module) -> None:
    """Make `encoder` train with compiled code; evaluation, whose batches vary in size, is not compiled.

    A ResNet is compiled block by block: convolutions are library calls, across which nothing can be fused anyway, and
    blocks of the same shape share their code, so that compiling takes seconds instead of minutes.
    Call it after all copies of the network have been made: a copy would run the original's code.
    """
    parts = [encoder.stem, *encoder.blocks] if isinstance(encoder, ResNet) else [encoder]
    for part in parts:
        part.forward = _in_training(part, part.forward)


def compile_method(method: AnyMethod) -> AnyMethod:
    """The same method, for one size of batch, with the functions compiled that it names in `compiled`.

    The rest of a method are library calls and kernels that are fused already (see nets/refiner.py).
    """
    kind = type(method)
    return _with(method, {name: _compiled(getattr(kind, name)) for name in kind.compiled})


def measure_rarely(method: AnyMethod, stands_for: Callable[[], int]) -> AnyMethod:
    """The same method with its diagnostics, `metrics`, computed in some updates only. `stands_for()` is the number of
    updates that the present one represents: its metrics are multiplied by it, and not computed if it is 0. A method
    without `metrics` is returned unchanged."""
    plain: Callable[..., dict[str, Tensor]] | None = getattr(type(method), "metrics", None)
    if plain is None:
        return method

    def metrics(*inputs: Any) -> dict[str, Tensor]:
        count = stands_for()
        return {name: count * value for name, value in plain(*inputs).items()} if count else {}

    return _with(method, {"metrics": metrics})


def _with(method: AnyMethod, functions: dict[str, Callable[..., Any]]) -> AnyMethod:
    """The same method with other functions."""
    if not functions:
        return method
    kind = type(method)
    settings = {field.name: getattr(method, field.name) for field in fields(method)}
    return type(kind.__name__, (kind,), functions)(**settings)  # type: ignore[no-any-return]


def _in_training(module: nn.Module, plain: Callable[..., Any]) -> Callable[..., Any]:
    compiled = _compiled(plain)
    return lambda *inputs: (compiled if module.training else plain)(*inputs)


def _compiled(plain: Callable[..., Any]) -> Callable[..., Any]:
    """The function compiled, or unchanged if that fails (for example without a compiler); torch logs why."""
    compiled = torch.compile(plain, dynamic=False)

    def run(*inputs: Any, **options: Any) -> Any:
        with torch._dynamo.config.patch(recompile_limit=SPECIAL_CASES, suppress_errors=True):
            return compiled(*inputs, **options)

    return run


def fit_batch(
    config: Config, encoder: nn.Module, input_shape: tuple[int, ...], device: torch.device, processes: int = 1
) -> tuple[Config, list[str]]:
    """The configuration with a batch size that fits into memory, and a note if it is smaller."""
    if config.network.freeze:  # rows of features are small
        return config, []
    wanted, free = config.optimization.batch_size, free_bytes(device)
    pieces = processes * config.optimization.accumulate
    example = example_input(encoder, input_shape)
    fitting = min(wanted, pieces * fitting_batch(encoder, example, math.ceil(wanted / pieces), free))
    if fitting == wanted:
        return config, []
    note = f"Batches of {fitting} instead of {wanted}, to fit into {free / 1e9:.1f} GB of free memory."
    return replace(config, optimization=replace(config.optimization, batch_size=fitting)), [note]


def fitting_batch(encoder: nn.Module, example: Num[Tensor, "1 ..."], batch_size: int, free: int) -> int:
    """`batch_size`, halved until an update fits into memory, but at least FEWEST_ROWS."""
    needed = KEPT * activation_bytes(encoder, example)
    while batch_size >= 2 * FEWEST_ROWS and batch_size * needed > SHARE * free:
        batch_size //= 2
    return batch_size


@torch.no_grad()
def activation_bytes(encoder: nn.Module, example: Num[Tensor, "1 ..."]) -> int:
    """Size of the outputs of all layers for one input."""
    total = 0

    def count(_module: nn.Module, _inputs: object, output: object) -> None:
        nonlocal total
        if isinstance(output, Tensor):
            total += output.numel() * output.element_size()

    leaves = [module for module in encoder.modules() if not any(module.children())]
    hooks = [module.register_forward_hook(count) for module in leaves]
    try:
        with in_eval_mode(encoder):
            encoder(example)
    finally:
        for hook in hooks:
            hook.remove()
    return total


def fits(inputs: Num[Tensor, "n ..."], device: torch.device) -> bool:
    """Whether the inputs fit on the device. On a CPU they do, even in a mapped file."""
    return device.type == "cpu" or is_same(inputs.device, device) or inputs.nbytes <= SHARE * free_bytes(device)


def is_same(place: torch.device, device: torch.device) -> bool:
    """Whether a tensor at `place` is on `device`; "cuda" is the GPU in use, and a tensor has its index."""
    if place.type != device.type:
        return False
    index = torch.cuda.current_device() if device.type == "cuda" and device.index is None else device.index
    return index in (None, place.index)


class Feed:
    """Inputs on the device. If they do not fit there, threads gather the next batch during an update; each batch is
    copied into the same place on the device, where a recorded update expects it."""

    def __init__(self, inputs: Num[Tensor, "n ..."], device: torch.device, batch: int) -> None:
        self.streams = not fits(inputs, device)
        self.inputs = inputs if self.streams else inputs.to(device)
        if not self.streams:
            return
        on_gpu = device.type == "cuda"
        shape, dtype = (batch, *inputs.shape[1:]), inputs.dtype
        self.staged = torch.zeros(shape, dtype=dtype, device=device)
        self.buffers = [torch.zeros(shape, dtype=dtype, pin_memory=on_gpu) for _ in range(2)]
        self.copied = [torch.cuda.Event() if on_gpu else None for _ in range(2)]
        self.pool = ThreadPoolExecutor(THREADS)
        self.coming: tuple[Tensor, list[Future[None]]] | None = None
        self.turn = 0

    def stage(self, rows: Int64[Tensor, "batch"], following: Int64[Tensor, "batch"]) -> None:
        """Copy rows to `staged`, and begin to gather the following ones."""
        if self.coming is None or not torch.equal(self.coming[0], rows):
            self._gather(rows)
        assert self.coming is not None
        for done in self.coming[1]:
            done.result()
        self.staged.copy_(self.buffers[self.turn], non_blocking=True)
        if (copied := self.copied[self.turn]) is not None:
            copied.record()
        self.turn = 1 - self.turn
        self._gather(following)

    def _gather(self, rows: Int64[Tensor, "batch"]) -> None:
        if self.coming is not None:
            for done in self.coming[1]:
                done.result()
        if (copied := self.copied[self.turn]) is not None:
            copied.synchronize()  # else the buffer would be overwritten while it is still being copied
        pieces = zip(rows.tensor_split(THREADS), self.buffers[self.turn].tensor_split(THREADS), strict=True)
        self.coming = rows, [self.pool.submit(self._read, own, place) for own, place in pieces]

    def _read(self, rows: Int64[Tensor, "some"], place: Num[Tensor, "some ..."]) -> None:
        torch.index_select(self.inputs, 0, rows, out=place)
