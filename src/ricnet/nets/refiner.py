"""The recurrent network of every iterative method: a GRU that reads the input and its last belief."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Num
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ricnet.nets.backbone import Backbone, Staged

LARGEST_WITH_EXITS = 256
"""Maximum size of the thought with exits, so that a step costs little compared with a stage."""


Thought = Float[Tensor, "*rollouts batch size"]
Belief = Float[Tensor, "*rollouts batch classes"]
Context = Float[Tensor, "*steps batch gates"]
"""What the network reads of the input, as its contribution to the gates: the same at every step, or with exits one per
step."""


class Heads(NamedTuple):
    """Outputs of a thought."""

    logits: Float[Tensor, "*batch classes"]
    concentration: Float[Tensor, "*batch"]
    """Unbounded; the method maps it to the range of c. With several spread outputs, it has a last axis for them."""
    value: Float[Tensor, "*batch"]
    """V(s_t) for RIC; the halting logit for ACT and PonderNet."""


HeadWeights = tuple[Float[Tensor, "heads size"], Float[Tensor, "heads"]]
State = tuple[Thought, Belief]
"""τ_{t−1} and a_{t−1}; with the input they are s_t."""


class Refiner(nn.Module):
    """τ_t = f(x, τ_{t−1}, a_{t−1}): a GRU over [e; a_{t−1}] whose thought is as large as the embedding e.

    e is constant during refinement, so its contribution to the gates, the context, is computed once by `read`.
    Thoughts and beliefs may have roll-out axes before `batch`, which share the context.

    With exits, the features of each stage (`feature_sizes`) replace e, and the value is read from thought and belief
    (`exit_value`) before the next stage is computed.
    """

    def __init__(
        self,
        embedding_size: int,
        classes: int,
        head_gain: float = 1.0,
        feature_sizes: Sequence[int] = (),
        spread_outputs: int = 1,
    ) -> None:
        super().__init__()
        size = min(embedding_size, LARGEST_WITH_EXITS) if feature_sizes else embedding_size
        self.size = size
        if not feature_sizes:
            self.from_embedding = nn.Linear(embedding_size, 3 * size)
        self.from_belief = nn.Linear(classes, 3 * size, bias=False)
        self.from_thought = nn.Linear(size, 3 * size)
        for parameter in self.parameters():  # as torch's GRU
            nn.init.uniform_(parameter, -(size**-0.5), size**-0.5)
        self.policy = nn.Linear(size, classes)
        self.concentration = nn.Linear(size, spread_outputs)
        self.value = nn.Linear(size, 1)
        nn.init.orthogonal_(self.policy.weight, gain=head_gain)
        nn.init.zeros_(self.policy.bias)
        if feature_sizes:
            self.from_features = nn.ModuleList(nn.Linear(features, 3 * size) for features in feature_sizes)
            self.critic = nn.Sequential(nn.Linear(size + classes, size), nn.ReLU(), nn.Linear(size, 1))

    def read(self, embedding: Float[Tensor, "batch embedding"]) -> Float[Tensor, "batch gates"]:
        """The context: the contribution of the input to the gates at every step."""
        return self.from_embedding(embedding)  # type: ignore[no-any-return]

    def exit_value(self, thought: Thought, belief: Belief) -> Float[Tensor, "*rollouts batch"]:
        """V(s_{t+1}) of a network with exits, from τ_t and a_t: the gain expected of further stages."""
        return self.critic(torch.cat([thought, belief], -1)).squeeze(-1)  # type: ignore[no-any-return]

    def think(self, context: Float[Tensor, "batch gates"], thought: Thought, belief: Belief) -> Thought:
        """One step, from τ_{t−1} and a_{t−1} to τ_t."""
        return gru_cell(context + self.from_belief(belief), self.from_thought(thought), thought)

    def replay(self, context: Context, beliefs: Belief) -> Thought:
        """τ_1 … τ_T along given beliefs a_0 … a_{T−1}; only the recurrent part is computed step by step."""
        if context.ndim == 3:  # one context per step, shared by the roll-outs
            context = context.view(len(context), *(1,) * (beliefs.ndim - 3), *context.shape[1:])
        inputs = context + self.from_belief(beliefs)
        thoughts = gru_sequence(inputs.flatten(1, -2), self.from_thought.weight, self.from_thought.bias)
        return thoughts.view(*inputs.shape[:-1], self.size)

    def heads(self, thought: Float[Tensor, "*batch size"], weights: HeadWeights | None = None) -> Heads:
        """All heads by one product. Pass cached `head_weights` in loops."""
        outputs, classes = F.linear(thought, *(weights or self.head_weights())), len(self.policy.bias)
        spread = outputs.shape[-1] - classes - 1
        logits, concentration, value = outputs.split([classes, spread, 1], -1)
        return Heads(logits, concentration.squeeze(-1) if spread == 1 else concentration, value.squeeze(-1))

    def head_weights(self) -> HeadWeights:
        layers = (self.policy, self.concentration, self.value)
        return torch.cat([layer.weight for layer in layers]), torch.cat([layer.bias for layer in layers])


def at_step(context: Context, time: int) -> Float[Tensor, "batch gates"]:
    """The context of one step, counted from 0; without exits it is the same for all."""
    return context if context.ndim == 2 else context[time]


class RecurrentClassifier(Staged):
    """Backbone and refiner: the network of RIC and of methods that differ only in their objective."""

    step_costs: Float[Tensor, "steps"]
    """Increments of `costs`, on the device of the network, because a recorded update cannot copy from the host."""

    def __init__(
        self, backbone: Backbone, embedding_size: int, classes: int, head_gain: float = 1.0, spread_outputs: int = 1
    ) -> None:
        super().__init__(backbone, classes)
        self.refiner = Refiner(embedding_size, classes, head_gain, backbone.feature_sizes, spread_outputs)
        self.costs = backbone.count_costs(self.read, self._step) if self.has_exits else ()
        self.register_buffer("step_costs", torch.tensor([0.0, *self.costs]).diff(), persistent=False)

    def _step(self, context: Float[Tensor, "1 gates"]) -> None:
        """The computation of one step, for counting its cost."""
        belief = context.new_zeros(1, self.classes)
        thought = self.refiner.think(context, context.new_zeros(1, self.refiner.size), belief)
        self.refiner.heads(thought)
        self.refiner.exit_value(thought, belief)

    def context(self, inputs: Num[Tensor, "batch ..."]) -> Context:
        if not self.has_exits:
            return self.refiner.read(self.backbone(inputs))
        contexts = [
            self.read(stage, features) for stage, (_, features) in enumerate(self.backbone.stage_outputs(inputs))
        ]
        return torch.stack([context for context in contexts for _ in range(self.backbone.steps_per_exit)])

    def read(self, stage: int, features: Float[Tensor, "batch features"]) -> Float[Tensor, "batch gates"]:
        return self.refiner.from_features[stage](features)  # type: ignore[no-any-return]

    def initial_state(self, context: Context) -> State:
        """τ_0 = 0 and the uniform belief a_0."""
        batch, classes = context.shape[-2], self.classes
        return context.new_zeros(batch, self.refiner.size), context.new_full((batch, classes), 1 / classes)

    # The value: without exits, as in the paper, a head of τ_t. With exits it reads τ_{t−1} and a_{t−1} before the
    # stage of step t is computed, so that halting saves its cost.

    def train_value(self, learns: bool) -> None:
        """Train the module that estimates the value if the method `learns` one, and freeze unused ones, so that weight
        decay does not change them."""
        self.refiner.value.requires_grad_(learns and not self.has_exits)
        if self.has_exits:
            self.refiner.critic.requires_grad_(learns)

    def rollout_values(
        self, refiner: "Refiner | Trace", context: Context, states: Sequence[State], heads: Heads, weights: HeadWeights
    ) -> Float[Tensor, "states rollouts batch"]:
        """V(s_1) … V(s_{T+1}) of a roll-out, from the heads of all steps and its T + 1 states. V(s_{T+1}) takes one
        more evaluation of the recurrent cell; with exits it is 0, because no stage is left."""
        if not self.has_exits:
            weight, bias = (part[-1:] for part in weights)  # the value is the last head
            last = F.linear(refiner.think(context, *states[-1]), weight, bias)
            return torch.cat([heads.value, last.movedim(-1, 0)])
        values = self.refiner.exit_value(*(torch.stack(part) for part in zip(*states[:-1], strict=True)))
        return F.pad(values, (0, 0, 0, 0, 0, 1))

    def replayed_values(self, heads: Heads, thoughts: Thought, beliefs: Belief) -> Float[Tensor, "*rollouts batch"]:
        """V(s_1) … V(s_T) of a replay, given τ_1 … τ_T and a_0 … a_{T−1}."""
        if not self.has_exits:
            return heads.value
        return self.refiner.exit_value(F.pad(thoughts[:-1], (0, 0, 0, 0, 0, 0, 1, 0)), beliefs)

    def halting_value(self, value: Float[Tensor, "batch"], thought: Thought, belief: Belief) -> Float[Tensor, "batch"]:
        """Value for the halting rule at inference: `value`, that of the step just made, or with exits that of the next
        step, which starts from `thought` and `belief`."""
        return self.refiner.exit_value(thought, belief) if self.has_exits else value


# The gated recurrent unit, with gates in the order reset, update, new, as in torch.nn.GRUCell

Gates = Float[Tensor, "*batch gates"]


def gru_cell(inputs: Gates, hidden: Gates, state: Float[Tensor, "*batch size"]) -> Float[Tensor, "*batch size"]:
    """The next state, from the contributions of inputs and state to the gates."""
    if state.is_cuda and state.dtype == torch.float32:  # torch's own fused kernel, one launch instead of eight
        flat = (inputs.flatten(0, -2), hidden.flatten(0, -2), state.flatten(0, -2))
        fused: Tensor = torch.ops.aten._thnn_fused_gru_cell(*flat)[0]
        return fused.view_as(state)
    return _step(inputs, hidden, state)[0]


def gru_sequence(
    inputs: Float[Tensor, "steps batch gates"], weight: Float[Tensor, "gates size"], bias: Float[Tensor, "gates"]
) -> Float[Tensor, "steps batch size"]:
    """All states, starting from zero. The gradient of the weight is one product over all steps, not one per step."""
    return _Sequence.apply(inputs, weight, bias)  # type: ignore[no-any-return]


def _step(
    inputs: Gates, hidden: Gates, state: Float[Tensor, "*batch size"], tanh: Callable[[Tensor], Tensor] = torch.tanh
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The next state, and the tensors that its gradient needs."""
    size = state.shape[-1]
    reset, update = (inputs[..., : 2 * size] + hidden[..., : 2 * size]).sigmoid().split(size, -1)
    recalled = hidden[..., 2 * size :]
    new = tanh(torch.addcmul(inputs[..., 2 * size :], reset, recalled))
    return torch.lerp(new, state, update), (state, reset, update, new, recalled)


