"""A minibatch learned from in parts. That several processes give the same is in test_distributed.py."""

from typing import Any

import pytest
import torch

from ricnet.data import Dataset
from ricnet.errors import RicnetError
from ricnet.methods import METHODS
from ricnet.processes import Processes, Share
from ricnet.training.api import configure
from ricnet.training.gradient import refuse_thin_parts
from ricnet.training.trainer import Trainer

SYSTEMS: dict[str, dict[str, Any]] = {
    **{method: {} for method in sorted(METHODS)},
    "ric, with snapshots": {"updates_per_snapshot": 2, "exact_gain": True, "reward_floor": None},
    "ric, logistic-normal": {"head": "logistic-normal"},
}


def updated(system: str, dataset: Dataset, parts: int) -> Trainer:
    method = system.split(",")[0]
    own = {} if method == "supervised" else {"horizon": 3}
    settings = {"batch_size": 15, "width": 0.1, "accumulate": parts} | own | SYSTEMS[system]
    trainer = Trainer(configure(dataset, method, "fast", **settings), dataset, None, torch.device("cpu"))
    for _ in range(2):
        trainer._step()
    return trainer


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_batch_in_parts_gives_the_update_of_the_whole(system: str, dataset: Dataset) -> None:
    """15 rows in 4 parts, which are not equally large. Explained variance alone is a mean over the parts."""
    if system in ("ric", "supervised"):
        object.__setattr__(dataset.train, "weights", torch.linspace(0.1, 2, len(dataset.train)))
    torch.set_default_dtype(torch.float64)
    try:
        whole, parts = (updated(system, dataset, parts) for parts in (1, 4))
    finally:
        torch.set_default_dtype(torch.float32)
    for name, tensor in whole.model.state_dict().items():
        torch.testing.assert_close(parts.model.state_dict()[name], tensor, atol=1e-10, rtol=1e-10)
    for name in whole.sums.keys() - {"explained_variance"}:
        assert float(parts.sums[name]) == pytest.approx(float(whole.sums[name]), rel=1e-5, abs=1e-6), name


def test_parts_that_are_too_thin_are_refused() -> None:
    refuse_thin_parts(Share(1), 1)
    refuse_thin_parts(Share(16, Processes(0, 2)), 4)
    with pytest.raises(RicnetError, match=r"15 cannot be shared by 2 processes in 4 parts.*raise --batch-size"):
        refuse_thin_parts(Share(15, Processes(0, 2)), 4)
    with pytest.raises(RicnetError, match="lower --accumulate"):
        refuse_thin_parts(Share(5), 3)
