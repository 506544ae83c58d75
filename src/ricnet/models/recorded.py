"""Inference on a GPU as recorded CUDA graphs: same answers as `Method.refine`, without the host's overhead per step.

A step of a few thousand examples takes less time than launching its kernels, and a transfer of the halting mask takes
as long as another step. So steps are recorded, one graph per pool size, and the host learns how many examples continue
while the next step runs: a pool shrinks, and ends, one step late. That changes no answer, because results of an example
after its halt are not read. Methods and networks that cannot be recorded use `Method.refine`.
"""

import gc
import warnings
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int64, Num
from torch import Tensor, nn

from ricnet.core.trajectory import Trajectory
from ricnet.methods import Inference, in_steps
from ricnet.methods.inference import InSteps, Iterative, Pool, Step, Steps, run, select
from ricnet.methods.method import TimeLeft
from ricnet.nets.backbone import GPU_BATCH, encode
from ricnet.nets.refiner import RecurrentClassifier

LADDER = (1, 8, 32, 128, 256, 512, 768, 1024, 1280, 1536, 2048, 2560, 3072, 4096, 5120, 6144, 8192, 10240, 12288, 16384)
"""Pool sizes. A batch is padded to the next one; a batch larger than the last is refined in parts."""
FEW = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96)
STAGE_LADDER = (*FEW, *range(128, 512, 64), *range(512, 1024, 128), *range(1024, 2049, 256))
"""Pool sizes with exits: a stage takes so much longer than a step that padding has to be small."""
LAG = 1
"""Steps by which the host lags behind the GPU, so that the GPU never waits for it."""
Network = Callable[[Num[Tensor, "batch ..."]], Float[Tensor, "batch size"]]
WARM_UP = 3
"""Runs before a recording, while libraries choose kernels."""
Part = Callable[[], None]
"""Work on tensors in place, without synchronisation."""


# CUDA graphs. On a CPU a recording is the function itself and messages arrive immediately, so that code that uses them
# can be tested without a GPU.


@contextmanager
def capture(graph: torch.cuda.CUDAGraph, **options: Any) -> Iterator[None]:
    """`torch.cuda.graph` without garbage collection: freeing an old graph would end the recording. After a failure the
    random generator is usable again."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        with torch.cuda.graph(graph, **options):
            yield
    except BaseException:
        _renew_generator(torch.cuda.default_generators[torch.cuda.current_device()])
        raise
    finally:
        if collecting:
            gc.enable()


def _renew_generator(generator: torch.Generator) -> None:
    """After a failed recording every draw is an error; replace the generator's state by a copy at the same position."""
    fresh = torch.Generator(generator.device)
    fresh.set_state(generator.get_state())
    generator.graphsafe_set_state(fresh.graphsafe_get_state())


class Recorder:
    """Makes recordings that are replayed one at a time, in any order.

    They share memory: a result that is not a tensor of the caller is valid until the next replay. They have their own
    stream, because some versions of torch free memory of all graphs of a stream together with one of them.
    """

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.memory = None if self.stream is None else torch.cuda.graph_pool_handle()

    def __call__(self, part: Part, before: Part | None = None) -> Part:
        """`before` is called before each warm-up run and is not recorded."""
        if self.stream is None:
            return part
        graph = torch.cuda.CUDAGraph()
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):  # restored if the recording fails
            for _ in range(WARM_UP):
                if before is not None:
                    before()
                part()
            with capture(graph, pool=self.memory, stream=self.stream):
                part()
        torch.cuda.current_stream().wait_stream(self.stream)
        return graph.replay