def _quick_tanh(x: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
    """tanh x = 2σ(2x) − 1, for training without autograd: on a CPU torch's tanh takes five times as long. The absolute
    error is 1e-7."""
    return (2 * x).sigmoid_().mul_(2).sub_(1)


def _step_gradient(grad: Float[Tensor, "batch size"], saved: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """Gradients with respect to the sums before the gates, and to the state by its direct path (state · update). The
    first has four parts: recalled, reset, update, new. Parts 1 to 3 belong to the term that is linear in the state,
    parts 2 to 4 to the term that is linear in the inputs."""
    state, reset, update, new, recalled = saved
    carried = grad * update
    of_new = torch.ops.aten.tanh_backward(grad - carried, new)
    of_update = torch.ops.aten.sigmoid_backward((state - new) * grad, update)
    of_reset = torch.ops.aten.sigmoid_backward(of_new * recalled, reset)
    return torch.cat([of_new * reset, of_reset, of_update, of_new], -1), carried


class _Sequence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        fused = inputs.is_cuda and inputs.dtype == torch.float32
        state = inputs.new_zeros(inputs.shape[1], weight.shape[1])
        states, saved = [], []
        for gates in inputs:
            hidden = torch.addmm(bias, state, weight.t())
            if fused:
                state, workspace = torch.ops.aten._thnn_fused_gru_cell(gates, hidden, state)
            else:
                state, workspace = _step(gates, hidden, state, _quick_tanh)
            states.append(state)
            saved.append(workspace)
        every = torch.stack(states)
        ctx.save_for_backward(every, weight)
        ctx.fused, ctx.saved = fused, saved
        return every

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        states, weight = ctx.saved_tensors
        of_inputs, of_hidden, size = [], [], states.shape[-1]
        carried = torch.zeros_like(states[0])
        for workspace, own in zip(reversed(ctx.saved), reversed(grad.unbind()), strict=True):
            total = own + carried
            if ctx.fused:
                arriving, recurrent, carried, *_ = torch.ops.aten._thnn_fused_gru_cell_backward(total, workspace, False)
            else:
                of_gates, carried = _step_gradient(total, workspace)
                of_recalled, arriving = of_gates.split([size, 3 * size], -1)
                recurrent = torch.cat([arriving[:, : 2 * size], of_recalled], -1)
            carried = torch.addmm(carried, recurrent, weight)
            of_inputs.append(arriving)
            of_hidden.append(recurrent)
        every = torch.stack(of_hidden[::-1])
        before = states[:-1].flatten(0, 1)  # the initial state is zero and contributes nothing
        return torch.stack(of_inputs[::-1]), every[1:].flatten(0, 1).t() @ before, every.sum((0, 1))


# A roll-out that carries the gradient itself


class Trace:
    """A refiner for a roll-out that stores what the backward pass of each step needs. After the roll-out, `thoughts`
    returns what `Refiner.replay` would, with gradient, without computing it again. All roll-outs start from one state,
    so the first step is computed once for all of them."""

    def __init__(self, refiner: Refiner) -> None:
        self.heads = refiner.heads
        self.weights = (refiner.from_belief.weight, refiner.from_thought.weight, refiner.from_thought.bias)
        self.steps: list[tuple[Tensor, tuple[Tensor, ...]]] = []
        """a_{t−1} and the tensors of `_step` for each step t, with roll-outs and batch as one axis."""
        self.made: list[Float[Tensor, "rollouts batch size"]] = []

    def think(self, context: Float[Tensor, "batch gates"], thought: Thought, belief: Belief) -> Thought:
        of_belief, of_thought, bias = self.weights
        first = not self.steps
        state, belief = (tensor[0] if first else tensor.flatten(0, 1) for tensor in (thought, belief))
        inputs = belief @ of_belief.t()
        inputs.view(-1, *context.shape).add_(context)
        hidden = bias.expand_as(inputs) if first else torch.addmm(bias, state, of_thought.t())  # τ_0 = 0
        state, saved = _step(inputs, hidden, state, _quick_tanh)
        self.steps.append((belief, saved))
        self.made.append(state.view(-1, *thought.shape[1:]).expand_as(thought))
        return self.made[-1]

    def thoughts(self, context: Context) -> Thought:
        """τ_1 … τ_T, with gradients for the context and the weights."""
        return _Traced.apply(context, *self.weights, self)  # type: ignore[no-any-return]


class _Traced(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, context: Tensor, of_belief: Tensor, of_thought: Tensor, bias: Tensor, trace: Trace) -> Tensor:
        ctx.save_for_backward(of_belief, of_thought)
        ctx.steps, ctx.one_context = [*enumerate(trace.steps)], context.ndim == 2
        return torch.stack(trace.made)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Float[Tensor, "steps rollouts batch size"]) -> tuple[Tensor | None, ...]:
        of_belief, weight = ctx.saved_tensors
        batch, size = grad.shape[2:]
        weight = weight.roll(size, 0)  # gates in the order new, reset, update
        of_belief, of_thought, of_bias = map(torch.zeros_like, (of_belief, weight, weight[:, 0]))
        of_contexts, carried = [], torch.zeros_like(grad[0])
        for time, (belief, saved) in reversed(ctx.steps):
            total = carried.view_as(grad[time]) + grad[time]
            of_gates, carried = _step_gradient(total.flatten(0, 1) if time else total.sum(0), saved)
            of_hidden, of_inputs = of_gates[:, : 3 * size], of_gates[:, size:]
            of_belief.addmm_(of_inputs.t(), belief)
            of_bias.add_(of_hidden.sum(0))
            of_contexts.append(of_inputs.unflatten(0, (-1, batch)).sum(0))
            if time:  # τ_0 = 0 has no gradient
                of_thought.addmm_(of_hidden.t(), saved[0])
                carried.addmm_(of_hidden, weight)
        of_context = torch.stack(of_contexts[::-1])
        of_context = of_context.sum(0) if ctx.one_context else of_context
        return of_context, of_belief, of_thought.roll(-size, 0), of_bias.roll(-size), None
