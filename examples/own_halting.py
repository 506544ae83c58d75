"""Your own halting rule: RIC stops once its value is negative; here at the first belief that is sure enough.
`goes_on` is a mask of the examples that continue after a step, `trajectory` says from all steps where each example
stops, and both must agree. This script is the command line that knows it:

    python examples/own_halting.py train digits --method sure --sure 0.9 --out runs/sure
    python examples/own_halting.py compare digits --methods sure ric

Training is that of RIC on-policy. `ric predict`, `ric serve` and the rest stop by the rule, too.
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
    halts_by_value: ClassVar[bool] = False  # so that no threshold on the value is chosen

    sure: float = 0.95
    """Stop at the first belief at least this sure. Raise it to think longer."""

    def goes_on(self, step):
        return step.output.exp().amax(-1) < self.sure

    def trajectory(self, steps):
        return Trajectory(steps.output, first_stop(self.goes_on(steps)))


if __name__ == "__main__":
    main()
