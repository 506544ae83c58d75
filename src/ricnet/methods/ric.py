"""Reinforced Iterative Classification, Algorithm 1 of the paper.

Each round freezes a snapshot of the network. Until the next one, every minibatch is rolled out with the snapshot for
T steps; each step is rewarded with its gain in log-score (Eq. 1); the current network replays the same actions and is
moved towards those that did better than the value expected, by SPO.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Float, Int64, Num
from torch import Tensor

from ricnet.core import mdp, objectives
from ricnet.core.logistic_normal import LogisticNormal
from ricnet.core.simplex import Dirichlet, Readout, SimplexPolicy
from ricnet.core.trajectory import Trajectory, halting_step
from ricnet.errors import require, require_finite
from ricnet.methods.method import Method, Metrics, accuracy
from ricnet.nets.backbone import Backbone
from ricnet.nets.refiner import Heads, RecurrentClassifier


class Rollout(NamedTuple):
    """What the snapshot did on a minibatch."""

    log_actions: Float[Tensor, "steps rollouts batch classes"]
    policy: SimplexPolicy
    values: Float[Tensor, "steps+1 rollouts batch"]


@dataclass(frozen=True)
class RIC(Method[RecurrentClassifier]):
    name: ClassVar[str] = "ric"
    paper_epochs: ClassVar[int] = 2000

    horizon: int = 20
    """Steps T of a roll-out, and the most that inference takes. Raise it for more refinement, at proportional cost."""
    gamma: float = 0.8
    """Discount γ. Lower it and early beliefs matter more; raise it and the agent may take its time."""
    gae_lambda: float = 0.95
    """λ of the advantage estimate. Lower it to trust the value more (less variance, more bias)."""
    passes_per_snapshot: int = 5
    """P: passes through the training data with the same snapshot."""
    updates_per_snapshot: int | None = None
    """The same counted in updates; takes the place of P. Few updates learn fast, many refine more."""
    rollouts: int = 1
    """Roll-outs an input and update; they share the encoder's work. More give less noisy gradients."""
    head: Literal["dirichlet", "logistic-normal"] = "dirichlet"
    """Family of the policy over beliefs; logistic-normal (σ² = K/c) is the paper's ablation."""
    objective: Literal["spo", "ppo", "expected"] = "spo"
    """Surrogate of the return: spo (the paper), ppo, or expected (no sampling noise: E[log a_y] in closed form)."""
    epsilon: float = 0.2
    """ε of SPO (or of PPO's clip): how far the probability of an action may move from the snapshot's."""
    value_coef: float = 0.5
    """c_v: weight of the value's squared error."""
    entropy_coef: float = 0.0
    """Weight of an entropy bonus. Raise it if the policy stops exploring too soon."""
    label_baseline: bool = False
    """Rid each advantage of what the label tells before the step is made: less noise, the same mean policy gradient."""
    normalize_advantages: bool = True
    """Standardise advantages over each minibatch, jointly over steps, roll-outs and examples."""
    step_weight: Literal["uniform", "discounted"] = "uniform"
    """Weight of step t in the surrogate: uniform (common practice) or γ^{t−1} (the exact gradient of J)."""
    c_min: float = 1.0
    """Least concentration c of the Dirichlet policy."""
    c_max: float = 10.0
    """Largest concentration c. Raise it for many classes: it caps the mean belief at (c + ε)/(c + Kε)."""
    alpha_floor: float = 0.01
    """ε in α = μ·c + ε, the least parameter of the Dirichlet."""
    log_ratio_clamp: float | None = None
    """Limit on |log ρ|, which keeps one far-off action from overflowing the update; None for no limit."""
    reward_floor: float | None = None
    """Probability below which the true class counts as this in the reward; None for no floor."""
    halt_threshold: float = 0.0
    """Stop once the value falls below this. Raise it to stop earlier, lower it to think longer."""
    readout: Readout = "mean"
    """Reported belief: mean α/Σα (the paper), mu (softmax), implied (∝ 1/ψ'(α), ours)."""
    feedback: Literal["mean", "sample"] = "mean"
    """What inference feeds back: the policy's mean (the paper), or a sample, as in training, where V was learned."""

    def __post_init__(self) -> None:
        require_finite(self)
        require(self.horizon >= 1, "horizon", self.horizon, "at least 1")
        require(0 < self.gamma <= 1, "gamma", self.gamma, "above 0 and at most 1")
        require(0 <= self.gae_lambda <= 1, "gae_lambda", self.gae_lambda, "from 0 to 1")
        require(self.passes_per_snapshot >= 1, "passes_per_snapshot", self.passes_per_snapshot, "at least 1")
        updates = self.updates_per_snapshot
        require(updates is None or updates >= 1, "updates_per_snapshot", updates, "at least 1, or None")
        require(self.rollouts >= 1, "rollouts", self.rollouts, "at least 1")
        require(self.epsilon > 0, "epsilon", self.epsilon, "above 0")
        require(0 < self.c_min <= self.c_max, "c_min", self.c_min, f"above 0 and at most c-max, {self.c_max}")
        require(self.alpha_floor > 0, "alpha_floor", self.alpha_floor, "above 0")
        floor = self.reward_floor
        require(floor is None or 0 < floor < 1, "reward_floor", floor, "between 0 and 1, or None")
        clamp = self.log_ratio_clamp
        require(clamp is None or clamp > 0, "log_ratio_clamp", clamp, "above 0, or None")
        require(self.gamma < 1 or self.objective != "expected", "gamma", self.gamma, "below 1 for this --objective")
        if self.head == "logistic-normal":
            require(self.objective != "expected", "objective", self.objective, "spo or ppo for this --head")
            require(self.readout != "implied", "readout", self.readout, "mean or mu for this --head")

    @classmethod
    def fast(cls, rows: int, classes: int) -> "RIC":
        """Many more snapshots than the paper takes, more roll-outs, less noise in the advantages, and a Dirichlet that
        grows with the classes."""
        few = rows < 5_000
        return cls(
            updates_per_snapshot=2 if few else 10,
            rollouts=2 if few else 4,
            label_baseline=True,
            alpha_floor=0.1 / classes,
            c_max=float(max(10, classes)),
            log_ratio_clamp=10.0,
            reward_floor=1e-4,
        )

    def build(self, backbone: Backbone, classes: int) -> RecurrentClassifier:
        return RecurrentClassifier(backbone, backbone.embedding_size, classes)

    def snapshot_period(self, updates_per_pass: int) -> int:
        return self.updates_per_snapshot or self.passes_per_snapshot * updates_per_pass

    def loss(
        self,
        model: RecurrentClassifier,
        snapshot: RecurrentClassifier,
        inputs: Num[Tensor, "batch ..."],
        labels: Int64[Tensor, "batch"],
    ) -> tuple[Float[Tensor, ""], Metrics]:
        """Algorithm 1, lines 6 to 8."""
        rollout = self.roll_out(snapshot, inputs)
        scores = mdp.log_scores(rollout.log_actions, labels)
        if self.reward_floor is not None:
            scores = scores.clamp(min=math.log(self.reward_floor))
        rewards = mdp.rewards(scores, model.classes)
        advantages = mdp.advantages(rewards, rollout.values, self.gamma, self.gae_lambda)
        targets = advantages + rollout.values[:-1]
        if self.label_baseline:
            advantages = mdp.labelled_advantages(targets, scores, model.classes)
        if self.normalize_advantages:
            advantages = mdp.standardize(advantages)

        heads = self.replay(model, inputs, rollout.log_actions)
        policy = self.policy(heads)
        log_ratio = policy.log_ratio(rollout.policy, rollout.log_actions)
        if self.log_ratio_clamp is not None:
            log_ratio = log_ratio.clamp(-self.log_ratio_clamp, self.log_ratio_clamp)
        surrogate = self._surrogate(policy, log_ratio.exp(), advantages, labels)
        value_loss = objectives.value_loss(heads.value, targets).mean()
        loss = self.value_coef * value_loss - surrogate.mean()
        with torch.no_grad():
            metrics = self._metrics(heads, policy, log_ratio, rewards, targets, labels)
            metrics |= {"value_loss": value_loss.detach(), "classifier_norm": model.refiner.policy.weight.norm()}
        return loss, metrics

    def _surrogate(
        self,
        policy: SimplexPolicy,
        ratio: Float[Tensor, "steps rollouts batch"],
        advantages: Float[Tensor, "steps rollouts batch"],
        labels: Int64[Tensor, "batch"],
    ) -> Float[Tensor, "steps rollouts batch"]:
        """What stands for the return, step by step.

        `expected` takes the policy's own E[log a_{t,y}] in the sampled states, with the weights of Eq. 2: what the
        policy gradient estimates, less the effect of a_t on later states.
        """
        if self.objective == "expected":
            weights = self.horizon * mdp.geometric_weights(self.horizon, self.gamma, ratio.device)
            return policy.expected_log_score(labels) * weights.to(ratio.dtype)[:, None, None]
        surrogate: Tensor = getattr(objectives, self.objective)(ratio, advantages, self.epsilon)
        if self.entropy_coef:
            surrogate = surrogate + self.entropy_coef * policy.entropy()
        if self.step_weight == "discounted":
            weights = mdp.discounts(self.horizon, self.gamma, surrogate.device)
            surrogate = surrogate * weights.to(surrogate.dtype)[:, None, None]
        return surrogate

    @torch.no_grad()
    def roll_out(self, model: RecurrentClassifier, inputs: Num[Tensor, "batch ..."]) -> Rollout:
        """Sample T actions for each input and roll-out. V(s_{T+1}) takes one cell evaluation more than T."""
        refiner, context = model.refiner, model.refiner.read(model.backbone(inputs))
        thought = context.new_zeros(self.rollouts, len(inputs), refiner.size)
        log_action = context.new_full((self.rollouts, len(inputs), model.classes), -math.log(model.classes))
        log_actions, heads = [], []
        for _ in range(self.horizon):
            thought = refiner.think(context, thought, log_action.exp())
            heads.append(refiner.heads(thought))
            log_action = self.policy(heads[-1]).sample()
            log_actions.append(log_action)
        last = refiner.heads(refiner.think(context, thought, log_action.exp()))
        every = Heads(*(torch.stack(head) for head in zip(*heads, strict=True)))
        return Rollout(torch.stack(log_actions), self.policy(every), torch.cat([every.value, last.value[None]]))

    def replay(
        self,
        model: RecurrentClassifier,
        inputs: Num[Tensor, "batch ..."],
        log_actions: Float[Tensor, "steps rollouts batch classes"],
    ) -> Heads:
        """What the current network would have done in the states of a roll-out; all steps' heads at once."""
        prior = torch.full_like(log_actions[:1], -math.log(model.classes))
        beliefs = torch.cat([prior, log_actions[:-1]]).exp()
        context = model.refiner.read(model.backbone(inputs))
        return model.refiner.heads(model.refiner.replay(context, beliefs))

    def policy(self, heads: Heads) -> SimplexPolicy:
        """The paper's Dirichlet, α = μ·c + ε, or the logistic-normal of its ablation."""
        log_mu, concentration = heads.logits.log_softmax(-1), self._concentration(heads)
        if self.head == "logistic-normal":
            return LogisticNormal.around(log_mu, concentration)
        return Dirichlet.around(log_mu, concentration, self.alpha_floor)

    def _concentration(self, heads: Heads) -> Float[Tensor, "*batch"]:
        """c is held in its range by a sigmoid, which unlike a hard clip has a gradient everywhere."""
        return self.c_min + (self.c_max - self.c_min) * heads.concentration.sigmoid()

    @torch.no_grad()
    def refine(
        self,
        model: RecurrentClassifier,
        inputs: Num[Tensor, "batch ..."],
        max_steps: int | None = None,
        halt: bool = False,
    ) -> Trajectory:
        """Refine without exploring. With `halt`, examples leave the batch as their value falls below 0."""
        steps = max_steps or self.horizon
        refiner, context = model.refiner, model.refiner.read(model.backbone(inputs))
        thought = context.new_zeros(len(inputs), refiner.size)
        belief = context.new_full((len(inputs), model.classes), 1 / model.classes)
        log_beliefs = context.new_empty(steps, len(inputs), model.classes)
        values = context.new_empty(steps, len(inputs))
        active = torch.arange(len(inputs), device=context.device)
        for step in range(steps):
            thought = refiner.think(context, thought, belief)
            heads = refiner.heads(thought)
            values[step, active] = heads.value
            going = ~(heads.value < self.halt_threshold)
            if halt and step > 0 and not going.all():
                stopped = active[~going]
                values[step:, stopped] = values[step, stopped]
                log_beliefs[step:, stopped] = log_beliefs[step - 1, stopped]
                active, thought, context = active[going], thought[going], context[going]
                heads = Heads(*(head[going] for head in heads))
                if len(active) == 0:
                    break
            policy = self.policy(heads)
            log_beliefs[step, active] = policy.read(self.readout)
            belief = (policy.log_mean() if self.feedback == "mean" else policy.sample()).exp()
        return Trajectory(log_beliefs, halting_step(values, self.halt_threshold), values)

    def _metrics(
        self,
        heads: Heads,
        policy: SimplexPolicy,
        log_ratio: Float[Tensor, "steps rollouts batch"],
        rewards: Float[Tensor, "steps rollouts batch"],
        targets: Float[Tensor, "steps rollouts batch"],
        labels: Int64[Tensor, "batch"],
    ) -> Metrics:
        """What people who train agents look at first."""
        classes = heads.logits.shape[-1]
        ratio = log_ratio.exp()
        return {
            "accuracy": accuracy(heads.logits[-1], labels),
            "return": rewards.sum(0).mean() / math.log(classes),
            "approx_kl": (ratio - 1 - log_ratio).mean(),
            "ratio_deviation": (ratio - 1).abs().mean(),
            "explained_variance": objectives.explained_variance(heads.value, targets),
            "mean_c": self._concentration(heads).mean(),
            "entropy": policy.entropy().mean(),
            "variance_penalty": policy.variance_penalty(labels).mean(),
            "logit_norm": heads.logits.norm(dim=-1).mean(),
        }
