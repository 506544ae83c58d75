"""RIC on-policy: Algorithm 1 with a snapshot after every update; the default for images and tables. Not in the paper.

The ratio ρ is always 1, so SPO and PPO both have the plain policy gradient. The encoder runs once per update instead of
twice, and on a CPU the roll-out carries the gradient, so that it is not replayed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from ricnet.core import mdp
from ricnet.core.policies import Dirichlet, SimplexPolicy, own_log_ratio
from ricnet.distributed import Shard
from ricnet.errors import require, setting
from ricnet.methods.method import Inputs, Labels, Loss, Weights
from ricnet.methods.ric import RIC, Estimates, PerStep, Rollout
from ricnet.nets.refiner import Context, RecurrentClassifier, Trace


@dataclass(frozen=True)
class OnPolicy(RIC):
    name: ClassVar[str] = "ric-on-policy"
    title: ClassVar[str] = "RIC, on-policy"
    about: ClassVar[str] = "RIC without snapshots: each update draws from the network itself"
    colour: ClassVar[str] = RIC.colour
    search_space: ClassVar[tuple[str, ...]] = ("gae_lambda=0.5..1", "rollouts=2,4,8")

    # These settings of Algorithm 1 have no effect at ρ = 1, so they are constants.
    least_updates: ClassVar[int] = 1
    updates_per_snapshot: ClassVar[int] = 1  # type: ignore[misc]
    passes_per_snapshot: ClassVar[int] = 1  # type: ignore[misc]
    epsilon: ClassVar[float] = 0.2  # type: ignore[misc]
    log_ratio_clamp: ClassVar[None] = None  # type: ignore[misc]

    objective: Literal["policy-gradient", "expected"] = "policy-gradient"  # type: ignore[assignment]
    """What is maximised: policy-gradient, the return; or expected, E[log a_y] in the sampled states, in closed form, a
    control without policy gradient."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.objective == "expected":
            expected = setting("objective", "expected")
            require(self.gamma < 1, "gamma", self.gamma, f"below 1 with {expected}")
            rule = f"policy-gradient with {setting('head', self.head)}"
            require(self.head == "dirichlet", "objective", self.objective, rule)
            require(self.credit == "joint", "credit", self.credit, f"joint with {expected}")
            rule = f"policy-gradient for {self.name}, which overrides score"
            require(self.rewards_log_score(), "objective", self.objective, rule)

    def loss(
        self,
        model: RecurrentClassifier,
        snapshot: RecurrentClassifier,
        inputs: Inputs,
        labels: Labels,
        weights: Weights = None,
        *,
        shard: Shard | None = None,
    ) -> Loss:
        """`RIC.loss` without the replay. On a GPU, where the recorded update is faster that way, it is replayed."""
        if inputs.is_cuda or snapshot is not model:
            return super().loss(model, snapshot, inputs, labels, weights, shard=shard)
        labels = self.smooth(labels, model)
        rollout = self.roll_out_with_gradient(model, model.context(inputs), shard)  # line 6
        with torch.no_grad():
            estimates = self.estimate_advantages(rollout, labels, weights)  # line 7
        assert rollout.heads is not None
        loss, metrics = self.actor_critic_loss(rollout.heads, rollout, estimates, labels, weights)  # line 8
        return loss, metrics | {"classifier_norm": model.refiner.policy.weight.detach().norm()}

    def roll_out_with_gradient(self, model: RecurrentClassifier, context: Context, shard: Shard | None) -> Rollout:
        """`RIC.roll_out`, with policy and heads that have the gradient of `RIC.replay`."""
        trace, weights = Trace(model.refiner), model.refiner.head_weights()
        with torch.no_grad():
            states, log_actions, _ = self.walk(model, trace, weights, context, shard)
        thoughts = trace.thoughts(context)
        heads = model.refiner.heads(thoughts, weights)
        with torch.no_grad():
            values = model.rollout_values(trace, context, states, heads, weights)
        if model.has_exits:
            beliefs = torch.stack([belief for _, belief in states[:-1]])
            heads = heads._replace(value=model.replayed_values(heads, thoughts, beliefs))
        costs = model.step_costs if model.has_exits else None
        return Rollout(torch.stack(log_actions), self.policy(heads), values, costs, shard, heads)

    def log_ratio(self, policy: SimplexPolicy, rollout: Rollout) -> PerStep:
        """0, with the gradient of log π_θ; about 1e-6 after a replay, by rounding."""
        if rollout.heads is None:
            return super().log_ratio(policy, rollout)
        return own_log_ratio(policy, rollout.log_actions)

    def marginal_log_ratio(self, policy: Dirichlet, rollout: Rollout, labels: Labels) -> PerStep:
        if rollout.heads is None:
            return super().marginal_log_ratio(policy, rollout, labels)
        return policy.own_marginal_log_ratio(rollout.log_actions, labels)

    def surrogate(self, ratio: PerStep, advantages: PerStep) -> PerStep:
        return mdp.spo(ratio, advantages, OnPolicy.epsilon)

    def weighted_surrogate(
        self, policy: SimplexPolicy, ratio: PerStep, rollout: Rollout, estimates: Estimates, labels: Labels
    ) -> PerStep:
        """With `expected`, E[log a_{t,y}] with the weights of Eq. 2: the policy gradient without the effect of a_t on
        later states."""
        if self.objective != "expected":
            return super().weighted_surrogate(policy, ratio, rollout, estimates, labels)
        weights = self.horizon * mdp.geometric_weights(self.horizon, self.gamma, ratio.device)
        return policy.expected_log_score(labels) * weights.to(ratio.dtype)[:, None, None]

    @classmethod
    def title_of(cls, settings: Mapping[str, Any]) -> str:
        if settings.get("objective") == "expected":
            return f"{RIC.title}, expected"
        return super().title_of(settings)

    def without_effect(self, exits: bool) -> dict[str, str]:
        unused = ("label_baseline", "normalize_advantages", "step_weight", "entropy_coef")
        idle = dict.fromkeys(unused, "the expected objective has no policy gradient")
        return super().without_effect(exits) | (idle if self.objective == "expected" else {})
