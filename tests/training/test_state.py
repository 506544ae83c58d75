"""state.pt: what it holds, and runs that were interrupted under an older version (tests/training/interrupted)."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from problems import CPU, trainer, weights
from ricnet.data import Dataset
from ricnet.models.config import from_json
from ricnet.models.run import RunFolder, read_config
from ricnet.training.api import run
from ricnet.training.state import impossible, state_of

OLD = Path(__file__).parent / "interrupted"


def test_a_run_that_an_older_version_left_in_an_epoch_goes_on_as_it_would_have(
    dataset: Dataset, tmp_path: Path
) -> None:
    """Stopped after 7 of 15 updates, with averaged weights and patience; expected.safetensors is the unbroken run."""
    folder = RunFolder(tmp_path / "run")
    shutil.copytree(OLD, folder.path)
    config = from_json(read_config(folder.path)["config"], "config.json")
    run(config, dataset, folder, CPU, resume=True)
    made, expected = weights(folder.path), load_file(OLD / "expected.safetensors")
    assert made.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(made[name], tensor)


def test_the_state_has_the_entries_that_older_versions_wrote(dataset: Dataset) -> None:
    saved = RunFolder(OLD).read_state()
    learner = trainer(dataset, average=0.9)
    learner._step()
    assert state_of(learner).keys() == saved.keys()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"update": 16}, "update 16 of 15"),
        ({"update": -1}, "update -1"),
        ({"update": 7.0}, "update 7.0"),
        ({"collapsed": -1}, "counts"),
        ({"best": {}}, "no best epoch"),
        ({"best": {"epoch": 3, "best_epoch": 2}}, "best epoch 3 after 2"),
        ({"best": {"epoch": 2, "best_epoch": 0}}, "best epoch 0"),
        ({"best": {"epoch": 2, "best_epoch": 2, "weights": {}}}, "another network"),
        ({}, None),
    ],
)
def test_a_state_that_the_run_cannot_have_reached_is_told(
    dataset: Dataset, change: dict[str, Any], named: str | None
) -> None:
    learner = trainer(dataset, average=0.9, epochs=5)
    why = impossible(learner, RunFolder(OLD).read_state() | change)
    assert why is None if named is None else named in str(why)
