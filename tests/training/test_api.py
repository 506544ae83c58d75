import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import ricnet
from ricnet.data import Dataset
from ricnet.errors import Interrupted, RicnetError
from ricnet.training import api
from ricnet.training.api import configure, default_folder, fit_batch, isolated_rng, run, train_in_memory
from ricnet.training.classifier import load
from ricnet.training.config import Config
from ricnet.training.run import RunFolder
from ricnet.training.trainer import Trainer

CPU = torch.device("cpu")
SHORT: dict[str, Any] = {"method": "supervised", "epochs": 2, "width": 0.1, "device": "cpu"}


def test_it_says_what_the_command_line_says(
    dataset: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ricnet.train(replace(dataset, notes=("Mind the gap.",)), out=tmp_path, batch_size=16, **SHORT)
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "note: Mind the gap."
    assert said[1].startswith("training supervised on 96 rows of 4 numbers")
    assert "rows/s" in said[2]
    assert "only 30 validation rows chose the epoch" in said[-1]
    assert "val_fraction" in said[-1]


def test_a_batch_that_nobody_asked_for_is_made_to_fit(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "free_bytes", lambda _device: 2**14)
    fitted = ricnet.train(dataset, out=tmp_path / "a", **SHORT).config.optimization.batch_size
    assert fitted < configure(dataset, "supervised", "fast").optimization.batch_size
    asked = ricnet.train(dataset, out=tmp_path / "b", batch_size=96, **SHORT)
    assert asked.config.optimization.batch_size == 96


def test_what_did_not_fit_is_noted_also_for_an_encoder_of_ones_own(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "free_bytes", lambda _device: 2**20)
    config, notes = configure(dataset, "ric", "fast", encoder="custom"), list[str]()
    assert fit_batch(config, dataset, CPU, notes, nn.Linear(4, 8)) == config
    assert notes == []
    smaller = fit_batch(config, dataset, CPU, notes, nn.Linear(4, 10_000)).optimization.batch_size
    assert smaller < config.optimization.batch_size
    assert f"Batches of {smaller} instead of {config.optimization.batch_size}" in notes[0]


def test_a_resumed_run_keeps_the_batch_it_began_with(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "free_bytes", lambda _device: 2**16)
    ricnet.train(dataset, out=tmp_path, **SHORT)
    (tmp_path / "evaluation.json").unlink()
    monkeypatch.undo()
    ricnet.train(dataset, out=tmp_path, resume=True, **SHORT)
    assert (tmp_path / "evaluation.json").is_file()


def test_a_run_goes_on_elsewhere_with_the_settings_it_began_with(
    dataset: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Presets know the device, but what a run began with is stored with it: only what is said must be the same."""
    config = configure(dataset, "supervised", "fast", api.GPU, epochs=3, width=0.1, batch_size=24)

    def stop(line: dict[str, Any]) -> None:
        if line["epoch"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        run(config, dataset, RunFolder(tmp_path), CPU, checkpoint_seconds=0.0, watch=stop)
    with pytest.raises(RicnetError) as refused:
        ricnet.train(dataset, out=tmp_path, resume=True, device="cpu", epochs=4, method="ric", width=0.1)
    assert str(refused.value).startswith("resume=True goes on with the settings the run began with, but epochs and ")
    assert ricnet.train(dataset, out=tmp_path, resume=True, device="cpu").config == config
    assert ricnet.train(dataset, out=tmp_path, resume=True, device="cpu", epochs=3).config == config
    assert "is finished; nothing is left to resume." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 1}, "^batch_size=1 is out of range"),
        ({"epoch": 3}, "^epoch: no such setting for the method supervised; did you mean epochs"),
        ({"rollouts": 3}, "^rollouts: no such setting .* see ric train --method supervised --help"),
        ({"device": "abacus"}, "^device='abacus' is unknown"),
        ({"epochs": "3"}, r"^epochs cannot be '3'; give a whole number\.$"),
        ({"patience": 2.5}, r"^patience cannot be 2\.5; give a whole number or None\.$"),
        ({"label_noise": "0.1"}, r"^label_noise cannot be '0\.1'; give a number\.$"),
        ({"optimizer": "adamx"}, "^optimizer cannot be 'adamx'; give one of 'adamw', 'adam', 'sgd'"),
        ({"optimization": None}, "^optimization: no such setting"),
        ({"target": "kind"}, "^target='kind' is for tables; blobs says by itself what its classes are"),
    ],
)
def test_messages_name_parameters_not_flags(
    dataset: Dataset, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(RicnetError, match=message):
        ricnet.train(dataset, out=tmp_path / "run", **SHORT | changes)
    assert not (tmp_path / "run").exists()


def test_the_target_of_a_table_is_a_parameter(tmp_path: Path) -> None:
    table = tmp_path / "my.csv"
    table.write_text("size,kind\n" + "1,small\n9,large\n" * 12)
    with pytest.raises(RicnetError, match="Say target COLUMN"):
        ricnet.train(table, out=tmp_path / "run", **SHORT)
    model = ricnet.train(table, target="kind", out=tmp_path / "run", **SHORT)
    assert (model.class_names, model.config.data) == (("large", "small"), f"{table}#kind")


def test_data_that_is_only_to_be_measured_cannot_be_learned_from(dataset: Dataset, tmp_path: Path) -> None:
    none = dataset.train.take(torch.empty(0, dtype=torch.int64))
    with pytest.raises(RicnetError, match="has no training rows"):
        ricnet.train(replace(dataset, train=none, val=none), out=tmp_path / "run")
    with pytest.raises(RicnetError, match="has no validation rows"):
        ricnet.train(replace(dataset, val=none), out=tmp_path / "run")
    with pytest.raises(RicnetError, match="its test split has 0 inputs"):
        replace(dataset, test=none)


def test_the_rest_of_the_program_keeps_its_choice_of_kernels(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)

    def choose(_line: dict[str, Any]) -> None:
        torch.backends.cudnn.benchmark = True

    config = configure(dataset, "supervised", "fast", epochs=1, width=0.1)
    run(config, dataset, RunFolder(tmp_path), CPU, watch=choose)
    assert not torch.backends.cudnn.benchmark


def test_too_little_memory_is_said_in_a_sentence(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB.")

    monkeypatch.setattr(api, "Trainer", full)
    with pytest.raises(RicnetError, match="cpu has too little memory for batches of 96; lower batch_size, resolution"):
        ricnet.train(dataset, out=tmp_path / "run", batch_size=96, **SHORT)


def test_folders_are_called_after_data_target_method_and_seed() -> None:
    names = {
        "digits": "digits-ric-seed3",
        "/data/photos.v2": "photos.v2-ric-seed3",
        "/data/a.npz": "a-ric-seed3",
        "/data/my.csv#Is it raining / snowing?": "my-Is-it-raining-snowing-ric-seed3",
        "/data/my.csv#label": "my-label-ric-seed3",
    }
    for data, name in names.items():
        assert default_folder(data, "ric", 3) == Path("runs") / name


def test_numbers_of_numpy_are_numbers(dataset: Dataset) -> None:
    config = configure(dataset, "supervised", "fast", epochs=np.int64(3), lr=np.float32(0.5), seed=np.int32(1))
    assert (config.optimization.epochs, config.optimization.lr, config.seed) == (3, 0.5, 1)
    assert type(config.optimization.epochs) is int


BRIEF = {"epochs": 4, "batch_size": 16, "width": 0.1, "horizon": 4}


def test_it_learns_what_a_run_with_a_folder_learns_and_writes_nothing(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configure(dataset, "ric", "fast", **BRIEF)
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
        train_in_memory(configure(dataset, "ric", "fast", **BRIEF), dataset, CPU)


def test_divergence_names_no_file(dataset: Dataset) -> None:
    config = configure(dataset, "supervised", "fast", epochs=30, batch_size=16, lr=1e38, optimizer="sgd", clip=None)
    with pytest.raises(
        RicnetError, match=r"diverged in epoch \d+: .*(nothing is kept|no epoch was completed before)\. "
    ):
        train_in_memory(config, dataset, CPU)


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
