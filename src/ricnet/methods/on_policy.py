"""RIC on-policy: Algorithm 1 with a snapshot after every update, so that the network is its own.

The ratio ρ is then 1, the surrogate of SPO and PPO has the gradient of Â ρ, and nothing holds the policy back; the
encoder runs once an update instead of twice. With marginal credit this is what `ric train` takes by default. Ours, not
the paper's.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from jaxtyping import Float, Int64
from torch import Tensor

from ricnet.core import mdp, objectives
from ricnet.core.policies import SimplexPolicy
from ricnet.errors import require
from ricnet.methods.agent import Estimates, Rollout
from ricnet.methods.ric import RIC


@dataclass(frozen=True)
class OnPolicy(RIC):
    name: ClassVar[str] = "ric-on-policy"
    title: ClassVar[str] = "RIC, on-policy"
    about: ClassVar[str] = "RIC without snapshots: each update draws from the network itself"
    colour: ClassVar[str] = RIC.colour
    search_space: ClassVar[tuple[str, ...]] = ("gae_lambda=0.5..1", "rollouts=2,4,8")

    # Settings of Algorithm 1 that change nothing at ρ = 1 are constants here. Rounding leaves ρ − 1 near 1e-6, which
    # SPO's quadratic pulls back.
    least_updates: ClassVar[int] = 1
    updates_per_snapshot: ClassVar[int] = 1  # type: ignore[misc]
    passes_per_snapshot: ClassVar[int] = 1  # type: ignore[misc]
    epsilon: ClassVar[float] = 0.2  # type: ignore[misc]
    log_ratio_clamp: ClassVar[None] = None  # type: ignore[misc]

    objective: Literal["policy-gradient", "expected"] = "policy-gradient"  # type: ignore[assignment]
    """What is maximised: the policy gradient of the return, or expected, a control without one: E[log a_y] in the
    sampled states, in closed form."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.objective == "expected":
            require(self.gamma < 1, "gamma", self.gamma, "below 1 for this objective")
            require(self.head == "dirichlet", "objective", self.objective, "policy-gradient for this head")
            require(self.credit == "joint", "credit", self.credit, "joint where no belief is credited")
            which = f"policy-gradient for {self.name}, which has its own score"
            require(self.rewards_log_score(), "objective", self.objective, which)

    def surrogate(
        self, ratio: Float[Tensor, "steps rollouts batch"], advantages: Float[Tensor, "steps rollouts batch"]
    ) -> Float[Tensor, "steps rollouts batch"]:
        return objectives.spo(ratio, advantages, OnPolicy.epsilon)

    def weighed(
        self,
        policy: SimplexPolicy,
        ratio: Float[Tensor, "steps rollouts batch"],
        rollout: Rollout,
        estimates: Estimates,
        labels: Int64[Tensor, "batch"],
    ) -> Float[Tensor, "steps rollouts batch"]:
        """`expected` has the weights of Eq. 2: what the policy gradient estimates, less the effect of a_t on later
        states."""
        if self.objective != "expected":
            return RIC.weighed(self, policy, ratio, rollout, estimates, labels)
        weights = self.horizon * mdp.geometric_weights(self.horizon, self.gamma, ratio.device)
        return policy.expected_log_score(labels) * weights.to(ratio.dtype)[:, None, None]

    @classmethod
    def title_of(cls, settings: Mapping[str, Any]) -> str:
        if settings.get("objective") == "expected":
            return f"{RIC.title}, expected"
        return super().title_of(settings)

    def without_effect(self, exits: bool) -> dict[str, str]:
        unused = ("label_baseline", "normalize_advantages", "step_weight", "entropy_coef")
        idle = dict.fromkeys(unused, "the expected objective has no policy gradient")
        return super().without_effect(exits) | (idle if self.objective == "expected" else {})
