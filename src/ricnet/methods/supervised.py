"""Supervised learning (SL): cross-entropy in one pass, the paper's first baseline."""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64, Num
from torch import Tensor, nn

from ricnet.core.trajectory import Trajectory
from ricnet.methods.method import Method, Metrics, accuracy
from ricnet.nets.backbone import Backbone


@dataclass(frozen=True)
class Supervised(Method[nn.Sequential]):
    name: ClassVar[str] = "supervised"

    def build(self, backbone: Backbone, classes: int) -> nn.Sequential:
        return nn.Sequential(backbone, nn.Linear(backbone.embedding_size, classes))

    def loss(
        self,
        model: nn.Sequential,
        snapshot: nn.Sequential,
        inputs: Num[Tensor, "batch ..."],
        labels: Int64[Tensor, "batch"],
    ) -> tuple[Float[Tensor, ""], Metrics]:
        logits = model(inputs)
        loss = F.cross_entropy(logits, labels)
        logit_norm = logits.detach().norm(dim=-1).mean()
        return loss, {"accuracy": accuracy(logits, labels), "logit_norm": logit_norm}

    def refine(
        self, model: nn.Sequential, inputs: Num[Tensor, "batch ..."], max_steps: int | None = None, halt: bool = False
    ) -> Trajectory:
        """One step, which is also the last."""
        log_beliefs = model(inputs).log_softmax(-1).unsqueeze(0)
        return Trajectory(log_beliefs, torch.ones_like(log_beliefs[0, :, 0], dtype=torch.int64))
