"""The anytime control: RIC's network, trained at every step by cross-entropy instead of reinforcement.

Lemma 1 turns RIC's objective into the log-score at a geometric random step. Here the network maximises that directly,
without sampling (deep supervision), so that RIC against it shows what reinforcement adds.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int64, Num
from torch import Tensor

from ricnet.core import mdp
from ricnet.core.trajectory import Trajectory
from ricnet.errors import require, require_finite
from ricnet.methods.iterative import Iterative, Pool, Step, Steps, first_stop
from ricnet.methods.method import Metrics, accuracy, weighted_mean
from ricnet.methods.unroll import norms, step_towards, unroll
from ricnet.nets.backbone import Backbone
from ricnet.nets.refiner import Heads, RecurrentClassifier


@dataclass(frozen=True)
class Anytime(Iterative):
    name: ClassVar[str] = "anytime"

    horizon: int = 20
    """Steps T of training, and the most that inference takes unless --max-steps says otherwise. Raise it for more
    refinement, at proportional cost."""
    gamma: float = 0.8
    """γ in the weight (1 − γ)γ^{t−1} of step t. Lower it and early beliefs matter more."""
    confidence_threshold: float | None = None
    """Stop at the first belief at least this sure. It learns no halting of its own: None runs all steps. Raise it to
    think longer."""

    def __post_init__(self) -> None:
        require_finite(self)
        require(self.horizon >= 1, "horizon", self.horizon, "at least 1")
        require(0 < self.gamma < 1, "gamma", self.gamma, "between 0 and 1")
        sure = self.confidence_threshold
        require(sure is None or 0 < sure <= 1, "confidence_threshold", sure, "above 0 and at most 1, or None")

    def build(self, backbone: Backbone, classes: int) -> RecurrentClassifier:
        model = RecurrentClassifier(backbone, backbone.embedding_size, classes)
        for unused in (model.refiner.concentration, model.refiner.value):
            unused.requires_grad_(False)  # weight decay shall not move them either
        return model

    def loss(
        self,
        model: RecurrentClassifier,
        snapshot: RecurrentClassifier,
        inputs: Num[Tensor, "batch ..."],
        labels: Int64[Tensor, "batch"],
        weights: Float[Tensor, "batch"] | None = None,
    ) -> tuple[Float[Tensor, ""], Metrics]:
        """−Σ_t (1 − γ)γ^{t−1} log μ_{t,y}, Eq. 2 cut off at T: the weights sum to 1 − γ^T and are left so."""
        logits = unroll(model, inputs, self.horizon).logits
        scores = mdp.log_scores(logits.log_softmax(-1), labels)
        step_weights = mdp.geometric_weights(self.horizon, self.gamma, inputs.device).to(scores.dtype)
        loss = -weighted_mean(torch.einsum("t,tb->b", step_weights, scores), weights)
        return loss, {"accuracy": accuracy(logits[-1], labels), **norms(model, logits[-1])}

    def memory(self, zeros: Float[Tensor, "batch"]) -> tuple[Float[Tensor, "batch"], ...]:
        return zeros, zeros + (math.inf if self.confidence_threshold is None else self.confidence_threshold)

    def step(self, model: RecurrentClassifier, pool: Pool, first: bool) -> Step:
        return step_towards(model, pool, _surest)

    def trajectory(self, steps: Steps) -> Trajectory:
        return Trajectory(steps.output.log_softmax(-1), first_stop(steps.going))


def _surest(progress: Float[Tensor, "batch"], heads: Heads) -> Float[Tensor, "batch"]:
    """The highest confidence so far."""
    return progress.maximum(heads.logits.softmax(-1).amax(-1))
