import pytest
import torch

from ricnet.training.graph import kernels_as_before


def test_how_cudnn_chooses_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    for before in (False, True):
        monkeypatch.setattr(torch.backends.cudnn, "benchmark", before)
        with kernels_as_before():
            torch.backends.cudnn.benchmark = not before
        assert torch.backends.cudnn.benchmark is before
