"""`Agent`, the actor-critic of the three RIC algorithms: its network, its policy over beliefs, and inference.

`ric` is Algorithm 1 of the paper; `on_policy` and `closed_form` are variants that are not in the paper.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ricnet.core.policies import Dirichlet, LogisticNormal, Readout, SimplexPolicy, current
from ricnet.core.trajectory import Trajectory, not_below, stop_before
from ricnet.distributed import Shard
from ricnet.errors import RicnetError, require, setting, whole_number
from ricnet.methods.inference import Iterative, Pool, Step, Steps
from ricnet.nets.backbone import Backbone
from ricnet.nets.refiner import Heads, RecurrentClassifier


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
        super().__post_init__()
        require(0 < self.c_min <= self.c_max, "c_min", self.c_min, f"above 0 and at most c-max, {self.c_max}")
        require(self.alpha_floor > 0, "alpha_floor", self.alpha_floor, "above 0")
        require(self.head_gain > 0, "head_gain", self.head_gain, "above 0")
        require(self.compute_price >= 0, "compute_price", self.compute_price, "0 or more")
        floor = self.reward_floor
        require(floor is None or 0 < floor < 1, "reward_floor", floor, "between 0 and 1, or None")
        if self.head == "logistic-normal":
            beside = f"with {setting('head', self.head)}"
            require(self.credit != "marginal", "credit", self.credit, f"joint {beside}")
            require(self.readout != "implied", "readout", self.readout, f"mean or mu {beside}")

    # Network and policy

    def build(self, backbone: Backbone, classes: int) -> RecurrentClassifier:
        asked = f"{type(self).__name__}.spread_outputs({classes})"
        spread = whole_number(self.spread_outputs(classes), asked)
        if spread < 1:
            raise RicnetError(f"{asked} is {spread}; it must be at least 1, even if policy(heads) does not use it.")
        model = RecurrentClassifier(backbone, backbone.embedding_size, classes, self.head_gain, spread)
        model.train_value(True)
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
        value = model.halting_value(heads.value, thought, belief)
        everyone = torch.ones_like(value, dtype=torch.bool)
        step = Step(pool._replace(thought=thought, belief=belief), output, value, everyone)
        return step if first and not model.has_exits else step._replace(active=self.goes_on(step))

    def goes_on(self, step: Step | Steps) -> Bool[Tensor, "*steps pool"]:
        return not_below(step.value, self.halt_threshold)

    def trajectory(self, steps: Steps) -> Trajectory:
        return Trajectory(steps.output, stop_before(self.goes_on(steps)), steps.value)

    # Title, and settings without effect

    @classmethod
    def title_of(cls, settings: Mapping[str, Any]) -> str:
        return f"{cls.title}, marginal credit" if settings.get("credit") == "marginal" else cls.title

    def without_effect(self, exits: bool) -> dict[str, str]:
        idle = {"gae_lambda": "with exits the advantages are Monte-Carlo returns"} if exits else {}
        return idle | ({"alpha_floor": "the logistic-normal policy has no α"} if self.head == "logistic-normal" else {})
