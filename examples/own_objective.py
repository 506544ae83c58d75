"""Your own objective: Algorithm 1 moves the policy by SPO; here by truncated importance weights, Â·min(ρ, 1 + ε), as in
V-trace. `surrogate` gets the ratio ρ and the advantage of every step, both (steps, roll-outs, batch), and returns what
to maximise. This script is the command line that knows it:

    python examples/own_objective.py train digits --method truncated --epsilon 0.3 --out runs/truncated
    python examples/own_objective.py compare digits --methods truncated ric-snapshots ric-ppo

Roll-outs, rewards, value and halting are RIC's.
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
    objective: ClassVar[str] = "truncated"  # no setting any more: there is only this one

    def surrogate(self, ratio, advantages):
        return advantages * ratio.clamp(max=1 + self.epsilon)


if __name__ == "__main__":
    main()
