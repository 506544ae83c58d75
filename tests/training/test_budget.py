import pytest
import torch
from torch import nn

from ricnet.training.classifier import OverBudget, budget


def test_what_is_within_is_made_and_what_is_beyond_is_not() -> None:
    with budget(6 + 2):
        layer = nn.Linear(3, 2)
    assert layer.weight.shape == (2, 3)
    with pytest.raises(OverBudget), budget(7):
        nn.Linear(3, 2)
    with pytest.raises(OverBudget), budget(1 << 30):
        nn.Linear(1 << 40, 1 << 40)
    with pytest.raises(OverBudget), budget(5):
        torch.zeros(2, 3)
    assert torch.zeros(2, 3).sum() == 0
