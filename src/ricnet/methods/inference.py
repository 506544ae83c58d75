"""Inference in steps: one loop, `run`, which advances a pool of examples and drops those that halt.

`Refinement` is the state of the loop. Python inference, the server's stages, recorded CUDA graphs and the ONNX export
use the loop or its parts. A step costs only the examples still in the pool, so that the time of a batch is proportional
to its mean number of steps. With exits, a step first sends its pool through the next stage of the encoder.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from jaxtyping import Bool, Float, Int64, Num
from torch import Tensor

from ricnet.core import mdp
from ricnet.core.trajectory import Trajectory
from ricnet.errors import require, require_finite
from ricnet.methods.method import Inputs, Labels, Method, Metrics, TimeLeft
from ricnet.nets.backbone import Backbone, Staged, encode
from ricnet.nets.refiner import Heads, HeadWeights, RecurrentClassifier, at_step

CPU_POOL, GPU_POOL = 128, 2048
"""Largest pool of a network with exits, whose stage outputs are kept until the next stage."""
POOLED_SIZE = 3 * 32 * 32
"""Input size of that pool; larger inputs have larger stage outputs and get a smaller pool."""
CPU_STAGE_BATCH, GPU_STAGE_BATCH = 16, 1024
"""Examples per encoder call within a pool. On a CPU the first stage of a narrow ResNet-18, which has the largest maps,
took 1.5 times as long per image in batches of 64; the whole network took the same."""


class Pool(NamedTuple):
    """State of the examples that continue; the example is the first axis of every tensor."""

    context: Float[Tensor, "pool read"]
    """What the network reads of the input at each step."""
    thought: Float[Tensor, "pool size"]
    belief: Float[Tensor, "pool classes"]
    memory: tuple[Float[Tensor, "pool"], ...] = ()
    """State of the halting rule."""
    heads: HeadWeights | None = None
    """Joined head weights, shared by all steps; if None, each step joins them again."""
    seen: Num[Tensor, "pool ..."] | None = None
    """With exits, the output of the last stage; before the first stage the normalised inputs."""

    @property
    def tensors(self) -> tuple[Num[Tensor, "pool ..."], ...]:
        seen = () if self.seen is None else (self.seen,)
        return self.context, self.thought, self.belief, *self.memory, *seen

    def with_tensors(self, tensors: Iterable[Num[Tensor, "..."]]) -> "Pool":
        context, thought, belief, *rest = tensors
        memory, seen = (rest, None) if self.seen is None else (rest[:-1], rest[-1])
        return Pool(context, thought, belief, tuple(memory), self.heads, seen)

    def take(self, rows: Int64[Tensor, "rows"]) -> "Pool":
        return self.with_tensors(select(tensor, rows) for tensor in self.tensors)

    def first(self, size: int) -> "Pool":
        """A view of the first `size` examples."""
        return self.with_tensors(tensor[:size] for tensor in self.tensors)

    def join(self, other: "Pool") -> "Pool":
        """Both pools in one; they must have made the same number of steps."""
        return self.with_tensors(torch.cat(pair) for pair in zip(self.tensors, other.tensors, strict=True))


def select(
    tensor: Num[Tensor, "pool ..."], rows: Int64[Tensor, "rows"], out: Num[Tensor, "room ..."] | None = None
) -> Num[Tensor, "rows ..."]:
    """`index_select` that keeps the channels-last layout. With `out`, the rows are written to its beginning."""
    place = None if out is None else out[: len(rows)]
    if tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last):
        place = None if place is None else place.permute(0, 2, 3, 1)
        return torch.index_select(tensor.permute(0, 2, 3, 1), 0, rows, out=place).permute(0, 3, 1, 2)
    return torch.index_select(tensor, 0, rows, out=place)


class Step(NamedTuple):
    """Result of one step of a pool."""

    pool: Pool
    output: Float[Tensor, "pool classes"]
    value: Float[Tensor, "pool"]
    """Input of the halting rule: the value of this step; with exits and a learned value, that of the next step."""
    active: Bool[Tensor, "pool"]
    """Mask of examples that continue; undefined for examples that halted before."""


class Steps(NamedTuple):
    """Results of all steps of a batch; undefined for an example after it has left its pool."""

    output: Float[Tensor, "steps batch classes"]
    value: Float[Tensor, "steps batch"]
    active: Bool[Tensor, "steps batch"]

    @classmethod
    def blank(cls, steps: int, pool: Pool) -> "Steps":
        output = pool.belief.new_zeros(steps, *pool.belief.shape)
        return cls(output, torch.zeros_like(output[..., 0]), torch.zeros_like(output[..., 0], dtype=torch.bool))

    def until(self, time: int) -> "Steps":
        return Steps(*(tensor[:time] for tensor in self))


def run(refinement: Any, steps: int, halt: bool, time_left: TimeLeft | None = None) -> tuple[Any, int]:
    """Make steps until `steps` are made, all examples have halted (with `halt`), or `time_left` returns False.

    The first step is always made. Returns the final state, and the number of steps of its trajectory: `steps` unless
    time ran out. `refinement` is a `Refinement`, or another class with `advance`, `shrink` and `size`.
    """
    for time in range(steps):
        if time_left is not None and not time_left() and time > 0:
            return refinement, time
        refinement = refinement.advance(time)
        if halt and time + 1 < steps:
            refinement = refinement.shrink(time)
            if refinement.size == 0:
                break
    return refinement, steps


@dataclass(frozen=True)
class Refinement:
    """A pool, and the columns of its examples in `made`, where the results of their steps are written."""

    method: "InSteps[Any]"
    model: Any
    made: Steps
    pool: Pool
    rows: Int64[Tensor, "pool"] | slice
    step: Step | None = None
    """The last step, of the pool before it shrank."""
    ahead: bool = False
    """Whether the value of a step belongs to the next one."""

    @classmethod
    def begin(
        cls, method: "InSteps[Any]", model: Any, pool: Pool, made: Steps, rows: Int64[Tensor, "pool"] | None = None
    ) -> "Refinement":
        columns, first = slice(None) if rows is None else rows, method.first_value(model, pool)
        if first is not None:
            made.value[0, columns] = first
        return cls(method, model, made, pool, columns, ahead=first is not None)

    @property
    def size(self) -> int:
        return len(self.pool.context)

    def advance(self, time: int) -> "Refinement":
        """Make step `time`, counted from 0."""
        step, made = self.method.advance(self.model, self.pool, time), self.made
        made.output[time, self.rows], made.active[time, self.rows] = step.output, step.active
        if time + self.ahead < len(made.value):
            made.value[time + self.ahead, self.rows] = step.value
        return replace(self, pool=step.pool, step=step)

    def shrink(self, time: int) -> "Refinement":
        """Drop the examples that halted at step `time`."""
        assert self.step is not None
        return self.keep(self.step.active.nonzero().squeeze(1))  # the one transfer from a GPU per step

    def keep(self, stay: Int64[Tensor, "stay"]) -> "Refinement":
        """Keep these positions of the pool (ascending)."""
        if len(stay) == self.size:
            return self
        return replace(self, pool=self.pool.take(stay), rows=stay if isinstance(self.rows, slice) else self.rows[stay])

    def join(self, other: "Refinement") -> "Refinement":
        """Both pools in one; they must have made the same number of steps."""
        assert isinstance(self.rows, Tensor)
        assert isinstance(other.rows, Tensor)
        return replace(self, pool=self.pool.join(other.pool), rows=torch.cat([self.rows, other.rows]))


StagedNetwork = TypeVar("StagedNetwork", bound=Staged)


class InSteps(ABC, Generic[StagedNetwork]):
    """Inference in steps; each method defines `step` and `trajectory`."""

    horizon: int

    @property
    def draws(self) -> bool:
        """Whether inference samples, so that the same input may get different answers."""
        return False

    @abstractmethod
    def step(self, model: StagedNetwork, pool: Pool, first: bool) -> Step:
        """The next step of every example in a pool, without waiting for the device."""

    def goes_on(self, step: Step | Steps) -> Bool[Tensor, "*steps pool"]:
        """Mask of examples that continue after a step by the current halting rule, which may differ from the rule when
        the step was made. `trajectory` must agree with it: results of an example after its halt are undefined."""
        return step.active

    @abstractmethod
    def trajectory(self, steps: Steps) -> Trajectory:
        """Beliefs, and the step at which each example halts."""

    def memory(self, zeros: Float[Tensor, "batch"]) -> tuple[Float[Tensor, "batch"], ...]:
        """State of the halting rule before the first step, given a zero per example."""
        return ()

    @abstractmethod
    def gather(self, model: StagedNetwork, context: Float[Tensor, "batch read"]) -> Pool:
        """Pool of new examples with this context, before their first step."""

    def first_value(self, model: StagedNetwork, pool: Pool) -> Float[Tensor, "pool"] | None:
        """Value before the first step, if the value of a step belongs to the next one; else None."""
        return None

    def start(self, model: StagedNetwork, inputs: Inputs) -> Pool:
        """Pool of examples before the first stage."""
        seen = model.backbone.normalized(inputs)
        if seen.ndim == 4 and seen.is_cuda:  # the layout of convolutions on tensor cores
            seen = seen.contiguous(memory_format=torch.channels_last)
        return self.gather(model, model.backbone.mean.new_zeros(len(seen), 1))._replace(seen=seen)

    def run_stage(
        self, model: StagedNetwork, stage: int, seen: Num[Tensor, "batch ..."]
    ) -> tuple[Tensor, Float[Tensor, "batch read"]]:
        """Output of the next stage, and its context for the following steps."""
        return model.run_stage(stage, seen)

    @torch.no_grad()
    def refine(
        self,
        model: StagedNetwork,
        inputs: Inputs,
        max_steps: int | None = None,
        halt: bool = False,
        time_left: TimeLeft | None = None,
    ) -> Trajectory:
        steps, parts = max_steps or self.horizon, [inputs]
        if model.has_exits:
            steps = min(steps, len(model.costs))
            if time_left is None:  # a deadline ends all parts at the same step
                parts = list(inputs.split(_pool_rows(inputs)))
        each = []
        for part in parts:
            pool = self.start(model, part)
            refinement, made = run(
                Refinement.begin(self, model, pool, Steps.blank(steps, pool)), steps, halt, time_left
            )
            each.append(refinement.made.until(made))
        whole = Steps(*(torch.cat(tensors, 1) for tensors in zip(*each, strict=True))) if len(each) > 1 else each[0]
        return self.conclude(model, whole, halt)

    def advance(self, model: StagedNetwork, pool: Pool, time: int) -> Step:
        """Step `time` of a pool, counted from 0; with exits, the first step at each exit computes its stage."""
        stage, later = divmod(time, model.backbone.steps_per_exit)
        if model.has_exits and not later:
            assert pool.seen is not None
            results = [self.run_stage(model, stage, part) for part in _stage_batches(pool.seen)]
            seen, context = (torch.cat(part) if len(results) > 1 else part[0] for part in zip(*results, strict=True))
            pool = pool._replace(seen=seen, context=context)
        return self.step(model, pool, first=time == 0)

    def conclude(self, model: StagedNetwork, made: Steps, halt: bool) -> Trajectory:
        path = self.trajectory(made)
        if model.has_exits:
            path = replace(path, costs=model.costs[: path.steps])
        return path.frozen() if halt else path


def _pool_rows(inputs: Inputs) -> int:
    most = CPU_POOL if inputs.device.type == "cpu" else GPU_POOL
    return min(most, max(CPU_STAGE_BATCH, most * POOLED_SIZE // inputs[:1].numel())) if len(inputs) else most


def _stage_batches(seen: Num[Tensor, "pool ..."]) -> Sequence[Num[Tensor, "part ..."]]:
    """Parts of equal size for the encoder; a traced graph has no number of rows to divide."""
    if torch.compiler.is_compiling():
        return [seen]
    most = CPU_STAGE_BATCH if seen.device.type == "cpu" else GPU_STAGE_BATCH
    return seen.chunk(max(1, math.ceil(len(seen) / most)))


# Methods with a recurrent network


@dataclass(frozen=True)
class Iterative(InSteps[RecurrentClassifier], Method[RecurrentClassifier]):
    """A method that passes thought and belief from step to step."""

    label_smoothing: float = field(default=0.0, kw_only=True)
    """Share of the label spread over all classes, as in supervised learning: the reward is then Σ_k q_k log a_k, or the
    loss the cross-entropy with q. Raise it for lower confidence."""

    def __post_init__(self) -> None:
        require_finite(self)
        require(self.horizon >= 1, "horizon", self.horizon, "at least 1")
        require(0 <= self.label_smoothing < 1, "label_smoothing", self.label_smoothing, "from 0 to below 1")

    def smooth(self, labels: Labels, model: RecurrentClassifier) -> Labels:
        return mdp.smoothed(labels, self.label_smoothing, model.classes)

    def build(self, backbone: Backbone, classes: int) -> RecurrentClassifier:
        """Network with logits and one halting unit. Unused heads are frozen, so that weight decay leaves them alone."""
        model = RecurrentClassifier(backbone, backbone.embedding_size, classes)
        model.refiner.concentration.requires_grad_(False)
        if model.has_exits:
            model.refiner.critic.requires_grad_(False)
        return model

    def start(self, model: RecurrentClassifier, inputs: Inputs) -> Pool:
        """Pool before the first step; with exits before the first stage."""
        return super().start(model, inputs) if model.has_exits else self.gather(model, encode(model.context, inputs))

    def gather(self, model: RecurrentClassifier, context: Float[Tensor, "batch read"]) -> Pool:
        memory = self.memory(torch.zeros_like(context[:, 0]))
        return Pool(context, *model.initial_state(context), memory, model.refiner.head_weights())

    def first_value(self, model: RecurrentClassifier, pool: Pool) -> Float[Tensor, "pool"] | None:
        return model.refiner.exit_value(pool.thought, pool.belief) if model.has_exits and self.halts_by_value else None


Progress = Callable[[Float[Tensor, "batch"], Heads], Float[Tensor, "batch"]]
"""Progress towards halting after a step, given the progress before it and the heads of the step; never decreases."""


def unroll(
    model: RecurrentClassifier,
    inputs: Inputs,
    steps: int,
    uniform_mix: float = 0.0,
    value_first: bool = False,
) -> Heads:
    """Heads of all steps; gradients flow through the beliefs that are fed back. With `value_first`, for networks with
    exits, the value is computed before each step."""
    refiner, context = model.refiner, model.context(inputs)
    thought, belief = model.initial_state(context)
    heads = []
    for time in range(steps):
        value = refiner.exit_value(thought, belief.detach()) if value_first else None
        thought = refiner.think(at_step(context, time), thought, belief)
        outputs = refiner.heads(thought)
        heads.append(outputs if value is None else outputs._replace(value=value))
        belief = (1 - uniform_mix) * outputs.logits.softmax(-1) + uniform_mix / model.classes
    return Heads(*(torch.stack(part) for part in zip(*heads, strict=True)))


def step_until_level(model: RecurrentClassifier, pool: Pool, update: Progress, uniform_mix: float = 0.0) -> Step:
    """One step of `unroll` at inference. An example continues until its progress reaches its level; `memory`
    has both."""
    progress, level = pool.memory
    thought = model.refiner.think(pool.context, pool.thought, pool.belief)
    heads = model.refiner.heads(thought, pool.heads)
    progress = update(progress, heads)
    belief = (1 - uniform_mix) * heads.logits.softmax(-1) + uniform_mix / model.classes
    pool = pool._replace(thought=thought, belief=belief, memory=(progress, level))
    return Step(pool, heads.logits, heads.value, progress < level)


@torch.no_grad()
def norms(model: RecurrentClassifier, logits: Float[Tensor, "batch classes"]) -> Metrics:
    """Norms of the logits and of the weights that make them (Proposition 2)."""
    return {"logit_norm": logits.norm(dim=-1).mean(), "classifier_norm": model.refiner.policy.weight.norm()}
