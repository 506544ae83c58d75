"""Frozen and fine-tuned pretrained encoders, from training to sharing."""

import copy
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import ricnet
from nets.checkpoints import require_timm
from refusals import refusal
from ricnet.apps.cli import main
from ricnet.apps.estimators import RICClassifier
from ricnet.data import Dataset, Split
from ricnet.data.dataset import Augmentation
from ricnet.errors import RicnetError
from ricnet.models.config import Optimization
from ricnet.models.locate import cache_folder
from ricnet.nets import backbone
from ricnet.nets.backbone import CPU_BATCH
from ricnet.nets.checkpoints import Architecture
from ricnet.nets.pretrained import TextEncoder
from ricnet.training.features import TABLE, Features, behind_encoder, featured
from ricnet.training.optimization import make_optimizer, set_rate
from ricnet.training.recipes import configure, for_encoder

CPU = torch.device("cpu")


class Means(nn.Module):
    """The mean of each channel, times a weight; counts the images it has seen."""

    def __init__(self, weight: float = 2.0) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(weight))
        self.seen = 0

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        self.seen += len(images)
        return {"pooled": self.scale * images.float().mean((2, 3))}


def coloured(rows: int = 60) -> Dataset:
    """Red, green and blue images."""
    torch.manual_seed(0)
    labels = torch.arange(rows) % 3
    images = torch.randint(0, 100, (rows, 3, 8, 8), dtype=torch.uint8)
    images[torch.arange(rows), labels] += 100
    split = Split(images, labels)
    parts = [split.take(rows) for rows in torch.arange(rows).chunk(3)]
    return Dataset("colours", *parts, ("red", "green", "blue"))


def test_each_row_is_encoded_once_for_all_splits_and_subsets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RICNET_CACHE", str(tmp_path))
    encoder, data = Means(), coloured()
    found = featured(data, encoder, CPU)
    assert encoder.seen == 60 + PROBE
    expected = 2 * data.train.inputs.float().mean((2, 3))
    torch.testing.assert_close(found.train.inputs, expected)
    assert found.train.shown is data.train.inputs
    other = Means()
    torch.testing.assert_close(Features(other, CPU)(data.train.inputs[3:9]), expected[3:9])
    assert other.seen == PROBE
    assert torch.equal(Features(Means(3.0), CPU)(data.train.inputs), 1.5 * expected)
    torch.testing.assert_close(Features(Shifted(), CPU)(data.train.inputs), expected + 1)


class Shifted(Means):
    """The same weights, and another network."""

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        return {"pooled": super().forward(images)["pooled"] + 1}


PROBE = 1
"""An input that a module of the user's own is shown to know it by."""


def test_a_cache_that_cannot_be_used_is_done_without(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RICNET_CACHE", str(tmp_path))
    (tmp_path / "features.sqlite").write_bytes(b"this is no cache" * 100)
    inputs = coloured().train.inputs
    torch.testing.assert_close(Features(Means(), CPU)(inputs), 2 * inputs.float().mean((2, 3)))
    assert "features.sqlite cannot be used" in capsys.readouterr().err


@pytest.mark.parametrize("damage", ["a byte", "a short blob", "no blob", "a text", "a wrong digest"])
def test_a_damaged_row_in_the_cache_is_computed_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, damage: str
) -> None:
    monkeypatch.setenv("RICNET_CACHE", str(tmp_path))
    inputs = coloured().train.inputs
    expected = Features(Means(), CPU)(inputs)
    changes = {
        "a byte": "features = CAST(x'ff' || substr(features, 2) AS BLOB)",
        "a short blob": "features = substr(features, 1, 5)",
        "no blob": "features = NULL, digest = NULL",
        "a text": "features = 'features', digest = 'digest'",
        "a wrong digest": "digest = substr(digest, 2)",
    }
    with closing(sqlite3.connect(tmp_path / "features.sqlite")) as cache, cache:
        keys = cache.execute(f"SELECT key FROM {TABLE} LIMIT 3").fetchall()
        cache.executemany(f"UPDATE {TABLE} SET {changes[damage]} WHERE key = ?", keys)
    for seen in (3, 0):  # and it is mended
        encoder = Means()
        assert torch.equal(Features(encoder, CPU)(inputs), expected)
        assert encoder.seen == seen + PROBE


