"""PonderNet (Banino et al. 2021) on RIC's network: a learned distribution over when to stop, held near a geometric one.

The value head gives λ_n = σ(·), the probability to stop at step n if not before.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int64, Num
from torch import Tensor

from ricnet.core import halting, mdp
from ricnet.core.randomness import current
from ricnet.core.trajectory import Trajectory, first_stop
from ricnet.errors import require, require_finite
from ricnet.methods.inference import Pool, Step, Steps
from ricnet.methods.iterative import Iterative, norms, step_towards, unroll
from ricnet.methods.method import Metrics, accuracy, weighted_mean
from ricnet.nets.refiner import Heads, RecurrentClassifier


@dataclass(frozen=True)
class PonderNet(Iterative):
    name: ClassVar[str] = "pondernet"
    title: ClassVar[str] = "PonderNet"
    about: ClassVar[str] = "PonderNet"
    colour: ClassVar[str] = "#cc79a7"
    search_space: ClassVar[tuple[str, ...]] = ("beta=1e-3..0.1:log",)

    horizon: int = 20
    """The most steps it may take, unless --max-steps says otherwise in inference; the last one takes what probability
    is left. Raise it if many inputs get there; training costs in proportion."""
    prior: float = 0.2
    """λ_p of the geometric prior, the paper's 1 − γ for γ = 0.8: about 1/λ_p steps. Raise it for fewer steps."""
    beta: float = 0.01
    """β: weight of KL(p ‖ prior). Raise it and all inputs stop as the prior does, lower it and they part."""
    halting: Literal["median", "sample"] = "median"
    """Where it answers: at the first step by which it has stopped with probability 0.5, or at a random one (its paper;
    the same one again only with the same seed)."""

    def __post_init__(self) -> None:
        require_finite(self)
        require(self.horizon >= 1, "horizon", self.horizon, "at least 1")
        require(0 < self.prior < 1, "prior", self.prior, "between 0 and 1")
        require(self.beta >= 0, "beta", self.beta, "0 or more")

    def loss(
        self,
        model: RecurrentClassifier,
        snapshot: RecurrentClassifier,
        inputs: Num[Tensor, "batch ..."],
        labels: Int64[Tensor, "batch"],
        weights: Float[Tensor, "batch"] | None = None,
    ) -> tuple[Float[Tensor, ""], Metrics]:
        """Σ_n p_n·CE(y, logits_n) + β·KL(p ‖ p_G), each example's own p with its own cross-entropies."""
        heads = unroll(model, inputs, self.horizon)
        log_p = halting.log_halting(heads.value)
        log_prior = halting.log_geometric(self.horizon, self.prior, inputs.device).to(log_p.dtype)
        kl = weighted_mean(halting.kl(log_p, log_prior), weights)
        surprise = -mdp.log_scores(heads.logits.log_softmax(-1), labels)
        loss = weighted_mean((log_p.exp() * surprise).sum(0), weights) + self.beta * kl
        with torch.no_grad():
            metrics = self._metrics(heads.logits, log_p, labels)
        return loss, metrics | norms(model, heads.logits[-1]) | {"kl": kl.detach()}

    def _metrics(
        self,
        logits: Float[Tensor, "steps batch classes"],
        log_p: Float[Tensor, "steps batch"],
        labels: Int64[Tensor, "batch"],
    ) -> Metrics:
        halt_step = halting.quantile_step(log_p, self._level(len(labels), log_p.device))
        answer = logits[halt_step - 1, torch.arange(len(labels), device=labels.device)]
        return {"accuracy": accuracy(answer, labels), "mean_steps": halting.expected_step(log_p).mean()}

    @property
    def draws(self) -> bool:
        return self.halting == "sample"

    def memory(self, zeros: Float[Tensor, "batch"]) -> tuple[Float[Tensor, "batch"], ...]:
        return zeros, zeros + self._level(len(zeros), zeros.device)

    def step(self, model: RecurrentClassifier, pool: Pool, first: bool) -> Step:
        return step_towards(model, pool, _add_stopped)

    def trajectory(self, steps: Steps) -> Trajectory:
        """Each step's own belief. `halt_probability` holds λ_n as the network gives it, also at the last step, which
        takes the rest whatever its λ."""
        halt_step = first_stop(steps.going)
        return Trajectory(steps.output.log_softmax(-1), halt_step, halt_probability=steps.value.sigmoid())

    def _level(self, batch: int, device: torch.device) -> float | Float[Tensor, "batch"]:
        """How probable it must have become to have stopped: a half, or a random share, which draws the step from p."""
        return 0.5 if self.halting == "median" else torch.rand(batch, device=device, generator=current())


def _add_stopped(progress: Float[Tensor, "batch"], heads: Heads) -> Float[Tensor, "batch"]:
    """Σp, that is 1 − Π(1 − λ)."""
    return progress + (1 - progress) * heads.value.sigmoid()
