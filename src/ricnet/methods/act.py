"""Adaptive Computation Time (Graves 2016) on RIC's network: logits averaged over steps, with a cost per step.

The value head is the halting unit, h_n = σ(·). Steps are made until Σh reaches 1 − ε. The weight of step n in the
average is h_n, that of the last step the remainder.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ricnet.core import halting
from ricnet.core.trajectory import Trajectory, first_stop
from ricnet.errors import require
from ricnet.methods.inference import Iterative, Pool, Step, Steps, norms, step_until_level, unroll
from ricnet.methods.method import Inputs, Labels, Loss, Weights, accuracy, weighted_mean
from ricnet.nets.backbone import Backbone
from ricnet.nets.refiner import RecurrentClassifier


@dataclass(frozen=True)
class ACT(Iterative):
    name: ClassVar[str] = "act"
    title: ClassVar[str] = "ACT"
    about: ClassVar[str] = "Adaptive Computation Time"
    colour: ClassVar[str] = "#009e73"
    search_space: ClassVar[tuple[str, ...]] = ("ponder_cost=1e-3..0.5:log",)

    horizon: int = 20
    """Largest number of steps; at inference --max-steps overrides it. Raise it for more refinement; the cost of
    training grows in proportion."""
    ponder_cost: float = 0.223
    """τ: cost per step; the default is the paper's −ln γ for γ = 0.8. Raise it for fewer steps."""
    epsilon: float = 0.01
    """ε: halt when the sum of the halting units reaches 1 − ε, so that one step can be enough. Raise it to halt
    earlier."""
    halting_bias: float = 1.0
    """Initial bias of the halting unit. Raise it to start training with fewer steps."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.ponder_cost >= 0, "ponder_cost", self.ponder_cost, "0 or more")
        require(0 < self.epsilon < 1, "epsilon", self.epsilon, "between 0 and 1")

    def build(self, backbone: Backbone, classes: int) -> RecurrentClassifier:
        model = super().build(backbone, classes)
        nn.init.constant_(model.refiner.value.bias, self.halting_bias)
        return model

    def loss(
        self, model: RecurrentClassifier, snapshot: nn.Module, inputs: Inputs, labels: Labels, weights: Weights = None
    ) -> Loss:
        """Cross-entropy of the averaged logits + τ·(N + R)."""
        labels = self.smooth(labels, model)
        heads = unroll(model, inputs, self.horizon)
        ponder = halting.act(heads.value.sigmoid(), self.epsilon)
        answer = torch.einsum("tb,tbk->bk", ponder.weights, heads.logits)
        cross_entropy = F.cross_entropy(answer, labels, reduction="mean" if weights is None else "none")
        loss = weighted_mean(cross_entropy, weights)
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
        return step_until_level(model, pool, lambda total, heads: total + heads.value.sigmoid())  # Σh

    def trajectory(self, steps: Steps) -> Trajectory:
        """Beliefs if stopped at each step, constant from the halt N on. `halt_probability` is h_n, undefined after
        N."""
        h = steps.value.sigmoid()
        log_beliefs = halting.act_answers(h, steps.output).log_softmax(-1)
        return Trajectory(log_beliefs, first_stop(steps.active), halt_probability=h).frozen()
