"""Queues of scripts/run_queue.py in tests: trained without further processes, on tiny images."""

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import run_queue


class Here:
    """In place of a process: does its work when it is started."""

    exitcode: int | None = None

    def __init__(self, target: Callable[..., None], args: tuple[Any, ...], name: str) -> None:
        self.target, self.args = target, args

    def start(self) -> None:
        try:
            self.target(*self.args)
            self.exitcode = 0
        except SystemExit:
            self.exitcode = 1


def train_here(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(run_queue.multiprocessing, "get_context", lambda kind: Namespace(Process=Here))
    patch.setattr(run_queue.signal, "pthread_sigmask", lambda *changes: None)
    patch.setattr(run_queue.torch, "set_num_threads", lambda count: None)


def write_data(path: Path) -> str:
    """96 images of 8 × 8 pixels in three classes that differ in brightness."""
    labels = np.arange(96) % 3
    pixels = np.random.default_rng(0).integers(0, 100, (96, 8, 8)) + 60 * labels[:, None, None]
    np.savez(path, x=pixels.astype(np.uint8), y=labels)
    return str(path)
