"""Reinforced Iterative Classification: Algorithm 1 of the paper.

`RIC.loss` is one update (lines 6 to 8); the trainer runs the loops over rounds, passes and minibatches (lines 2 to 5).
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int64, Num
from torch import Tensor

from ricnet.core import mdp
from ricnet.core.policies import Dirichlet, SimplexPolicy, current
from ricnet.distributed import Shard
from ricnet.errors import require, setting
from ricnet.methods import exits
from ricnet.methods.agent import Agent, Estimates, Rollout
from ricnet.methods.iterative import initial_state
from ricnet.methods.method import Metrics, weighted_mean
from ricnet.nets.refiner import Heads, HeadWeights, RecurrentClassifier, Refiner, at_step

# Rules for error messages: "… is out of range: it must be {rule}."
UPDATES_RULE = f"at least 2, or None; to take a snapshot after every update, use {setting('method', 'ric-on-policy')}"
ROLLOUTS_RULE = f"at least 1, or at least 2 with {setting('label_baseline', True)}"


@dataclass(frozen=True)
class RIC(Agent):
    name: ClassVar[str] = "ric"
    title: ClassVar[str] = "RIC"
    about: ClassVar[str] = "Reinforced Iterative Classification by Algorithm 1: snapshots, SPO"
    colour: ClassVar[str] = "#0072b2"
    search_space: ClassVar[tuple[str, ...]] = (
        *("epsilon=0.05..0.5:log", "gae_lambda=0.5..1", "updates_per_snapshot=2,4,8", "rollouts=2,4"),
    )
    paper_epochs: ClassVar[int] = 2000
    compiled: ClassVar[tuple[str, ...]] = ("explore", "estimate_advantages", "actor_critic_loss")
    least_updates: ClassVar[int] = 2

    horizon: int = 20
    """Steps T of a roll-out, and the largest number of steps at inference unless --max-steps is given. Raise it for
    more refinement; cost grows in proportion."""
    gamma: float = 0.8
    """Discount γ. Lower it to give early steps more weight, raise it to give later steps more weight."""
    gae_lambda: float = 0.95
    """λ of generalised advantage estimation. Lower it for less variance and more bias."""
    passes_per_snapshot: int = 5
    """P: passes through the training data per snapshot. Lower it to learn faster, raise it to keep the policy near each
    snapshot for longer."""
    updates_per_snapshot: int | None = None
    """Updates per snapshot, at least 2; replaces --passes-per-snapshot. Lower it to learn faster, raise it to keep the
    policy near each snapshot for longer."""
    rollouts: int = 1
    """Roll-outs per input in each update; the encoder runs once for all of them. Raise it for less noisy gradients."""
    objective: Literal["spo", "ppo"] = "spo"
    """Surrogate objective: spo (the paper) or ppo (its ablation)."""
    epsilon: float = 0.2
    """ε of SPO, or of PPO's clip: how far the ratio ρ may move from 1. Raise it for larger policy updates, lower it if
    ratio_deviation grows."""
    log_ratio_clamp: float | None = 10.0
    """Limit on |log ρ|, so that one action cannot overflow the loss; None for no limit. Lower it if the loss
    explodes."""
    value_coef: float = 0.5
    """c_v: weight of the value loss. Raise it if explained_variance stays low, lower it if accuracy drops."""
    entropy_coef: float = 0.0
    """Weight of an entropy bonus. Raise it if the policy stops exploring too soon."""
    step_weight: Literal["uniform", "discounted"] = "uniform"
    """Weight of step t in the surrogate: uniform (common practice) or discounted, γ^{t−1} (the exact gradient of J)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.horizon >= 1, "horizon", self.horizon, "at least 1")
        require(0 < self.gamma <= 1, "gamma", self.gamma, "above 0 and at most 1")
        require(0 <= self.gae_lambda <= 1, "gae_lambda", self.gae_lambda, "from 0 to 1")
        require(self.passes_per_snapshot >= 1, "passes_per_snapshot", self.passes_per_snapshot, "at least 1")
        updates, clamp = self.updates_per_snapshot, self.log_ratio_clamp
        require(updates is None or updates >= self.least_updates, "updates_per_snapshot", updates, UPDATES_RULE)
        require(self.rollouts >= 1 + self.label_baseline, "rollouts", self.rollouts, ROLLOUTS_RULE)
        require(self.epsilon > 0, "epsilon", self.epsilon, "above 0")
        require(clamp is None or clamp > 0, "log_ratio_clamp", clamp, "above 0, or None")
        require(self.value_coef >= 0, "value_coef", self.value_coef, "0 or more")

    # Algorithm 1, line 3: θ_old ← θ, φ_old ← φ

    def snapshot_period(self, updates_per_pass: int) -> int:
        return self.updates_per_snapshot or self.passes_per_snapshot * updates_per_pass

    # Lines 6 to 8: one update

    def loss(
        self,
        model: RecurrentClassifier,
        snapshot: RecurrentClassifier,
        inputs: Num[Tensor, "batch ..."],
        labels: Int64[Tensor, "batch"],
        weights: Float[Tensor, "batch"] | None = None,
        *,
        shard: Shard | None = None,
    ) -> tuple[Float[Tensor, ""], Metrics]:
        context = model.context(inputs)  # encoded x
        with torch.no_grad():
            old_context = context if snapshot is model else snapshot.context(inputs)
            rollout = self.roll_out(snapshot, old_context, shard)  # line 6
            estimates = self.estimate_advantages(rollout, labels, weights, shard=shard)  # line 7
        heads = self.replay(model, context, rollout.log_actions)
        loss, metrics = self.actor_critic_loss(heads, rollout, estimates, labels, weights)  # line 8
        return loss, metrics | {"classifier_norm": model.refiner.policy.weight.detach().norm()}

    # Line 6: roll out π_old for T steps

    @torch.no_grad()
    def roll_out(
        self, model: RecurrentClassifier, context: Float[Tensor, "*steps batch gates"], shard: Shard | None = None
    ) -> Rollout:
        refiner, weights, generator = model.refiner, model.refiner.head_weights(), current()
        thought, belief = (
            start.repeat(self.rollouts, 1, 1) for start in initial_state(model, context)
        )  # τ_0 = 0, a_0 = 1/K
        states, log_actions, heads = [(thought, belief)], [], []
        for time in range(self.horizon):
            x = at_step(context, time)
            thought, belief, log_action, *outputs = self.explore(refiner, weights, x, thought, belief, shard, generator)
            states.append((thought, belief))
            log_actions.append(log_action)
            heads.append(outputs)
        all_heads = Heads(*(torch.stack(head) for head in zip(*heads, strict=True)))
        values = exits.rollout_values(model, context, states, all_heads, weights)  # V_old(s_1) … V_old(s_{T+1})
        return Rollout(torch.stack(log_actions), self.policy(all_heads), values, exits.step_costs(model))

    def explore(
        self,
        refiner: Refiner,
        weights: HeadWeights,
        context: Float[Tensor, "batch gates"],
        thought: Float[Tensor, "rollouts batch size"],
        belief: Float[Tensor, "rollouts batch classes"],
        shard: Shard | None = None,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, ...]:
        """One step: τ_t = f(x, τ_{t−1}, a_{t−1}) and a_t ~ π_old(· | s_t). Returns τ_t, a_t, log a_t and the heads."""
        thought = refiner.think(context, thought, belief)
        heads = refiner.heads(thought, weights)
        log_action = self.sample(heads, generator, shard)
        return thought, log_action.exp(), log_action, *heads

    # Line 7: rewards, Â and R̂

    def estimate_advantages(
        self,
        rollout: Rollout,
        labels: Int64[Tensor, "batch"],
        weights: Float[Tensor, "batch"] | None = None,
        *,
        shard: Shard | None = None,
    ) -> Estimates:
        """Advantages Â_t and value targets R̂_t. The paper is joint credit, where `scores` and `sampled` are the same;
        otherwise E[log a_{t,y}] replaces log a_{t,y}, and `step_gain_surrogate` adds the gain of step t itself."""
        uniform = torch.full_like(rollout.log_actions[0, 0], -math.log(rollout.log_actions.shape[-1]))  # log a_0
        initial = self.score(uniform, labels)
        sampled = scores = self.floored(self.score(rollout.log_actions, labels))  # log a_{t,y}
        if self.credit != "joint":
            scores = self.floored(rollout.policy.expected_log_score(labels))  # E[log a_{t,y}]
        rewards, previous = mdp.rewards(scores, initial), mdp.previous_scores(scores, initial)  # r_t, log a_{t−1,y}
        price = self.compute_price  # used only with exits
        gains = exits.estimate(rewards, rollout.values, self.gamma, self.gae_lambda, rollout.costs, price)  # GAE
        advantages = gains.advantages
        outcomes = gains.returns + previous  # R̂_t without the term −log a_{t−1,y}, which a_t cannot change
        # V(s_t) is computed from the sampled a_{t−1}, so r_t in its target starts from log a_{t−1,y} of the sample.
        targets = gains.targets + previous - mdp.previous_scores(sampled, initial)
        # log a_{t,y} enters R̂_t through r_t with weight 1 and, except at the last step, through r_{t+1} with −γλ.
        last = torch.arange(len(scores), device=scores.device) == len(scores) - 1
        coefficient = (1 - gains.discount * (~last).to(scores.dtype))[:, None, None]
        if self.credit == "marginal":
            outcomes = outcomes - coefficient * scores  # E[log a_{t,y}] depends only on s_t
        if self.label_baseline:
            advantages = mdp.leave_one_out(outcomes)
        estimates = Estimates(sampled, advantages, coefficient * (sampled - scores), targets, coefficient)
        return self.standardized(estimates, weights, shard) if self.normalize_advantages else estimates

    # Line 8: E[L_SPO(θ, θ_old, Â) − c_v ‖V − R̂‖²]

    def actor_critic_loss(
        self,
        heads: Heads,
        rollout: Rollout,
        estimates: Estimates,
        labels: Int64[Tensor, "batch"],
        weights: Float[Tensor, "batch"] | None = None,
    ) -> tuple[Float[Tensor, ""], Metrics]:
        policy = self.policy(heads)
        log_ratio = self._clamped(policy.log_ratio(rollout.policy, rollout.log_actions))  # log ρ
        surrogate = self.weighted_surrogate(policy, log_ratio.exp(), rollout, estimates, labels)
        policy_loss = -weighted_mean(surrogate, weights)  # −E[L_SPO]
        value_loss = weighted_mean(mdp.value_loss(heads.value, estimates.targets), weights)  # ‖V − R̂‖²
        with torch.no_grad():
            metrics = self.metrics(heads, policy, log_ratio, estimates, labels)
        return policy_loss + self.value_coef * value_loss, metrics | {"value_loss": value_loss.detach()}

    def weighted_surrogate(
        self,
        policy: SimplexPolicy,
        ratio: Float[Tensor, "steps rollouts batch"],
        rollout: Rollout,
        estimates: Estimates,
        labels: Int64[Tensor, "batch"],
    ) -> Float[Tensor, "steps rollouts batch"]:
        """Surrogate of each step plus entropy bonus, times the weight of the step."""
        surrogate = self.surrogate(ratio, estimates.advantages)
        if self.credit != "joint":
            surrogate = surrogate + self.step_gain_surrogate(policy, rollout, estimates, labels)
        if self.entropy_coef:
            surrogate = surrogate + self.entropy_coef * policy.entropy()
        if self.step_weight == "discounted":
            weights = mdp.discounts(self.horizon, self.gamma, surrogate.device)
            surrogate = surrogate * weights.to(surrogate.dtype)[:, None, None]
        return surrogate

    def surrogate(
        self, ratio: Float[Tensor, "steps rollouts batch"], advantages: Float[Tensor, "steps rollouts batch"]
    ) -> Float[Tensor, "steps rollouts batch"]:
        """L_SPO = Â ρ − |Â| (ρ − 1)² / 2ε, or PPO's clipped surrogate. Override it for another objective."""
        surrogate: Tensor = getattr(mdp, self.objective)(ratio, advantages, self.epsilon)
        return surrogate

    def step_gain_surrogate(
        self, policy: SimplexPolicy, rollout: Rollout, estimates: Estimates, labels: Int64[Tensor, "batch"]
    ) -> Float[Tensor, "steps rollouts batch"]:
        """Marginal credit: the surrogate of log a_{t,y} with the ratio of the marginal density of a_{t,y}, a Beta.
        Given a_{t,y}, the score function of the other classes has mean 0, so leaving it out only removes noise."""
        assert isinstance(policy, Dirichlet)
        assert isinstance(rollout.policy, Dirichlet)
        ratio = self._clamped(policy.marginal_log_ratio(rollout.policy, rollout.log_actions, labels)).exp()
        return self.surrogate(ratio, estimates.own_advantages)

    def _clamped(self, log_ratio: Float[Tensor, "steps rollouts batch"]) -> Float[Tensor, "steps rollouts batch"]:
        clamp = self.log_ratio_clamp
        return log_ratio if clamp is None else log_ratio.clamp(-clamp, clamp)

    def without_effect(self, exits: bool) -> dict[str, str]:
        replaced = {"passes_per_snapshot": f"{setting('updates_per_snapshot')} replaces it"}
        return super().without_effect(exits) | (replaced if self.updates_per_snapshot is not None else {})
