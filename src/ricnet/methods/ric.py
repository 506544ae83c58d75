"""Reinforced Iterative Classification: Algorithm 1 of the paper.

Each round freezes a snapshot of the network. Until the next one, every minibatch is rolled out with the snapshot for
T steps, each step is rewarded with its gain in log-score (Eq. 1), and the current network is moved by SPO towards the
actions that did better than the value expected. The trainer makes rounds, passes and minibatches (lines 2 to 5), `loss`
is one update (lines 6 to 8).
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int64, Num
from torch import Tensor

from ricnet.core import mdp, objectives
from ricnet.core.policies import Dirichlet, SimplexPolicy
from ricnet.core.randomness import current
from ricnet.distributed import Shard
from ricnet.errors import require, setting
from ricnet.methods import exits
from ricnet.methods.agent import Agent, Estimates, Rollout
from ricnet.methods.iterative import outset
from ricnet.methods.method import Metrics, weighted_mean
from ricnet.nets.refiner import Heads, HeadWeights, RecurrentClassifier, Refiner, at_step

# What must hold of two settings; `require` makes the sentence of it.
LEAST = f"at least 2, or None; with 1 the network is its own snapshot, which is {setting('method', 'ric-on-policy')}"
ENOUGH = f"at least 1, with {setting('label_baseline', True)}, which compares roll-outs of an input, at least 2"


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
    """Steps T of a roll-out, and the most that inference takes unless --max-steps says otherwise. Raise it for more
    refinement, at proportional cost."""
    gamma: float = 0.8
    """Discount γ. Lower it and early beliefs matter more; raise it and the agent may take its time."""
    gae_lambda: float = 0.95
    """λ of the advantage estimate. Lower it to trust the value more (less variance, more bias)."""
    passes_per_snapshot: int = 5
    """P: passes through the training data with the same snapshot. Lower it to learn faster, raise it to stay near each
    snapshot for longer."""
    updates_per_snapshot: int | None = None
    """The same counted in updates, at least 2; takes the place of P. Few updates learn fast, many refine more."""
    rollouts: int = 1
    """Roll-outs an input and update; they share the encoder's work. More give less noisy gradients."""
    objective: Literal["spo", "ppo"] = "spo"
    """Surrogate of the return: spo (the paper) or ppo (its ablation)."""
    epsilon: float = 0.2
    """ε of SPO (or of PPO's clip): how far the probability of an action may move from the snapshot's. Raise it for
    larger moves, lower it if ratio_deviation grows."""
    log_ratio_clamp: float | None = 10.0
    """Limit on |log ρ|, which keeps one far-off action from overflowing the update; None for no limit. Lower it if
    updates blow up."""
    value_coef: float = 0.5
    """c_v: weight of the value's squared error. Raise it if explained_variance stays low, lower it if accuracy
    suffers."""
    entropy_coef: float = 0.0
    """Weight of an entropy bonus. Raise it if the policy stops exploring too soon."""
    step_weight: Literal["uniform", "discounted"] = "uniform"
    """Weight of step t in the surrogate: uniform (common practice) or γ^{t−1} (the exact gradient of J)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.horizon >= 1, "horizon", self.horizon, "at least 1")
        require(0 < self.gamma <= 1, "gamma", self.gamma, "above 0 and at most 1")
        require(0 <= self.gae_lambda <= 1, "gae_lambda", self.gae_lambda, "from 0 to 1")
        require(self.passes_per_snapshot >= 1, "passes_per_snapshot", self.passes_per_snapshot, "at least 1")
        updates, clamp = self.updates_per_snapshot, self.log_ratio_clamp
        require(updates is None or updates >= self.least_updates, "updates_per_snapshot", updates, LEAST)
        require(self.rollouts >= 1 + self.label_baseline, "rollouts", self.rollouts, ENOUGH)
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
        context = model.context(inputs)  # what the recurrent module reads of x
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
        thought, belief = (start.repeat(self.rollouts, 1, 1) for start in outset(model, context))  # τ_0 = 0, a_0 = 1/K
        states, log_actions, heads = [(thought, belief)], [], []
        for time in range(self.horizon):
            read = at_step(context, time)
            thought, belief, log_action, *made = self.explore(refiner, weights, read, thought, belief, shard, generator)
            states.append((thought, belief))
            log_actions.append(log_action)
            heads.append(made)
        every = Heads(*(torch.stack(head) for head in zip(*heads, strict=True)))
        values = exits.rollout_values(model, context, states, every, weights)  # V_old(s_1) … V_old(s_{T+1})
        return Rollout(torch.stack(log_actions), self.policy(every), values, exits.step_costs(model))

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
        """τ_t = f(x, τ_{t−1}, a_{t−1}) and a_t ~ π_old(· | s_t), with log a_t and the heads of τ_t."""
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
        uniform = torch.full_like(rollout.log_actions[0, 0], -math.log(rollout.log_actions.shape[-1]))  # log a_0
        initial = self.score(uniform, labels)
        drawn = scores = self.floored(self.score(rollout.log_actions, labels))  # log a_{t,y}
        if self.credit != "joint":  # what a step drew is then credited apart, by `own_gain`
            scores = self.floored(rollout.policy.expected_log_score(labels))  # E[log a_{t,y}]
        rewards, before = mdp.rewards(scores, initial), mdp.previous_scores(scores, initial)  # Eq. 1, and log a_{t−1,y}
        price = self.compute_price  # acts with exits only
        gains = exits.estimate(rewards, rollout.values, self.gamma, self.gae_lambda, rollout.costs, price)  # GAE
        advantages = gains.advantages
        outcomes = gains.returns + before  # R̂_t without −log a_{t−1,y}, which was settled before step t
        # R̂_t, whose r_t is counted from the sampled a_{t−1} that V(s_t) reads; with joint credit `before` is just that.
        targets = gains.targets + before - mdp.previous_scores(drawn, initial)
        # log a_{t,y} counts in R̂_t once as the gain of step t and −γλ times as the start of the next step, if any.
        last = torch.arange(len(scores), device=scores.device) == len(scores) - 1
        coefficient = (1 - gains.discount * (~last).to(scores.dtype))[:, None, None]
        if self.credit == "marginal":
            outcomes = outcomes - coefficient * scores  # E[log a_{t,y}] depends on s_t alone
        if self.label_baseline:
            advantages = mdp.leave_one_out(outcomes)
        estimates = Estimates(drawn, advantages, coefficient * (drawn - scores), targets, coefficient)
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
        # E[L_SPO] is maximised, so its negative is minimised; then ‖V − R̂‖².
        policy_loss = -weighted_mean(self.weighed(policy, log_ratio.exp(), rollout, estimates, labels), weights)
        value_loss = weighted_mean(objectives.value_loss(heads.value, estimates.targets), weights)
        with torch.no_grad():
            metrics = self.metrics(heads, policy, log_ratio, estimates, labels)
        return policy_loss + self.value_coef * value_loss, metrics | {"value_loss": value_loss.detach()}

    def weighed(
        self,
        policy: SimplexPolicy,
        ratio: Float[Tensor, "steps rollouts batch"],
        rollout: Rollout,
        estimates: Estimates,
        labels: Int64[Tensor, "batch"],
    ) -> Float[Tensor, "steps rollouts batch"]:
        """The surrogate of every step with its weight, and an entropy bonus."""
        surrogate = self.surrogate(ratio, estimates.advantages)
        if self.credit != "joint":
            surrogate = surrogate + self.own_gain(policy, rollout, estimates, labels)
        if self.entropy_coef:
            surrogate = surrogate + self.entropy_coef * policy.entropy()
        if self.step_weight == "discounted":
            weights = mdp.discounts(self.horizon, self.gamma, surrogate.device)
            surrogate = surrogate * weights.to(surrogate.dtype)[:, None, None]
        return surrogate

    def surrogate(
        self, ratio: Float[Tensor, "steps rollouts batch"], advantages: Float[Tensor, "steps rollouts batch"]
    ) -> Float[Tensor, "steps rollouts batch"]:
        """L_SPO = Â ρ − |Â| (ρ − 1)² / 2ε, or PPO's. Override it for another objective."""
        surrogate: Tensor = getattr(objectives, self.objective)(ratio, advantages, self.epsilon)
        return surrogate

    def own_gain(
        self, policy: SimplexPolicy, rollout: Rollout, estimates: Estimates, labels: Int64[Tensor, "batch"]
    ) -> Float[Tensor, "steps rollouts batch"]:
        """Marginal credit: log a_{t,y} is weighed by the density of a_{t,y} alone. Given a_{t,y}, how the rest of the
        belief is shared among the other classes says nothing about it, and its score has mean 0 (Rao-Blackwell)."""
        assert isinstance(policy, Dirichlet)
        assert isinstance(rollout.policy, Dirichlet)
        ratio = self._clamped(policy.marginal_log_ratio(rollout.policy, rollout.log_actions, labels)).exp()
        return self.surrogate(ratio, estimates.own_advantages)

    def _clamped(self, log_ratio: Float[Tensor, "steps rollouts batch"]) -> Float[Tensor, "steps rollouts batch"]:
        clamp = self.log_ratio_clamp
        return log_ratio if clamp is None else log_ratio.clamp(-clamp, clamp)

    def without_effect(self, exits: bool) -> dict[str, str]:
        replaced = {"passes_per_snapshot": f"{setting('updates_per_snapshot')} takes its place"}
        return super().without_effect(exits) | (replaced if self.updates_per_snapshot is not None else {})
