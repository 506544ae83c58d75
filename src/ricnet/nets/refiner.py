"""The recurrent part that every iterative method shares: a GRU that reads the input and its own last belief."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Num
from torch import Tensor, nn

from ricnet.nets import gru


class Heads(NamedTuple):
    """What is read off a thought."""

    logits: Float[Tensor, "*batch classes"]
    concentration: Float[Tensor, "*batch"]
    """Unbounded; the method maps it into the range of c."""
    value: Float[Tensor, "*batch"]
    """V(s_t) for RIC; the halting logit for ACT and PonderNet."""


HeadWeights = tuple[Float[Tensor, "heads size"], Float[Tensor, "heads"]]


class Refiner(nn.Module):
    """τ_t = f(x, τ_{t−1}, a_{t−1}): a GRU over [e; a_{t−1}] whose thought is as large as the embedding e.

    e never changes during refinement, so its share of the gates is computed once by `read` and passed along.
    All tensors may carry extra axes before `batch` (several roll-outs of one input share its context).
    """

    def __init__(self, embedding_size: int, classes: int, head_gain: float = 1.0) -> None:
        super().__init__()
        size = embedding_size
        self.size = size
        self.from_embedding = nn.Linear(embedding_size, 3 * size)
        self.from_belief = nn.Linear(classes, 3 * size, bias=False)
        self.from_thought = nn.Linear(size, 3 * size)
        for parameter in self.parameters():  # as torch's GRU does
            nn.init.uniform_(parameter, -(size**-0.5), size**-0.5)
        self.policy = nn.Linear(size, classes)
        self.concentration = nn.Linear(size, 1)
        self.value = nn.Linear(size, 1)
        nn.init.orthogonal_(self.policy.weight, gain=head_gain)
        nn.init.zeros_(self.policy.bias)

    def read(self, embedding: Float[Tensor, "batch embedding"]) -> Float[Tensor, "batch gates"]:
        """The context: what the input adds to the gates at every step."""
        return self.from_embedding(embedding)  # type: ignore[no-any-return]

    def think(
        self,
        context: Float[Tensor, "batch gates"],
        thought: Float[Tensor, "*rollouts batch size"],
        belief: Float[Tensor, "*rollouts batch classes"],
    ) -> Float[Tensor, "*rollouts batch size"]:
        """One step, from τ_{t−1} and a_{t−1} to τ_t."""
        return gru.cell(context + self.from_belief(belief), self.from_thought(thought), thought)

    def replay(
        self, context: Float[Tensor, "batch gates"], beliefs: Float[Tensor, "steps *rollouts batch classes"]
    ) -> Float[Tensor, "steps *rollouts batch size"]:
        """τ_1 … τ_T along given beliefs a_0 … a_{T−1}; only the thought's own part has to go step by step."""
        inputs = context + self.from_belief(beliefs)
        thoughts = gru.sequence(inputs.flatten(1, -2), self.from_thought.weight, self.from_thought.bias)
        return thoughts.view(*inputs.shape[:-1], self.size)

    def heads(self, thought: Float[Tensor, "*batch size"], weights: HeadWeights | None = None) -> Heads:
        """All heads by one product. Whoever asks often gives the `head_weights`, to join them but once."""
        logits, others = F.linear(thought, *(weights or self.head_weights())).split([len(self.policy.bias), 2], -1)
        return Heads(logits, others[..., 0], others[..., 1])

    def head_weights(self) -> HeadWeights:
        layers = (self.policy, self.concentration, self.value)
        return torch.cat([layer.weight for layer in layers]), torch.cat([layer.bias for layer in layers])


class RecurrentClassifier(nn.Module):
    """Backbone and refiner: the network of RIC, and of every method that differs from it only in its objective."""

    def __init__(self, backbone: nn.Module, embedding_size: int, classes: int, head_gain: float = 1.0) -> None:
        super().__init__()
        self.classes = classes
        self.backbone = backbone
        self.refiner = Refiner(embedding_size, classes, head_gain)

    def context(self, inputs: Num[Tensor, "batch ..."]) -> Float[Tensor, "batch gates"]:
        """All that refinement needs to know of an input."""
        return self.refiner.read(self.backbone(inputs))
