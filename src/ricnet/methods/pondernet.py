"""PonderNet (Banino et al. 2021) on RIC's network: a learned distribution of the halting step, with a geometric prior.

The value head gives λ_n = σ(·), the probability of halting at step n given no earlier halt.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ricnet.core import halting, mdp
from ricnet.core.policies import current
from ricnet.core.trajectory import Trajectory, first_stop
from ricnet.errors import require
from ricnet.methods.inference import Iterative, Pool, Step, Steps, norms, step_until_level, unroll
from ricnet.methods.method import Inputs, Labels, Loss, Weights, accuracy, weighted_mean
from ricnet.nets.refiner import RecurrentClassifier


@dataclass(frozen=True)
class PonderNet(Iterative):
    name: ClassVar[str] = "pondernet"
    title: ClassVar[str] = "PonderNet"
    about: ClassVar[str] = "PonderNet"
    colour: ClassVar[str] = "#cc79a7"
    search_space: ClassVar[tuple[str, ...]] = ("beta=1e-3..0.1:log",)

    horizon: int = 20
    """Largest number of steps; at inference --max-steps overrides it. The last step gets the remaining probability.
    Raise it if many inputs reach the last step; the cost of training grows in proportion."""
    prior: float = 0.2
    """λ_p of the geometric prior, whose mean is about 1/λ_p steps; the default is the paper's 1 − γ for γ = 0.8. Raise
    it for fewer steps."""
    beta: float = 0.01
    """β: weight of KL(p ‖ prior). Raise it to keep the halting distribution of all inputs near the prior, lower it to
    let inputs differ."""
    halting: Literal["median", "sample"] = "median"
    """At which step it answers: at the median of the halting distribution, or at a step sampled from it (its paper);
    samples repeat only with the same seed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 < self.prior < 1, "prior", self.prior, "between 0 and 1")
        require(self.beta >= 0, "beta", self.beta, "0 or more")

    def loss(
        self, model: RecurrentClassifier, snapshot: nn.Module, inputs: Inputs, labels: Labels, weights: Weights = None
    ) -> Loss:
        """Σ_n p_n·CE(y, logits_n) + β·KL(p ‖ p_G) of each example, averaged over the batch."""
        labels = self.smooth(labels, model)
        heads = unroll(model, inputs, self.horizon)
        log_p = halting.log_halting(heads.value)
        log_prior = halting.log_geometric(self.horizon, self.prior, inputs.device).to(log_p.dtype)
        kl = weighted_mean(halting.kl(log_p, log_prior), weights)
        cross_entropy = -mdp.log_scores(heads.logits.log_softmax(-1), labels)
        loss = weighted_mean((log_p.exp() * cross_entropy).sum(0), weights) + self.beta * kl
        with torch.no_grad():
            halt_step = halting.quantile_step(log_p, self._level(len(labels), log_p.device))
            answer = heads.logits[halt_step - 1, torch.arange(len(labels), device=labels.device)]
            mean_steps = halting.expected_step(log_p).mean()
        metrics = {"accuracy": accuracy(answer, labels), "mean_steps": mean_steps, "kl": kl.detach()}
        return loss, metrics | norms(model, heads.logits[-1])

    @property
    def draws(self) -> bool:
        return self.halting == "sample"

    def memory(self, zeros: Float[Tensor, "batch"]) -> tuple[Float[Tensor, "batch"], ...]:
        return zeros, zeros + self._level(len(zeros), zeros.device)

    def step(self, model: RecurrentClassifier, pool: Pool, first: bool) -> Step:
        # Probability of having halted by this step, Σp = 1 − Π(1 − λ)
        return step_until_level(model, pool, lambda total, heads: total + (1 - total) * heads.value.sigmoid())

    def trajectory(self, steps: Steps) -> Trajectory:
        """Belief of each step. `halt_probability` is λ_n of the network, also at the last step, where halting does not
        depend on it."""
        halt_step = first_stop(steps.active)
        return Trajectory(steps.output.log_softmax(-1), halt_step, halt_probability=steps.value.sigmoid())

    def _level(self, batch: int, device: torch.device) -> float | Float[Tensor, "batch"]:
        """Cumulative halting probability at which it halts: 0.5 for the median, uniform for a sample from p."""
        return 0.5 if self.halting == "median" else torch.rand(batch, device=device, generator=current())
