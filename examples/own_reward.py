"""Your own reward: the gain in the quadratic score 2·a_y − Σ_k a_k², which is proper and bounded.

    python examples/own_reward.py train digits --method quadratic --out runs/quadratic
    python examples/own_reward.py compare digits --methods quadratic ric supervised

RIC rewards a step with its gain in log a_y (Eq. 1). Roll-outs, advantages, value and halting are those of RIC
on-policy; the value now estimates the quadratic score to be gained. This script is the command line that knows the
method.
"""

from dataclasses import dataclass
from typing import ClassVar

from ricnet.apps.cli import main
from ricnet.methods import OnPolicy, register_method


@register_method
@dataclass(frozen=True)
class Quadratic(OnPolicy):
    name: ClassVar[str] = "quadratic"
    title: ClassVar[str] = "RIC with the quadratic score"

    def score(self, log_beliefs, labels):
        beliefs = log_beliefs.exp()
        right = beliefs.gather(-1, labels.expand(beliefs.shape[:-1])[..., None])[..., 0]
        return 2 * right - beliefs.square().sum(-1)


if __name__ == "__main__":
    main()
