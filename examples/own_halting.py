"""Your own halting rule: stop at the first belief above a confidence. RIC stops once its value is negative.

    python examples/own_halting.py train digits --method sure --sure 0.9 --out runs/sure
    python examples/own_halting.py compare digits --methods sure ric

`goes_on` is the mask of examples that continue after a step. `trajectory` gets all steps and returns where each example
stops; both must agree. Training is that of RIC on-policy. This script is the command line that knows the method; its
`predict`, `serve` and other commands stop by the rule.
"""

from dataclasses import dataclass
from typing import ClassVar

from ricnet.apps.cli import main
from ricnet.core.trajectory import Trajectory, first_stop
from ricnet.methods import OnPolicy, register_method


@register_method
@dataclass(frozen=True)
class Sure(OnPolicy):
    name: ClassVar[str] = "sure"
    title: ClassVar[str] = "RIC that stops when sure"
    halts_by_value: ClassVar[bool] = False  # no threshold on the value is fitted

    sure: float = 0.95
    """Stop at the first belief with this confidence. Raise it for more steps."""

    def goes_on(self, step):
        return step.output.exp().amax(-1) < self.sure

    def trajectory(self, steps):
        return Trajectory(steps.output, first_stop(self.goes_on(steps)))


if __name__ == "__main__":
    main()
