"""Your own objective: truncated importance weights, Â·min(ρ, 1 + ε), as in V-trace, in place of SPO.

    python examples/own_objective.py train digits --method truncated --epsilon 0.3 --out runs/truncated
    python examples/own_objective.py compare digits --methods truncated ric-snapshots ric-ppo

`surrogate` gets the ratio ρ and the advantage of each step, both (steps, roll-outs, batch), and returns what to
maximise. Roll-outs, rewards, value and halting are those of RIC. This script is the command line that knows the method.
"""

from dataclasses import dataclass
from typing import ClassVar

from ricnet.apps.cli import main
from ricnet.methods import RIC, register_method


@register_method
@dataclass(frozen=True)
class Truncated(RIC):
    name: ClassVar[str] = "truncated"
    title: ClassVar[str] = "RIC with truncated weights"
    objective: ClassVar[str] = "truncated"  # no longer a setting

    def surrogate(self, ratio, advantages):
        return advantages * ratio.clamp(max=1 + self.epsilon)


if __name__ == "__main__":
    main()
