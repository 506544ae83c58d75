"""What methods that refine step by step share: the steps with gradient, for training, and inference in one pool, which
examples leave when they stop.

Encoding and refining are apart. Inputs are encoded in batches that suit the encoder; their contexts then form one pool,
as large as the caller likes, that is refined together. A step costs what the examples still in the pool cost, so that
the time of a halted batch goes with the mean number of steps and not with the largest.

With exits they are one: each step first takes what its pool has seen through the next stage of the encoder.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Generic, NamedTuple, TypeVar

import torch
from jaxtyping import Bool, Float, Int64, Num
from torch import Tensor

from ricnet.core.trajectory import Trajectory
from ricnet.methods.method import Method, Metrics, TimeLeft
from ricnet.nets.encoders import Backbone, Staged, encode
from ricnet.nets.refiner import Heads, HeadWeights, RecurrentClassifier, at_step

CPU_POOL, GPU_POOL = 128, 2048
"""Examples that are looked at together where there are exits: what a stage makes of them is kept until the next."""
POOLED_SIZE = 3 * 32 * 32
"""Of an input, at which that many are; of larger ones, whose maps are larger, fewer."""
CPU_LOOK, GPU_LOOK = 16, 1024
"""Of these so many at a time: in batches of 64 the first stage of a narrow ResNet-18, whose images are largest, took
half as long again for each. The whole took the same."""


class Pool(NamedTuple):
    """Where the examples stand that are still being refined; they come first in every tensor."""

    context: Float[Tensor, "pool read"]
    thought: Float[Tensor, "pool size"]
    belief: Float[Tensor, "pool classes"]
    memory: tuple[Float[Tensor, "pool"], ...] = ()
    """What the halting rule remembers from step to step."""
    heads: HeadWeights | None = None
    """Of the network, joined once for all steps; else each step joins them for itself."""
    seen: Num[Tensor, "pool ..."] | None = None
    """With exits, what the last stage of the encoder made; before the first the inputs, normalised unless an encoder
    that comes trained does that itself."""

    def take(self, rows: Int64[Tensor, "rows"]) -> "Pool":
        context, thought, belief = (tensor.index_select(0, rows) for tensor in self[:3])
        memory = tuple(tensor.index_select(0, rows) for tensor in self.memory)
        seen = None if self.seen is None else select(self.seen, rows)
        return Pool(context, thought, belief, memory, self.heads, seen)

    def first(self, size: int) -> "Pool":
        """So many of them, where they are."""
        context, thought, belief = (tensor[:size] for tensor in self[:3])
        seen = None if self.seen is None else self.seen[:size]
        return Pool(context, thought, belief, tuple(tensor[:size] for tensor in self.memory), self.heads, seen)

    def join(self, other: "Pool") -> "Pool":
        """Both in one, if they have made as many steps."""
        context, thought, belief = (torch.cat(pair) for pair in zip(self[:3], other[:3], strict=True))
        memory = tuple(torch.cat(pair) for pair in zip(self.memory, other.memory, strict=True))
        seen = None if self.seen is None or other.seen is None else torch.cat([self.seen, other.seen])
        return Pool(context, thought, belief, memory, self.heads, seen)


def select(
    seen: Num[Tensor, "pool ..."], rows: Int64[Tensor, "rows"], out: Num[Tensor, "room ..."] | None = None
) -> Num[Tensor, "rows ..."]:
    """Those rows in the layout they have, where index_select would lay out channels first. With `out` they are written
    to its beginning."""
    place = None if out is None else out[: len(rows)]
    if seen.ndim == 4 and seen.is_contiguous(memory_format=torch.channels_last):
        place = None if place is None else place.permute(0, 2, 3, 1)
        return torch.index_select(seen.permute(0, 2, 3, 1), 0, rows, out=place).permute(0, 3, 1, 2)
    return torch.index_select(seen, 0, rows, out=place)


class Step(NamedTuple):
    """What one step makes of a pool."""

    pool: Pool
    output: Float[Tensor, "pool classes"]
    value: Float[Tensor, "pool"]
    """What the halting rule asks: of this step or, where there are exits and a value, already of the next."""
    going: Bool[Tensor, "pool"]
    """Who does not stop here. Of an example that stopped before, and is still in the pool, it says nothing."""


class Steps(NamedTuple):
    """What the steps made of a batch. Of an example that left its pool, nothing is known from there on."""

    output: Float[Tensor, "steps batch classes"]
    value: Float[Tensor, "steps batch"]
    going: Bool[Tensor, "steps batch"]

    @classmethod
    def blank(cls, steps: int, pool: Pool) -> "Steps":
        """Room for so many steps of a whole batch."""
        output = pool.belief.new_zeros(steps, *pool.belief.shape)
        return cls(output, torch.zeros_like(output[..., 0]), torch.zeros_like(output[..., 0], dtype=torch.bool))

    def write(self, time: int, step: Step, rows: Int64[Tensor, "pool"] | slice, ahead: bool = False) -> None:
        """`ahead` says that the value is that of the next step."""
        self.output[time, rows], self.going[time, rows] = step.output, step.going
        if time + ahead < len(self.value):
            self.value[time + ahead, rows] = step.value

    def until(self, time: int) -> "Steps":
        return Steps(*(tensor[:time] for tensor in self))


StagedNetwork = TypeVar("StagedNetwork", bound=Staged)


class InSteps(ABC, Generic[StagedNetwork]):
    """Inference as a loop over `step`, which each method has of its own, as it has a `trajectory`."""

    horizon: int

    @property
    def draws(self) -> bool:
        """Whether its inference draws at random, so that the same input may get another answer."""
        return False

    @abstractmethod
    def step(self, model: StagedNetwork, pool: Pool, first: bool) -> Step:
        """The next step of every example in a pool, with nothing the host would have to wait for."""

    def goes_on(self, step: Step | Steps) -> Bool[Tensor, "*steps pool"]:
        """Who goes on after a step, by this rule, whichever one the step was made under. `trajectory` must agree: from
        where an example stops, nothing is known of it."""
        return step.going

    @abstractmethod
    def trajectory(self, steps: Steps) -> Trajectory:
        """What the steps mean: beliefs, and where each example halts."""

    def memory(self, zeros: Float[Tensor, "batch"]) -> tuple[Float[Tensor, "batch"], ...]:
        """What the halting rule knows before the first step, given a zero for each example."""
        return ()

    @abstractmethod
    def gather(self, model: StagedNetwork, context: Float[Tensor, "batch read"]) -> Pool:
        """Examples of which that much is read, before their first step."""

    def first_value(self, model: StagedNetwork, pool: Pool) -> Float[Tensor, "pool"] | None:
        """What the value says before the first step, where the value of a step is already that of the next."""
        return None

    def start(self, model: StagedNetwork, inputs: Num[Tensor, "batch ..."]) -> Pool:
        """Examples before their first look."""
        seen = model.backbone.normalized(inputs)
        if seen.ndim == 4 and seen.is_cuda:  # what convolutions on tensor cores work in
            seen = seen.contiguous(memory_format=torch.channels_last)
        return self.gather(model, model.backbone.mean.new_zeros(len(seen), 1))._replace(seen=seen)

    def look(
        self, model: StagedNetwork, stage: int, seen: Num[Tensor, "batch ..."]
    ) -> tuple[Tensor, Float[Tensor, "batch read"]]:
        """What the next stage makes of what was seen, and what a step reads of it."""
        return model.look(stage, seen)

    @torch.no_grad()
    def refine(
        self,
        model: StagedNetwork,
        inputs: Num[Tensor, "batch ..."],
        max_steps: int | None = None,
        halt: bool = False,
        time_left: TimeLeft | None = None,
    ) -> Trajectory:
        steps = max_steps or self.horizon
        if not model.has_exits:
            made = self._run(model, self.start(model, inputs), steps, halt, time_left)
            return self.conclude(model, made, halt)
        steps = min(steps, len(model.costs))  # there is nothing to see after the last exit
        most = CPU_POOL if inputs.device.type == "cpu" else GPU_POOL
        rows = min(most, max(CPU_LOOK, most * POOLED_SIZE // inputs[:1].numel())) if len(inputs) else most
        parts = inputs.split(len(inputs) if time_left is not None else rows)  # a clock stops all at the same step
        each = [self._run(model, self.start(model, part), steps, halt, time_left) for part in parts]
        return self.conclude(model, Steps(*(torch.cat(tensors, 1) for tensors in zip(*each, strict=True))), halt)

    def _run(self, model: StagedNetwork, pool: Pool, steps: int, halt: bool, time_left: TimeLeft | None) -> Steps:
        made, first = Steps.blank(steps, pool), self.first_value(model, pool)
        if first is not None:
            made.value[0] = first
        rows: Tensor | slice = slice(None)
        for time in range(steps):
            if time_left is not None and not time_left() and time > 0:
                return made.until(time)
            step = self.advance(model, pool, time)
            made.write(time, step, rows, ahead=first is not None)
            pool = step.pool
            if halt and time + 1 < steps:
                stay = step.going.nonzero().squeeze(1)  # the one thing in a step that a GPU's host waits for
                if len(stay) == 0:
                    break
                if len(stay) < len(step.going):
                    rows, pool = stay if isinstance(rows, slice) else rows[stay], pool.take(stay)
        return made

    def advance(self, model: StagedNetwork, pool: Pool, time: int) -> Step:
        """The next step of a pool that has made `time`. Where it is the first at its exit, a look comes before it, in
        batches that suit the encoder."""
        per_exit = model.backbone.steps_per_exit
        if model.has_exits and time % per_exit == 0:
            assert pool.seen is not None
            most = CPU_LOOK if pool.seen.device.type == "cpu" else GPU_LOOK
            chunks = max(1, math.ceil(len(pool.seen) / most))  # of equal size, for a few rows alone take long for each
            looks = [self.look(model, time // per_exit, part) for part in pool.seen.chunk(chunks)]
            seen, context = (torch.cat(part) if len(looks) > 1 else part[0] for part in zip(*looks, strict=True))
            pool = pool._replace(seen=seen, context=context)
        return self.step(model, pool, first=time == 0)

    def conclude(self, model: StagedNetwork, made: Steps, halt: bool) -> Trajectory:
        path = self.trajectory(made)
        if model.has_exits:
            path = replace(path, costs=model.costs[: path.steps])
        return path.frozen() if halt else path


class Iterative(InSteps[RecurrentClassifier], Method[RecurrentClassifier]):
    """A method that refines: thought and belief go from step to step."""

    def build(self, backbone: Backbone, classes: int) -> RecurrentClassifier:
        """For logits and one halting unit. What else there is does not learn: weight decay shall not move it either."""
        model = RecurrentClassifier(backbone, backbone.embedding_size, classes)
        model.refiner.concentration.requires_grad_(False)
        if model.has_exits:
            model.refiner.critic.requires_grad_(False)
        return model

    def start(self, model: RecurrentClassifier, inputs: Num[Tensor, "batch ..."]) -> Pool:
        """Examples before their first step; with exits before their first look."""
        return super().start(model, inputs) if model.has_exits else self.gather(model, encode(model.context, inputs))

    def gather(self, model: RecurrentClassifier, context: Float[Tensor, "batch read"]) -> Pool:
        memory = self.memory(torch.zeros_like(context[:, 0]))
        return Pool(context, *outset(model, context), memory, model.refiner.head_weights())

    def first_value(self, model: RecurrentClassifier, pool: Pool) -> Float[Tensor, "pool"] | None:
        return model.refiner.expect(pool.thought, pool.belief) if model.has_exits and self.halts_by_value else None


def outset(
    model: RecurrentClassifier, context: Float[Tensor, "*steps batch gates"]
) -> tuple[Float[Tensor, "batch size"], Float[Tensor, "batch classes"]]:
    """τ_0 = 0 and the uniform belief a_0."""
    batch = context.shape[-2]
    return context.new_zeros(batch, model.refiner.size), context.new_full((batch, model.classes), 1 / model.classes)


Advance = Callable[[Float[Tensor, "batch"], Heads], Float[Tensor, "batch"]]
"""From how near an example is to stopping, and the heads of the next step, to how near it is then; never less."""


def unroll(
    model: RecurrentClassifier,
    inputs: Num[Tensor, "batch ..."],
    steps: int,
    uniform_mix: float = 0.0,
    expects: bool = False,
) -> Heads:
    """The heads of all steps, with gradient, through the beliefs that were fed back too. With `expects` the value is
    that of a network with exits, asked before each step."""
    refiner, context = model.refiner, model.context(inputs)
    thought, belief = outset(model, context)
    heads = []
    for time in range(steps):
        expected = refiner.expect(thought, belief.detach()) if expects else None
        thought = refiner.think(at_step(context, time), thought, belief)
        made = refiner.heads(thought)
        heads.append(made if expected is None else made._replace(value=expected))
        belief = (1 - uniform_mix) * made.logits.softmax(-1) + uniform_mix / model.classes
    return Heads(*(torch.stack(part) for part in zip(*heads, strict=True)))


def step_towards(model: RecurrentClassifier, pool: Pool, advance: Advance, uniform_mix: float = 0.0) -> Step:
    """One step of the same at inference. An example goes on until a step brings its progress to its level."""
    progress, level = pool.memory
    thought = model.refiner.think(pool.context, pool.thought, pool.belief)
    heads = model.refiner.heads(thought, pool.heads)
    progress = advance(progress, heads)
    belief = (1 - uniform_mix) * heads.logits.softmax(-1) + uniform_mix / model.classes
    pool = pool._replace(thought=thought, belief=belief, memory=(progress, level))
    return Step(pool, heads.logits, heads.value, progress < level)


@torch.no_grad()
def norms(model: RecurrentClassifier, logits: Float[Tensor, "batch classes"]) -> Metrics:
    """How large the logits are, and the weights that make them (Proposition 2 speaks of both)."""
    return {"logit_norm": logits.norm(dim=-1).mean(), "classifier_norm": model.refiner.policy.weight.norm()}
