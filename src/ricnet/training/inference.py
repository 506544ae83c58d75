"""Inference on a GPU without its host in the way: a step is recorded once as a CUDA graph and then replayed.

A step of a few thousand examples takes less time than telling the GPU what to do in it, and asking after each step who
is still going takes as long as another. So steps are recorded, a graph for each size of pool on a ladder, and the host
hears how many are going while the next step is under way: a pool gets smaller a step late, and ends a step late. That
changes no answer: what is computed of an example after it has stopped is not read. Answers are those of
`Method.refine`, which also does whatever cannot be recorded.
"""

import warnings
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int64, Num
from torch import Tensor, nn

from ricnet.core.trajectory import Trajectory
from ricnet.methods import Asked, in_steps
from ricnet.methods.iterative import InSteps, Iterative, Pool, Step, Steps, select
from ricnet.methods.method import TimeLeft
from ricnet.nets.encoders import GPU_BATCH, encode
from ricnet.nets.refiner import RecurrentClassifier
from ricnet.training.speed import Messages, Part, Recorder

LADDER = (1, 8, 32, 128, 256, 512, 768, 1024, 1280, 1536, 2048, 2560, 3072, 4096, 5120, 6144, 8192, 10240, 12288, 16384)
"""Sizes of pool. A batch is filled up to the next of them; one larger than the last is refined in parts."""
FEW = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96)
STAGE_LADDER = (*FEW, *range(128, 512, 64), *range(512, 1024, 128), *range(1024, 2049, 256))
"""The same with exits: a stage of the encoder takes so much longer than a step that filling up has to cost little."""
LAG = 1
"""How many steps the host is behind: enough for the GPU never to wait for it."""

Network = Callable[[Num[Tensor, "batch ..."]], Float[Tensor, "batch size"]]


def rung(examples: int, ladder: Sequence[int] | None = None) -> int:
    """The smallest size on the ladder with room for so many."""
    ladder = LADDER if ladder is None else ladder
    return ladder[bisect_left(ladder, examples)]


