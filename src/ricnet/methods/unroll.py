"""Refinement by feeding the softmax belief back, which ACT, PonderNet and the anytime control share.

`uniform_mix` is the share of the uniform belief in what is fed back, 0 for all but a capped anytime control.

They differ in what they make of the logits of the steps and in when they stop, not in how the steps come about.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float, Num
from torch import Tensor

from ricnet.methods.iterative import Pool, Step, outset
from ricnet.methods.method import Metrics
from ricnet.nets.refiner import Heads, RecurrentClassifier

Advance = Callable[[Float[Tensor, "batch"], Heads], Float[Tensor, "batch"]]
"""From how near an example is to stopping, and the heads of the next step, to how near it is then; never less."""


def unroll(model: RecurrentClassifier, inputs: Num[Tensor, "batch ..."], steps: int, uniform_mix: float = 0.0) -> Heads:
    """The heads of all steps, with gradient, through the beliefs that were fed back too."""
    refiner, context = model.refiner, model.context(inputs)
    thought, belief = outset(model, context)
    heads = []
    for _ in range(steps):
        thought = refiner.think(context, thought, belief)
        heads.append(refiner.heads(thought))
        belief = (1 - uniform_mix) * heads[-1].logits.softmax(-1) + uniform_mix / model.classes
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
