"""CUDA graphs: record work on a GPU once, replay it without launching each kernel again.

On a CPU a recording is the function itself and a message is there at once, so that code built on them can be tested
without a GPU.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

WARM_UP = 3
"""Runs before a recording, while libraries choose kernels."""
Part = Callable[[], None]
"""Work on tensors in place, without synchronisation."""


@contextmanager
def capture(graph: torch.cuda.CUDAGraph, **options: Any) -> Iterator[None]:
    """`torch.cuda.graph` without garbage collection: freeing an old graph would end the recording. After a failure the
    random generator is usable again."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        with torch.cuda.graph(graph, **options):
            yield
    except BaseException:
        _renew_generator(torch.cuda.default_generators[torch.cuda.current_device()])
        raise
    finally:
        if collecting:
            gc.enable()


def _renew_generator(generator: torch.Generator) -> None:
    """After a failed recording every draw is an error; replace the generator's state by a copy at the same position."""
    fresh = torch.Generator(generator.device)
    fresh.set_state(generator.get_state())
    generator.graphsafe_set_state(fresh.graphsafe_get_state())


class Recorder:
    """Makes recordings that are replayed one at a time, in any order.

    They share memory: a result that is not a tensor of the caller is valid until the next replay. They have their own
    stream, because some versions of torch free memory of all graphs of a stream together with one of them.
    """

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.memory = None if self.stream is None else torch.cuda.graph_pool_handle()

    def __call__(self, part: Part, before: Part | None = None) -> Part:
        """`before` is called before each warm-up run and is not recorded."""
        if self.stream is None:
            return part
        graph = torch.cuda.CUDAGraph()
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):  # restored if the recording fails
            for _ in range(WARM_UP):
                if before is not None:
                    before()
                part()
            with capture(graph, pool=self.memory, stream=self.stream):
                part()
        torch.cuda.current_stream().wait_stream(self.stream)
        return graph.replay


class Messages:
    """One number per step, sent from the GPU without stopping it."""

    def __init__(self, steps: int, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        kept = torch.zeros(steps, dtype=torch.int64, pin_memory=on_gpu)
        self.numbers = kept.numpy()
        self.places = [kept[step] for step in range(steps)]
        self.sent = [torch.cuda.Event() for _ in range(steps)] if on_gpu else None

    def send(self, step: int, number: Int64[Tensor, ""]) -> None:
        """Sent after all work queued so far."""
        self.places[step].copy_(number, non_blocking=True)
        if self.sent is not None:
            self.sent[step].record()

    def read(self, step: int) -> int:
        """Wait for this message, not for work queued after it."""
        if self.sent is not None:
            self.sent[step].synchronize()
        return int(self.numbers[step])
