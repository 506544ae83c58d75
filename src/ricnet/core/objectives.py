"""Surrogate objectives of the policy (SPO, PPO), the value loss, and weighted means.

The objectives are elementwise; the caller weights the steps and averages.
"""

import torch
from jaxtyping import Float, Int64
from torch import Tensor


def spo(ratio: Float[Tensor, "*any"], advantage: Float[Tensor, "*any"], epsilon: float) -> Float[Tensor, "*any"]:
    """Simple Policy Optimization (Xie et al. 2025): Â ρ − |Â| (ρ − 1)² / 2ε, with its maximum at ρ = 1 + sign(Â) ε.

    Beyond the maximum its gradient moves ρ back; that of PPO's clip is 0 there.
    """
    return advantage * ratio - advantage.abs() * (ratio - 1).square() / (2 * epsilon)


def ppo(ratio: Float[Tensor, "*any"], advantage: Float[Tensor, "*any"], epsilon: float) -> Float[Tensor, "*any"]:
    """Proximal Policy Optimization (Schulman et al. 2017): min(Â ρ, Â clip(ρ, 1 − ε, 1 + ε)); an ablation here."""
    return (advantage * ratio).minimum(advantage * ratio.clamp(1 - epsilon, 1 + epsilon))


def value_loss(values: Float[Tensor, "*any"], targets: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
    """(V_φ(s_t) − R̂_t)², the last term of Algorithm 1."""
    return (values - targets).square()


def explained_variance(values: Float[Tensor, "*any"], targets: Float[Tensor, "*any"]) -> Float[Tensor, ""]:
    """1 − Var(R̂ − V) / Var(R̂): 1 for an exact value, 0 for a constant one."""
    return 1 - (targets - values).var() / targets.var().clamp(min=1e-12)


def weighted_mean(terms: Float[Tensor, "*any"], weights: Float[Tensor, "batch"] | None) -> Float[Tensor, ""]:
    """Mean of terms times example weights; the last axis of `terms` is the batch.

    It divides by the number of terms, not by the sum of weights, because weights are 1 on average over the data set; a
    minibatch with larger weights has a larger loss.
    """
    return terms.mean() if weights is None else (terms * weights).mean()


@torch.no_grad()
def accuracy(log_beliefs: Float[Tensor, "*steps batch classes"], labels: Int64[Tensor, "batch"]) -> Float[Tensor, ""]:
    return (log_beliefs.argmax(-1) == labels).float().mean()
