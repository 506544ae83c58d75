"""The anytime control: RIC's network, trained with cross-entropy at every step instead of reinforcement learning.

By Lemma 1, RIC's objective is the log-score at a geometric random step. Anytime maximises it directly, without
sampling, so that a comparison with RIC shows what reinforcement learning adds. Settings give it RIC's step weights,
limit on confidence, and halting by a value.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ricnet.core import losses, mdp
from ricnet.core.trajectory import Trajectory, first_stop, not_below, stop_before
from ricnet.errors import require, setting
from ricnet.methods.inference import Iterative, Pool, Step, Steps, norms, step_until_level, unroll
from ricnet.methods.method import Inputs, Labels, Loss, Weights, accuracy, weighted_mean
from ricnet.nets.backbone import Backbone
from ricnet.nets.refiner import Heads, RecurrentClassifier


@dataclass(frozen=True)
class Anytime(Iterative):
    name: ClassVar[str] = "anytime"
    title: ClassVar[str] = "Anytime"
    about: ClassVar[str] = "cross-entropy at every step: RIC's network without reinforcement"
    colour: ClassVar[str] = "#e69f00"
    search_space: ClassVar[tuple[str, ...]] = ("gamma=0.5..0.95",)

    horizon: int = 20
    """Steps T of training, and the largest number of steps at inference unless --max-steps is given. Raise it for more
    refinement; cost grows in proportion."""
    gamma: float = 0.8
    """γ in the weight (1 − γ)γ^{t−1} of step t, and the discount of the value. Lower it to give early steps more
    weight."""
    step_weight: Literal["geometric", "uniform"] = "geometric"
    """Weight of step t in the loss: geometric, (1 − γ)γ^{t−1} (Eq. 2), or uniform, 1/T, as in RIC's surrogate."""
    uniform_mix: float = 0.0
    """m: the belief is (1 − m)·softmax + m/K, in training too. Raise it for a lower limit on confidence. The mean of
    RIC's Dirichlet policy has m = Kε/(c + Kε)."""
    value_coef: float = 0.0
    """Weight of the loss of a value that estimates the discounted remaining gain in log-score, as in RIC; inference
    then halts by it. Raise it if explained_variance stays low. With 0 there is no value."""
    compute_price: float = 0.0
    """λ: price in nats of computing the whole network, as in RIC; only with --exits. Raise it to exit earlier."""
    gae_lambda: float = 0.95
    """λ of the value's targets, as in RIC. Lower it for less variance and more bias."""
    halt_threshold: float = 0.0
    """Halt when the value falls below this threshold. Raise it to halt earlier, lower it to halt later."""
    confidence_threshold: float | None = None
    """Halt at the first belief with at least this confidence, instead of by the value. The confidence is that before
    calibration, because the temperature is fitted to beliefs at the halt. Raise it to halt later. With None and without
    a value, all steps are made."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 < self.gamma < 1, "gamma", self.gamma, "between 0 and 1")
        sure = self.confidence_threshold
        require(sure is None or 0 < sure <= 1, "confidence_threshold", sure, "above 0 and at most 1, or None")
        require(0 <= self.uniform_mix < 1, "uniform_mix", self.uniform_mix, "from 0 to below 1")
        require(self.value_coef >= 0, "value_coef", self.value_coef, "0 or more")
        require(self.compute_price >= 0, "compute_price", self.compute_price, "0 or more")
        require(0 <= self.gae_lambda <= 1, "gae_lambda", self.gae_lambda, "from 0 to 1")
        if self.value_coef == 0:
            required = f"0 unless {setting('value_coef')} is above 0"
            require(self.halt_threshold == 0, "halt_threshold", self.halt_threshold, required)

    @property
    def halts_by_value(self) -> bool:
        return self.value_coef > 0 and self.confidence_threshold is None

    def build(self, backbone: Backbone, classes: int) -> RecurrentClassifier:
        model = super().build(backbone, classes)
        model.train_value(self.value_coef > 0)
        return model

    def loss(
        self, model: RecurrentClassifier, snapshot: nn.Module, inputs: Inputs, labels: Labels, weights: Weights = None
    ) -> Loss:
        """−Σ_t w_t log a_{t,y}. Geometric weights (Eq. 2 cut off at T) sum to 1 − γ^T and are not normalised. Learning
        a value takes one more step, for V(s_{T+1}); with exits that is 0."""
        labels = self.smooth(labels, model)
        learns_value = self.value_coef > 0
        steps = self.horizon + (learns_value and not model.has_exits)
        heads = unroll(model, inputs, steps, self.uniform_mix, value_first=model.has_exits)
        logits = heads.logits[: self.horizon]
        scores = mdp.log_scores(self.log_beliefs(logits), labels)
        if self.step_weight == "uniform":
            step_weights = torch.full_like(scores[:, 0], 1 / self.horizon)
        else:
            step_weights = mdp.geometric_weights(self.horizon, self.gamma, scores.device).to(scores.dtype)
        loss = -weighted_mean(torch.einsum("t,tb->b", step_weights, scores), weights)
        metrics = {"accuracy": accuracy(logits[-1], labels), **norms(model, logits[-1])}
        if learns_value:
            targets = self.targets(scores.detach(), heads.value.detach(), model)
            values = heads.value[: self.horizon]
            value_loss = weighted_mean((values - targets).square(), weights)
            loss = loss + self.value_coef * value_loss
            explained = mdp.explained_variance(values.detach(), targets)
            metrics |= {"value_loss": value_loss.detach(), "explained_variance": explained}
        return loss, metrics

    def log_beliefs(self, logits: Float[Tensor, "*batch classes"]) -> Float[Tensor, "*batch classes"]:
        """Reported beliefs, which the loss uses too."""
        return losses.mix_uniform(logits.log_softmax(-1), self.uniform_mix)

    def targets(
        self, scores: Float[Tensor, "steps batch"], values: Float[Tensor, "asked batch"], model: RecurrentClassifier
    ) -> Float[Tensor, "steps batch"]:
        """R̂_t = Â_t + V(s_t) with the rewards of Eq. 1, as in RIC but for beliefs that are not sampled. With exits the
        remaining gain, which is 0 after the last exit."""
        rewards = mdp.rewards(scores, -math.log(model.classes))
        if model.has_exits:
            values = torch.cat([values, torch.zeros_like(values[:1])])
        costs = model.step_costs if model.has_exits else None
        return mdp.estimate(rewards, values, self.gamma, self.gae_lambda, costs, self.compute_price).targets

    def memory(self, zeros: Float[Tensor, "batch"]) -> tuple[Float[Tensor, "batch"], ...]:
        return zeros, zeros + (math.inf if self.confidence_threshold is None else self.confidence_threshold)

    def step(self, model: RecurrentClassifier, pool: Pool, first: bool) -> Step:
        step = step_until_level(model, pool, self._highest_confidence, self.uniform_mix)
        if not self.halts_by_value:
            return step
        value = model.halting_value(step.value, step.pool.thought, step.pool.belief)
        step = step._replace(value=value, active=torch.ones_like(step.active))
        return step if first and not model.has_exits else step._replace(active=self.goes_on(step))

    def goes_on(self, step: Step | Steps) -> Bool[Tensor, "*steps pool"]:
        return not_below(step.value, self.halt_threshold) if self.halts_by_value else step.active

    def trajectory(self, steps: Steps) -> Trajectory:
        log_beliefs = self.log_beliefs(steps.output)
        if self.halts_by_value:
            return Trajectory(log_beliefs, stop_before(self.goes_on(steps)), steps.value)
        return Trajectory(log_beliefs, first_stop(self.goes_on(steps)))

    def _highest_confidence(self, progress: Float[Tensor, "batch"], heads: Heads) -> Float[Tensor, "batch"]:
        """The highest confidence so far."""
        highest = heads.logits.softmax(-1).amax(-1)
        return progress.maximum((1 - self.uniform_mix) * highest + self.uniform_mix / heads.logits.shape[-1])
