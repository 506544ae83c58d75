import pytest
import torch

from ricnet.errors import RicnetError
from ricnet.training.api import isolated_rng
from ricnet.training.config import Config

CPU = torch.device("cpu")


def test_the_program_around_is_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    for before in (False, True):
        monkeypatch.setattr(torch.backends.cudnn, "benchmark", before)
        state = torch.get_rng_state()
        with isolated_rng(Config(), CPU):
            torch.backends.cudnn.benchmark = not before
            torch.rand(3)
        assert torch.backends.cudnn.benchmark is before
        assert torch.equal(torch.get_rng_state(), state)


def test_too_little_memory_is_a_sentence() -> None:
    with (
        pytest.raises(RicnetError, match="cpu has too little memory for batches of 512; lower --batch-size"),
        isolated_rng(Config(), CPU),
    ):
        raise torch.OutOfMemoryError
