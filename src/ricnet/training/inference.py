"""Small batches on a GPU: launching the kernels of a step takes longer than running them, so they are recorded once as
CUDA graphs and replayed. Answers are those of `Method.refine`, which also does whatever cannot be recorded."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Num
from torch import Tensor, nn

from ricnet.core.trajectory import Trajectory
from ricnet.methods.iterative import Iterative, Pool, Steps
from ricnet.methods.method import Method, TimeLeft
from ricnet.nets.refiner import RecurrentClassifier

SIZES = (1, 8, 32, 128)
"""Batches are filled up to the next of these; larger ones are refined as a pool that shrinks."""
WARM_UP = 3
"""Runs before the recording, in which libraries choose their kernels."""

Replay = Callable[[Num[Tensor, "batch ..."], TimeLeft | None], Trajectory]


class Recordings:
    """All that has been recorded for a network so far, a recording for each size of batch and way of refining it."""

    def __init__(self) -> None:
        self._kept: dict[tuple[object, ...], Replay | None] = {}

    @torch.no_grad()
    def refine(
        self,
        method: Method[Any],
        model: nn.Module,
        inputs: Num[Tensor, "batch ..."],
        max_steps: int | None = None,
        halt: bool = False,
        time_left: TimeLeft | None = None,
    ) -> Trajectory:
        """As `Method.refine`; slow when it meets a size for the first time."""
        size = next((size for size in SIZES if 0 < len(inputs) <= size), None)
        replay = None
        if inputs.is_cuda and size is not None and (halt or time_left is None):
            where = next(model.parameters()).data_ptr()  # weights may change, but a graph knows them by their place
            key = (method, max_steps, halt, size, where)
            if key not in self._kept:
                self._kept[key] = _record(method, model, _filled(inputs, size), max_steps, halt)
            replay = self._kept[key]
        if replay is None:
            return method.refine(model, inputs, max_steps, halt, time_left)
        with torch.cuda.device(inputs.device):
            return replay(inputs, time_left)


def _record(
    method: Method[Any], model: nn.Module, inputs: Num[Tensor, "batch ..."], max_steps: int | None, halt: bool
) -> Replay | None:
    """None, with a warning, where something in the network cannot be recorded."""
    try:
        with torch.cuda.device(inputs.device):
            if halt and isinstance(method, Iterative) and isinstance(model, RecurrentClassifier):
                steps = max_steps or method.horizon
                if steps > 1:
                    return RecordedSteps(method, model, inputs, steps)
            return RecordedWhole(method, model, inputs, max_steps)
    except RuntimeError as error:
        warnings.warn(f"predictions cannot be recorded as CUDA graphs ({error}); they are slower.", stacklevel=3)
        return None


class RecordedWhole:
    """Encoding and all steps as one graph."""

    def __init__(
        self, method: Method[Any], model: nn.Module, inputs: Num[Tensor, "batch ..."], max_steps: int | None
    ) -> None:
        self.inputs = inputs.clone()

        def refine() -> None:
            self.path = method.refine(model, self.inputs, max_steps)

        (self.graph,) = _graphs(refine)

    def __call__(self, inputs: Num[Tensor, "batch ..."], time_left: TimeLeft | None) -> Trajectory:
        self.inputs.copy_(_filled(inputs, len(self.inputs)))
        self.graph.replay()
        return _copy(self.path, len(inputs))


class RecordedSteps:
    """Encoding with the first step as one graph, any later step as another, replayed until all examples have halted.

    Everything stays in place between replays, so nobody leaves the batch before its end.
    """

    def __init__(
        self, method: Iterative, model: RecurrentClassifier, inputs: Num[Tensor, "batch ..."], steps: int
    ) -> None:
        self.method, self.model, self.inputs = method, model, inputs.clone()
        self.pool = method.start(model, self.inputs)
        self.made = Steps.blank(steps, self.pool)
        self.time = torch.zeros(1, dtype=torch.int64, device=inputs.device)
        self.running = torch.ones(len(inputs), dtype=torch.bool, device=inputs.device)
        self.any_running = self.running.any()
        self.first, self.next, self.last = _graphs(self._begin, self._go_on, self._finish)

    def _begin(self) -> None:
        self.time.zero_()
        self.running.fill_(True)
        self._step(self.method.start(self.model, self.inputs), first=True)

    def _go_on(self) -> None:
        self._step(self.pool, first=False)

    def _finish(self) -> None:
        self.path = self.method.trajectory(self.made).frozen()

    def _step(self, pool: Pool, first: bool) -> None:
        step = self.method.step(self.model, pool, first)
        for place, tensor in zip((*self.pool[:3], *self.pool.memory), (*step.pool[:3], *step.pool.memory), strict=True):
            place.copy_(tensor)
        for place, tensor in zip(self.made, step[1:], strict=True):
            place.index_copy_(0, self.time, tensor.unsqueeze(0))
        self.time.add_(1)
        self.running.logical_and_(step.going)
        self.any_running.copy_(self.running.any())

    def __call__(self, inputs: Num[Tensor, "batch ..."], time_left: TimeLeft | None) -> Trajectory:
        self.inputs.copy_(_filled(inputs, len(self.inputs)))
        self.first.replay()
        for time in range(1, self.made.value.shape[0]):
            if not self.any_running.item():
                break
            if time_left is not None and not time_left():
                return _copy(self.method.trajectory(self.made.until(time)).frozen(), len(inputs))
            self.next.replay()
        self.last.replay()
        return _copy(self.path, len(inputs))


def _filled(inputs: Num[Tensor, "batch ..."], size: int) -> Num[Tensor, "size ..."]:
    """Up to its size with copies of the last input, which halt when it does."""
    return torch.cat([inputs, inputs[-1:].expand(size - len(inputs), *inputs.shape[1:])])


def _copy(path: Trajectory, batch: int) -> Trajectory:
    """The next replay writes over what this one made."""
    optional = (None if part is None else part[:, :batch].clone() for part in (path.values, path.halt_probability))
    return Trajectory(path.log_beliefs[:, :batch].clone(), path.halt_step[:batch].clone(), *optional)


def _graphs(*parts: Callable[[], None]) -> list[torch.cuda.CUDAGraph]:
    """Each part as a graph, after a few runs of all in their order."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP):
            for part in parts:
                part()
    torch.cuda.current_stream().wait_stream(stream)
    graphs = [torch.cuda.CUDAGraph() for _ in parts]
    for graph, part in zip(graphs, parts, strict=True):
        with torch.cuda.graph(graph):
            part()
    return graphs
