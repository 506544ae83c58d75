"""Early exits: the value and its targets with and without exits, and supervised learning at exits.

Without exits, as in the paper, each step reads the output of the whole encoder, and V(s_t) is a head of τ_t. With exits
each step reads the next stage of the encoder. The value is then a function of (τ_{t−1}, a_{t−1}), computed before that
stage, so that halting saves its cost. It estimates the undiscounted remaining gain minus the price of compute.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Num
from torch import Tensor, nn

from ricnet.core import mdp
from ricnet.core.trajectory import Temperature, Trajectory, doubt, first_stop
from ricnet.methods.inference import InSteps, Pool, Step, Steps
from ricnet.nets.backbone import Backbone, Staged
from ricnet.nets.refiner import Heads, HeadWeights, RecurrentClassifier

State = tuple[Float[Tensor, "*rollouts batch size"], Float[Tensor, "*rollouts batch classes"]]
"""τ_{t−1} and a_{t−1}; with the input they are s_t."""


def train_value(model: RecurrentClassifier, learns: bool) -> None:
    """Make the module trainable that estimates the value, if the method `learns` one, and freeze the unused one, so
    that weight decay does not change it."""
    model.refiner.value.requires_grad_(learns and not model.has_exits)
    if model.has_exits:
        model.refiner.critic.requires_grad_(learns)


# Values


def rollout_values(
    model: RecurrentClassifier, context: Tensor, states: list[State], heads: Heads, weights: HeadWeights
) -> Float[Tensor, "asked rollouts batch"]:
    """V(s_1) … V(s_{T+1}) along a roll-out, given all T + 1 states. V(s_{T+1}) takes one more evaluation of the
    recurrent cell; with exits it is 0, because no stage is left."""
    refiner = model.refiner
    if not model.has_exits:
        last = refiner.heads(refiner.think(context, *states[-1]), weights)
        return torch.cat([heads.value, last.value[None]])
    values = refiner.expect(*(torch.stack(part) for part in zip(*states[:-1], strict=True)))
    return F.pad(values, (0, 0, 0, 0, 0, 1))


def replayed_values(
    model: RecurrentClassifier,
    heads: Heads,
    thoughts: Float[Tensor, "steps rollouts batch size"],
    beliefs: Float[Tensor, "steps rollouts batch classes"],
) -> Float[Tensor, "steps rollouts batch"]:
    """V(s_1) … V(s_T) of a replay, given τ_1 … τ_T and a_0 … a_{T−1}."""
    if not model.has_exits:
        return heads.value
    return model.refiner.expect(F.pad(thoughts[:-1], (0, 0, 0, 0, 0, 0, 1, 0)), beliefs)


def next_value(model: RecurrentClassifier, value: Float[Tensor, "batch"], state: State) -> Float[Tensor, "batch"]:
    """Value for the halting rule at inference: `value`, that of the step just made, or with exits that of the next
    step, which starts from `state`."""
    return model.refiner.expect(*state) if model.has_exits else value


def may_halt(model: RecurrentClassifier, first: bool) -> bool:
    """Whether the value of this step can halt an example. Without exits V(s_1) is not used."""
    return model.has_exits or not first


# Targets


class Gains(NamedTuple):
    """Advantages, returns and value targets of a roll-out."""

    advantages: Float[Tensor, "steps *batch"]
    """Â_t."""
    returns: Float[Tensor, "steps *batch"]
    """R̂_t = Â_t + V(s_t)."""
    targets: Float[Tensor, "steps *batch"]
    """Targets of the value: R̂_t, or with exits the remaining gain."""
    discount: float
    """Weight of the next step's reward in Â_t."""


