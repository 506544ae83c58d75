"""What the algorithms of RIC share: the policy over beliefs, a batch learned from in parts, and inference.

`ric` is Algorithm 1, `on_policy` and `closed_form` are ours. Here is what stays the same in all of them.
"""

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int64, Num
from torch import Tensor

from ricnet.core import mdp, objectives
from ricnet.core.policies import Dirichlet, LogisticNormal, Readout, SimplexPolicy
from ricnet.core.randomness import current
from ricnet.core.trajectory import Trajectory, not_below, stop_before
from ricnet.distributed import Shard
from ricnet.errors import require, require_finite
from ricnet.methods import exits
from ricnet.methods.inference import Pool, Step, Steps
from ricnet.methods.iterative import Iterative
from ricnet.methods.method import Batch, Metrics, accuracy
from ricnet.nets.backbone import Backbone
from ricnet.nets.refiner import Heads, RecurrentClassifier


class Rollout(NamedTuple):
    """What the snapshot did on a minibatch."""

    log_actions: Float[Tensor, "steps rollouts batch classes"]
    policy: SimplexPolicy
    values: Float[Tensor, "steps+1 rollouts batch"]
    """V(s_1) … V(s_{T+1})."""
    costs: Float[Tensor, "steps"] | None = None
    """With exits, the share of compute that each step takes."""

    def take(self, rows: slice) -> "Rollout":
        return Rollout(self.log_actions[:, :, rows], self.policy.take(rows), self.values[:, :, rows], self.costs)


class Estimates(NamedTuple):
    """What a roll-out says about its actions."""

    log_scores: Float[Tensor, "steps rollouts batch"]
    """log a_{t,y} of the sampled beliefs."""
    advantages: Float[Tensor, "steps rollouts batch"]
    """Â_t."""
    own_advantages: Float[Tensor, "steps rollouts batch"]
    """The part of log a_{t,y} that `advantages` leave out: with marginal credit and in closed form how much better it
    is than the E[log a_{t,y}] of its policy, with joint credit 0."""
    targets: Float[Tensor, "steps rollouts batch"]
    """R̂_t, which the value learns."""
    reward_coefficient: Float[Tensor, "steps 1 1"]
    """Weight of log a_{t,y} in the return of step t."""

    def take(self, rows: slice) -> "Estimates":
        log_scores, advantages, own_advantages, targets = (tensor[:, :, rows] for tensor in self[:4])
        return Estimates(log_scores, advantages, own_advantages, targets, self.reward_coefficient)


