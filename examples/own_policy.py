"""Your own policy over beliefs: a Dirichlet with a concentration per class, α_k = μ_k·c_k + ε. That of RIC has one c.

    python examples/own_policy.py train digits --method per-class --out runs/per-class
    python examples/own_policy.py compare digits --methods per-class ric

`spread_outputs` is the number of outputs of the network for the concentration. `policy` makes a policy of its outputs;
it may return any class with the functions of `ricnet.core.policies.SimplexPolicy`. Roll-outs, rewards, objective and
value are those of RIC on-policy. This script is the command line that knows the method.
"""

from dataclasses import dataclass
from typing import ClassVar

from ricnet.apps.cli import main
from ricnet.core.policies import Dirichlet
from ricnet.methods import OnPolicy, register_method


@register_method
@dataclass(frozen=True)
class PerClass(OnPolicy):
    name: ClassVar[str] = "per-class"
    title: ClassVar[str] = "RIC with a concentration for each class"

    def spread_outputs(self, classes):
        return classes

    def policy(self, heads):
        log_mu = heads.logits.log_softmax(-1)
        return Dirichlet(log_mu, log_mu.exp() * self.concentration(heads) + self.alpha_floor)


if __name__ == "__main__":
    main()