def test_copies_are_varied_and_the_same_each_time() -> None:
    data = coloured()
    once, again = (featured(data, Means(), CPU, 2, Augmentation(crop_padding=2)) for _ in range(2))
    rows = len(data.train)
    assert len(once.train) == 3 * rows
    assert torch.equal(once.train.inputs, again.train.inputs)
    assert torch.equal(once.train.labels, data.train.labels.repeat(3))
    assert not torch.equal(once.train.inputs[:rows], once.train.inputs[rows : 2 * rows])
    assert once.train.shown is not None
    assert len(once.val) == len(data.val)


def test_an_encoder_of_the_users_own_can_be_frozen(tmp_path: Path) -> None:
    data, run = coloured(), tmp_path / "run"
    model = ricnet.train(data, encoder=Means(), freeze=True, epochs=15, out=run, device="cpu")
    assert not any("features" in name for name in ricnet_weights(run / "model.safetensors"))
    (run / "evaluation.json").unlink()  # as if it had been stopped
    with refusal("encoder"):
        ricnet.train(data, out=run, resume=True)
    again = ricnet.load(run, encoder=Means(5.0))  # the weights are the run's, whatever those of the module given
    beliefs = again.predict_proba(data.test.inputs)
    np.testing.assert_allclose(beliefs, model.predict_proba(data.test.inputs))
    assert (beliefs.argmax(1) == data.test.labels.numpy()).mean() > 0.8


def ricnet_weights(path: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    return load_file(path)


def test_an_unfrozen_encoder_learns_at_its_share_of_the_rate() -> None:
    from ricnet.nets.backbone import Backbone

    backbone = Backbone(nn.Linear(3, 4), (3, 8, 8), features=Means())
    optimizer = make_optimizer(backbone, Optimization(encoder_lr=0.25), CPU)
    set_rate(optimizer, 0.1)
    rates = {parameter: group["lr"] for group in optimizer.param_groups for parameter in group["params"]}
    assert rates == {
        backbone.features.scale: pytest.approx(0.025),  # type: ignore[union-attr]
        backbone.encoder.weight: pytest.approx(0.1),
        backbone.encoder.bias: pytest.approx(0.1),
    }


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("transformers", reason="transformers is not installed (ricnet[hf])")
    from nets.checkpoints import save_checkpoint

    return save_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="module")
