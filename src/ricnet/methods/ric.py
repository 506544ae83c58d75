"""Reinforced Iterative Classification: Algorithm 1 of the paper.

    1  initialise θ, φ                                         `Agent.build`: one network has both
    2  for n = 1, 2, …                                         the trainer
    3      θ_old ← θ, φ_old ← φ                                the trainer, every `snapshot_period` updates
    4      for p = 1 … P                                       the trainer
    5          for each minibatch                              the trainer
    6              roll out π_old for T steps                  `roll_out`
    7              Â, R̂ ← GAE                                  `estimate_advantages`
    8              θ, φ ← step along ∇E[L_SPO − c_v ‖V − R̂‖²]   `actor_critic_loss`

`RIC.loss` is lines 6 to 8. The state s_t is the input x, the thought τ_{t−1} and the belief a_{t−1}; the action is the
next belief a_t. The policy, the value and inference are in `agent`.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ricnet.core import mdp
from ricnet.core.policies import Dirichlet, SimplexPolicy, current
from ricnet.distributed import Shard
from ricnet.errors import require, setting
from ricnet.methods.agent import Agent
from ricnet.methods.method import Batch, Inputs, Labels, Loss, Metrics, Weights, accuracy, weighted_mean
from ricnet.nets.refiner import (
    Belief,
    Context,
    Heads,
    HeadWeights,
    RecurrentClassifier,
    Refiner,
    State,
    Thought,
    Trace,
    at_step,
)

PerStep = Float[Tensor, "steps rollouts batch"]
Actions = Float[Tensor, "steps rollouts batch classes"]
Beliefs = Float[Tensor, "*steps batch classes"]


class Rollout(NamedTuple):
    """Roll-outs of the snapshot on a minibatch."""

    log_actions: Actions
    policy: SimplexPolicy
    """π_old(· | s_1) … π_old(· | s_T)."""
    values: Float[Tensor, "steps+1 rollouts batch"]
    """V_old(s_1) … V_old(s_{T+1})."""
    costs: Float[Tensor, "steps"] | None = None
    """With exits, the share of the network's compute of each step."""
    shard: Shard | None = None
    """Rows of the minibatch that this process has; None if it is the only one."""
    heads: Heads | None = None
    """On-policy: π_θ(· | s_t) and V_φ(s_t) with gradient, so that no replay is needed; `policy` has it too."""

    def take(self, rows: slice) -> "Rollout":
        return Rollout(self.log_actions[:, :, rows], self.policy.take(rows), self.values[:, :, rows], self.costs)