class Messages:
    """One number per step, sent from the GPU without stopping it."""

    def __init__(self, steps: int, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        kept = torch.zeros(steps, dtype=torch.int64, pin_memory=on_gpu)
        self.numbers = kept.numpy()
        self.places = [kept[step] for step in range(steps)]
        self.sent = [torch.cuda.Event() for _ in range(steps)] if on_gpu else None

    def send(self, step: int, number: Int64[Tensor, ""]) -> None:
        """Sent after all work queued so far."""
        self.places[step].copy_(number, non_blocking=True)
        if self.sent is not None:
            self.sent[step].record()

    def read(self, step: int) -> int:
        """Wait for this message, not for work queued after it."""
        if self.sent is not None:
            self.sent[step].synchronize()
        return int(self.numbers[step])


# Inference


def rung(examples: int, ladder: Sequence[int] | None = None) -> int:
    """The smallest pool size for this many examples."""
    ladder = LADDER if ladder is None else ladder
    return ladder[bisect_left(ladder, examples)]


class Recordings:
    """All recordings of one caller, which must be one thread.

    Weights may change in place; on another device or with another type everything is recorded again.
    """

    def __init__(self) -> None:
        self._networks: dict[object, RecordedNetwork] = {}
        self._pools: dict[object, RecordedPool] = {}
        self._stages: dict[object, RecordedStages] = {}
        self._refused: set[object] = set()

    @torch.no_grad()
    def refine(
        self,
        method: Inference,
        model: nn.Module,
        inputs: Num[Tensor, "batch ..."],
        max_steps: int | None = None,
        halt: bool = False,
        time_left: TimeLeft | None = None,
    ) -> Trajectory:
        """As `Method.refine`; slow for the first batch of a size."""
        weights = (model, next(model.parameters()).data_ptr())
        parts = inputs.split(STAGE_LADDER[-1] if getattr(model, "costs", ()) else LADDER[-1])
        clocked = time_left is not None and len(parts) > 1  # parts would end at different steps
        stepping = in_steps(method, model)  # draws of a method that samples have to follow the seed
        recordable = getattr(method, "one_pass", False) if stepping is None else not stepping.draws
        if clocked or weights in self._refused or not (on_gpu(inputs) and recordable):
            return method.refine(model, inputs, max_steps, halt, time_left)
        try:
            with torch.cuda.device_of(inputs):
                return _join([self._refine(weights, method, model, part, max_steps, halt, time_left) for part in parts])
        except RuntimeError as error:
            warnings.warn(f"predictions cannot be recorded as CUDA graphs ({error}); inference is slow.", stacklevel=2)
            self._refused.add(weights)
            for made in (self._networks, self._pools, self._stages):
                made.clear()  # frees memory that may have been missing
        return method.refine(model, inputs, max_steps, halt, time_left)

    def _refine(
        self,
        weights: object,
        method: Inference,
        model: nn.Module,
        inputs: Num[Tensor, "batch ..."],
        max_steps: int | None,
        halt: bool,
        time_left: TimeLeft | None,
    ) -> Trajectory:
        stepping = in_steps(method, model)
        if stepping is not None and bool(getattr(model, "costs", ())):
            key, size = (weights, stepping, inputs.dtype, inputs.shape[1:]), rung(len(inputs), STAGE_LADDER)
            if key not in self._stages or size > self._stages[key].room:
                self._stages[key] = RecordedStages(stepping, model, inputs, size)
            return self._stages[key].refine(inputs, max_steps or stepping.horizon, halt, time_left)
        if isinstance(method, Iterative) and isinstance(model, RecurrentClassifier):
            context, steps = self._encode(weights, model.context, inputs), max_steps or method.horizon
            pool, size = self._pools.get((weights, method)), rung(len(context))
            if pool is None or size > pool.room or steps > pool.steps:  # to grow, everything is recorded again
                room = (size, steps) if pool is None else (max(size, pool.room), max(steps, pool.steps))
                self._pools[weights, method] = pool = RecordedPool(method, model, context, *room)
            return pool.refine(context, steps, halt, time_left)
        log_beliefs = self._encode((weights, method), lambda batch: method.refine(model, batch).log_beliefs[0], inputs)
        return Trajectory(log_beliefs.unsqueeze(0), torch.ones_like(log_beliefs[:, 0], dtype=torch.int64))

    def _encode(self, key: object, network: Network, inputs: Num[Tensor, "batch ..."]) -> Float[Tensor, "batch size"]:
        key = (key, inputs.dtype, inputs.shape[1:])
        if key not in self._networks:
            self._networks[key] = RecordedNetwork(network, inputs)
        return encode(self._networks[key], inputs)


def on_gpu(inputs: Num[Tensor, "batch ..."]) -> bool:
    return inputs.is_cuda and len(inputs) > 0


class RecordedNetwork:
    """A network without interaction between inputs, recorded for the batch sizes of `encode`."""

    def __init__(self, network: Network, inputs: Num[Tensor, "batch ..."]) -> None:
        self.network = network
        self.inputs = inputs.new_zeros(GPU_BATCH, *inputs.shape[1:])
        self.outputs: dict[int, Tensor] = {}
        self.replays: dict[int, Part] = {}
        self.record = Recorder(inputs.device)

    def __call__(self, inputs: Num[Tensor, "batch ..."]) -> Float[Tensor, "batch size"]:
        size = rung(len(inputs))
        if size not in self.replays:
            self.replays[size] = self.record(partial(self._run, size))
        self.inputs[: len(inputs)].copy_(inputs)
        self.replays[size]()
        return self.outputs[size][: len(inputs)].clone()

    def _run(self, size: int) -> None:
        self.outputs[size] = self.network(self.inputs[:size])


class RecordedPool:
    """The steps of a pool without exits, in place, for each pool size up to `size`.

    A smaller pool is the beginning of the same tensors. Examples that continue come first; the rest of a pool
    are halted examples and leftovers of a larger batch, which are computed but not read.
    """

    def __init__(
        self,
        method: Iterative,
        model: RecurrentClassifier,
        context: Float[Tensor, "batch gates"],
        size: int,
        steps: int,
    ) -> None:
        self.method, self.model, self.room, self.steps = method, model, size, steps
        self.pool = method.gather(model, context.new_zeros(size, context.shape[1]))
        self.made = Steps.blank(steps, self.pool)
        self.rows = torch.arange(size, device=context.device)
        self.places = self.rows.clone()
        """Position of each example's next step in `made`, with its first two axes flattened."""
        self.active = torch.zeros_like(self.rows, dtype=torch.bool)
        """Mask of examples that have not halted at any step so far."""
        self.batch, self.left = torch.zeros_like(self.rows[0]), torch.zeros_like(self.rows[0])
        """Number of examples, and of those that continue."""
        self.messages = Messages(steps, context.device)
        self.record = Recorder(context.device)
        self.replays: dict[tuple[object, ...], Part] = {}
        self.paths: dict[tuple[int, int, bool], Trajectory] = {}

    def refine(
        self, context: Float[Tensor, "batch gates"], steps: int, halt: bool, time_left: TimeLeft | None = None
    ) -> Trajectory:
        """With a deadline there is no lag, because the clock waits for the GPU before each step."""
        size = self.now = rung(len(context))
        self.lag = LAG if time_left is None else 0
        self._prepare(size, steps, halt)
        self.pool.context[: len(context)].copy_(context)
        self.batch.fill_(len(context))
        _, made = run(self, steps, halt, time_left)
        if made == steps:
            self.replays["conclude", size, steps, halt]()
        else:
            self._conclude(size, made, halt)
        return self.paths[size, made, halt].take(slice(len(context))).map(torch.clone)  # replays reuse these tensors

    def advance(self, time: int) -> "RecordedPool":
        self.replays["next" if time else "first", self.now]()
        return self

    def shrink(self, time: int) -> "RecordedPool":
        self.messages.send(time, self.left)
        self.size = self.messages.read(time - self.lag) if time >= self.lag else self.now
        if self.size and rung(self.size) < self.now:
            self.now = rung(self.size)
            self.replays["shrink", self.now]()
        return self

    def _prepare(self, size: int, steps: int, halt: bool) -> None:
        """Record all graphs that such a batch may need before its data is written, because recording also runs them."""
        parts: dict[tuple[object, ...], Part] = {
            ("first", size): partial(self._first, size),
            ("next", size): partial(self._next, size),
            ("conclude", size, steps, halt): partial(self._conclude, size, steps, halt),
        }
        for smaller in reversed(LADDER[: bisect_left(LADDER, size)] if halt else ()):  # the largest need most memory
            parts["next", smaller] = partial(self._next, smaller)
            parts["shrink", smaller] = partial(self._shrink, smaller)
        for key, part in parts.items():
            if key not in self.replays:
                self.replays[key] = self.record(part, before=self._rewind)

    def _rewind(self) -> None:
        self.places.copy_(self.rows)

    def _first(self, size: int) -> None:
        self._rewind()
        torch.lt(self.rows, self.batch, out=self.active)
        start = self.method.gather(self.model, self.pool.context[:size])
        self._write(size, self.method.step(self.model, start, first=True))
        for kept, joined in zip(self.pool.heads or (), start.heads or (), strict=True):
            kept.copy_(joined)

    def _next(self, size: int) -> None:
        self._write(size, self.method.step(self.model, self.pool.first(size), first=False))

    def _write(self, size: int, step: Step) -> None:
        for kept, tensor in zip(_state(self.pool.first(size)), _state(step.pool), strict=True):
            kept.copy_(tensor)
        places = self.places[:size]
        for made, tensor in zip(self.made, step[1:], strict=True):
            made.view(-1, *made.shape[2:]).index_copy_(0, places, tensor)
        places.add_(self.room)
        self.active[:size].logical_and_(step.active)
        torch.sum(self.active[:size], 0, out=self.left)

    def _shrink(self, size: int) -> None:
        """Move the examples that continue to the front, otherwise in their order; no example that left comes back."""
        rows = self.active.byte().argsort(descending=True, stable=True)[:size]
        for tensor in (self.pool.context, *_state(self.pool), self.places, self.active):
            tensor[:size].copy_(tensor.index_select(0, rows))
        self.active[size:].zero_()

    def _conclude(self, size: int, steps: int, halt: bool) -> None:
        path = self.method.trajectory(Steps(*(tensor[:steps, :size] for tensor in self.made)))
        self.paths[size, steps, halt] = path.frozen() if halt else path


class RecordedStages:
    """The same with exits: a graph takes a pool through the next stage of the encoder and the step after it.

    A stage takes longer than a transfer to the host, so there is no lag, and no stage is computed for more than the
    next pool size. What a step reads and writes are different tensors, so a graph can be recorded when first needed.
    """

    def __init__(self, method: InSteps[Any], model: Any, inputs: Num[Tensor, "batch ..."], size: int) -> None:
        self.method, self.model, self.room = method, model, size
        self.inputs = inputs.new_zeros(size, *inputs.shape[1:])
        self.rows = torch.arange(size, device=inputs.device)
        self.pools: list[Pool] = []
        """Pool before each step; examples that continue come first."""
        pool = method.start(model, self.inputs[:1])._replace(heads=None)
        for time in range(len(model.costs)):
            self.pools.append(pool.take(torch.zeros_like(self.rows)))  # `size` copies, in the same layout
            pool = method.advance(model, pool, time).pool
        self.ids = [self.rows.clone() for _ in self.pools]
        """Row of the batch of each example in these pools."""
        self.active = [torch.zeros_like(self.rows, dtype=torch.bool) for _ in self.pools]
        self.made = Steps.blank(len(self.pools) + 1, self.pools[0])  # a step may write the value of the next
        self.batch, self.left = torch.zeros_like(self.rows[0]), torch.zeros_like(self.rows[0])
        self.messages = Messages(len(self.pools), inputs.device)
        self.record = Recorder(inputs.device)
        self.replays: dict[tuple[object, ...], Part] = {}
        self.paths: dict[tuple[int, int, bool], Trajectory] = {}

    def refine(
        self, inputs: Num[Tensor, "batch ..."], max_steps: int, halt: bool, time_left: TimeLeft | None
    ) -> Trajectory:
        size = self.now = rung(len(inputs), STAGE_LADDER)
        self.inputs[: len(inputs)].copy_(inputs)
        self.batch.fill_(len(inputs))
        self._replay(self._start, size)
        _, made = run(self, min(max_steps, len(self.pools)), halt, time_left)
        self._replay(self._conclude, size, made, halt)
        return self.paths[size, made, halt].take(slice(len(inputs))).map(torch.clone)

    def advance(self, time: int) -> "RecordedStages":
        self._replay(self._advance, time, self.now)
        return self

    def shrink(self, time: int) -> "RecordedStages":
        self.messages.send(time, self.left)
        self.size = self.messages.read(time)
        self.now = rung(self.size, STAGE_LADDER) if self.size else self.now
        return self

    def _replay(self, part: Callable[..., None], *key: Any) -> None:
        if (part, *key) not in self.replays:
            self.replays[part, *key] = self.record(partial(part, *key))
        self.replays[part, *key]()

    def _start(self, size: int) -> None:
        pool = self.method.start(self.model, self.inputs[:size])
        _write_pool(self.pools[0], pool, self.rows[:size])
        torch.lt(self.rows, self.batch, out=self.active[0])
        first = self.method.first_value(self.model, pool)
        self.ahead = first is not None
        if first is not None:
            self.made.value[0, :size] = first

    def _advance(self, time: int, size: int) -> None:
        """Examples that continue are written to the front of the next pool, so that stage outputs are moved once."""
        ids = self.ids[time][:size]
        step = self.method.advance(self.model, self.pools[time].first(size), time)
        self.made.output[time].index_copy_(0, ids, step.output)
        self.made.active[time].index_copy_(0, ids, step.active)
        self.made.value[time + self.ahead].index_copy_(0, ids, step.value)
        active = self.active[time][:size] & step.active
        torch.sum(active, 0, out=self.left)
        if time + 1 < len(self.pools):
            rows = active.byte().argsort(descending=True, stable=True)
            _write_pool(self.pools[time + 1], step.pool, rows)
            torch.index_select(ids, 0, rows, out=self.ids[time + 1][:size])
            torch.index_select(active, 0, rows, out=self.active[time + 1][:size])

    def _conclude(self, size: int, steps: int, halt: bool) -> None:
        made = Steps(*(tensor[:steps, :size] for tensor in self.made))
        self.paths[size, steps, halt] = self.method.conclude(self.model, made, halt)


def _write_pool(kept: Pool, pool: Pool, rows: Int64[Tensor, "rows"]) -> None:
    for place, tensor in zip(kept.tensors, pool.tensors, strict=True):
        select(tensor, rows, out=place)


def _state(pool: Pool) -> tuple[Float[Tensor, "pool ..."], ...]:
    """The tensors that a step changes."""
    return pool.thought, pool.belief, *pool.memory


def _join(paths: Sequence[Trajectory]) -> Trajectory:
    """One trajectory from those of parts of a batch."""
    if len(paths) == 1:
        return paths[0]
    columns = zip(*((path.values, path.halt_probability) for path in paths), strict=True)
    values, probability = (None if column[0] is None else torch.cat(column, 1) for column in columns)
    log_beliefs, halt_step = torch.cat([path.log_beliefs for path in paths], 1), [path.halt_step for path in paths]
    return Trajectory(log_beliefs, torch.cat(halt_step), values, probability, paths[0].costs)
