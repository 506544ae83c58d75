import os
import signal
from pathlib import Path

import pytest
import torch

from ricnet.data import Dataset
from ricnet.errors import RicnetError
from ricnet.training.api import configure, run, train_in_memory
from ricnet.training.classifier import load
from ricnet.training.run import RunFolder
from ricnet.training.trainer import Trainer

CPU = torch.device("cpu")
SHORT = {"epochs": 4, "batch_size": 16, "width": 0.1, "horizon": 4}


def test_it_learns_what_a_run_with_a_folder_learns_and_writes_nothing(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configure(dataset, "ric", "fast", **SHORT)
    run(config, dataset, RunFolder(tmp_path / "run"), CPU)
    expected = load(tmp_path / "run").refine(dataset.test.inputs)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    torch.manual_seed(5)
    following = torch.rand(3)
    torch.manual_seed(5)
    classifier, epochs = train_in_memory(config, dataset, CPU)
    assert torch.equal(torch.rand(3), following)
    assert epochs == 4
    assert torch.equal(classifier.refine(dataset.test.inputs).log_beliefs, expected.log_beliefs)
    assert list((tmp_path / "empty").iterdir()) == []


def test_stopped_by_hand_it_raises_what_python_raises(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    step = Trainer._step

    def step_and_ask_to_stop(self: Trainer) -> None:
        step(self)
        if self.update == 3:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Trainer, "_step", step_and_ask_to_stop)
    with pytest.raises(KeyboardInterrupt):
        train_in_memory(configure(dataset, "ric", "fast", **SHORT), dataset, CPU)


def test_divergence_names_no_file(dataset: Dataset) -> None:
    config = configure(dataset, "supervised", "fast", epochs=30, batch_size=16, lr=1e38, optimizer="sgd", clip=None)
    with pytest.raises(
        RicnetError, match=r"diverged in epoch \d+: .*(nothing is kept|no epoch was completed before)\. "
    ):
        train_in_memory(config, dataset, CPU)