class Estimates(NamedTuple):
    """Advantages and value targets of a roll-out."""

    log_scores: PerStep
    """log a_{t,y} of the sampled beliefs."""
    advantages: PerStep
    """Â_t."""
    targets: PerStep
    """R̂_t, the target of the value."""
    own_advantages: PerStep | None = None
    """`reward_coefficient` · (log a_{t,y} − E[log a_{t,y}]), which `advantages` leave out with marginal credit and in
    closed form; with joint credit, the paper's, None or 0."""
    reward_coefficient: Float[Tensor, "steps 1 1"] | None = None
    """Weight of log a_{t,y} in the return of step t."""

    def take(self, rows: slice) -> "Estimates":
        log_scores, advantages, targets = (part[:, :, rows] for part in self[:3])
        own = None if self.own_advantages is None else self.own_advantages[:, :, rows]
        return Estimates(log_scores, advantages, targets, own, self.reward_coefficient)


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
    """Minimum of `updates_per_snapshot`."""

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

    # Algorithm 1, line 3: θ_old ← θ, φ_old ← φ

    def snapshot_period(self, updates_per_pass: int) -> int:
        return self.updates_per_snapshot or self.passes_per_snapshot * updates_per_pass

    # Lines 6 to 8: one update

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
        labels = self.smooth(labels, model)
        context = model.context(inputs)  # what the network reads of x at every step
        with torch.no_grad():
            old_context = context if snapshot is model else snapshot.context(inputs)
            rollout = self.roll_out(snapshot, old_context, shard)  # line 6
            estimates = self.estimate_advantages(rollout, labels, weights)  # line 7
        heads = self.replay(model, context, rollout.log_actions)  # π_θ and V_φ in the states of the roll-out
        loss, metrics = self.actor_critic_loss(heads, rollout, estimates, labels, weights)  # line 8
        return loss, metrics | {"classifier_norm": model.refiner.policy.weight.detach().norm()}

    # Line 6: roll out π_old for T steps

    @torch.no_grad()
    def roll_out(self, model: RecurrentClassifier, context: Context, shard: Shard | None = None) -> Rollout:
        """Beliefs a_1 … a_T, drawn from π_old, with π_old and V_old in each state. `shard` as in `Rollout`."""
        weights = model.refiner.head_weights()
        states, log_actions, outputs = self.walk(model, model.refiner, weights, context, shard)
        all_heads = Heads(*(torch.stack(head) for head in zip(*outputs, strict=True)))
        values = model.rollout_values(model.refiner, context, states, all_heads, weights)  # V_old(s_1) … V_old(s_{T+1})
        costs = model.step_costs if model.has_exits else None
        return Rollout(torch.stack(log_actions), self.policy(all_heads), values, costs, shard)

    def walk(
        self,
        model: RecurrentClassifier,
        refiner: Refiner | Trace,
        weights: HeadWeights,
        context: Context,
        shard: Shard | None,
    ) -> tuple[list[State], list[Tensor], list[list[Tensor]]]:
        """T steps from τ_0 and a_0: the T + 1 states, log a_1 … log a_T, and the heads of each step."""
        thought, belief = (start.repeat(self.rollouts, 1, 1) for start in model.initial_state(context))  # τ_0, a_0
        states, log_actions, outputs, generator = [(thought, belief)], [], [], current()
        for time in range(self.horizon):
            x = at_step(context, time)
            thought, belief, log_action, *heads = self.explore(refiner, weights, x, thought, belief, shard, generator)
            states.append((thought, belief))
            log_actions.append(log_action)
            outputs.append(heads)
        return states, log_actions, outputs

    def explore(
        self,
        refiner: Refiner | Trace,
        weights: HeadWeights,
        context: Float[Tensor, "batch gates"],
        thought: Thought,
        belief: Belief,
        shard: Shard | None = None,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, ...]:
        """One step: τ_t = f(x, τ_{t−1}, a_{t−1}) and a_t ~ π_old(· | s_t). Returns τ_t, a_t, log a_t and the heads."""
        thought = refiner.think(context, thought, belief)
        heads = refiner.heads(thought, weights)
        log_action = self.sample(heads, generator, shard)
        return thought, log_action.exp(), log_action, *heads

    # Line 7: rewards, Â and R̂

    def estimate_advantages(self, rollout: Rollout, labels: Labels, weights: Weights = None) -> Estimates:
        if self.credit != "joint" or rollout.costs is not None:  # not in the paper
            return self._standardized(self._estimate_variant(rollout, labels), weights, rollout.shard)
        scores, initial = self._log_scores(rollout, labels)  # log a_{t,y} and log a_{0,y}
        rewards, previous = mdp.rewards(scores, initial), mdp.previous_scores(scores, initial)  # r_t and log a_{t−1,y}
        advantages = mdp.advantages(rewards, rollout.values, self.gamma, self.gae_lambda)  # Â_t
        outcomes = advantages + rollout.values[:-1] + previous  # R̂_t without its term −log a_{t−1,y}
        returns = outcomes - previous  # R̂_t
        if self.label_baseline:  # not in the paper
            advantages = mdp.leave_one_out(outcomes)
        return self._standardized(Estimates(scores, advantages, returns), weights, rollout.shard)

    def score(self, log_beliefs: Beliefs, labels: Labels) -> Float[Tensor, "*steps batch"]:
        """log a_y; the reward of a step is its increase (Eq. 1). Override it for another reward."""
        return mdp.log_scores(log_beliefs, labels)

    # Line 8: E[L_SPO(θ, θ_old, Â) − c_v ‖V − R̂‖²]

    def actor_critic_loss(
        self, heads: Heads, rollout: Rollout, estimates: Estimates, labels: Labels, weights: Weights = None
    ) -> Loss:
        policy = rollout.policy if rollout.heads is heads else self.policy(heads)
        log_ratio = self.log_ratio(policy, rollout)
        surrogate = self.weighted_surrogate(policy, log_ratio.exp(), rollout, estimates, labels)
        policy_loss = -weighted_mean(surrogate, weights)  # −E[L_SPO]
        value_loss = weighted_mean((heads.value - estimates.targets).square(), weights)  # ‖V − R̂‖²
        with torch.no_grad():
            metrics = self.metrics(heads, policy, log_ratio, estimates, labels)
        return policy_loss + self.value_coef * value_loss, metrics | {"value_loss": value_loss.detach()}

    def log_ratio(self, policy: SimplexPolicy, rollout: Rollout) -> PerStep:
        """log ρ = log π_θ(a_t | s_t) − log π_old(a_t | s_t)."""
        return self._clamped(policy.log_ratio(rollout.policy, rollout.log_actions))

    def surrogate(self, ratio: PerStep, advantages: PerStep) -> PerStep:
        """L_SPO = Â ρ − |Â| (ρ − 1)² / 2ε, or PPO's clipped surrogate. Override it for another objective."""
        surrogate: Tensor = getattr(mdp, self.objective)(ratio, advantages, self.epsilon)
        return surrogate

    def weighted_surrogate(
        self, policy: SimplexPolicy, ratio: PerStep, rollout: Rollout, estimates: Estimates, labels: Labels
    ) -> PerStep:
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

    # The parts of lines 6 to 8

    def replay(self, model: RecurrentClassifier, context: Context, log_actions: Actions) -> Heads:
        """π_θ and V_φ along the actions of a roll-out, all steps at once."""
        prior = torch.full_like(log_actions[:1], -math.log(model.classes))
        beliefs = torch.cat([prior, log_actions[:-1]]).exp()
        thoughts = model.refiner.replay(context, beliefs)
        heads = model.refiner.heads(thoughts)
        return heads._replace(value=model.replayed_values(heads, thoughts, beliefs))

    def _log_scores(self, rollout: Rollout, labels: Labels) -> tuple[PerStep, Float[Tensor, "batch"]]:
        uniform = torch.full_like(rollout.log_actions[0, 0], -math.log(rollout.log_actions.shape[-1]))
        return self.score(self._floored(rollout.log_actions), labels), self.score(uniform, labels)

    def _floored(self, log_probabilities: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
        floor = self.reward_floor
        return log_probabilities if floor is None else log_probabilities.clamp(min=math.log(floor))

    def _clamped(self, log_ratio: PerStep) -> PerStep:
        clamp = self.log_ratio_clamp
        return log_ratio if clamp is None else log_ratio.clamp(-clamp, clamp)

    def _standardized(self, estimates: Estimates, weights: Weights, shard: Shard | None) -> Estimates:
        """Advantages with mean 0 and standard deviation 1 over the minibatch of all processes; an example of weight 2
        counts twice. The standard deviation is that of `advantages` + `own_advantages`, as with joint credit."""
        if not self.normalize_advantages:
            return estimates
        log_scores, advantages, targets, own, coefficient = estimates
        every, sampled = advantages, advantages if own is None else advantages + own
        if shard is not None:
            every, sampled = shard.all_gather(torch.stack([every, sampled]), -1)  # one message instead of two
            weights = None if weights is None else shard.all_gather(weights, -1)
        mean, std = mdp.mean(every, weights), mdp.std(sampled, weights)
        if own is None or coefficient is None:  # torch.compile of PyTorch 2.11 miscompiles _replace
            return Estimates(log_scores, (advantages - mean) / std, targets)
        return Estimates(log_scores, (advantages - mean) / std, targets, own / std, coefficient / std)

    def metrics(
        self, heads: Heads, policy: SimplexPolicy, log_ratio: PerStep, estimates: Estimates, labels: Labels
    ) -> Metrics:
        """Diagnostics of the policy gradient and of the policy."""
        ratio = log_ratio.exp()
        return {
            "accuracy": accuracy(heads.logits[-1], labels),
            "approx_kl": (ratio - 1 - log_ratio).mean(),
            "ratio_deviation": (ratio - 1).abs().mean(),
            "explained_variance": mdp.explained_variance(heads.value, estimates.targets),
            "mean_c": self.concentration(heads).mean(),
            "entropy": policy.entropy().mean(),
            "variance_penalty": policy.variance_penalty(labels).mean(),
            "logit_norm": heads.logits.norm(dim=-1).mean(),
            "return": mdp.normalized_return(estimates.log_scores[-1], heads.logits.shape[-1]).mean(),
        }

    # Variants that are not in the paper: exits, marginal credit, and the closed form (`closed_form`)

    def _estimate_variant(self, rollout: Rollout, labels: Labels) -> Estimates:
        """Line 7 with exits, or with E[log a_{t,y}] instead of log a_{t,y}, where `step_gain_surrogate` adds the gain
        of step t itself."""
        sampled, initial = self._log_scores(rollout, labels)
        scores = sampled
        if self.credit != "joint":
            scores = self._floored(rollout.policy.expected_log_score(labels))
        rewards, previous = mdp.rewards(scores, initial), mdp.previous_scores(scores, initial)
        gains = mdp.estimate(rewards, rollout.values, self.gamma, self.gae_lambda, rollout.costs, self.compute_price)
        # V(s_t) is computed from the sampled a_{t−1}, so r_t in its target starts from log a_{t−1,y} of the sample.
        targets = gains.targets + previous - mdp.previous_scores(sampled, initial)
        # log a_{t,y} enters R̂_t through r_t with weight 1 and, except at the last step, through r_{t+1} with −γλ.
        last = torch.arange(len(scores), device=scores.device) == len(scores) - 1
        coefficient = (1 - gains.discount * (~last).to(scores.dtype))[:, None, None]
        outcomes = gains.returns + previous
        if self.credit == "marginal":
            outcomes = outcomes - coefficient * scores  # E[log a_{t,y}] depends only on s_t
        advantages = mdp.leave_one_out(outcomes) if self.label_baseline else gains.advantages
        return Estimates(sampled, advantages, targets, coefficient * (sampled - scores), coefficient)

    def step_gain_surrogate(
        self, policy: SimplexPolicy, rollout: Rollout, estimates: Estimates, labels: Labels
    ) -> PerStep:
        """Marginal credit: the surrogate of log a_{t,y} with the ratio of the marginal density of a_{t,y}, a Beta.
        Given a_{t,y}, the score function of the other classes has mean 0, so leaving it out only removes noise."""
        assert isinstance(policy, Dirichlet)
        assert estimates.own_advantages is not None
        if mdp.is_soft(labels):
            return self._soft_step_gain(policy, rollout, estimates, labels)
        ratio = self.marginal_log_ratio(policy, rollout, labels).exp()
        return self.surrogate(ratio, estimates.own_advantages)

    def _soft_step_gain(self, policy: Dirichlet, rollout: Rollout, estimates: Estimates, labels: Labels) -> PerStep:
        """For the reward Σ_k q_k log a_{t,k}, each term is credited to the marginal density of its own a_{t,k}."""
        assert isinstance(rollout.policy, Dirichlet)
        assert estimates.reward_coefficient is not None
        old = Dirichlet(rollout.policy.log_mu.detach(), rollout.policy.alpha.detach())
        ratios = self._clamped(policy.marginal_log_ratios(old, rollout.log_actions).flatten(2)).exp()
        own = estimates.reward_coefficient[..., None] * (rollout.log_actions - old.expected_log())
        return mdp.log_scores(self.surrogate(ratios, own.flatten(2)).view_as(own), labels)

    def marginal_log_ratio(self, policy: Dirichlet, rollout: Rollout, labels: Labels) -> PerStep:
        assert isinstance(rollout.policy, Dirichlet)
        return self._clamped(policy.marginal_log_ratio(rollout.policy, rollout.log_actions, labels))

    # Gradient accumulation

    def losses(
        self,
        model: RecurrentClassifier,
        snapshot: RecurrentClassifier,
        parts: Sequence[Batch],
        shard: Shard | None = None,
    ) -> Iterator[Loss]:
        """`loss` of each part of a minibatch. First all of it is rolled out without gradient, so that samples and
        advantages are the same as without parts. On-policy this takes a second pass of the encoder."""
        if len(parts) == 1:
            yield self.loss(model, snapshot, *parts[0], shard=shard)
            return
        parts = [(inputs, self.smooth(labels, model), *weights) for inputs, labels, *weights in parts]
        _, *targets = map(torch.cat, zip(*parts, strict=True))  # labels, and weights if given
        with torch.no_grad():
            rollout = self.roll_out(snapshot, torch.cat([snapshot.context(part[0]) for part in parts], -2), shard)
            estimates = self.estimate_advantages(rollout, *targets)
        start = 0
        for inputs, *targets in parts:
            rows = slice(start, start := start + len(inputs))
            heads = self.replay(model, model.context(inputs), rollout.log_actions[:, :, rows])
            loss, metrics = self.actor_critic_loss(heads, rollout.take(rows), estimates.take(rows), *targets)
            yield loss, metrics | {"classifier_norm": model.refiner.policy.weight.detach().norm()}

    # Settings

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 < self.gamma <= 1, "gamma", self.gamma, "above 0 and at most 1")
        require(0 <= self.gae_lambda <= 1, "gae_lambda", self.gae_lambda, "from 0 to 1")
        require(self.passes_per_snapshot >= 1, "passes_per_snapshot", self.passes_per_snapshot, "at least 1")
        updates, clamp, floor = self.updates_per_snapshot, self.log_ratio_clamp, self.reward_floor
        on_policy = setting("method", "ric-on-policy")
        rule = f"at least 2, or None; to take a snapshot after every update, use {on_policy}"
        require(updates is None or updates >= self.least_updates, "updates_per_snapshot", updates, rule)
        rule = f"at least 1, or at least 2 with {setting('label_baseline', True)}"
        require(self.rollouts >= 1 + self.label_baseline, "rollouts", self.rollouts, rule)
        require(self.epsilon > 0, "epsilon", self.epsilon, "above 0")
        require(clamp is None or clamp > 0, "log_ratio_clamp", clamp, "above 0, or None")
        require(self.value_coef >= 0, "value_coef", self.value_coef, "0 or more")
        if not self.rewards_log_score():
            require(floor is None, "reward_floor", floor, f"None for {self.name}, which overrides score")
            require(self.credit == "joint", "credit", self.credit, f"joint for {self.name}, which overrides score")
            rule = f"0 for {self.name}, which overrides score"
            require(self.label_smoothing == 0, "label_smoothing", self.label_smoothing, rule)

    @property
    def takes_soft_labels(self) -> bool:
        return self.rewards_log_score()

    @classmethod
    def rewards_log_score(cls) -> bool:
        """Whether `score` is the log-score, which closed forms, marginal credit and the reward floor require."""
        return cls.score is RIC.score

    def without_effect(self, exits: bool) -> dict[str, str]:
        replaced = {"passes_per_snapshot": f"{setting('updates_per_snapshot')} replaces it"}
        return super().without_effect(exits) | (replaced if self.updates_per_snapshot is not None else {})
