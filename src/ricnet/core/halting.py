"""Halting probabilities: the step weights of ACT (Graves 2016) and the distribution of PonderNet (Banino et al. 2021).

The first axis of every tensor is the step.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from ricnet.core.mdp import PerStep


class Ponder(NamedTuple):
    """Weights of ACT's average over steps."""

    weights: PerStep
    """p_n: h_n before the last step N, R at N, 0 after it; they sum to 1."""
    steps: Int64[Tensor, "*batch"]
    """N, the first step at which Σh reaches 1 − ε, else the last step."""
    remainder: Float[Tensor, "*batch"]
    """R = 1 − Σ_{n<N} h_n. The gradient of the cost N + R is that of R, because N is a count."""


def act(halting: PerStep, epsilon: float) -> Ponder:
    """ACT's weights from the halting units h_n in (0, 1); with masks instead of a loop, for CUDA graphs."""
    before = sum_before(halting)
    running = before < 1 - epsilon
    steps = running.sum(0)
    remainder = 1 - before.gather(0, steps.unsqueeze(0) - 1).squeeze(0)
    following = torch.cat([running[1:], torch.zeros_like(running[:1])])
    weights = torch.where(following, halting, 1 - before) * running
    return Ponder(weights, steps, remainder)


def act_answers(
    halting: Float[Tensor, "steps batch"], logits: Float[Tensor, "steps batch classes"]
) -> Float[Tensor, "steps batch classes"]:
    """ACT's averaged logits for a stop at each step: weights h_n for the earlier steps, the remainder for the last.
    At N this is ACT's answer; after N it is undefined."""
    halting = halting.unsqueeze(-1)
    return sum_before(halting * logits) + (1 - sum_before(halting)) * logits


def sum_before(terms: PerStep) -> PerStep:
    """Sum of the terms before each step; 0 at the first step."""
    return torch.cat([torch.zeros_like(terms[:1]), terms[:-1].cumsum(0)])


def log_halting(logits: PerStep) -> PerStep:
    """log p_n of PonderNet: p_n = λ_n Π_{j<n} (1 − λ_j) with λ = σ(logits); the last step gets the remainder."""
    log_survival = sum_before(F.logsigmoid(-logits))
    stop = F.logsigmoid(logits[:-1])
    return log_survival + torch.cat([stop, torch.zeros_like(logits[:1])])


def log_geometric(steps: int, rate: float, device: torch.device | None = None) -> Float[Tensor, "steps"]:
    """log of PonderNet's prior p_G(n) ∝ (1 − rate)^{n−1}, normalised over `steps` steps. With 20 steps and rate 0.2 its
    mean is 4.77 steps, not 5."""
    times = torch.arange(steps, dtype=torch.float64, device=device)
    return (times * math.log1p(-rate)).log_softmax(0)


def kl(log_p: Float[Tensor, "steps batch"], log_prior: Float[Tensor, "steps"]) -> Float[Tensor, "batch"]:
    """KL(p ‖ prior) = Σ_n p_n (log p_n − log prior_n), for each example."""
    return (log_p.exp() * (log_p - log_prior.unsqueeze(-1))).sum(0)


def expected_step(log_p: PerStep) -> Float[Tensor, "*batch"]:
    """Σ_n n·p_n."""
    times = torch.arange(1, len(log_p) + 1, dtype=log_p.dtype, device=log_p.device)
    return torch.einsum("t,t...->...", times, log_p.exp())


def quantile_step(log_p: PerStep, level: float | Float[Tensor, "*batch"]) -> Int64[Tensor, "*batch"]:
    """The first n with p_1 + … + p_n ≥ level: the median at 0.5, a sample from p if the level is uniform on [0, 1]."""
    return (log_p.exp().cumsum(0)[:-1] < level).sum(0) + 1
