from pathlib import Path

import pytest
import torch
from torch import nn

from ricnet.data import memory
from ricnet.data.memory import activation_bytes, fitting_batch, free_bytes

NET = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Sequential(nn.Flatten(), nn.Linear(4 * 25, 10)))
BYTES = 4 * (4 * 25 + 4 * 25 + 4 * 25 + 10)
"""Of the outputs of its four layers for one 5 × 5 image."""


def test_the_outputs_of_all_layers_are_counted() -> None:
    NET.train()
    assert activation_bytes(NET, torch.zeros(1, 1, 5, 5)) == BYTES
    assert NET.training
    assert not any(module._forward_hooks for module in NET.modules())


def test_a_batch_is_halved_until_it_fits() -> None:
    image = torch.zeros(1, 1, 5, 5)
    for_one = int(memory.KEPT * BYTES / memory.SHARE)
    assert fitting_batch(NET, image, 256, 256 * for_one) == 256
    assert fitting_batch(NET, image, 256, 256 * for_one - 10) == 128
    assert fitting_batch(NET, image, 100, 26 * for_one) == 25
    assert fitting_batch(NET, image, 128, 0) == 8
    assert fitting_batch(NET, image, 5, 0) == 5


def test_free_memory_is_known_or_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert free_bytes(torch.device("cpu")) > 10**6
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "MemTotal: 9 kB\nMemAvailable:  5 kB\n")
    assert free_bytes(torch.device("cpu")) == 5 * 1024
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "")
    assert free_bytes(torch.device("cpu")) > 10**6
