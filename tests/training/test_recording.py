from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from problems import assert_same_weights, trained, trainer
from ricnet.data import Dataset
from ricnet.models.run import RunFolder
from ricnet.training.recording import compiles

Finished = Callable[[str], RunFolder]


def test_only_what_is_recorded_and_long_is_compiled_unasked(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = trainer(dataset, "ric")
    for worth, recorded, expected in ((9, True, True), (9, False, False), (10, True, False)):
        monkeypatch.setattr("ricnet.training.recording.WORTH_COMPILING", worth)
        assert compiles(learner, recorded) == expected


def test_compiled_training_is_the_same_and_leaves_evaluation_alone(
    dataset: Dataset, finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a stand-in for torch.compile, which takes too long here; what it makes of the network is a GPU's matter."""
    calls = list[int]()

    def compile_(plain: Any, dynamic: bool) -> Any:
        assert not dynamic
        return lambda *inputs, **options: (calls.append(1), plain(*inputs, **options))[1]

    monkeypatch.setattr(torch, "compile", compile_)
    trained(dataset, tmp_path / "off", epochs=1, compile="off")
    assert not calls
    trained(dataset, tmp_path / "on", "ric-on-policy", compile="on")
    assert_same_weights(tmp_path / "on", finished("ric-on-policy").path)
    assert len(calls) == 9 * (1 + 3 + 2)  # encoder, steps, advantages and loss of each update; no evaluation
