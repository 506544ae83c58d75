"""What the update maximises: a surrogate of the return that keeps the new policy near the old, and the value's error.

All functions work element by element; the caller averages, so that it can weigh steps as it likes.
"""

from jaxtyping import Float
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
