"""A whole update as one CUDA graph: a small network's step is hundreds of kernels, and launching them costs more than
running them."""

from collections.abc import Callable

import torch
from jaxtyping import Int64, Num
from torch import Tensor

WARM_UP = 3
"""Updates before the capture, in which libraries choose their kernels and optimizers make their state."""


class GraphedStep:
    """Records `step(inputs, labels)` once and replays it on new values; all else it touches must stay in place."""

    def __init__(
        self,
        step: Callable[[Num[Tensor, "batch ..."], Int64[Tensor, "batch"]], None],
        inputs: Num[Tensor, "batch ..."],
        labels: Int64[Tensor, "batch"],
    ) -> None:
        self.inputs, self.labels = inputs.clone(), labels.clone()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                step(self.inputs, self.labels)
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            step(self.inputs, self.labels)

    def __call__(self, inputs: Num[Tensor, "batch ..."], labels: Int64[Tensor, "batch"]) -> None:
        self.inputs.copy_(inputs)
        self.labels.copy_(labels)
        self.graph.replay()
