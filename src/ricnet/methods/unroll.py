"""Refinement by feeding the softmax belief back, which ACT, PonderNet and the anytime control share.

They differ in what they make of the logits of the steps and in when they stop, not in how the steps come about.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64, Num
from torch import Tensor

from ricnet.methods.method import Metrics
from ricnet.nets.refiner import Heads, RecurrentClassifier

Advance = Callable[[Float[Tensor, "batch"], Heads], Float[Tensor, "batch"]]
"""From how near an example is to stopping, and the heads of the next step, to how near it is then; never less."""


class Unrolled(NamedTuple):
    logits: Float[Tensor, "steps batch classes"]
    value: Float[Tensor, "steps batch"]
    """The halting logit, for the methods that have one."""
    halt_step: Int64[Tensor, "batch"]


def unroll(model: RecurrentClassifier, inputs: Num[Tensor, "batch ..."], steps: int) -> Heads:
    """The heads of all steps, with gradient, through the beliefs that were fed back too."""
    refiner, context = model.refiner, model.refiner.read(model.backbone(inputs))
    thought, belief = _start(model, context)
    heads = []
    for _ in range(steps):
        thought = refiner.think(context, thought, belief)
        heads.append(refiner.heads(thought))
        belief = heads[-1].logits.softmax(-1)
    return Heads(*(torch.stack(part) for part in zip(*heads, strict=True)))


@torch.no_grad()
def unroll_until(
    model: RecurrentClassifier,
    inputs: Num[Tensor, "batch ..."],
    steps: int,
    advance: Advance,
    level: float | Float[Tensor, "batch"],
    halt: bool,
) -> Unrolled:
    """The same at inference. An example stops at the first step that brings it from 0 to its level, else at the last.

    With `halt` it then leaves the batch, and the later steps repeat its last logits.
    """
    refiner, context = model.refiner, model.refiner.read(model.backbone(inputs))
    thought, belief = _start(model, context)
    logits = context.new_empty(steps, len(inputs), model.classes)
    value = context.new_empty(steps, len(inputs))
    halt_step = torch.ones_like(value[0], dtype=torch.int64)
    progress = torch.zeros_like(value[0])
    level = progress + level
    active = torch.arange(len(inputs), device=context.device)
    for step in range(steps):
        thought = refiner.think(context, thought, belief)
        heads = refiner.heads(thought)
        belief = heads.logits.softmax(-1)
        logits[step, active], value[step, active] = heads.logits, heads.value
        progress = advance(progress, heads)
        going = progress < level
        if step + 1 < steps:
            halt_step[active] += going
        if halt and not going.all():
            stopped = active[~going]
            logits[step:, stopped], value[step:, stopped] = logits[step, stopped], value[step, stopped]
            active, thought, belief, context = active[going], thought[going], belief[going], context[going]
            progress, level = progress[going], level[going]
            if len(active) == 0:
                break
    return Unrolled(logits, value, halt_step)


def _start(
    model: RecurrentClassifier, context: Float[Tensor, "batch gates"]
) -> tuple[Float[Tensor, "batch size"], Float[Tensor, "batch classes"]]:
    """τ_0 = 0 and the uniform belief a_0."""
    thought = context.new_zeros(len(context), model.refiner.size)
    return thought, context.new_full((len(context), model.classes), 1 / model.classes)


@torch.no_grad()
def norms(model: RecurrentClassifier, logits: Float[Tensor, "batch classes"]) -> Metrics:
    """How large the logits are, and the weights that make them (Proposition 2 speaks of both)."""
    return {"logit_norm": logits.norm(dim=-1).mean(), "classifier_norm": model.refiner.policy.weight.norm()}
