"""What an update maximises: a surrogate of the return that keeps the new policy near the old, and the value's error.

The objectives work element by element; the caller weighs the steps and averages.
"""

import torch
from jaxtyping import Float, Int64
from torch import Tensor


def spo(ratio: Float[Tensor, "*any"], advantage: Float[Tensor, "*any"], epsilon: float) -> Float[Tensor, "*any"]:
    """Simple Policy Optimization (Xie et al. 2025): Â ρ − |Â| (ρ − 1)² / 2ε, largest at ρ = 1 + sign(Â) ε.

    Unlike PPO's clip, which only stops pushing, the quadratic pulls ρ back once it has gone too far.
    """
    return advantage * ratio - advantage.abs() * (ratio - 1).square() / (2 * epsilon)


def ppo(ratio: Float[Tensor, "*any"], advantage: Float[Tensor, "*any"], epsilon: float) -> Float[Tensor, "*any"]:
    """Proximal Policy Optimization (Schulman et al. 2017): min(Â ρ, Â clip(ρ, 1 − ε, 1 + ε)); an ablation here."""
    return (advantage * ratio).minimum(advantage * ratio.clamp(1 - epsilon, 1 + epsilon))


def value_loss(values: Float[Tensor, "*any"], targets: Float[Tensor, "*any"]) -> Float[Tensor, "*any"]:
    """(V_φ(s_t) − R̂_t)², the last term of Algorithm 1."""
    return (values - targets).square()


def explained_variance(values: Float[Tensor, "*any"], targets: Float[Tensor, "*any"]) -> Float[Tensor, ""]:
    """1 − Var(R̂ − V) / Var(R̂): 1 when the value foresees every return, 0 when it knows only their mean."""
    return 1 - (targets - values).var() / targets.var().clamp(min=1e-12)


def weighted_mean(terms: Float[Tensor, "*any"], weights: Float[Tensor, "batch"] | None) -> Float[Tensor, ""]:
    """The mean of terms whose last axis is the batch, each counted by its example's weight.

    Divided by the number of terms and not by the sum of their weights: that is 1 a term over the whole data, and a
    minibatch of important examples shall count for more than one of unimportant ones.
    """
    return terms.mean() if weights is None else (terms * weights).mean()


@torch.no_grad()
def accuracy(log_beliefs: Float[Tensor, "*steps batch classes"], labels: Int64[Tensor, "batch"]) -> Float[Tensor, ""]:
    return (log_beliefs.argmax(-1) == labels).float().mean()
