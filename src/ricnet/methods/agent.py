"""`Agent`, the base class of the three RIC algorithms: the policy over beliefs, gradient accumulation, and inference.

`ric` is Algorithm 1 of the paper; `on_policy` and `closed_form` are variants that are not in the paper.
"""

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int64, Num
from torch import Tensor

from ricnet.core import mdp
from ricnet.core.policies import Dirichlet, LogisticNormal, Readout, SimplexPolicy, current
from ricnet.core.trajectory import Trajectory, not_below, stop_before
from ricnet.distributed import Shard
from ricnet.errors import require, require_finite, setting
from ricnet.methods import exits
from ricnet.methods.inference import Pool, Step, Steps
from ricnet.methods.iterative import Iterative
from ricnet.methods.method import Batch, Metrics, accuracy
from ricnet.nets.backbone import Backbone
from ricnet.nets.refiner import Heads, RecurrentClassifier


class Rollout(NamedTuple):
    """Roll-outs of the snapshot on a minibatch."""

    log_actions: Float[Tensor, "steps rollouts batch classes"]
    policy: SimplexPolicy
    values: Float[Tensor, "steps+1 rollouts batch"]
    """V(s_1) … V(s_{T+1})."""
    costs: Float[Tensor, "steps"] | None = None
    """With exits, the share of the network's compute of each step."""

    def take(self, rows: slice) -> "Rollout":
        return Rollout(self.log_actions[:, :, rows], self.policy.take(rows), self.values[:, :, rows], self.costs)


class Estimates(NamedTuple):
    """Advantages and value targets of a roll-out."""

    log_scores: Float[Tensor, "steps rollouts batch"]
    """log a_{t,y} of the sampled beliefs."""
    advantages: Float[Tensor, "steps rollouts batch"]
    """Â_t."""
    own_advantages: Float[Tensor, "steps rollouts batch"]
    """`reward_coefficient` · (log a_{t,y} − E[log a_{t,y}]), which `advantages` leave out with marginal credit and in
    closed form; 0 with joint credit."""
    targets: Float[Tensor, "steps rollouts batch"]
    """R̂_t, the target of the value."""
    reward_coefficient: Float[Tensor, "steps 1 1"]
    """Weight of log a_{t,y} in the return of step t."""

    def take(self, rows: slice) -> "Estimates":
        log_scores, advantages, own_advantages, targets = (tensor[:, :, rows] for tensor in self[:4])
        return Estimates(log_scores, advantages, own_advantages, targets, self.reward_coefficient)


