from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import ricnet
from problems import CPU, EachEpoch, assert_same_weights, configured
from refusals import refusal
from ricnet.data import Dataset, Split
from ricnet.errors import Interrupted, RicnetError
from ricnet.io import read_json
from ricnet.models.config import Config
from ricnet.models.loading import load
from ricnet.models.run import RunFolder, read_config
from ricnet.training import api, network
from ricnet.training.api import run, train_in_memory
from ricnet.training.network import Encoder, fit_batch, isolated_rng
from ricnet.training.recipes import GPU, configure

SHORT: dict[str, Any] = {"method": "supervised", "epochs": 2, "width": 0.1, "device": "cpu"}


def test_errors_name_parameters_instead_of_flags(
    dataset: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ricnet.train(replace(dataset, notes=("Mind the gap.",)), out=tmp_path, batch_size=16, **SHORT)
    said = capsys.readouterr().err.splitlines()
    assert "Mind the gap." in said[0]
    assert "SL (supervised): 96 rows of 4 numbers" in said[1]
    assert "rows/s" in said[2]
    assert "30 validation rows" in said[-1]
    assert "val_fraction" in said[-1]


@pytest.mark.parametrize("method", ["ric", "anytime"])
def test_a_price_of_compute_without_exits_is_refused(method: str, dataset: Dataset) -> None:
    with refusal("compute_price", "0.01", "exits", "stage"):
        configure(dataset, method, "fast", compute_price=0.01)
    assert configure(dataset, method, "fast", compute_price=0.01, exits="stage").method.compute_price == 0.01


def test_one_number_is_no_numbers(dataset: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts = {name: getattr(dataset, name) for name in ("train", "val", "test")}
    narrow = {name: replace(part, inputs=part.inputs[:, :1]) for name, part in parts.items()}
    ricnet.train(replace(dataset, **narrow), out=tmp_path, **SHORT)
    assert "96 rows of 1 number, " in capsys.readouterr().err


def test_a_preset_batch_size_is_lowered_to_fit_and_kept_on_resuming(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(network, "free_bytes", lambda _device: 2**14)
        fitted = ricnet.train(dataset, out=tmp_path / "a", **SHORT).config
        asked = ricnet.train(dataset, out=tmp_path / "b", batch_size=96, **SHORT).config
    assert fitted.optimization.batch_size < configure(dataset, "supervised", "fast").optimization.batch_size
    assert asked.optimization.batch_size == 96
    (tmp_path / "a" / "evaluation.json").unlink()
    assert ricnet.train(dataset, out=tmp_path / "a", resume=True, **SHORT).config == fitted
    assert (tmp_path / "a" / "evaluation.json").is_file()


def test_a_lowered_batch_size_is_noted_for_custom_encoders_too(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "free_bytes", lambda _device: 2**20)
    config = configure(dataset, "ric", "fast", encoder="custom")
    assert fit_batch(config, nn.Linear(4, 8), dataset.input_shape, CPU) == (config, [])
    fitted, notes = fit_batch(config, nn.Linear(4, 10_000), dataset.input_shape, CPU)
    smaller = fitted.optimization.batch_size
    assert smaller < config.optimization.batch_size
    assert f"{smaller} instead of {config.optimization.batch_size}" in notes[0]


def test_a_run_goes_on_elsewhere_with_the_settings_it_began_with(
    dataset: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Presets know the device, but what a run began with is stored with it: only what is said must be the same."""
    config = configure(dataset, "supervised", "fast", GPU, epochs=3, width=0.1, batch_size=24)

    def stop(line: dict[str, Any]) -> None:
        if line["epoch"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        run(config, dataset, RunFolder(tmp_path), CPU, checkpoint_seconds=0.0, callbacks=[EachEpoch(stop)])
    with refusal("resume=True", "epochs and method change"):
        ricnet.train(dataset, out=tmp_path, resume=True, device="cpu", epochs=4, method="ric", width=0.1)
    assert ricnet.train(dataset, out=tmp_path, resume=True, device="cpu").config == config
    assert ricnet.train(dataset, out=tmp_path, resume=True, device="cpu", epochs=3).config == config
    assert "is finished" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"batch_size": 1}, ("batch_size=1",)),
        ({"epoch": 3}, ("epoch:", "mean epochs")),
        ({"rollouts": 3}, ("rollouts is a setting of", "not of supervised", "method='ric-on-policy'")),
        ({"device": "abacus"}, ("device='abacus'",)),
        ({"epochs": "3"}, ("epochs", "'3'", "a whole number")),
        ({"patience": 2.5}, ("patience", "2.5", "a whole number or None")),
        ({"label_noise": "0.1"}, ("label_noise", "'0.1'", "a number")),
        ({"optimizer": "adamx"}, ("optimizer", "'adamx'", "'adamw', 'adam', 'sgd'")),
        ({"optimization": None}, ("optimization:",)),
        ({"target": "kind"}, ("target='kind'", "blobs")),
    ],
)
def test_messages_name_parameters_not_flags(
    dataset: Dataset, tmp_path: Path, changes: dict[str, Any], named: tuple[str, ...]
) -> None:
    with refusal(*named) as caught:
        ricnet.train(dataset, out=tmp_path / "run", **SHORT | changes)
    assert str(caught.value).startswith(named[0])
    assert not (tmp_path / "run").exists()


def test_a_share_of_the_rows_is_a_parameter(dataset: Dataset, tmp_path: Path) -> None:
    """Of a data set of one's own too."""
    model = ricnet.train(dataset, out=tmp_path / "run", train_fraction=0.5, **SHORT)
    stored = read_config(tmp_path / "run")
    assert model.config.train_fraction == stored["config"]["train_fraction"] == 0.5
    sizes = {"train": round(0.5 * len(dataset.train)), "val": len(dataset.val), "test": len(dataset.test)}
    assert stored["data"]["rows"] == sizes


def test_the_target_of_a_table_is_a_parameter(tmp_path: Path) -> None:
    table = tmp_path / "my.csv"
    table.write_text("size,kind\n" + "1,small\n9,large\n" * 12)
    with refusal("my.csv", "target"):
        ricnet.train(table, out=tmp_path / "run", **SHORT)
    model = ricnet.train(table, target="kind", out=tmp_path / "run", **SHORT)
    assert (model.class_names, model.config.data) == (("large", "small"), f"{table}#kind")


def test_data_that_is_only_to_be_measured_cannot_be_learned_from(dataset: Dataset, tmp_path: Path) -> None:
    none = dataset.train.take(torch.empty(0, dtype=torch.int64))
    for lacking, data in (("training", {"train": none, "val": none}), ("validation", {"val": none})):
        with refusal(f"no {lacking} rows"):
            ricnet.train(replace(dataset, **data), out=tmp_path / "run")
    ricnet.train(replace(dataset, test=none), out=tmp_path / "untested", **SHORT)
    assert read_json(tmp_path / "untested" / "evaluation.json")["test"] is None


def test_folders_are_called_after_data_target_method_and_seed() -> None:
    names = {"digits": "digits", "/data/photos.v2": "photos.v2", "/data/a.npz": "a", "/data/my.csv#label": "my-label"}
    names["/data/my.csv#Is it raining / snowing?"] = "my-Is-it-raining-snowing"
    for data, name in names.items():
        assert api.Request(data, {"seed": 3}).folder("ric").path == Path("runs") / f"{name}-ric-seed3"
    again = api.Request(None, {}, start=replace(Config(), data="/data/a.npz", seed=7))
    assert again.folder("supervised").path == Path("runs/a-supervised-seed7")
    assert api.Request("digits", {}, out="mine").folder("ric").path == Path("mine")


def test_a_run_of_the_default_method_in_a_folder_of_the_former_name_is_resumed(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folders of the default method were called DATA-ric-seedN, as those of the method ric."""
    monkeypatch.chdir(tmp_path)
    former, folder = Path("runs/blobs-ric-seed0"), Path("runs/blobs-ric-on-policy-seed0")
    tiny = {**SHORT, "method": None, "horizon": 2}
    config = ricnet.train(dataset, out=former, **tiny).config
    assert ricnet.train(dataset, resume=True, **tiny).folder == former
    assert ricnet.train(dataset, **tiny).config == config
    assert folder.is_dir()
    assert ricnet.train(dataset, resume=True, **tiny).folder == folder
    with refusal("runs/blobs-ric-seed0", "overwrite"):
        ricnet.train(dataset, **{**tiny, "method": "ric"})


def test_resume_finds_the_run_of_another_algorithm_of_ric(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tiny = {**SHORT, "method": None, "horizon": 2}
    begun = ricnet.train(dataset, **{**tiny, "method": "ric-closed-form"}).folder
    assert begun == Path("runs/blobs-ric-closed-form-seed0")
    assert ricnet.train(dataset, resume=True).folder == begun
    ricnet.train(dataset, **{**tiny, "method": "ric"})
    with refusal("blobs-ric-closed-form-seed0", "blobs-ric-seed0", "out"):
        ricnet.train(dataset, resume=True)
    assert ricnet.train(dataset, resume=True, method="ric").folder == Path("runs/blobs-ric-seed0")


@pytest.mark.parametrize("given", [{"preset": "fast"}, {"start": Config()}])
def test_out_names_the_run_that_is_resumed(dataset: Dataset, tmp_path: Path, given: dict[str, Any]) -> None:
    """Whatever its method."""
    request = api.Request(dataset, {}, out=tmp_path / "run", **given)
    assert request.resumable() is None
    ricnet.train(dataset, out=tmp_path / "run", **SHORT)
    found = request.resumable()
    assert found is not None
    assert found.path == tmp_path / "run"


def test_numbers_of_numpy_are_numbers(dataset: Dataset) -> None:
    config = configure(dataset, "supervised", "fast", epochs=np.int64(3), lr=np.float32(0.5), seed=np.int32(1))
    assert (config.optimization.epochs, config.optimization.lr, config.seed) == (3, 0.5, 1)
    assert type(config.optimization.epochs) is int


def test_training_in_memory_equals_training_in_a_folder(
    dataset: Dataset, finished: Callable[[str], RunFolder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(5)
    following = torch.rand(3)
    torch.manual_seed(5)
    classifier, epochs = train_in_memory(configured(dataset), dataset, CPU)
    assert torch.equal(torch.rand(3), following)
    assert epochs == 3
    expected = load(finished("ric-on-policy").path).refine(dataset.test.inputs)
    assert torch.equal(classifier.refine(dataset.test.inputs).log_beliefs, expected.log_beliefs)
    assert list(tmp_path.iterdir()) == []


def test_errors_in_memory_name_no_file(dataset: Dataset, stop_after: Callable[[int], None]) -> None:
    config = configured(dataset, "supervised", epochs=30, batch_size=16, lr=1e38, optimizer="sgd", clip=None)
    with refusal("epoch", "lr") as caught:
        train_in_memory(config, dataset, CPU)
    assert "model.safetensors" not in str(caught.value)
    stop_after(3)
    with pytest.raises(KeyboardInterrupt):
        train_in_memory(configured(dataset), dataset, CPU)


@pytest.mark.parametrize("before", [False, True])
def test_the_program_around_is_as_before(monkeypatch: pytest.MonkeyPatch, before: bool) -> None:
    """A module of the user's own may draw from torch's generator, which is then seeded for the run."""
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", before)
    encoder, state = nn.Flatten(), torch.get_rng_state()
    with isolated_rng(Config(), CPU, Encoder(encoder)):
        torch.backends.cudnn.benchmark = not before
        torch.rand(3)
    assert torch.backends.cudnn.benchmark is before
    assert torch.equal(torch.get_rng_state(), state)


def test_neither_training_nor_loading_moves_the_callers_random_state(dataset: Dataset, tmp_path: Path) -> None:
    state = torch.get_rng_state()
    ricnet.train(dataset, out=tmp_path, **SHORT)
    assert torch.equal(torch.get_rng_state(), state)
    ricnet.load(tmp_path)
    assert torch.equal(torch.get_rng_state(), state)


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.dropout = nn.Linear(4, 8), nn.Dropout(0.5)
        nn.init.ones_(self.layer.weight)

    def forward(self, rows: Tensor) -> Tensor:
        return self.dropout(self.layer(rows))


def test_the_seed_determines_draws_of_a_custom_encoder(
    dataset: Dataset, tmp_path: Path, stop_after: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, encoder = configured(dataset, "supervised", encoder="custom"), Dropping()
    for name in ("whole", "again", "stopped"):
        torch.manual_seed(len(name))
        state = torch.get_rng_state()
        if name == "stopped":
            stop_after(4)
            with refusal("resume", kind=Interrupted):
                run(config, dataset, RunFolder(tmp_path / name), CPU, encoder=encoder)
            monkeypatch.undo()
        run(config, dataset, RunFolder(tmp_path / name), CPU, encoder=encoder, resume=name == "stopped")
        assert torch.equal(torch.get_rng_state(), state)
        assert_same_weights(tmp_path / name, tmp_path / "whole")


def test_too_little_memory_is_a_ricnet_error(dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB.")

    monkeypatch.setattr(api, "Trainer", full)
    with pytest.raises(RicnetError) as caught:
        run(configured(dataset, batch_size=96), dataset, RunFolder(tmp_path / "run"), CPU)
    assert caught.value.settings[:2] == ("batch_size", "resolution")
    with refusal("cpu", "96", "batch_size, resolution"):
        ricnet.train(dataset, out=tmp_path / "b", batch_size=96, **SHORT)


@pytest.mark.parametrize("classes", [3, 30])
@pytest.mark.parametrize(
    ("given", "settled"),
    [
        ({"credit": "marginal"}, {"credit": "marginal", "head_gain": 1, "reward_floor": None}),
        ({"credit": "marginal", "exits": "block"}, {"credit": "marginal", "head_gain": 1}),
        ({"credit": "marginal", "head_gain": 0.5}, {"credit": "marginal", "head_gain": 0.5, "alpha_floor": 0.1}),
        ({"credit": "joint"}, {"credit": "joint", "head_gain": 0.01}),
        ({"credit": "joint", "exits": "block"}, {"credit": "joint", "head_gain": 0.01}),
        ({"head": "logistic-normal"}, {"credit": "joint", "head_gain": 0.01}),
        ({"objective": "expected"}, {"credit": "joint"}),
        ({"rollouts": 1}, {"rollouts": 1, "label_baseline": False}),
    ],
)
def test_given_settings_override_the_preset(given: dict[str, Any], settled: dict[str, Any], classes: int) -> None:
    rows = Split(torch.randn(90, 4), torch.arange(90) % classes)
    dataset = Dataset("rows", rows, rows, rows, tuple(f"class {k}" for k in range(classes)))
    method = configure(dataset, "ric-on-policy", "fast", **given).method
    assert {name: getattr(method, name) for name in settled} == settled


@pytest.mark.parametrize(
    ("method", "given", "named"),
    [
        (None, {"exits": "stage", "credit": "joint"}, ("credit", "ric-closed-form", "--method ric-on-policy")),
        (None, {"exits": "stage", "head": "logistic-normal"}, ("head", "ric-closed-form")),
        (None, {"exact_gain": True}, ("exact-gain", "--method ric-closed-form")),
        (None, {"epsilon": 0.1}, ("epsilon", "not of ric-on-policy", "--method ric")),
        (None, {"objective": "ppo"}, ("objective", "policy-gradient")),
        (None, {"objective": "expected", "label_baseline": False}, ("label-baseline", "no effect", "expected")),
        (None, {"head": "logistic-normal", "alpha_floor": 0.1}, ("alpha-floor", "no effect")),
        ("ric", {"updates_per_snapshot": 1}, ("updates-per-snapshot", "ric-on-policy")),
        ("ric", {"updates_per_snapshot": 3, "passes_per_snapshot": 2}, ("passes-per-snapshot", "no effect")),
        ("ric", {"exits": "stage", "gae_lambda": 0.5}, ("gae-lambda", "no effect", "exits")),
        ("ric", {"rollouts": 1, "label_baseline": True}, ("rollouts", "label-baseline")),
        ("ric-closed-form", {"reward_floor": 0.1}, ("reward-floor", "ric-closed-form")),
        (None, {"crop_area": 0.5}, ("--crop-area 0.5", "for images, not rows")),
        ("supervised", {"cutout": 2}, ("--cutout 2", "for images, not rows")),
    ],
)
def test_a_setting_without_effect_is_refused(
    method: str | None, given: dict[str, Any], named: tuple[str, ...], dataset: Dataset
) -> None:
    with refusal(*named):
        configure(dataset, method, "fast", **given)


def test_passes_that_are_given_take_the_place_of_the_updates_of_a_preset(dataset: Dataset) -> None:
    method = configure(dataset, "ric", "fast", passes_per_snapshot=2).method
    assert (method.passes_per_snapshot, method.updates_per_snapshot) == (2, None)


def test_a_retired_preset_is_deprecated(dataset: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, method in (("on-policy", "ric-on-policy"), ("closed-form", "ric-closed-form"), ("snapshots", "ric")):
        assert configure(dataset, "ric", name) == configure(dataset, None, name)
        assert configure(dataset, None, name).method.name == method
        with refusal(f"--preset {name}", f"--method {method}", "supervised"):
            configure(dataset, "supervised", name)
    short = {name: value for name, value in SHORT.items() if name != "method"}
    ricnet.train(dataset, preset="snapshots", out=tmp_path / "a", **short)
    said = capsys.readouterr().err
    assert "preset='snapshots' is deprecated and will be removed in the next version; use method='ric'" in said
    assert said.count("training RIC, Algorithm 1 (ric): ") == 1
    ricnet.train(dataset, method="ric", out=tmp_path / "b", **short)
    said = capsys.readouterr().err
    assert said.count("method='ric' is Algorithm 1 of the paper") == 1
    assert_same_weights(tmp_path / "a", tmp_path / "b")
    ricnet.train(dataset, preset="snapshots", out=tmp_path / "a", resume=True, **short)
    assert "is finished" in capsys.readouterr().err