class Recordings:
    """All that has been recorded so far, for one caller at a time.

    Weights may change in place; moved to another type or device, everything is recorded again.
    """

    def __init__(self) -> None:
        self._networks: dict[object, RecordedNetwork] = {}
        self._pools: dict[object, RecordedPool] = {}
        self._stages: dict[object, RecordedStages] = {}
        self._refused: set[object] = set()

    @torch.no_grad()
    def refine(
        self,
        method: Asked,
        model: nn.Module,
        inputs: Num[Tensor, "batch ..."],
        max_steps: int | None = None,
        halt: bool = False,
        time_left: TimeLeft | None = None,
    ) -> Trajectory:
        """As `Method.refine`; slow when it meets a size of batch for the first time."""
        weights = (model, next(model.parameters()).data_ptr())
        parts = inputs.split(STAGE_LADDER[-1] if getattr(model, "costs", ()) else LADDER[-1])
        clocked = time_left is not None and len(parts) > 1  # it would stop the parts at different steps
        if clocked or weights in self._refused or not (on_gpu(inputs) and recordable(method, model)):
            return method.refine(model, inputs, max_steps, halt, time_left)
        try:
            with torch.cuda.device_of(inputs):
                return _join([self._refine(weights, method, model, part, max_steps, halt, time_left) for part in parts])
        except RuntimeError as error:
            warnings.warn(f"predictions cannot be recorded as CUDA graphs ({error}); they are slower.", stacklevel=2)
            self._refused.add(weights)
            self._networks.clear()  # they may hold the memory that was missing
            self._pools.clear()
            self._stages.clear()
        return method.refine(model, inputs, max_steps, halt, time_left)

    def _refine(
        self,
        weights: object,
        method: Asked,
        model: nn.Module,
        inputs: Num[Tensor, "batch ..."],
        max_steps: int | None,
        halt: bool,
        time_left: TimeLeft | None,
    ) -> Trajectory:
        stepping = in_steps(method, model)
        if stepping is not None and bool(getattr(model, "costs", ())):
            return self._staged(weights, stepping, model, inputs).refine(inputs, max_steps, halt, time_left)
        if isinstance(method, Iterative) and isinstance(model, RecurrentClassifier):
            context = self._encode(weights, model.context, inputs)
            steps = max_steps or method.horizon
            return self._pool(weights, method, model, context, steps).refine(context, steps, halt, time_left)
        log_beliefs = self._encode((weights, method), lambda batch: method.refine(model, batch).log_beliefs[0], inputs)
        return Trajectory(log_beliefs.unsqueeze(0), torch.ones_like(log_beliefs[:, 0], dtype=torch.int64))

    def _encode(self, key: object, network: Network, inputs: Num[Tensor, "batch ..."]) -> Float[Tensor, "batch size"]:
        key = (key, inputs.dtype, inputs.shape[1:])
        if key not in self._networks:
            self._networks[key] = RecordedNetwork(network, inputs)
        return encode(self._networks[key], inputs)

    def _staged(
        self, weights: object, method: InSteps[Any], model: nn.Module, inputs: Num[Tensor, "batch ..."]
    ) -> "RecordedStages":
        """As `_pool`, with exits."""
        key, size = (weights, method, inputs.dtype, inputs.shape[1:]), rung(len(inputs), STAGE_LADDER)
        if key not in self._stages or size > self._stages[key].size:
            self._stages[key] = RecordedStages(method, model, inputs, size)
        return self._stages[key]

    def _pool(
        self,
        weights: object,
        method: Iterative,
        model: RecurrentClassifier,
        context: Float[Tensor, "batch gates"],
        steps: int,
    ) -> "RecordedPool":
        """One with room for the batch; if it has to grow, everything is recorded again."""
        pool, size = self._pools.get((weights, method)), rung(len(context))
        if pool is None or size > pool.size or steps > pool.steps:
            if pool is not None:
                size, steps = max(size, pool.size), max(steps, pool.steps)
            self._pools[weights, method] = pool = RecordedPool(method, model, context, size, steps)
        return pool


def on_gpu(inputs: Num[Tensor, "batch ..."]) -> bool:
    return inputs.is_cuda and len(inputs) > 0


def recordable(method: Asked, model: nn.Module) -> bool:
    """What draws at random is left to `Method.refine`: its draws are to be those of the seed."""
    stepping = in_steps(method, model)
    return getattr(method, "one_pass", False) if stepping is None else not stepping.draws


