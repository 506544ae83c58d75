"""Reinforced Iterative Classification: Algorithm 1 of the paper, and what it becomes without its snapshots.

Each round freezes a snapshot of the network. Until the next one, every minibatch is rolled out with the snapshot for
T steps; each step is rewarded with its gain in log-score (Eq. 1); the current network replays the same actions and is
moved towards those that did better than the value expected, by SPO. With a snapshot after every update the network is
its own (on-policy); with marginal `credit` the gain of a step speaks about a_y alone, not about the whole belief; with
`exact_gain` a step is rewarded in closed form.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64, Num
from torch import Tensor

from ricnet.core import mdp, objectives
from ricnet.core.policies import Dirichlet, LogisticNormal, Readout, SimplexPolicy
from ricnet.core.randomness import current
from ricnet.core.trajectory import Trajectory, not_below, stop_before
from ricnet.distributed import Shard
from ricnet.errors import RicnetError, require, require_finite, setting
from ricnet.methods.iterative import Iterative, Pool, Step, Steps, outset
from ricnet.methods.method import Batch, Metrics, accuracy, weighted_mean
from ricnet.nets.encoders import Backbone
from ricnet.nets.refiner import Heads, HeadWeights, RecurrentClassifier, Refiner, at_step


class Rollout(NamedTuple):
    """What the snapshot did on a minibatch."""

    log_actions: Float[Tensor, "steps rollouts batch classes"]
    policy: SimplexPolicy
    values: Float[Tensor, "steps+1 rollouts batch"]
    costs: Float[Tensor, "steps"] | None = None
    """With exits, the share of compute that each step takes. The roll-out is then over at its end."""

    def take(self, rows: slice) -> "Rollout":
        return Rollout(self.log_actions[:, :, rows], self.policy.take(rows), self.values[:, :, rows], self.costs)


class Estimates(NamedTuple):
    """What a roll-out says about its actions."""

    log_scores: Float[Tensor, "steps rollouts batch"]
    """log a_{t,y} of the sampled beliefs."""
    advantages: Float[Tensor, "steps rollouts batch"]
    own_advantages: Float[Tensor, "steps rollouts batch"]
    """How much better log a_{t,y} is than the E[log a_{t,y}] of its policy, where the advantages leave that out (with
    marginal credit and in closed form); else 0."""
    targets: Float[Tensor, "steps rollouts batch"]
    """R̂_t, which the value learns."""
    reward_coefficient: Float[Tensor, "steps 1 1"]
    """How much of log a_{t,y} there is in the outcome of step t."""

    def take(self, rows: slice) -> "Estimates":
        log_scores, advantages, own_advantages, targets = (tensor[:, :, rows] for tensor in self[:4])
        return Estimates(log_scores, advantages, own_advantages, targets, self.reward_coefficient)


FEW_ROWS, MOST_JOINT = 5_000, 20
"""Below so many rows, up to so many classes, `fast` judges a drawn belief as a whole (docs/experiments.md)."""
MOST_JOINT_OF_A_TABLE = 5
"""The same of a table, which is learned from in fewer updates."""


def joint_range(classes: int) -> dict[str, Any]:
    """Where the Dirichlet lies if its samples are judged as a whole: it explores, and begins at the uniform. It grows
    with the classes, so that its mean can come as near to certainty for many as for ten."""
    return {"c_max": float(max(10, classes)), "alpha_floor": 0.1 / classes, "head_gain": 0.01}


def exact_range(classes: int) -> dict[str, Any]:
    """The same where little noise is left, with marginal credit and in closed form: closer to what it means."""
    return {"c_max": float(10 * max(10, classes)), "alpha_floor": 0.1, "head_gain": 1.0}


@dataclass(frozen=True)
class RIC(Iterative):
    name: ClassVar[str] = "ric"
    title: ClassVar[str] = "RIC"
    about: ClassVar[str] = "Reinforced Iterative Classification; with the preset fast on-policy"
    colour: ClassVar[str] = "#0072b2"
    search_space: ClassVar[tuple[str, ...]] = (
        *("epsilon=0.05..0.5:log", "gae_lambda=0.5..1", "updates_per_snapshot=1..20:log", "rollouts=1,2,4"),
    )
    paper_epochs: ClassVar[int] = 2000
    compiled: ClassVar[tuple[str, ...]] = ("explore", "estimate_advantages", "actor_critic_loss")

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
    """The same counted in updates; takes the place of P. Few updates learn fast, many refine more. With 1 the network
    is its own snapshot, and the encoder runs once an update instead of twice."""
    rollouts: int = 1
    """Roll-outs an input and update; they share the encoder's work. More give less noisy gradients."""
    head: Literal["dirichlet", "logistic-normal"] = "dirichlet"
    """Family of the policy over beliefs; logistic-normal (σ² = K/c) is the paper's ablation."""
    objective: Literal["spo", "ppo", "expected"] = "spo"
    """Surrogate of the return: spo (the paper), ppo, or expected (no sampling noise: E[log a_y] in closed form)."""
    epsilon: float = 0.2
    """ε of SPO (or of PPO's clip): how far the probability of an action may move from the snapshot's. Raise it for
    larger moves, lower it if ratio_deviation grows."""
    value_coef: float = 0.5
    """c_v: weight of the value's squared error. Raise it if explained_variance stays low, lower it if accuracy
    suffers."""
    compute_price: float = 0.0
    """λ: nats that the work of the whole network costs; only with --exits. The value then counts what is still to
    be gained less the price of looking. Raise it to leave earlier; with 0 --budget decides after training."""
    entropy_coef: float = 0.0
    """Weight of an entropy bonus. Raise it if the policy stops exploring too soon."""
    label_baseline: bool = False
    """Rid each advantage of what the label tells before the step is made: less noise, a mean policy gradient of the
    same direction."""
    credit: Literal["joint", "marginal"] = "joint"
    """What the gain of a step is credited to: all of the belief that was drawn (joint, the paper), or what it gave to
    the label alone (marginal): a mean policy gradient of the same direction without the noise of the other classes,
    which matters more the more there are; `fast` has it from 5,000 training rows on, for photographs, for tables and
    texts of more than five classes, and from 21 classes on. Not with exact_gain, logistic-normal or expected. What a
    belief does to later steps is credited to all of it either way, with marginal by E[log a_y] instead of what they
    drew."""
    exact_gain: bool = False
    """Reward a step with the E[log a_y] of its policy, in closed form, rather than with the log a_y of its sample: far
    less noise, a mean policy gradient of the same direction. What an action does to later states is still sampled."""
    normalize_advantages: bool = True
    """Standardise advantages over each minibatch, jointly over steps, roll-outs and examples."""
    step_weight: Literal["uniform", "discounted"] = "uniform"
    """Weight of step t in the surrogate: uniform (common practice) or γ^{t−1} (the exact gradient of J)."""
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
    sampled rewards spend their first epochs on random convictions; with exact ones and with marginal credit 1 learns
    faster."""
    log_ratio_clamp: float | None = 10.0
    """Limit on |log ρ|, which keeps one far-off action from overflowing the update; None for no limit. Lower it if
    updates blow up."""
    reward_floor: float | None = None
    """Probability below which the true class counts as this in the reward; None for no floor. Raise it for calmer
    rewards, lower it so that even the worst beliefs are told apart. With exact_gain leave it at None, and better
    with marginal credit too: the floor of an expectation is not the expectation of a floor."""
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
        require(self.value_coef >= 0, "value_coef", self.value_coef, "0 or more")
        require(self.compute_price >= 0, "compute_price", self.compute_price, "0 or more")
        require(0 < self.c_min <= self.c_max, "c_min", self.c_min, f"above 0 and at most c-max, {self.c_max}")
        require(self.head_gain > 0, "head_gain", self.head_gain, "above 0")
        require(self.alpha_floor > 0, "alpha_floor", self.alpha_floor, "above 0")
        floor = self.reward_floor
        require(floor is None or 0 < floor < 1, "reward_floor", floor, "between 0 and 1, or None")
        clamp = self.log_ratio_clamp
        require(clamp is None or clamp > 0, "log_ratio_clamp", clamp, "above 0, or None")
        require(self.gamma < 1 or self.objective != "expected", "gamma", self.gamma, "below 1 for this objective")
        if self.exact_gain:
            require(self.objective != "expected", "objective", self.objective, "spo or ppo with exact_gain")
        if not self.rewards_log_score():
            which = f"off for {self.name}, whose score has no closed form here"
            require(not self.exact_gain, "exact_gain", self.exact_gain, which)
            require(self.objective != "expected", "objective", self.objective, f"spo or ppo for {self.name}")
        if self.head == "logistic-normal":
            require(self.objective != "expected", "objective", self.objective, "spo or ppo for this head")
            require(not self.exact_gain, "exact_gain", self.exact_gain, "off for this head, which has no closed form")
            require(self.readout != "implied", "readout", self.readout, "mean or mu for this head")
        if self.credit == "marginal":
            self._require_marginal()

    def _require_marginal(self) -> None:
        """What the density of a_y alone needs, and what would have no meaning beside it."""
        if self.exact_gain:
            raise RicnetError(
                f"{setting('credit', 'marginal')} and {setting('exact_gain', True)} exclude each other; give "
                f"{setting('exact_gain', False)} or {setting('credit', 'joint')}."
            )
        require(self.rewards_log_score(), "credit", self.credit, f"joint for {self.name}, which has its own score")
        require(self.objective != "expected", "credit", self.credit, "joint where no belief is credited")
        require(self.head == "dirichlet", "credit", self.credit, "joint for this head, whose a_y has no density here")

    @classmethod
    def title_of(cls, settings: Mapping[str, Any]) -> str:
        """Three algorithms go by the name RIC. Alone it is Algorithm 1: sampled, and a snapshot lasts several updates.

        On-policy the network is its own snapshot, so SPO has nothing to hold it to. The closed form rewards a step
        with E[log a_y] and samples only its effect on later steps. Expected has no policy gradient. With marginal
        credit the first two say so.
        """
        if settings.get("objective") == "expected":
            return f"{cls.title}, expected"
        if settings.get("exact_gain"):
            return f"{cls.title}, closed form"
        sampled = f"{cls.title}, on-policy" if settings.get("updates_per_snapshot") == 1 else cls.title
        return f"{sampled}, marginal credit" if settings.get("credit") == "marginal" else sampled

    @classmethod
    def fast(cls, rows: int, classes: int) -> "RIC":
        return cls.on_policy(rows, classes)

    @classmethod
    def for_exits(cls, rows: int, classes: int) -> "RIC":
        """In closed form: each exit answers once a roll-out, so that sampled rewards say too little about it. On
        CIFAR-10, in 30 epochs, on-policy with joint credit learned 74 %, with each exit for itself and 16 roll-outs
        88 %, this 93 % (docs/exits.md)."""
        if not cls.rewards_log_score():
            return replace(cls.on_policy(rows, classes), gamma=0.01, rollouts=16)
        return cls.closed_form(rows, classes)

    @classmethod
    def for_few_images(cls, rows: int, classes: int) -> "RIC":
        """As with many rows: they have more to say than those of a small table
        (docs/experiments.md#photographs-and-small-images-on-a-cpu)."""
        return cls.fast(max(rows, FEW_ROWS), classes)

    @classmethod
    def for_tables(cls, rows: int, classes: int) -> "RIC":
        """Few rows of many classes learn little from beliefs judged as a whole: with 2,000 of ten classes 36 % were
        right instead of 60 % (docs/experiments.md#small-tables-of-several-classes)."""
        marginal = classes > MOST_JOINT_OF_A_TABLE and cls.rewards_log_score()
        return cls.fast(max(rows, FEW_ROWS) if marginal else rows, classes)

    @classmethod
    def for_features(cls, rows: int, classes: int) -> "RIC":
        """Few rows are learned from in a hundred updates or two: too few to leave a uniform policy behind, or to make
        something of two noisy roll-outs (docs/experiments.md#few-rows-of-features)."""
        fast = cls.fast(rows, classes)
        return replace(fast, rollouts=8, gae_lambda=0.0, **exact_range(classes)) if rows < FEW_ROWS else fast

    @classmethod
    def on_policy(cls, rows: int, classes: int) -> "RIC":
        """The network is its own snapshot, so that nothing holds the policy back, and an advantage is of one step,
        against the other roll-outs of the same input. Only what a belief gave to the label is judged; that leaves so
        little noise that the policy has the range of the closed form (docs/experiments.md#marginal-credit). Few rows of
        few classes are judged as a whole."""
        if not cls.rewards_log_score() or (rows < FEW_ROWS and classes <= MOST_JOINT):
            return cls.joint(rows, classes)
        exact = cls.closed_form(rows, classes)
        return replace(exact, exact_gain=False, credit="marginal", rollouts=4, gae_lambda=0.0)

    @classmethod
    def joint(cls, rows: int, classes: int) -> "RIC":
        """On-policy, with beliefs judged as a whole, as the paper does; with many rows by one step (λ = 0)."""
        few = rows < FEW_ROWS
        return cls(
            updates_per_snapshot=1,
            rollouts=2 if few else 4,
            gae_lambda=0.95 if few else 0.0,
            label_baseline=True,
            reward_floor=1e-4 if few else None,
            **joint_range(classes),
        )

    @classmethod
    def snapshots(cls, rows: int, classes: int) -> "RIC":
        """Algorithm 1 with many short rounds where the paper has 400 long ones. Many classes learn nothing from whole
        beliefs, so that there it has marginal credit."""
        sampled = cls.joint if classes <= MOST_JOINT else cls.on_policy
        return replace(sampled(rows, classes), updates_per_snapshot=2, epsilon=0.5)

    @classmethod
    def closed_form(cls, rows: int, classes: int) -> "RIC":
        """Rewards in closed form, which leave little of reinforcement (docs/concepts.md)."""
        return cls(
            updates_per_snapshot=1,
            rollouts=2,
            label_baseline=True,
            exact_gain=True,
            **exact_range(classes),
        )

    def making_room(self, given: Mapping[str, Any], classes: int) -> "RIC":
        """Marginal credit and rewards in closed form exclude each other, and some settings exclude both. Who is judged
        in another way than the preset's has the range that suits it."""
        if given.get("credit") == "marginal" and self.credit == "joint":
            return replace(self, exact_gain=False, reward_floor=None, **exact_range(classes))
        if given.get("exact_gain"):
            return replace(self, credit="joint", reward_floor=None, **exact_range(classes))
        if given.get("objective") == "expected":
            return replace(self, credit="joint", exact_gain=False)
        whole = given.get("credit") == "joint" or given.get("head") == "logistic-normal"
        if whole and (self.credit == "marginal" or self.exact_gain):
            return replace(self, credit="joint", exact_gain=False, **joint_range(classes))
        return self

    def build(self, backbone: Backbone, classes: int) -> RecurrentClassifier:
        model = RecurrentClassifier(backbone, backbone.embedding_size, classes, self.head_gain)
        model.refiner.value.requires_grad_(not model.has_exits)  # then unused: weight decay shall not move it either
        return model

    def snapshot_period(self, updates_per_pass: int) -> int:
        return self.updates_per_snapshot or self.passes_per_snapshot * updates_per_pass

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
        """Algorithm 1, lines 6 to 8: roll out, estimate advantages, replay, policy loss and value loss."""
        context = model.context(inputs)
        with torch.no_grad():
            rollout = self.roll_out(snapshot, context if snapshot is model else snapshot.context(inputs), shard)
            estimates = self.estimate_advantages(rollout, labels, weights, shard=shard)
        heads = self.replay(model, context, rollout.log_actions)
        loss, metrics = self.actor_critic_loss(heads, rollout, estimates, labels, weights)
        return loss, metrics | {"classifier_norm": model.refiner.policy.weight.detach().norm()}

    @torch.no_grad()
    def roll_out(
        self, model: RecurrentClassifier, context: Float[Tensor, "*steps batch gates"], shard: Shard | None = None
    ) -> Rollout:
        """Sample T actions for each input and roll-out. V(s_{T+1}) takes one cell evaluation more than T; after the
        last exit it is 0, for there is nothing more to see."""
        refiner, weights, generator = model.refiner, model.refiner.head_weights(), current()
        thought, belief = (start.repeat(self.rollouts, 1, 1) for start in outset(model, context))
        states, log_actions, heads = [], [], []
        for time in range(self.horizon):
            states.append((thought, belief))
            look = at_step(context, time)
            thought, belief, log_action, *seen = self.explore(refiner, weights, look, thought, belief, shard, generator)
            log_actions.append(log_action)
            heads.append(seen)
        every = Heads(*(torch.stack(head) for head in zip(*heads, strict=True)))
        if not model.has_exits:
            last = refiner.heads(refiner.think(context, thought, belief), weights)
            return Rollout(torch.stack(log_actions), self.policy(every), torch.cat([every.value, last.value[None]]))
        values = refiner.expect(*(torch.stack(part) for part in zip(*states, strict=True)))
        ahead = F.pad(values, (0, 0, 0, 0, 0, 1))
        return Rollout(torch.stack(log_actions), self.policy(every), ahead, model.step_costs)

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
        """One step of a roll-out: the next thought, the belief sampled from it, its logarithm, and the heads.

        Every process samples for the whole minibatch and keeps its own rows, so that the noise of an example does not
        depend on how many processes there are.
        """
        thought = refiner.think(context, thought, belief)
        heads = refiner.heads(thought, weights)
        if shard is None:
            log_action = self.policy(heads).sample(generator)
        else:
            logits, concentration = shard.all_gather(heads.logits, -2), shard.all_gather(heads.concentration, -1)
            whole = heads._replace(logits=logits, concentration=concentration)
            log_action = self.policy(whole).sample(generator)[:, shard.own]
        return thought, log_action.exp(), log_action, *heads

    def estimate_advantages(
        self,
        rollout: Rollout,
        labels: Int64[Tensor, "batch"],
        weights: Float[Tensor, "batch"] | None = None,
        *,
        shard: Shard | None = None,
    ) -> Estimates:
        """Rewards (Eq. 1), generalised advantage estimates of them, and R̂, which the value learns.

        In closed form and with marginal credit a step's reward takes its E[log a_y], but the value, which is asked of
        what was fed back, counts from the sampled belief. How much better the sample was stands apart.

        With exits the value is what going on to the end would bring, undiscounted and less its price, which is what
        stopping asks; it then stands in advantages only as a baseline.
        """
        log_scores = self._floored(self.score(rollout.log_actions, labels))
        apart = self.exact_gain or self.credit == "marginal"
        scores = self._floored(rollout.policy.expected_log_score(labels)) if apart else log_scores
        uniform = torch.full_like(rollout.log_actions[0, 0], -math.log(rollout.log_actions.shape[-1]))
        initial = self.score(uniform, labels)
        before, rewards = mdp.previous_scores(scores, initial), mdp.rewards(scores, initial)
        if rollout.costs is None:
            discount = self.gamma * self.gae_lambda
            advantages = mdp.advantages(rewards, rollout.values, self.gamma, self.gae_lambda)
            outcomes = advantages + rollout.values[:-1] + before
            targets = outcomes - mdp.previous_scores(log_scores, initial)
        else:
            discount = self.gamma
            returns = mdp.advantages(rewards, torch.zeros_like(rollout.values), self.gamma, 1.0)
            advantages, outcomes = returns - rollout.values[:-1], returns + before
            net = rewards - self.compute_price * rollout.costs[:, None, None]
            gains = mdp.still_to_gain(net, rollout.values, stops=self.compute_price > 0)
            targets = gains + before - mdp.previous_scores(log_scores, initial)
        # log a_{t,y} stands in R̂_t once as the gain of step t, and −γλ times as the start of the next, if there is one
        last = torch.arange(len(scores), device=scores.device) == len(scores) - 1
        coefficient = (1 - discount * (~last).to(scores.dtype))[:, None, None]
        own_advantages = coefficient * (log_scores - scores)
        if self.credit == "marginal":
            outcomes = outcomes - coefficient * scores  # of where the step began; no action changes it
        if self.label_baseline:
            advantages = mdp.leave_one_out(outcomes)
        estimates = Estimates(log_scores, advantages, own_advantages, targets, coefficient)
        return self._standardized(estimates, weights, shard) if self.normalize_advantages else estimates

    def _standardized(
        self, estimates: Estimates, weights: Float[Tensor, "batch"] | None, shard: Shard | None
    ) -> Estimates:
        """Over the whole minibatch, whichever processes hold its rows, with an example of weight 2 counted twice. The
        scale is that of sampled rewards, also where a step's reward is not its sample."""
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

    def replay(
        self,
        model: RecurrentClassifier,
        context: Float[Tensor, "*steps batch gates"],
        log_actions: Float[Tensor, "steps rollouts batch classes"],
    ) -> Heads:
        """What the current network would have done in the states of a roll-out; all steps' heads at once."""
        prior = torch.full_like(log_actions[:1], -math.log(model.classes))
        beliefs = torch.cat([prior, log_actions[:-1]]).exp()
        thoughts = model.refiner.replay(context, beliefs)
        heads = model.refiner.heads(thoughts)
        if not model.has_exits:
            return heads
        return heads._replace(value=model.refiner.expect(F.pad(thoughts[:-1], (0, 0, 0, 0, 0, 0, 1, 0)), beliefs))

    def actor_critic_loss(
        self,
        heads: Heads,
        rollout: Rollout,
        estimates: Estimates,
        labels: Int64[Tensor, "batch"],
        weights: Float[Tensor, "batch"] | None = None,
    ) -> tuple[Float[Tensor, ""], Metrics]:
        """Policy loss and value loss of what the current network says along a roll-out."""
        policy = self.policy(heads)
        log_ratio = self._clamped(policy.log_ratio(rollout.policy, rollout.log_actions))
        policy_loss = -weighted_mean(self.surrogate(policy, log_ratio.exp(), rollout, estimates, labels), weights)
        value_loss = weighted_mean(objectives.value_loss(heads.value, estimates.targets), weights)
        with torch.no_grad():
            metrics = self._metrics(heads, policy, log_ratio, estimates, labels)
        return policy_loss + self.value_coef * value_loss, metrics | {"value_loss": value_loss.detach()}

    def surrogate(
        self,
        policy: SimplexPolicy,
        ratio: Float[Tensor, "steps rollouts batch"],
        rollout: Rollout,
        estimates: Estimates,
        labels: Int64[Tensor, "batch"],
    ) -> Float[Tensor, "steps rollouts batch"]:
        """What stands for the return, step by step.

        With `marginal` credit log a_{t,y} is weighed by the density of a_{t,y} alone. Given a_{t,y}, how the rest of
        the belief is shared among the other classes says nothing about it, and its score has mean 0 (Rao-Blackwell).

        `expected` takes the policy's own E[log a_{t,y}] in the sampled states, with the weights of Eq. 2: what the
        policy gradient estimates, less the effect of a_t on later states.
        """
        if self.objective == "expected":
            weights = self.horizon * mdp.geometric_weights(self.horizon, self.gamma, ratio.device)
            return policy.expected_log_score(labels) * weights.to(ratio.dtype)[:, None, None]
        near = getattr(objectives, self.objective)
        surrogate: Tensor = near(ratio, estimates.advantages, self.epsilon)
        if self.credit == "marginal":
            assert isinstance(policy, Dirichlet)
            assert isinstance(rollout.policy, Dirichlet)
            own_ratio = self._clamped(policy.marginal_log_ratio(rollout.policy, rollout.log_actions, labels)).exp()
            surrogate = surrogate + near(own_ratio, estimates.own_advantages, self.epsilon)
        if self.exact_gain:
            surrogate = surrogate + estimates.reward_coefficient * policy.expected_log_score(labels)
        if self.entropy_coef:
            surrogate = surrogate + self.entropy_coef * policy.entropy()
        if self.step_weight == "discounted":
            weights = mdp.discounts(self.horizon, self.gamma, surrogate.device)
            surrogate = surrogate * weights.to(surrogate.dtype)[:, None, None]
        return surrogate

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

    def score(
        self, log_beliefs: Float[Tensor, "*steps batch classes"], labels: Int64[Tensor, "batch"]
    ) -> Float[Tensor, "*steps batch"]:
        """What the gain of a step is counted in: log a_y. Override it for another reward, which is then sampled: closed
        forms are of this one."""
        return mdp.log_scores(log_beliefs, labels)

    @classmethod
    def rewards_log_score(cls) -> bool:
        """Whether `score` is as it is here."""
        return cls.score is RIC.score

    def _floored(self, scores: Float[Tensor, "steps rollouts batch"]) -> Float[Tensor, "steps rollouts batch"]:
        return scores if self.reward_floor is None else scores.clamp(min=math.log(self.reward_floor))

    def _clamped(self, log_ratio: Float[Tensor, "steps rollouts batch"]) -> Float[Tensor, "steps rollouts batch"]:
        clamp = self.log_ratio_clamp
        return log_ratio if clamp is None else log_ratio.clamp(-clamp, clamp)

    def policy(self, heads: Heads) -> SimplexPolicy:
        """The paper's Dirichlet, α = μ·c + ε, or the logistic-normal of its ablation."""
        log_mu, concentration = heads.logits.log_softmax(-1), self._concentration(heads)
        if self.head == "logistic-normal":
            return LogisticNormal.around(log_mu, concentration)
        return Dirichlet.around(log_mu, concentration, self.alpha_floor)

    def _concentration(self, heads: Heads) -> Float[Tensor, "*batch"]:
        if self.c_range == "clip":
            return (heads.concentration + (self.c_min + self.c_max) / 2).clamp(self.c_min, self.c_max)
        return self.c_min + (self.c_max - self.c_min) * heads.concentration.sigmoid()

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
        value = model.refiner.expect(thought, belief) if model.has_exits else heads.value
        everyone = torch.ones_like(value, dtype=torch.bool)
        step = Step(pool._replace(thought=thought, belief=belief), output, value, everyone)
        return step if first and not model.has_exits else step._replace(going=self.goes_on(step))

    def goes_on(self, step: Step | Steps) -> Bool[Tensor, "*steps pool"]:
        return not_below(step.value, self.halt_threshold)

    def trajectory(self, steps: Steps) -> Trajectory:
        return Trajectory(steps.output, stop_before(self.goes_on(steps)), steps.value)

    def _metrics(
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
            "mean_c": self._concentration(heads).mean(),
            "entropy": policy.entropy().mean(),
            "variance_penalty": policy.variance_penalty(labels).mean(),
            "logit_norm": heads.logits.norm(dim=-1).mean(),
            "return": mdp.normalized_return(estimates.log_scores[-1], heads.logits.shape[-1]).mean(),
        }