@dataclass(frozen=True)
class Agent(Iterative):
    # The policy
    head: Literal["dirichlet", "logistic-normal"] = "dirichlet"
    """Family of the policy over beliefs; logistic-normal (σ² = K/c) is the paper's ablation."""
    c_min: float = 1.0
    """Least concentration c of the Dirichlet policy. Raise it for less exploration."""
    c_max: float = 10.0
    """Largest concentration c. Raise it for many classes: it caps the mean belief at (c + ε)/(c + Kε)."""
    c_range: Literal["sigmoid", "clip"] = "sigmoid"
    """How c stays between its limits: sigmoid, which has a gradient everywhere, or clip, as the paper says, which has
    none once c has left its range. Both start in the middle."""
    alpha_floor: float = 0.01
    """ε in α = μ·c + ε, the least parameter of the Dirichlet. Raise it to cap the mean belief lower; lower it and
    samples come nearer to 0, where log-scores are noisy."""
    head_gain: float = 0.01
    """Size of the policy head's first weights. Near 0 all beliefs are uniform until something has been learned, else
    sampled rewards spend their first epochs on random convictions; in closed form and with marginal credit 1 learns
    faster."""
    # The readout
    halt_threshold: float = 0.0
    """Stop once the value falls below this. Raise it to stop earlier, lower it to think longer."""
    readout: Readout = "mean"
    """Reported belief: mean α/Σα (the paper), mu (softmax), implied (∝ 1/ψ'(α), ours)."""
    feedback: Literal["mean", "sample"] = "mean"
    """What inference feeds back: the policy's mean (the paper), or a sample, as in training, where V was learned."""
    # Noise of the advantages
    normalize_advantages: bool = True
    """Standardise advantages over each minibatch, jointly over steps, roll-outs and examples."""
    label_baseline: bool = False
    """Compare each roll-out with the other roll-outs of its input, which share the label, instead of with the value:
    less noise, a mean policy gradient of the same direction. Needs at least 2 roll-outs."""
    credit: Literal["joint", "marginal"] = "joint"
    """What the gain of a step is credited to: the whole belief that was drawn (joint, the paper), or only its
    probability of the label (marginal): a mean policy gradient of the same direction without the noise of the other
    classes, which matters more the more there are. The effect of a belief on later steps is credited to all of it
    either way, with marginal by E[log a_y] instead of what they drew."""
    reward_floor: float | None = None
    """Probability below which the true class counts as this in the reward; None for no floor. Raise it for calmer
    rewards, lower it so that even the worst beliefs are told apart. Better None with marginal credit: the floor of an
    expectation is not the expectation of a floor."""
    # Exits
    compute_price: float = 0.0
    """λ: nats that the work of the whole network costs; only with --exits. The value then counts what is still to
    be gained less the price of looking. Raise it to leave earlier; with 0 --budget decides after training."""

    def __post_init__(self) -> None:
        require_finite(self)
        require(0 < self.c_min <= self.c_max, "c_min", self.c_min, f"above 0 and at most c-max, {self.c_max}")
        require(self.alpha_floor > 0, "alpha_floor", self.alpha_floor, "above 0")
        require(self.head_gain > 0, "head_gain", self.head_gain, "above 0")
        require(self.compute_price >= 0, "compute_price", self.compute_price, "0 or more")
        floor = self.reward_floor
        require(floor is None or 0 < floor < 1, "reward_floor", floor, "between 0 and 1, or None")
        if not self.rewards_log_score():
            require(floor is None, "reward_floor", floor, f"None for {self.name}, which has its own score")
            require(self.credit == "joint", "credit", self.credit, f"joint for {self.name}, which has its own score")
        if self.credit == "marginal":
            require(self.head == "dirichlet", "credit", self.credit, "joint for this head, whose a_y has no density")
        if self.head == "logistic-normal":
            require(self.readout != "implied", "readout", self.readout, "mean or mu for this head")

    # The network, and the policy that it parametrises

    def build(self, backbone: Backbone, classes: int) -> RecurrentClassifier:
        size, spread = backbone.embedding_size, self.spread_outputs(classes)
        model = RecurrentClassifier(backbone, size, classes, self.head_gain, spread)
        exits.train_value(model, True)
        return model

    def spread_outputs(self, classes: int) -> int:
        """Outputs of the network for the spread of the policy, beside a logit for each class: here c alone. A policy
        of your own may ask for more; `Heads.concentration` then has an axis for them."""
        return 1

    def policy(self, heads: Heads) -> SimplexPolicy:
        """The paper's Dirichlet, α = μ·c + ε, or the logistic-normal of its ablation."""
        log_mu, concentration = heads.logits.log_softmax(-1), self.concentration(heads)
        if self.head == "logistic-normal":
            return LogisticNormal.around(log_mu, concentration)
        return Dirichlet.around(log_mu, concentration, self.alpha_floor)

    def concentration(self, heads: Heads) -> Float[Tensor, "*batch"]:
        """c, within its range."""
        if self.c_range == "clip":
            return (heads.concentration + (self.c_min + self.c_max) / 2).clamp(self.c_min, self.c_max)
        return self.c_min + (self.c_max - self.c_min) * heads.concentration.sigmoid()

    def sample(
        self, heads: Heads, generator: torch.Generator | None, shard: Shard | None
    ) -> Float[Tensor, "rollouts batch classes"]:
        """log a for a ~ π. Each process samples for the whole minibatch and keeps its own rows, so that the noise of
        an example does not depend on the number of processes."""
        if shard is None:
            return self.policy(heads).sample(generator)
        logits, concentration = (shard.all_gather(head, 1) for head in (heads.logits, heads.concentration))
        whole = heads._replace(logits=logits, concentration=concentration)
        return self.policy(whole).sample(generator)[:, shard.own]

    # A minibatch

    def score(
        self, log_beliefs: Float[Tensor, "*steps batch classes"], labels: Int64[Tensor, "batch"]
    ) -> Float[Tensor, "*steps batch"]:
        """log a_y, whose gain is the reward (Eq. 1). Override it for another reward."""
        return mdp.log_scores(log_beliefs, labels)

    @classmethod
    def rewards_log_score(cls) -> bool:
        """Whether `score` is the paper's: closed forms, marginal credit and the reward floor are of that one only."""
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
        """`loss` in parts. The whole minibatch is rolled out, without gradient, before the first part is learned from:
        noise and advantages are those of one pass. Where the network is its own snapshot, the encoder runs once more
        for that."""
        if len(parts) == 1:
            yield self.loss(model, snapshot, *parts[0], shard=shard)
            return
        _, *targets = map(torch.cat, zip(*parts, strict=True))  # labels, and weights where there are any
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
        """What the current network does in the states of a roll-out: the heads of all steps at once."""
        prior = torch.full_like(log_actions[:1], -math.log(model.classes))
        beliefs = torch.cat([prior, log_actions[:-1]]).exp()
        thoughts = model.refiner.replay(context, beliefs)
        heads = model.refiner.heads(thoughts)
        return heads._replace(value=exits.replayed_values(model, heads, thoughts, beliefs))

    def standardized(
        self, estimates: Estimates, weights: Float[Tensor, "batch"] | None, shard: Shard | None
    ) -> Estimates:
        """Advantages with mean 0 and standard deviation 1 over the whole minibatch, on whichever process its rows are;
        an example of weight 2 counts twice. The scale is that of sampled rewards, also where a step's own reward is
        not its sample."""
        advantages, sampled = estimates.advantages, estimates.advantages + estimates.own_advantages
        if shard is not None:
            advantages, sampled = shard.all_gather(advantages, -1), shard.all_gather(sampled, -1)
            weights = None if weights is None else shard.all_gather(weights, -1)
        mean, std = mdp.mean(advantages, weights), mdp.std(sampled, weights)
        return Estimates(  # not _replace, which the compiler of PyTorch 2.11 gets wrong
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
        """The usual diagnostics of a policy gradient, and of the policy itself."""
        ratio = log_ratio.exp()
        return {
            "accuracy": accuracy(heads.logits[-1], labels),
            "approx_kl": (ratio - 1 - log_ratio).mean(),
            "ratio_deviation": (ratio - 1).abs().mean(),
            "explained_variance": objectives.explained_variance(heads.value, estimates.targets),
            "mean_c": self.concentration(heads).mean(),
            "entropy": policy.entropy().mean(),
            "variance_penalty": policy.variance_penalty(labels).mean(),
            "logit_norm": heads.logits.norm(dim=-1).mean(),
            "return": mdp.normalized_return(estimates.log_scores[-1], heads.logits.shape[-1]).mean(),
        }

    # What it is called, and what has no effect

    @classmethod
    def title_of(cls, settings: Mapping[str, Any]) -> str:
        return f"{cls.title}, marginal credit" if settings.get("credit") == "marginal" else cls.title

    def without_effect(self, exits: bool) -> dict[str, str]:
        idle = {"gae_lambda": "with exits the value is no bootstrap"} if exits else {}
        return idle | ({"alpha_floor": "that policy has no α"} if self.head == "logistic-normal" else {})

    # Inference

    @property
    def halts_by_value(self) -> bool:
        return True

    @property
    def draws(self) -> bool:
        return self.feedback == "sample"

    def step(self, model: RecurrentClassifier, pool: Pool, first: bool) -> Step:
        """One step without exploring. The value is read before the belief of the same step, so an example that stops
        here answers with the belief of the step before. The first step is always made. With exits it is read after it,
        of the next step, and one that stops here answers with this belief."""
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
