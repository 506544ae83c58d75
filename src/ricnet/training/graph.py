"""A whole update as one CUDA graph: a small network's step is hundreds of kernels, and launching them costs more than
running them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Int64
from torch import Tensor

from ricnet.training.recording import WARM_UP, capture


@contextmanager
def tensor_cores() -> Iterator[None]:
    """Let products of float32 matrices round their factors to TF32: the refiner's many times faster on a GPU.

    The rounding of a factor does not depend on how a product is split up, so roll-out and replay still agree.
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


class GraphedStep:
    """Records `step(rows)` once and replays it on other rows; all else it touches must stay in place."""

    def __init__(self, step: Callable[[Int64[Tensor, "batch"]], None], rows: Int64[Tensor, "batch"]) -> None:
        self.rows = rows.clone()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                step(self.rows)
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with capture(self.graph):
            step(self.rows)

    def __call__(self, rows: Int64[Tensor, "batch"]) -> None:
        self.rows.copy_(rows)
        self.graph.replay()
