from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from refusals import refusal
from ricnet.nets.checkpoints import MemoryLimit, OverLimit, architecture_from_json
from ricnet.nets.pretrained import read_hf


@pytest.mark.parametrize(
    "change", [{"library": "mine"}, {"size": [1 << 20, 4]}, {"mean": ["x"]}, {"network": 3}, {"more": 1}]
)
def test_an_architecture_from_a_file_is_checked(resnet: Path, change: dict[str, Any]) -> None:
    entry = read_hf(resnet).architecture.to_json()
    with refusal("config.json", "encoder"):
        architecture_from_json(entry | change, "config.json")


def test_tensors_within_the_limit_are_made_and_others_are_not() -> None:
    with MemoryLimit(6 + 2):
        assert nn.Linear(3, 2).weight.shape == (2, 3)
    for most, make in ((7, lambda: nn.Linear(3, 2)), (1 << 30, lambda: nn.Linear(1 << 40, 1 << 40))):
        with pytest.raises(OverLimit), MemoryLimit(most):
            make()
    with pytest.raises(OverLimit), MemoryLimit(5):
        torch.zeros(2, 3)
    assert torch.zeros(2, 3).sum() == 0
