"""RIC in closed form: on-policy, with the reward E[log a_y] of each step differentiated directly instead of sampled.

The mean policy gradient keeps its direction and has far less variance. Only the effect of an action on later states is
estimated from samples (docs/concepts.md). It is the default with exits (docs/exits.md). Not in the paper.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ricnet.core.policies import SimplexPolicy
from ricnet.errors import require
from ricnet.methods.method import Labels
from ricnet.methods.on_policy import OnPolicy
from ricnet.methods.ric import RIC, Estimates, PerStep, Rollout


@dataclass(frozen=True)
class ClosedForm(OnPolicy):
    name: ClassVar[str] = "ric-closed-form"
    title: ClassVar[str] = "RIC, closed form"
    about: ClassVar[str] = "RIC with rewards in closed form; the default with exits"
    colour: ClassVar[str] = RIC.colour

    credit: ClassVar[str] = "closed form"  # type: ignore[misc]
    objective: ClassVar[str] = "policy-gradient"  # type: ignore[misc]
    reward_floor: ClassVar[None] = None  # type: ignore[misc]

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.head == "dirichlet", "head", self.head, f"dirichlet for {self.name}")

    @classmethod
    def title_of(cls, settings: Mapping[str, Any]) -> str:
        return cls.title

    def step_gain_surrogate(
        self, policy: SimplexPolicy, rollout: Rollout, estimates: Estimates, labels: Labels
    ) -> PerStep:
        """E[log a_{t,y}] with gradient, times its weight in the return of step t."""
        assert estimates.reward_coefficient is not None
        return estimates.reward_coefficient * policy.expected_log_score(labels)
