"""Base class of all methods with a recurrent network (all but SL): its steps in training and at inference."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Num
from torch import Tensor

from ricnet.methods.inference import InSteps, Pool, Step
from ricnet.methods.method import Method, Metrics
from ricnet.nets.backbone import Backbone, encode
from ricnet.nets.refiner import Heads, RecurrentClassifier, at_step


class Iterative(InSteps[RecurrentClassifier], Method[RecurrentClassifier]):
    """A method that passes thought and belief from step to step."""

    def build(self, backbone: Backbone, classes: int) -> RecurrentClassifier:
        """Network with logits and one halting unit. Unused heads are frozen, so that weight decay leaves them alone."""
        model = RecurrentClassifier(backbone, backbone.embedding_size, classes)
        model.refiner.concentration.requires_grad_(False)
        if model.has_exits:
            model.refiner.critic.requires_grad_(False)
        return model

    def start(self, model: RecurrentClassifier, inputs: Num[Tensor, "batch ..."]) -> Pool:
        """Pool before the first step; with exits before the first stage."""
        return super().start(model, inputs) if model.has_exits else self.gather(model, encode(model.context, inputs))

    def gather(self, model: RecurrentClassifier, context: Float[Tensor, "batch read"]) -> Pool:
        memory = self.memory(torch.zeros_like(context[:, 0]))
        return Pool(context, *initial_state(model, context), memory, model.refiner.head_weights())

    def first_value(self, model: RecurrentClassifier, pool: Pool) -> Float[Tensor, "pool"] | None:
        return model.refiner.expect(pool.thought, pool.belief) if model.has_exits and self.halts_by_value else None


def initial_state(
    model: RecurrentClassifier, context: Float[Tensor, "*steps batch gates"]
) -> tuple[Float[Tensor, "batch size"], Float[Tensor, "batch classes"]]:
    """τ_0 = 0 and the uniform belief a_0."""
    batch = context.shape[-2]
    return context.new_zeros(batch, model.refiner.size), context.new_full((batch, model.classes), 1 / model.classes)


Advance = Callable[[Float[Tensor, "batch"], Heads], Float[Tensor, "batch"]]
"""Progress towards halting after a step, given the progress before it and the heads of the step; never decreases."""


def unroll(
    model: RecurrentClassifier,
    inputs: Num[Tensor, "batch ..."],
    steps: int,
    uniform_mix: float = 0.0,
    expects: bool = False,
) -> Heads:
    """Heads of all steps; gradients flow through the beliefs that are fed back. With `expects`, for networks with
    exits, the value is computed before each step."""
    refiner, context = model.refiner, model.context(inputs)
    thought, belief = initial_state(model, context)
    heads = []
    for time in range(steps):
        expected = refiner.expect(thought, belief.detach()) if expects else None
        thought = refiner.think(at_step(context, time), thought, belief)
        made = refiner.heads(thought)
        heads.append(made if expected is None else made._replace(value=expected))
        belief = (1 - uniform_mix) * made.logits.softmax(-1) + uniform_mix / model.classes
    return Heads(*(torch.stack(part) for part in zip(*heads, strict=True)))


def step_until_level(model: RecurrentClassifier, pool: Pool, advance: Advance, uniform_mix: float = 0.0) -> Step:
    """One step of `unroll` at inference. An example continues until its progress reaches its level."""
    progress, level = pool.memory
    thought = model.refiner.think(pool.context, pool.thought, pool.belief)
    heads = model.refiner.heads(thought, pool.heads)
    progress = advance(progress, heads)
    belief = (1 - uniform_mix) * heads.logits.softmax(-1) + uniform_mix / model.classes
    pool = pool._replace(thought=thought, belief=belief, memory=(progress, level))
    return Step(pool, heads.logits, heads.value, progress < level)


@torch.no_grad()
def norms(model: RecurrentClassifier, logits: Float[Tensor, "batch classes"]) -> Metrics:
    """Norms of the logits and of the weights that make them (Proposition 2)."""
    return {"logit_norm": logits.norm(dim=-1).mean(), "classifier_norm": model.refiner.policy.weight.norm()}
