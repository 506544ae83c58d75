"""RIC on-policy: Algorithm 1 with a snapshot after every update; the default of `ric train`. Not in the paper.

The ratio ρ is always 1, so SPO and PPO both have the plain policy gradient, and the encoder runs once per update
instead of twice.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from ricnet.core import mdp
from ricnet.core.policies import SimplexPolicy
from ricnet.errors import require, setting
from ricnet.methods.method import Labels
from ricnet.methods.ric import RIC, Estimates, PerStep, Rollout


@dataclass(frozen=True)
class OnPolicy(RIC):
    name: ClassVar[str] = "ric-on-policy"
    title: ClassVar[str] = "RIC, on-policy"
    about: ClassVar[str] = "RIC without snapshots: each update draws from the network itself"
    colour: ClassVar[str] = RIC.colour
    search_space: ClassVar[tuple[str, ...]] = ("gae_lambda=0.5..1", "rollouts=2,4,8")

    # Settings of Algorithm 1 that have no effect at ρ = 1 are constants here. ρ − 1 is not 0 but about 1e-6, by
    # rounding, so the surrogate stays SPO's.
    least_updates: ClassVar[int] = 1
    updates_per_snapshot: ClassVar[int] = 1  # type: ignore[misc]
    passes_per_snapshot: ClassVar[int] = 1  # type: ignore[misc]
    epsilon: ClassVar[float] = 0.2  # type: ignore[misc]
    log_ratio_clamp: ClassVar[None] = None  # type: ignore[misc]

    objective: Literal["policy-gradient", "expected"] = "policy-gradient"  # type: ignore[assignment]
    """What is maximised: the return, by its policy gradient, or expected: E[log a_y] in the sampled states, in closed
    form, a control without policy gradient."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.objective == "expected":
            expected = setting("objective", "expected")
            require(self.gamma < 1, "gamma", self.gamma, f"below 1 with {expected}")
            rule = f"policy-gradient with {setting('head', self.head)}"
            require(self.head == "dirichlet", "objective", self.objective, rule)
            require(self.credit == "joint", "credit", self.credit, f"joint with {expected}")
            rule = f"policy-gradient for {self.name}, which overrides score"
            require(self.rewards_log_score(), "objective", self.objective, rule)

    def surrogate(self, ratio: PerStep, advantages: PerStep) -> PerStep:
        return mdp.spo(ratio, advantages, OnPolicy.epsilon)

    def weighted_surrogate(
        self, policy: SimplexPolicy, ratio: PerStep, rollout: Rollout, estimates: Estimates, labels: Labels
    ) -> PerStep:
        """With `expected`, E[log a_{t,y}] with the weights of Eq. 2: the policy gradient without the effect of a_t on
        later states."""
        if self.objective != "expected":
            return RIC.weighted_surrogate(self, policy, ratio, rollout, estimates, labels)
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
