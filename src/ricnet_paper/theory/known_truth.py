"""A problem with known label distribution q(· | x), and RIC trained on it, for the checks of Eq. 4 and Proposition 1.

Inputs are one-hot contexts. Labels are drawn from q for every update, so that there is no over-fitting and q is
realizable.
"""

import copy
import math

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from ricnet.methods import RIC
from ricnet.nets.encoders import Backbone
from ricnet.nets.refiner import RecurrentClassifier

Conditionals = Float[Tensor, "contexts classes"]

CONDITIONALS: Conditionals = torch.tensor(
    [[0.90, 0.04, 0.03, 0.03], [0.10, 0.60, 0.20, 0.10], [0.05, 0.05, 0.45, 0.45], [0.25, 0.25, 0.25, 0.25]],
    dtype=torch.float64,
)
"""q for each context, from nearly certain to uniform."""
METHOD = RIC(horizon=6, rollouts=4, updates_per_snapshot=2, label_baseline=True, step_weight="discounted")
"""The paper's γ, λ, ε and c_v. The theory is about J, whose exact gradient weights step t by γ^{t−1}."""
LABELS = 32
"""Labels per context and update."""
RATE = 3e-3
"""Initial learning rate; decays to 0 by a cosine."""
SIZE = 16
"""Size of embedding and thought."""


def contexts(conditionals: Conditionals) -> Float[Tensor, "contexts contexts"]:
    """One-hot inputs."""
    return torch.eye(len(conditionals))


def untrained_agent(method: RIC, conditionals: Conditionals, seed: int = 0) -> RecurrentClassifier:
    count, classes = conditionals.shape
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        encoder = nn.Sequential(nn.Linear(count, SIZE), nn.Tanh())
        return method.build(Backbone(encoder, (count,)), classes)


def train_agent(method: RIC, conditionals: Conditionals, updates: int, seed: int = 0) -> RecurrentClassifier:
    """Algorithm 1 with Adam, without weight decay and clipping."""
    model = untrained_agent(method, conditionals, seed)
    snapshot = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters())
    inputs = contexts(conditionals).repeat_interleave(LABELS, 0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for update in range(updates):
            if update % method.snapshot_period(1) == 0:
                snapshot.load_state_dict(model.state_dict())
            optimizer.param_groups[0]["lr"] = RATE * (1 + math.cos(math.pi * update / updates)) / 2
            loss, _ = method.loss(model, snapshot, inputs, draw_labels(conditionals, LABELS).flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model


def draw_labels(conditionals: Conditionals, count: int) -> Int64[Tensor, "contexts count"]:
    """y ~ q(· | x)."""
    return torch.multinomial(conditionals, count, replacement=True)


def entropy(conditionals: Conditionals) -> Float[Tensor, "contexts"]:
    return torch.special.entr(conditionals).sum(-1)  # type: ignore[no-any-return]


def divergence(
    truth: Float[Tensor, "contexts classes"], log_beliefs: Float[Tensor, "*any contexts classes"]
) -> Float[Tensor, "*any contexts"]:
    """KL(q ‖ belief)."""
    return -(torch.special.entr(truth) + truth * log_beliefs).sum(-1)  # type: ignore[no-any-return]