class RecordedNetwork:
    """A network that treats every input by itself, for at most as many as `encode` gives it at once."""

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
    """The steps of a pool that stays in place, of any size on the ladder up to a largest one.

    A pool of a smaller size is the beginning of the same tensors. Those that are going come first; the rest of a pool
    are examples that have stopped, and leftovers of a larger batch before. They are computed like the others, and the
    result is not read.
    """

    def __init__(
        self,
        method: Iterative,
        model: RecurrentClassifier,
        context: Float[Tensor, "batch gates"],
        size: int,
        steps: int,
    ) -> None:
        self.method, self.model, self.size, self.steps = method, model, size, steps
        self.pool = method.gather(model, context.new_zeros(size, context.shape[1]))
        self.made = Steps.blank(steps, self.pool)
        self.rows = torch.arange(size, device=context.device)
        self.places = self.rows.clone()
        """Where in `made`, all its steps in one line, the next step of each example goes."""
        self.going = torch.zeros_like(self.rows, dtype=torch.bool)
        """Who has not stopped at any step so far."""
        self.batch, self.left = torch.zeros_like(self.rows[0]), torch.zeros_like(self.rows[0])
        """How many there were, and how many are going."""
        self.messages = Messages(steps, context.device)
        self.record = Recorder(context.device)
        self.replays: dict[tuple[object, ...], Part] = {}
        self.paths: dict[tuple[int, int, bool], Trajectory] = {}

    def refine(
        self, context: Float[Tensor, "batch gates"], steps: int, halt: bool, time_left: TimeLeft | None = None
    ) -> Trajectory:
        size = rung(len(context))
        self._prepare(size, steps, halt)
        self.pool.context[: len(context)].copy_(context)
        self.batch.fill_(len(context))
        if time_left is not None:
            time_left()  # times the first step, which is always made
        self.replays["first", size]()
        made = self._go_on(size, steps, halt, time_left)
        if made == steps:
            self.replays["conclude", size, steps, halt]()
        else:
            self._conclude(size, made, halt)
        return self.paths[size, made, halt].take(slice(len(context))).map(torch.clone)  # the next replay writes over it

    def _go_on(self, size: int, steps: int, halt: bool, time_left: TimeLeft | None) -> int:
        """How many steps are made, counting those that need not be made. A clock stops the GPU before each step, so
        that with one there is nothing to gain by being late."""
        lag = LAG if time_left is None else 0
        for time in range(1, steps):
            if halt:
                self.messages.send(time - 1, self.left)
                going = self.messages.read(time - 1 - lag) if time > lag else size
                if going == 0:
                    break
                if rung(going) < size:
                    size = rung(going)
                    self.replays["shrink", size]()
            if time_left is not None and not time_left():
                return time
            self.replays["next", size]()
        return steps

    def _prepare(self, size: int, steps: int, halt: bool) -> None:
        """All that such a batch may need, before anything of it is in place: what is being recorded is also run."""
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
        torch.lt(self.rows, self.batch, out=self.going)
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
        places.add_(self.size)
        self.going[:size].logical_and_(step.going)
        torch.sum(self.going[:size], 0, out=self.left)

    def _shrink(self, size: int) -> None:
        """Those that are going move to the front, the first of the others fill up; the order is else as before, so that
        no example comes back that has left the pool."""
        rows = self.going.byte().argsort(descending=True, stable=True)[:size]
        for tensor in (self.pool.context, *_state(self.pool), self.places, self.going):
            tensor[:size].copy_(tensor.index_select(0, rows))
        self.going[size:].zero_()

    def _conclude(self, size: int, steps: int, halt: bool) -> None:
        path = self.method.trajectory(Steps(*(tensor[:steps, :size] for tensor in self.made)))
        self.paths[size, steps, halt] = path.frozen() if halt else path


