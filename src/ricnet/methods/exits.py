"""Early exits, in one place: which parts of a network are trained, when its value is asked, and what the value learns.

Without exits the encoder is read whole, as in the paper: V(s_t) is a head of τ_t. With exits each step reads the next
stage of the encoder, and the value is asked of (τ_{t−1}, a_{t−1}) *before* that stage is computed, so that stopping
saves its cost. It then learns the gain still to come, undiscounted, less the price of the compute. The functions here
take both cases, so that no method has to tell them apart. (How examples walk through the stages at inference is in
`iterative`; how a budget becomes a threshold in `evaluation.choices`.)
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
    """Train the module that estimates the value, if there is to be one. Weight decay leaves the other one alone."""
    model.refiner.value.requires_grad_(learns and not model.has_exits)
    if model.has_exits:
        model.refiner.critic.requires_grad_(learns)


# Value before the cost


def rollout_values(
    model: RecurrentClassifier, context: Tensor, states: list[State], heads: Heads, weights: HeadWeights
) -> Float[Tensor, "asked rollouts batch"]:
    """V(s_1) … V(s_{T+1}) along a roll-out, given all T + 1 states. V(s_{T+1}) takes one cell evaluation more; after
    the last exit it is 0, since nothing is left to read."""
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
    """What the halting rule is asked at inference: the `value` of the step just made or, with exits, already that of
    the next, which begins in `state`."""
    return model.refiner.expect(*state) if model.has_exits else value


def may_halt(model: RecurrentClassifier, first: bool) -> bool:
    """Whether the value of this step can stop an example. Without exits V(s_1) is never asked."""
    return model.has_exits or not first


# Targets


class Gains(NamedTuple):
    """What the rewards of a roll-out amount to."""

    advantages: Float[Tensor, "steps *batch"]
    """Â_t."""
    returns: Float[Tensor, "steps *batch"]
    """R̂_t = Â_t + V(s_t)."""
    targets: Float[Tensor, "steps *batch"]
    """What the value learns: R̂_t, or with exits the gain still to come."""
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
    """Generalised advantage estimation. `costs` are those of the steps of a network with exits: the value is then
    only a baseline of Monte-Carlo returns, because it estimates another quantity (undiscounted, less the price)."""
    if costs is None:
        advantages = mdp.advantages(rewards, values, gamma, gae_lambda)
        returns = advantages + values[:-1]
        return Gains(advantages, returns, returns, gamma * gae_lambda)
    returns = mdp.advantages(rewards, torch.zeros_like(values), gamma, 1.0)
    return Gains(returns - values[:-1], returns, gain_to_come(rewards, values, costs, price), gamma)


def gain_to_come(
    rewards: Float[Tensor, "steps *batch"],
    values: Float[Tensor, "steps+1 *batch"],
    costs: Float[Tensor, "steps"],
    price: float,
) -> Float[Tensor, "steps *batch"]:
    """Rewards still to come, less the price of the compute they take. With a price they count up to the step at which
    the values would stop."""
    net = rewards - price * costs.view(-1, *(1,) * (rewards.ndim - 1))
    return mdp.still_to_gain(net, values, stops=price > 0)


def step_costs(model: RecurrentClassifier) -> Float[Tensor, "steps"] | None:
    """Share of the network's compute that each step takes; None without exits."""
    return model.step_costs if model.has_exits else None


# Supervised learning at exits


@runtime_checkable
class Confident(Protocol):
    """A one-pass method that can leave by confidence."""

    @property
    def confidence_threshold(self) -> float | None: ...

    def log_beliefs(self, logits: Float[Tensor, "batch classes"]) -> Float[Tensor, "batch classes"]: ...


@dataclass(frozen=True)
class AtExits(InSteps["ExitHeads"]):
    """SL with exits, one after the other; an example that is sure enough enters no further stage."""

    method: Confident
    horizon: int
    temperature: Temperature = 1.0
    """Applied to the beliefs before their confidence is compared; those that are reported stay as the network made
    them."""

    def gather(self, model: "ExitHeads", context: Float[Tensor, "batch read"]) -> Pool:
        """There is no thought."""
        return Pool(context, context[:, :0], context.new_full((len(context), model.classes), 1 / model.classes))

    def look(
        self, model: "ExitHeads", stage: int, seen: Num[Tensor, "batch ..."]
    ) -> tuple[Tensor, Float[Tensor, "batch read"]]:
        """The log-belief and, in the last column, 1 − its confidence."""
        seen, logits = model.look(stage, seen)
        log_belief = self.method.log_beliefs(logits)
        temperature = self.temperature[stage] if isinstance(self.temperature, tuple) else self.temperature
        in_doubt = doubt((log_belief / temperature).log_softmax(-1))
        return seen, torch.cat([log_belief, in_doubt.unsqueeze(1)], 1)

    def step(self, model: "ExitHeads", pool: Pool, first: bool) -> Step:
        log_belief, value = pool.context[:, :-1], pool.context[:, -1]
        step = Step(pool._replace(belief=log_belief.exp()), log_belief, value, torch.ones_like(value, dtype=torch.bool))
        return step._replace(going=self.goes_on(step))

    def goes_on(self, step: Step | Steps) -> Bool[Tensor, "*steps pool"]:
        sure = self.method.confidence_threshold
        return torch.ones_like(step.going) if sure is None else step.value > 1 - sure

    def trajectory(self, steps: Steps) -> Trajectory:
        """By its own rule, because the steps may have been made under another."""
        return Trajectory(steps.output, first_stop(self.goes_on(steps)))


class ExitHeads(Staged):
    """An answer after every stage, each from its own features alone."""

    def __init__(self, backbone: Backbone, classes: int) -> None:
        super().__init__(backbone, classes)
        self.heads = nn.ModuleList(nn.Linear(features, classes) for features in backbone.feature_sizes)
        self.costs = backbone.count_costs(self.read, lambda answer: None)

    def forward(self, inputs: Num[Tensor, "batch ..."]) -> Float[Tensor, "exits batch classes"]:
        answers = [self.read(stage, features) for stage, (_, features) in enumerate(self.backbone.walk(inputs))]
        return torch.stack(answers)

    def read(self, stage: int, features: Float[Tensor, "batch features"]) -> Float[Tensor, "batch classes"]:
        return self.heads[stage](features)  # type: ignore[no-any-return]
