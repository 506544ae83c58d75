"""A deadline for inference: is there time for another step?"""

import time
from collections.abc import Sequence
from itertools import pairwise

import torch

from ricnet.methods.method import TimeLeft

CONCLUSION = 1e-3
"""Seconds before a deadline reserved for the work after the last step, or three steps if that is less."""


def start_clock(milliseconds: float, device: torch.device, costs: Sequence[float]) -> TimeLeft:
    """Start measuring. The returned function is called before each step, the first included, and says whether there is
    time for a step as long as the last, and for the work after it. With exits the next step is expected to take longer
    in proportion to its `costs`. A GPU works asynchronously, so each call waits for the work queued so far."""
    end = time.perf_counter() + milliseconds / 1000
    shares = [after - before for before, after in pairwise([0.0, *costs])]
    asked: list[float] = []

    def time_left() -> bool:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        now, steps = time.perf_counter(), len(asked)
        step = now - asked[-1] if asked else 0.0
        asked.append(now)
        conclusion = min(3 * step, CONCLUSION)
        if 0 < steps < len(shares):
            step *= shares[steps] / shares[steps - 1]
        return now + step + conclusion < end

    return time_left
