"""Your own method: supervised learning with the focal loss (Lin et al. 2017), which gives correct examples less weight.

    python examples/own_method.py train digits --method focal --focus 3 --out runs/focal
    python examples/own_method.py compare digits --methods focal supervised ric
    python examples/own_method.py report runs/focal

This script is the command line that knows the method. Its fields are flags and entries of config.json, its title is in
tables and figures, and its estimator is ricnet.FocalClassifier.
"""

from dataclasses import dataclass
from typing import ClassVar

from ricnet.apps.cli import main
from ricnet.methods import Supervised, register_method
from ricnet.methods.method import accuracy, weighted_mean


@register_method
@dataclass(frozen=True)
class Focal(Supervised):
    name: ClassVar[str] = "focal"
    title: ClassVar[str] = "Focal loss"

    focus: float = 2.0
    """γ of (1 − p)^γ · −log p. Raise it to give correct examples less weight; 0 is cross-entropy."""

    def loss(self, model, snapshot, inputs, labels, weights=None):
        log_beliefs = self.log_beliefs(model(inputs))
        right = log_beliefs.gather(1, labels[:, None])[:, 0]
        loss = weighted_mean(-((1 - right.exp()) ** self.focus) * right, weights)
        return loss, {"accuracy": accuracy(log_beliefs, labels)}


if __name__ == "__main__":
    main()