@dataclass(frozen=True)
class Agent(Iterative):
    # The policy
    head: Literal["dirichlet", "logistic-normal"] = "dirichlet"
    """Family of the policy over beliefs: dirichlet (the paper) or logistic-normal with σ² = K/c (its ablation)."""
    c_min: float = 1.0
    """Smallest concentration c of the policy. Raise it for less exploration."""
    c_max: float = 10.0
    """Largest concentration c of the policy. It limits the mean belief of a class to (c + ε)/(c + Kε). Raise it for
    many classes."""
    c_range: Literal["sigmoid", "clip"] = "sigmoid"
    """How c is kept between its limits: sigmoid, or clip (the paper), whose gradient is 0 outside the limits. Both
    start in the middle of the range."""
    alpha_floor: float = 0.01
    """ε in α = μ·c + ε, the smallest parameter of the Dirichlet. Raise it for a lower limit on the mean belief. With a
    lower ε, sampled probabilities are closer to 0 and log-scores are noisier."""
    head_gain: float = 0.01
    """Scale of the initial weights of the policy head. Near 0, initial beliefs are uniform, which suits sampled
    rewards. In closed form and with marginal credit, 1 learns faster."""
    # The readout
    halt_threshold: float = 0.0
    """Halt when the value falls below this threshold. Raise it to halt earlier, lower it to halt later."""
    readout: Readout = "mean"
    """Reported belief: mean, α/Σα (the paper), mu, the softmax, or implied, ∝ 1/ψ'(α) (not in the paper)."""
    feedback: Literal["mean", "sample"] = "mean"
    """Belief that inference feeds back into the next step: the policy's mean (the paper), or a sample, as in
    training."""
    # Variance of the policy gradient
    normalize_advantages: bool = True
    """Standardise advantages over each minibatch, jointly over steps, roll-outs and examples."""
    label_baseline: bool = False
    """Use the mean of the other roll-outs of the same input as baseline, instead of the value. This reduces the
    variance of the policy gradient and keeps the direction of its mean. Needs at least 2 roll-outs."""
    credit: Literal["joint", "marginal"] = "joint"
    """Which density a step's own gain is credited to: that of the whole sampled belief (joint, the paper), or that of
    the label's probability a_y alone (marginal). Marginal credit keeps the direction of the mean policy gradient and
    removes the noise of the other classes, so it helps most with many classes. Effects on later steps are always
    credited to the whole belief; with marginal credit they are measured by E[log a_y]."""
    reward_floor: float | None = None
    """Smallest probability of the true class in the reward; lower ones count as this. None for no floor. Raise it for
    rewards with less variance. Use None with marginal credit, where the floor would apply to an expectation."""
    # Exits
    compute_price: float = 0.0
    """λ: price in nats of computing the whole network; only with --exits. The value then estimates the remaining gain
    minus the price of the remaining compute. Raise it to exit earlier; with 0, use --budget after training."""

    def __post_init__(self) -> None:
        require_finite(self)
        require(0 < self.c_min <= self.c_max, "c_min", self.c_min, f"above 0 and at most c-max, {self.c_max}")
        require(self.alpha_floor > 0, "alpha_floor", self.alpha_floor, "above 0")
        require(self.head_gain > 0, "head_gain", self.head_gain, "above 0")
        require(self.compute_price >= 0, "compute_price", self.compute_price, "0 or more")
        floor = self.reward_floor
        require(floor is None or 0 < floor < 1, "reward_floor", floor, "between 0 and 1, or None")
        if not self.rewards_log_score():
            require(floor is None, "reward_floor", floor, f"None for {self.name}, which overrides score")
            require(self.credit == "joint", "credit", self.credit, f"joint for {self.name}, which overrides score")
        if self.credit == "marginal":
            require(self.head == "dirichlet", "credit", self.credit, f"joint with {setting('head', self.head)}")
        if self.head == "logistic-normal":
            rule = f"mean or mu with {setting('head', self.head)}"
            require(self.readout != "implied", "readout", self.readout, rule)

    # Network and policy

    def build(self, backbone: Backbone, classes: int) -> RecurrentClassifier:
        size, spread = backbone.embedding_size, self.spread_outputs(classes)
        model = RecurrentClassifier(backbone, size, classes, self.head_gain, spread)
        exits.train_value(model, True)
        return model

    def spread_outputs(self, classes: int) -> int:
        """Number of network outputs for the spread of the policy: 1, the concentration c. If an override returns more,
        `Heads.concentration` has a last axis for them."""
        return 1

    def policy(self, heads: Heads) -> SimplexPolicy:
        """The paper's Dirichlet, α = μ·c + ε, or the logistic-normal of its ablation."""
        log_mu, concentration = heads.logits.log_softmax(-1), self.concentration(heads)
        if self.head == "logistic-normal":
            return LogisticNormal.around(log_mu, concentration)
        return Dirichlet.around(log_mu, concentration, self.alpha_floor)

    def concentration(self, heads: Heads) -> Float[Tensor, "*batch"]:
        """c, between c_min and c_max."""
        if self.c_range == "clip":
            return (heads.concentration + (self.c_min + self.c_max) / 2).clamp(self.c_min, self.c_max)
        return self.c_min + (self.c_max - self.c_min) * heads.concentration.sigmoid()

    def sample(
        self, heads: Heads, generator: torch.Generator | None, shard: Shard | None
    ) -> Float[Tensor, "rollouts batch classes"]:
        """log a for a ~ π. Each process samples for the whole minibatch and keeps its own rows, so that the samples do
        not depend on the number of processes."""
        if shard is None:
            return self.policy(heads).sample(generator)
        logits, concentration = (shard.all_gather(head, 1) for head in (heads.logits, heads.concentration))
        whole = heads._replace(logits=logits, concentration=concentration)
        return self.policy(whole).sample(generator)[:, shard.own]

    # A minibatch

    def score(
        self, log_beliefs: Float[Tensor, "*steps batch classes"], labels: Int64[Tensor, "batch"]
    ) -> Float[Tensor, "*steps batch"]:
        """log a_y; the reward of a step is its increase (Eq. 1). Override it for another reward."""
        return mdp.log_scores(log_beliefs, labels)

    @classmethod
    def rewards_log_score(cls) -> bool:
        """Whether `score` is the log-score, which closed forms, marginal credit and the reward floor require."""
        return cls.score is Agent.score

    def floored(self, scores: Float[Tensor, "steps rollouts batch"]) -> Float[Tensor, "steps rollouts batch"]:
        return scores if self.reward_floor is None else scores.clamp(min=math.log(self.reward_floor))

    @abstractmethod
    def loss(
        self,
        model: RecurrentClassifier,
        snapshot: RecurrentClassifier,
        inputs: Num[Tensor, "batch ..."],
        labels: Int64[Tensor, "batch"],
        weights: Float[Tensor, "batch"] | None = None,
        *,
        shard: Shard | None = None,
    ) -> tuple[Float[Tensor, ""], Metrics]: ...

    @abstractmethod
    def roll_out(
        self, model: RecurrentClassifier, context: Float[Tensor, "*steps batch gates"], shard: Shard | None = None
    ) -> Rollout: ...

    @abstractmethod
    def estimate_advantages(
        self,
        rollout: Rollout,
        labels: Int64[Tensor, "batch"],
        weights: Float[Tensor, "batch"] | None = None,
        *,
        shard: Shard | None = None,
    ) -> Estimates: ...

    @abstractmethod
    def actor_critic_loss(
        self,
        heads: Heads,
        rollout: Rollout,
        estimates: Estimates,
        labels: Int64[Tensor, "batch"],
        weights: Float[Tensor, "batch"] | None = None,
    ) -> tuple[Float[Tensor, ""], Metrics]: ...

    def losses(
        self,
        model: RecurrentClassifier,
        snapshot: RecurrentClassifier,
        parts: Sequence[Batch],
        shard: Shard | None = None,
    ) -> Iterator[tuple[Float[Tensor, ""], Metrics]]:
        """`loss` of each part. The whole minibatch is rolled out without gradient first, so that samples and advantages
        are the same as without parts. If the network is its own snapshot, this takes a second pass of the encoder."""
        if len(parts) == 1:
            yield self.loss(model, snapshot, *parts[0], shard=shard)
            return
        _, *targets = map(torch.cat, zip(*parts, strict=True))  # labels, and weights if given
        with torch.no_grad():
            rollout = self.roll_out(snapshot, torch.cat([snapshot.context(part[0]) for part in parts], -2), shard)
            estimates = self.estimate_advantages(rollout, *targets, shard=shard)
        start = 0
        for inputs, *targets in parts:
            rows = slice(start, start := start + len(inputs))
            heads = self.replay(model, model.context(inputs), rollout.log_actions[:, :, rows])
            loss, metrics = self.actor_critic_loss(heads, rollout.take(rows), estimates.take(rows), *targets)
            yield loss, metrics | {"classifier_norm": model.refiner.policy.weight.detach().norm()}

    def replay(
        self,
        model: RecurrentClassifier,
        context: Float[Tensor, "*steps batch gates"],
        log_actions: Float[Tensor, "steps rollouts batch classes"],
    ) -> Heads:
        """Heads of the current network along the actions of a roll-out, all steps at once."""
        prior = torch.full_like(log_actions[:1], -math.log(model.classes))
        beliefs = torch.cat([prior, log_actions[:-1]]).exp()
        thoughts = model.refiner.replay(context, beliefs)
        heads = model.refiner.heads(thoughts)
        return heads._replace(value=exits.replayed_values(model, heads, thoughts, beliefs))

    def standardized(
        self, estimates: Estimates, weights: Float[Tensor, "batch"] | None, shard: Shard | None
    ) -> Estimates:
        """Advantages with mean 0 and standard deviation 1 over the minibatch of all processes; an example of weight 2
        counts twice. The standard deviation is that of `advantages` + `own_advantages`, as with joint credit."""
        advantages, sampled = estimates.advantages, estimates.advantages + estimates.own_advantages
        if shard is not None:
            advantages, sampled = shard.all_gather(advantages, -1), shard.all_gather(sampled, -1)
            weights = None if weights is None else shard.all_gather(weights, -1)
        mean, std = mdp.mean(advantages, weights), mdp.std(sampled, weights)
        return Estimates(  # torch.compile of PyTorch 2.11 miscompiles _replace
            estimates.log_scores,
            (estimates.advantages - mean) / std,
            estimates.own_advantages / std,
            estimates.targets,
            estimates.reward_coefficient / std,
        )

    def metrics(
        self,
        heads: Heads,
        policy: SimplexPolicy,
        log_ratio: Float[Tensor, "steps rollouts batch"],
        estimates: Estimates,
        labels: Int64[Tensor, "batch"],
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

    # Title, and settings without effect

    @classmethod
    def title_of(cls, settings: Mapping[str, Any]) -> str:
        return f"{cls.title}, marginal credit" if settings.get("credit") == "marginal" else cls.title

    def without_effect(self, exits: bool) -> dict[str, str]:
        idle = {"gae_lambda": "with exits the advantages are Monte-Carlo returns"} if exits else {}
        return idle | ({"alpha_floor": "the logistic-normal policy has no α"} if self.head == "logistic-normal" else {})

    # Inference

    @property
    def halts_by_value(self) -> bool:
        return True

    @property
    def draws(self) -> bool:
        return self.feedback == "sample"

    def step(self, model: RecurrentClassifier, pool: Pool, first: bool) -> Step:
        """One step at inference. Without exits, the value is V(s_t), so an example that halts here answers with the
        belief of the previous step; the first step is always made. With exits, the value is V(s_{t+1}), so an example
        that halts here answers with the belief of this step."""
        thought = model.refiner.think(pool.context, pool.thought, pool.belief)
        heads = model.refiner.heads(thought, pool.heads)
        policy = self.policy(heads)
        mean = policy.log_mean()
        belief = (mean if self.feedback == "mean" else policy.sample(current())).exp()
        output = mean if self.readout == "mean" else policy.read(self.readout)
        value = exits.next_value(model, heads.value, (thought, belief))
        everyone = torch.ones_like(value, dtype=torch.bool)
        step = Step(pool._replace(thought=thought, belief=belief), output, value, everyone)
        return step._replace(going=self.goes_on(step)) if exits.may_halt(model, first) else step

    def goes_on(self, step: Step | Steps) -> Bool[Tensor, "*steps pool"]:
        return not_below(step.value, self.halt_threshold)

    def trajectory(self, steps: Steps) -> Trajectory:
        return Trajectory(steps.output, stop_before(self.goes_on(steps)), steps.value)