def frozen(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that began with a copy of the checkpoint, which is gone since."""
    folder = tmp_path_factory.mktemp("frozen")
    shutil.copytree(checkpoint, folder / "checkpoint")
    ricnet.train(coloured(), encoder=f"hf:{folder / 'checkpoint'}", epochs=2, out=folder / "run", device="cpu")
    shutil.rmtree(folder / "checkpoint")
    return folder / "run"


def test_a_run_needs_nothing_but_its_folder(
    frozen: Path, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ricnet.load(frozen)
    assert model.config.network.freeze
    assert (frozen / "encoder.safetensors").stat().st_nlink == 1  # writing over it changes no other run
    assert not (cache_folder() / "encoders").exists()
    monkeypatch.setenv("RICNET_CACHE", str(tmp_path / "empty"))
    moved = ricnet.load(shutil.copytree(frozen, tmp_path / "moved"))
    images = coloured().test.inputs
    assert np.array_equal(moved.predict_proba(images), model.predict_proba(images))


def test_evaluation_agrees_with_answers(frozen: Path) -> None:
    """Training saw features only; the whole model says the same of the images they were made of."""
    data, stored = coloured(), np.load(frozen / "predictions.npz")
    answers = ricnet.load(frozen).predict_proba(data.test.inputs)
    np.testing.assert_allclose(answers, np.exp(stored["test_log_beliefs"]), atol=1e-5)
    assert np.load(frozen / "examples.npz")["x"].shape[1:] == (3, 8, 8)


def test_weights_that_are_damaged_or_missing_are_noticed(
    frozen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RICNET_CACHE", str(tmp_path / "empty"))
    run = shutil.copytree(frozen, tmp_path / "run")
    content = bytearray((run / "encoder.safetensors").read_bytes())
    content[-1] ^= 1
    (run / "encoder.safetensors").write_bytes(content)
    with refusal("encoder.safetensors", "damaged"):
        ricnet.load(run)
    (run / "encoder.safetensors").unlink()
    with refusal("encoder.safetensors", "missing"):
        ricnet.load(run)


def test_a_shared_model_is_whole(frozen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = ricnet.load(frozen)
    shared = model.save_pretrained(tmp_path / "shared")
    monkeypatch.setenv("RICNET_CACHE", str(tmp_path / "empty"))
    images = coloured().test.inputs
    assert np.array_equal(ricnet.load(shared).predict_proba(images), model.predict_proba(images))
    assert str(frozen.parent) not in (shared / "config.json").read_text()


@pytest.mark.parametrize("freeze", [True, False])
def test_a_stopped_run_goes_on_without_the_checkpoint(
    checkpoint: Path, tmp_path: Path, freeze: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ricnet.training.trainer import Trainer

    data = coloured()
    settings = {"encoder": f"hf:{checkpoint}", "freeze": freeze, "epochs": 2, "device": "cpu", "batch_size": 10}
    whole = ricnet.train(data, out=tmp_path / "whole", **settings)
    gone = shutil.copytree(checkpoint, tmp_path / "gone")
    settings["encoder"] = f"hf:{gone}"
    step = Trainer._step

    def interrupted(trainer: Trainer) -> None:
        if trainer.update == 3:
            trainer.checkpoint()
            raise KeyboardInterrupt
        step(trainer)

    monkeypatch.setattr(Trainer, "_step", interrupted)
    with pytest.raises(RicnetError, match="stopped"):
        ricnet.train(data, out=tmp_path / "run", **settings)
    monkeypatch.setattr(Trainer, "_step", step)
    shutil.rmtree(gone)
    resumed = ricnet.train(data, out=tmp_path / "run", resume=True, device="cpu")
    assert all(torch.equal(a, b) for a, b in zip(whole.model.parameters(), resumed.model.parameters(), strict=True))
    assert (tmp_path / "run" / "encoder.safetensors").is_file() == freeze


def test_fine_tuning_changes_the_encoder(checkpoint: Path, tmp_path: Path) -> None:
    from ricnet.nets.pretrained import read_hf

    model = ricnet.train(
        coloured(), encoder=f"hf:{checkpoint}", freeze=False, epochs=2, out=tmp_path / "run", device="cpu"
    )
    before, after = read_hf(checkpoint).state_dict(), model.model.backbone.features.state_dict()
    assert not all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    assert all(torch.equal(before[name], after[name]) for name in before if "running" in name)


@pytest.mark.slow
def test_it_is_exported_as_one_file(frozen: Path, tmp_path: Path) -> None:
    """In a process of its own: torch cannot trace what the checks of shapes put around functions here."""
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (ricnet[onnx])")
    command = [sys.executable, "-m", "ricnet", "export", str(frozen), "--out", str(tmp_path / "model.onnx")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "model.onnx").stat().st_size > (frozen / "encoder.safetensors").stat().st_size


@pytest.mark.parametrize("exits", ["none", "block"])
def test_the_model_can_answer_while_features_are_computed(
    exits: str, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By another thread: an estimator is, where folds or members of a vote are."""
    data = coloured(45)
    model = RICClassifier(encoder=f"hf:{checkpoint}", epochs=1, exits=exits, device="cpu")
    images = data.train.inputs.permute(0, 2, 3, 1).numpy()
    model.fit(images, data.train.labels.numpy())
    expected, deepcopy = model.predict_proba(images[:5]), copy.deepcopy
    meanwhile = []

    def copying(*given: Any) -> Any:
        monkeypatch.setattr(copy, "deepcopy", deepcopy)
        meanwhile.append(model.predict_proba(images[:5]))
        return deepcopy(*given)

    monkeypatch.setattr(copy, "deepcopy", copying)
    for module in (backbone,):
        monkeypatch.setattr(module, "counting", lambda: pytest.fail("flags of the whole process are changed to count"))
    np.testing.assert_array_equal(model.predict_proba(images[:5]), expected)
    np.testing.assert_array_equal(meanwhile, [expected])


def test_folds_share_their_features(checkpoint: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from sklearn.model_selection import cross_val_score

    from ricnet.training import features

    monkeypatch.setenv("RICNET_CACHE", str(tmp_path))
    seen = []
    encode = features.Features._encode
    monkeypatch.setattr(
        features.Features, "_encode", lambda self, inputs: (seen.append(len(inputs)), encode(self, inputs))[1]
    )
    data = coloured(45)
    images, labels = data.train.inputs.permute(0, 2, 3, 1).numpy(), data.train.labels.numpy()
    estimator = RICClassifier(encoder=f"hf:{checkpoint}", epochs=1, device="cpu")
    cross_val_score(estimator, images, labels, cv=3)
    assert sum(seen) == len(images)


def test_photos_are_read_at_the_size_of_the_checkpoint(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RICNET_CACHE", str(tmp_path.parent / "cache"))
    for name, colour in (("red", (200, 0, 0)), ("blue", (0, 0, 200))):
        (tmp_path / name).mkdir()
        for number in range(4):
            Image.new("RGB", (40, 30), colour).save(tmp_path / name / f"{number}.png")
    named = {"encoder": f"hf:{checkpoint}"}
    assert for_encoder(tmp_path, named) == {**named, "resolution": 16}
    assert for_encoder(tmp_path, {**named, "resolution": 20})["resolution"] == 20
    assert for_encoder("digits", named) == named  # has a size of its own, and is enlarged in the network
    run = tmp_path.parent / "photos"
    model = ricnet.train(tmp_path, **named, epochs=1, out=run, device="cpu")
    assert model.input_shape == (3, 16, 16)
    monkeypatch.setattr(Features, "_encode", None)  # ric evaluate has no need of it: all is known
    capsys.readouterr()
    main(["evaluate", str(run), "--json"])
    measured, stored = json.loads(capsys.readouterr().out), json.loads((run / "evaluation.json").read_text())
    assert {part: measured[part]["nll"] for part in measured} == pytest.approx(
        {part: stored[part]["nll"] for part in measured}
    )


def test_a_frozen_encoder_gets_the_recipe_of_tables_at_a_lower_rate(checkpoint: Path) -> None:
    config = configure(coloured(), "ric", "fast", CPU, encoder=f"hf:{checkpoint}")
    assert config.network.freeze
    table = replace(coloured(), train=Split(torch.zeros(20, 4), coloured().train.labels))
    assert config.optimization == replace(configure(table, "ric", "fast", CPU).optimization, lr=1e-3)
    assert not configure(coloured(), "ric", "fast", CPU, encoder=f"hf:{checkpoint}", freeze=False).network.freeze


@pytest.mark.slow
def test_sixty_photos_a_breed_are_enough(tmp_path: Path) -> None:
    """With weights that have seen ImageNet, of which these photos are a part (docs/archive/tutorials.md)."""
    require_timm()
    data = Path(os.environ.get("RICNET_DATA", "nowhere"))
    photos, weights = data / "imagewoof2-160", data / "lite0.safetensors"
    if not (photos.is_dir() and weights.is_file()):
        pytest.skip("needs imagewoof2-160 and lite0.safetensors (scripts/convert_lite0.py) in $RICNET_DATA")
    for breed in ("n02086240", "n02088364", "n02099601", "n02105641", "n02111889"):
        for part, count in (("train", 60), ("val", 60)):
            (tmp_path / part / breed).mkdir(parents=True)
            for photo in sorted((photos / part / breed).iterdir())[:count]:
                shutil.copy(photo, tmp_path / part / breed)
    encoder = f"timm:tf_efficientnet_lite0@{weights}"
    model = ricnet.train(tmp_path / "train", encoder=encoder, out=tmp_path / "run", device="cpu")
    answers = model.predict(sorted((tmp_path / "val").glob("*/*")))
    truth = np.repeat(model.class_names, 60)
    assert (answers == truth).mean() > 0.9


def test_a_text_is_encoded_beside_others_of_its_length_and_not_longer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    monkeypatch.setenv("RICNET_CACHE", str(tmp_path))
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = transformers.BertConfig(vocab_size=40, max_position_embeddings=20, pad_token_id=1, **sizes)
    network, widths = transformers.BertModel(config), []
    network.embeddings.register_forward_hook(lambda _module, _given, made: widths.append(made.shape[1]))
    encoder = TextEncoder(network, Architecture("transformers", config.to_dict(), reads="tokens", pad=1))
    ids = torch.randint(2, 40, (2 * CPU_BATCH, 20))
    ids[::2, 3:] = 1  # every other text is short
    ids[0, 1] = 1  # and a text may name what fills up
    found = Features(encoder, CPU)(ids)
    assert widths == [3, 20]
    hidden = network(input_ids=ids, attention_mask=(ids != 1).long()).last_hidden_state
    counts = (ids != 1).float()[..., None]
    torch.testing.assert_close(found, (hidden * counts).sum(1) / counts.sum(1), atol=1e-5, rtol=1e-4)


# Exits after its layers


@pytest.mark.parametrize("freeze", [True, False])
def test_a_run_that_leaves_after_a_layer_is_whole(
    checkpoint: Path, tmp_path: Path, freeze: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trained on what is known of all blocks, or through them; answers by itself, and skips what it need not see."""
    data, gone, run = coloured(), shutil.copytree(checkpoint, tmp_path / "gone"), tmp_path / "run"
    settings = {"encoder": f"hf:{gone}", "freeze": freeze, "exits": "block", "method": "anytime", "device": "cpu"}
    ricnet.train(data, epochs=6, budget=0.9, out=run, **settings)
    shutil.rmtree(gone)
    monkeypatch.setenv("RICNET_CACHE", str(tmp_path / "empty"))
    model, stored = ricnet.load(run), np.load(run / "predictions.npz")
    assert len(model.model.costs) == 3
    np.testing.assert_allclose(model.predict_proba(data.test.inputs), np.exp(stored["test_log_beliefs"]), atol=1e-5)
    rows, blocks = [], model.model.backbone.stages
    for block in blocks:
        block.parts[-1].register_forward_pre_hook(lambda _block, given: rows.append(len(given[0])))
    path = model.refine(data.test.inputs)
    assert path.cost is not None
    assert sum(rows) == int(path.halt_step.sum()) < 3 * len(data.test)
    shared = ricnet.load(model.save_pretrained(tmp_path / "shared"))
    assert np.array_equal(shared.predict_proba(data.test.inputs), model.predict_proba(data.test.inputs))


def test_folds_share_the_features_of_all_layers(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RICNET_CACHE", str(tmp_path))
    data = coloured(45)
    images, labels = data.train.inputs.permute(0, 2, 3, 1).numpy(), data.train.labels.numpy()
    estimator = RICClassifier(encoder=f"hf:{checkpoint}", exits="stage", epochs=1, device="cpu").fit(images, labels)
    whole = estimator.classifier_.predict_proba(data.train.inputs)
    np.testing.assert_allclose(estimator.predict_proba(images), whole, atol=1e-5)


def test_a_module_of_the_users_own_is_frozen_in_parts(tmp_path: Path) -> None:
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Sequential(nn.Flatten(), Scaled()), nn.Linear(192, 6), nn.Linear(6, 5))
    model = ricnet.train(
        coloured(), encoder=encoder, freeze=True, exits="block", method="anytime", epochs=1, out=tmp_path, device="cpu"
    )
    assert [part.stop for part in model.model.backbone.parts] == [192, 198, 203]
    again = ricnet.load(tmp_path, encoder=encoder)
    images = coloured().test.inputs
    assert np.array_equal(again.predict_proba(images), model.predict_proba(images))


def with_batch_norm() -> nn.Sequential:
    """An encoder in training mode, but for one layer; its batch norm has seen images."""
    torch.manual_seed(0)
    convolution = nn.Sequential(Scaled(), nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    encoder = nn.Sequential(convolution, nn.Sequential(nn.Flatten(), nn.Linear(144, 5), nn.BatchNorm1d(5)))
    encoder(coloured().train.inputs)
    encoder[1][2].eval()
    return encoder


def mode_and_numbers(encoder: nn.Module) -> tuple[list[bool], dict[str, Tensor]]:
    return [module.training for module in encoder.modules()], copy.deepcopy(encoder.state_dict())


@pytest.mark.parametrize("settings", [{"exits": "stage"}, {}], ids=["exits", "whole"])
@pytest.mark.parametrize("freeze", [True, False], ids=["frozen", "trained"])
def test_training_and_loading_leave_the_users_module_as_it_was(
    settings: dict[str, str], freeze: bool, tmp_path: Path
) -> None:
    encoder = with_batch_norm()
    modes, numbers = mode_and_numbers(encoder)
    model = ricnet.train(
        coloured(), encoder=encoder, freeze=freeze, epochs=1, batch_size=8, out=tmp_path, device="cpu", **settings
    )
    again = ricnet.load(tmp_path, encoder=encoder)
    modes_after, numbers_after = mode_and_numbers(encoder)
    assert modes_after == modes
    assert all(torch.equal(numbers[name], tensor) for name, tensor in numbers_after.items())
    images = coloured().test.inputs
    assert np.array_equal(again.predict_proba(images), model.predict_proba(images))


def test_loading_keeps_the_batch_norm_statistics_of_a_frozen_encoder_with_exits(tmp_path: Path) -> None:
    encoder, data = with_batch_norm(), coloured()
    ricnet.train(data, encoder=encoder, freeze=True, exits="stage", epochs=1, out=tmp_path, device="cpu")
    model = ricnet.load(tmp_path, encoder=copy.deepcopy(encoder).train())
    loaded = model.model.backbone.features.state_dict()
    assert all(torch.equal(tensor, loaded[name]) for name, tensor in encoder.state_dict().items())
    whole, features = behind_encoder(model, data)  # computed while the run was trained
    expected = whole.refine(features.test.inputs, halt=False).log_beliefs
    torch.testing.assert_close(model.refine(data.test.inputs, halt=False).log_beliefs, expected)


class Scaled(nn.Module):
    def forward(self, pixels: Tensor) -> Tensor:
        return pixels / 255