def estimate(
    rewards: Float[Tensor, "steps *batch"],
    values: Float[Tensor, "steps+1 *batch"],
    gamma: float,
    gae_lambda: float,
    costs: Float[Tensor, "steps"] | None = None,
    price: float = 0.0,
) -> Gains:
    """Generalised advantage estimation. With exits (`costs` of the steps are given) the value estimates another
    quantity, undiscounted and minus the price, so it is only the baseline of Monte-Carlo returns."""
    if costs is None:
        advantages = mdp.advantages(rewards, values, gamma, gae_lambda)
        returns = advantages + values[:-1]
        return Gains(advantages, returns, returns, gamma * gae_lambda)
    returns = mdp.advantages(rewards, torch.zeros_like(values), gamma, 1.0)
    net_rewards = rewards - price * costs.view(-1, *(1,) * (rewards.ndim - 1))
    targets = mdp.remaining_gain(net_rewards, values, stops=price > 0)
    return Gains(returns - values[:-1], returns, targets, gamma)


def step_costs(model: RecurrentClassifier) -> Float[Tensor, "steps"] | None:
    """Share of the network's compute that each step takes; None without exits."""
    return model.step_costs if model.has_exits else None


# Supervised learning at exits


@runtime_checkable
class Confident(Protocol):
    """A one-pass method that can halt by confidence."""

    @property
    def confidence_threshold(self) -> float | None: ...

    def log_beliefs(self, logits: Float[Tensor, "batch classes"]) -> Float[Tensor, "batch classes"]: ...


@dataclass(frozen=True)
class AtExits(InSteps["ExitHeads"]):
    """Step-by-step inference of SL with exits: an example halts when its confidence reaches the threshold."""

    method: Confident
    horizon: int
    temperature: Temperature = 1.0
    """Applied before the confidence is compared; reported beliefs are not scaled here."""

    def gather(self, model: "ExitHeads", context: Float[Tensor, "batch read"]) -> Pool:
        """Pool without thoughts, which SL does not have."""
        return Pool(context, context[:, :0], context.new_full((len(context), model.classes), 1 / model.classes))

    def look(
        self, model: "ExitHeads", stage: int, seen: Num[Tensor, "batch ..."]
    ) -> tuple[Tensor, Float[Tensor, "batch read"]]:
        """Output of the stage, and a context of the log-belief with 1 − confidence in the last column."""
        seen, logits = model.look(stage, seen)
        log_belief = self.method.log_beliefs(logits)
        temperature = self.temperature[stage] if isinstance(self.temperature, tuple) else self.temperature
        doubts = doubt((log_belief / temperature).log_softmax(-1))
        return seen, torch.cat([log_belief, doubts.unsqueeze(1)], 1)

    def step(self, model: "ExitHeads", pool: Pool, first: bool) -> Step:
        log_belief, value = pool.context[:, :-1], pool.context[:, -1]
        step = Step(pool._replace(belief=log_belief.exp()), log_belief, value, torch.ones_like(value, dtype=torch.bool))
        return step._replace(going=self.goes_on(step))

    def goes_on(self, step: Step | Steps) -> Bool[Tensor, "*steps pool"]:
        sure = self.method.confidence_threshold
        return torch.ones_like(step.going) if sure is None else step.value > 1 - sure

    def trajectory(self, steps: Steps) -> Trajectory:
        """Uses the current threshold; the steps may have been made under another one."""
        return Trajectory(steps.output, first_stop(self.goes_on(steps)))


class ExitHeads(Staged):
    """A linear head after each stage of the encoder."""

    def __init__(self, backbone: Backbone, classes: int) -> None:
        super().__init__(backbone, classes)
        self.heads = nn.ModuleList(nn.Linear(features, classes) for features in backbone.feature_sizes)
        self.costs = backbone.count_costs(self.read, lambda answer: None)

    def forward(self, inputs: Num[Tensor, "batch ..."]) -> Float[Tensor, "exits batch classes"]:
        answers = [self.read(stage, features) for stage, (_, features) in enumerate(self.backbone.walk(inputs))]
        return torch.stack(answers)

    def read(self, stage: int, features: Float[Tensor, "batch features"]) -> Float[Tensor, "batch classes"]:
        return self.heads[stage](features)  # type: ignore[no-any-return]
