import pytest
import torch
from hypothesis import settings

# Shared machines are too noisy for deadlines, and a red build should be red again when it is repeated.
settings.register_profile("ricnet", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("ricnet")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
