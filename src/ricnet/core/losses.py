"""Losses and transforms that limit the confidence of one-pass classifiers: LogitNorm, uniform mixing, evidential."""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor


def normalize_logits(logits: Float[Tensor, "*batch classes"], temperature: float) -> Float[Tensor, "*batch classes"]:
    """LogitNorm (Wei et al. 2022): z / (τ‖z‖), so that the norm of the logits is constant, 1/τ."""
    norm = logits.norm(dim=-1, keepdim=True) + 1e-7  # as in the authors' code; avoids NaN at z = 0
    return logits / (temperature * norm)  # type: ignore[no-any-return]


def mix_uniform(log_beliefs: Float[Tensor, "*batch classes"], share: float) -> Float[Tensor, "*batch classes"]:
    """log((1 − m)·belief + m/K) with m = `share`; no class exceeds 1 − m + m/K. The mean of RIC's Dirichlet,
    α = μ·c + ε, is this mixture of μ with m = Kε/(c + Kε)."""
    if share == 0:
        return log_beliefs
    floor = log_beliefs.new_full((), math.log(share / log_beliefs.shape[-1]))
    return torch.logaddexp(log_beliefs + math.log1p(-share), floor)


def evidential_alpha(logits: Float[Tensor, "*batch classes"]) -> Float[Tensor, "*batch classes"]:
    """α = 1 + softplus(logits). Sensoy et al. 2018 use ReLU, whose gradient is 0 for an example with all logits
    negative."""
    return 1 + F.softplus(logits)


def evidential(
    alpha: Float[Tensor, "batch classes"], labels: Int64[Tensor, "batch"], kl_weight: float
) -> Float[Tensor, "batch"]:
    """Sensoy et al. 2018: expected squared error under Dir(α), plus a penalty on evidence for wrong classes.

    E‖y − p‖² = Σ (y − p̂)² + p̂(1 − p̂)/(S + 1) with p̂ = α/S. The penalty is KL(Dir(α̃) ‖ Dir(1)) with
    α̃ = y + (1 − y)·α, which is α without the evidence for the true class.
    """
    truth = F.one_hot(labels, alpha.shape[-1]).to(alpha.dtype)
    total = alpha.sum(-1, keepdim=True)
    mean = alpha / total
    error = (truth - mean).square() + mean * (1 - mean) / (total + 1)
    return error.sum(-1) + kl_weight * kl_from_flat(truth + (1 - truth) * alpha)


def kl_from_flat(alpha: Float[Tensor, "*batch classes"]) -> Float[Tensor, "*batch"]:
    """KL(Dir(α) ‖ Dir(1)), the divergence from the uniform Dirichlet."""
    total = alpha.sum(-1)
    log_normalizer = total.lgamma() - alpha.lgamma().sum(-1) - math.lgamma(alpha.shape[-1])
    return log_normalizer + ((alpha - 1) * (alpha.digamma() - total.digamma().unsqueeze(-1))).sum(-1)
