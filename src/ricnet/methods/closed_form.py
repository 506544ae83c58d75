"""RIC in closed form: on-policy, with each step rewarded by the E[log a_y] of its policy instead of the log a_y of its
sample, and differentiated directly.

Far less noise, and a mean policy gradient of the same direction. Only the effect of an action on later states is still
sampled, so that little of reinforcement is left (docs/concepts.md). It is the default with exits: each exit answers
once a roll-out, and sampled rewards say too little about it (docs/exits.md). Ours, not the paper's.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from jaxtyping import Float, Int64
from torch import Tensor

from ricnet.core.policies import SimplexPolicy
from ricnet.errors import require
from ricnet.methods.agent import Estimates, Rollout
from ricnet.methods.on_policy import OnPolicy
from ricnet.methods.ric import RIC


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
        require(self.head == "dirichlet", "head", self.head, f"dirichlet for {self.name}: others have no closed form")

    @classmethod
    def title_of(cls, settings: Mapping[str, Any]) -> str:
        return cls.title

    def own_gain(
        self, policy: SimplexPolicy, rollout: Rollout, estimates: Estimates, labels: Int64[Tensor, "batch"]
    ) -> Float[Tensor, "steps rollouts batch"]:
        """The gain of a step by its own action: E[log a_{t,y}], with gradient."""
        return estimates.reward_coefficient * policy.expected_log_score(labels)
