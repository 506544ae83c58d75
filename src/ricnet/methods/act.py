"""Adaptive Computation Time (Graves 2016) on RIC's network: an answer averaged over steps, at a price a step.

The value head is the halting unit, h_n = σ(·). Steps are taken until Σh reaches 1 − ε; each step's logits count by its
h_n, the last one's by what is left.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64, Num
from torch import Tensor, nn

from ricnet.core import halting
from ricnet.core.trajectory import Trajectory, first_stop
from ricnet.errors import require, require_finite
from ricnet.methods.inference import Pool, Step, Steps
from ricnet.methods.iterative import Iterative, norms, step_towards, unroll
from ricnet.methods.method import Metrics, accuracy, weighted_mean
from ricnet.nets.backbone import Backbone
from ricnet.nets.refiner import Heads, RecurrentClassifier


@dataclass(frozen=True)
class ACT(Iterative):
    name: ClassVar[str] = "act"
    title: ClassVar[str] = "ACT"
    about: ClassVar[str] = "Adaptive Computation Time"
    colour: ClassVar[str] = "#009e73"
    search_space: ClassVar[tuple[str, ...]] = ("ponder_cost=1e-3..0.5:log",)

    horizon: int = 20
    """The most steps it may take, unless --max-steps says otherwise in inference. Raise it for more refinement, at
    proportional cost of training."""
    ponder_cost: float = 0.223
    """τ: price of a step; the paper's −ln γ for γ = 0.8. Raise it for fewer steps."""
    epsilon: float = 0.01
    """ε: it stops once the halting units add up to 1 − ε, so that one step can be enough. Raise it to stop earlier."""
    halting_bias: float = 1.0
    """Bias the halting unit starts with. Raise it to begin with fewer steps."""

    def __post_init__(self) -> None:
        require_finite(self)
        require(self.horizon >= 1, "horizon", self.horizon, "at least 1")
        require(self.ponder_cost >= 0, "ponder_cost", self.ponder_cost, "0 or more")
        require(0 < self.epsilon < 1, "epsilon", self.epsilon, "between 0 and 1")

    def build(self, backbone: Backbone, classes: int) -> RecurrentClassifier:
        model = super().build(backbone, classes)
        nn.init.constant_(model.refiner.value.bias, self.halting_bias)
        return model

    def loss(
        self,
        model: RecurrentClassifier,
        snapshot: RecurrentClassifier,
        inputs: Num[Tensor, "batch ..."],
        labels: Int64[Tensor, "batch"],
        weights: Float[Tensor, "batch"] | None = None,
    ) -> tuple[Float[Tensor, ""], Metrics]:
        """Cross-entropy of the averaged logits + τ·(N + R)."""
        heads = unroll(model, inputs, self.horizon)
        ponder = halting.act(heads.value.sigmoid(), self.epsilon)
        answer = torch.einsum("tb,tbk->bk", ponder.weights, heads.logits)
        surprise = F.cross_entropy(answer, labels, reduction="mean" if weights is None else "none")
        loss = weighted_mean(surprise, weights)
        loss = loss + self.ponder_cost * weighted_mean(ponder.steps + ponder.remainder, weights)
        return loss, {
            "accuracy": accuracy(answer, labels),
            **norms(model, answer),
            "mean_steps": ponder.steps.float().mean(),
            "remainder": ponder.remainder.detach().mean(),
        }

    def memory(self, zeros: Float[Tensor, "batch"]) -> tuple[Float[Tensor, "batch"], ...]:
        return zeros, zeros + (1 - self.epsilon)

    def step(self, model: RecurrentClassifier, pool: Pool, first: bool) -> Step:
        return step_towards(model, pool, _add_halting)

    def trajectory(self, steps: Steps) -> Trajectory:
        """What it would answer if stopped at each step, and from N on its answer. `halt_probability` holds h_n; what
        follows N there means nothing."""
        h = steps.value.sigmoid()
        log_beliefs = halting.act_answers(h, steps.output).log_softmax(-1)
        return Trajectory(log_beliefs, first_stop(steps.going), halt_probability=h).frozen()


def _add_halting(progress: Float[Tensor, "batch"], heads: Heads) -> Float[Tensor, "batch"]:
    """Σh."""
    return progress + heads.value.sigmoid()