class RecordedStages:
    """The same with exits: a graph takes a pool through the next stage of the encoder and the step after it.

    A stage takes longer than the host needs to hear who is going, so that here it waits for that, and no stage is
    computed for more than a rung of the ladder has room for. What a step reads and what it writes are different
    tensors, so that a graph can be recorded when it is first needed.
    """

    def __init__(self, method: InSteps[Any], model: Any, inputs: Num[Tensor, "batch ..."], size: int) -> None:
        self.method, self.model, self.size = method, model, size
        self.inputs = inputs.new_zeros(size, *inputs.shape[1:])
        self.rows = torch.arange(size, device=inputs.device)
        self.pools: list[Pool] = []
        """What each step begins with. Those that are going come first; the rest have stopped."""
        pool = method.start(model, self.inputs[:1])._replace(heads=None)
        for time in range(len(model.costs)):
            self.pools.append(_room(pool, size))
            pool = method.advance(model, pool, time).pool
        self.ids = [self.rows.clone() for _ in self.pools]
        """Whose place it is."""
        self.going = [torch.zeros_like(self.rows, dtype=torch.bool) for _ in self.pools]
        self.made = Steps.blank(len(self.pools) + 1, self.pools[0])  # the value of a step is written by the one before
        self.batch, self.left = torch.zeros_like(self.rows[0]), torch.zeros_like(self.rows[0])
        self.messages = Messages(len(self.pools), inputs.device)
        self.record = Recorder(inputs.device)
        self.replays: dict[tuple[object, ...], Part] = {}
        self.paths: dict[tuple[int, int, bool], Trajectory] = {}

    def refine(
        self, inputs: Num[Tensor, "batch ..."], max_steps: int | None, halt: bool, time_left: TimeLeft | None
    ) -> Trajectory:
        size = rung(len(inputs), STAGE_LADDER)
        steps = min(max_steps or self.method.horizon, len(self.pools))
        self.inputs[: len(inputs)].copy_(inputs)
        self.batch.fill_(len(inputs))
        self._replay(self._start, size)
        made = self._go_on(size, steps, halt, time_left)
        self._replay(self._conclude, size, made, halt)
        return self.paths[size, made, halt].take(slice(len(inputs))).map(torch.clone)

    def _go_on(self, size: int, steps: int, halt: bool, time_left: TimeLeft | None) -> int:
        """How many steps are made, counting those that need not be made."""
        if time_left is not None:
            time_left()  # times the first step, which is always made
        self._replay(self._advance, 0, size)
        for time in range(1, steps):
            if halt:
                self.messages.send(time, self.left)
                left = self.messages.read(time)
                if left == 0:
                    break
                size = rung(left, STAGE_LADDER)
            if time_left is not None and not time_left():
                return time
            self._replay(self._advance, time, size)
        return steps

    def _replay(self, part: Callable[..., None], *key: Any) -> None:
        if (part, *key) not in self.replays:
            self.replays[part, *key] = self.record(partial(part, *key))
        self.replays[part, *key]()

    def _start(self, size: int) -> None:
        pool = self.method.start(self.model, self.inputs[:size])
        _write_pool(self.pools[0], pool, self.rows[:size])
        torch.lt(self.rows, self.batch, out=self.going[0])
        first = self.method.first_value(self.model, pool)
        self.ahead = first is not None
        if first is not None:
            self.made.value[0, :size] = first

    def _advance(self, time: int, size: int) -> None:
        """Those that are going are the first of the next pool: what a stage has made is moved but once."""
        ids = self.ids[time][:size]
        step = self.method.advance(self.model, self.pools[time].first(size), time)
        self.made.output[time].index_copy_(0, ids, step.output)
        self.made.going[time].index_copy_(0, ids, step.going)
        self.made.value[time + self.ahead].index_copy_(0, ids, step.value)
        going = self.going[time][:size] & step.going
        torch.sum(going, 0, out=self.left)
        if time + 1 < len(self.pools):
            rows = going.byte().argsort(descending=True, stable=True)
            _write_pool(self.pools[time + 1], step.pool, rows)
            torch.index_select(ids, 0, rows, out=self.ids[time + 1][:size])
            torch.index_select(going, 0, rows, out=self.going[time + 1][:size])

    def _conclude(self, size: int, steps: int, halt: bool) -> None:
        made = Steps(*(tensor[:steps, :size] for tensor in self.made))
        self.paths[size, steps, halt] = self.method.conclude(self.model, made, halt)


def _room(pool: Pool, size: int) -> Pool:
    """For as many of the one example in it, in the same layout."""
    return pool.take(torch.zeros(size, dtype=torch.int64, device=pool.context.device))


def _write_pool(kept: Pool, pool: Pool, rows: Int64[Tensor, "rows"]) -> None:
    assert kept.seen is not None
    assert pool.seen is not None
    select(pool.seen, rows, out=kept.seen)
    for place, tensor in zip((kept.context, *_state(kept)), (pool.context, *_state(pool)), strict=True):
        torch.index_select(tensor, 0, rows, out=place[: len(rows)])


def _state(pool: Pool) -> tuple[Float[Tensor, "pool ..."], ...]:
    """What a step changes."""
    return pool.thought, pool.belief, *pool.memory


def _join(paths: Sequence[Trajectory]) -> Trajectory:
    """Those of parts of a batch."""
    if len(paths) == 1:
        return paths[0]
    columns = zip(*((path.values, path.halt_probability) for path in paths), strict=True)
    values, probability = (None if column[0] is None else torch.cat(column, 1) for column in columns)
    log_beliefs, halt_step = torch.cat([path.log_beliefs for path in paths], 1), [path.halt_step for path in paths]
    return Trajectory(log_beliefs, torch.cat(halt_step), values, probability, paths[0].costs)
