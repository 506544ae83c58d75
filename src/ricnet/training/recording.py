"""Work that a GPU does again and again without being told kernel by kernel, and the numbers it sends back meanwhile.

On a CPU a recording is the function itself and a number is there at once. So all that is built on these two can be
tested without a GPU, but for the recording.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

WARM_UP = 3
"""Runs before a recording, in which libraries choose their kernels."""

Part = Callable[[], None]
"""Work on tensors that stay in place, with nothing the host would have to wait for."""


@contextmanager
def capture(graph: torch.cuda.CUDAGraph, **options: Any) -> Iterator[None]:
    """`torch.cuda.graph`, after whose failure random numbers can be drawn again."""
    try:
        with torch.cuda.graph(graph, **options):
            yield
    except BaseException:
        _renew_generator(torch.cuda.default_generators[torch.cuda.current_device()])
        raise


def _renew_generator(generator: torch.Generator) -> None:
    """A failed recording leaves the generator waiting for its end, and any later draw an error. So a state that knows
    nothing of the recording takes over, at the same place of the same sequence."""
    fresh = torch.Generator(generator.device)
    fresh.set_state(generator.get_state())
    generator.graphsafe_set_state(fresh.graphsafe_get_state())


class Recorder:
    """Makes recordings to be replayed one at a time, in any order.

    They share the memory of what they compute in between: a result that is no tensor of the caller's own holds until
    the next replay. They have a stream of their own, for some versions of torch free what all graphs of a stream need
    when one of them goes.
    """

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.memory = None if self.stream is None else torch.cuda.graph_pool_handle()

    def __call__(self, part: Part, before: Part | None = None) -> Part:
        """`before` makes ready for each run that comes before the recording; nothing of it is recorded."""
        if self.stream is None:
            return part
        graph = torch.cuda.CUDAGraph()
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):  # left even if the recording fails
            for _ in range(WARM_UP):
                if before is not None:
                    before()
                part()
            with capture(graph, pool=self.memory, stream=self.stream):
                part()
        torch.cuda.current_stream().wait_stream(self.stream)
        return graph.replay


class Messages:
    """A number from each step of a GPU's work, sent without stopping it and read when it is there."""

    def __init__(self, steps: int, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        kept = torch.zeros(steps, dtype=torch.int64, pin_memory=on_gpu)
        self.numbers = kept.numpy()
        self.places = [kept[step] for step in range(steps)]
        self.sent = [torch.cuda.Event() for _ in range(steps)] if on_gpu else None

    def send(self, step: int, number: Int64[Tensor, ""]) -> None:
        """Once all is done that the GPU has been asked for so far."""
        self.places[step].copy_(number, non_blocking=True)
        if self.sent is not None:
            self.sent[step].record()

    def read(self, step: int) -> int:
        """Waits for that message, not for what the GPU was asked for after it."""
        if self.sent is not None:
            self.sent[step].synchronize()
        return int(self.numbers[step])
