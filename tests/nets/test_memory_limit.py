import pytest
import torch
from torch import nn

from ricnet.nets.memory_limit import OverLimit, memory_limit


def test_tensors_within_the_limit_are_made_and_others_are_not() -> None:
    with memory_limit(6 + 2):
        assert nn.Linear(3, 2).weight.shape == (2, 3)
    for most, make in ((7, lambda: nn.Linear(3, 2)), (1 << 30, lambda: nn.Linear(1 << 40, 1 << 40))):
        with pytest.raises(OverLimit), memory_limit(most):
            make()
    with pytest.raises(OverLimit), memory_limit(5):
        torch.zeros(2, 3)
    assert torch.zeros(2, 3).sum() == 0
