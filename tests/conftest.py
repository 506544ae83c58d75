import pytest
import torch
from hypothesis import settings

# Shared machines are too noisy for deadlines, and a red build should be red again when it is repeated.
settings.register_profile("ricnet", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("ricnet")

# Tensors here are tiny: a second thread costs more than it brings, most of all where tests share the machine.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
