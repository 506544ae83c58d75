"""A limit on time, as something a method can ask before each step."""

import time

import torch

from ricnet.methods.method import TimeLeft


def start_clock(milliseconds: float, device: torch.device) -> TimeLeft:
    """From now on: is there time for another step, one as long as the last?

    A GPU works behind the host's back, so each answer waits for what has been asked of it so far.
    """
    end = time.perf_counter() + milliseconds / 1000
    asked: float | None = None

    def time_left() -> bool:
        nonlocal asked
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        now = time.perf_counter()
        step = 0.0 if asked is None else now - asked
        asked = now
        return now + step < end

    return time_left
