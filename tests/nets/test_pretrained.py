import json
import os
import struct
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from nets.checkpoints import PROCESSOR, require_timm, save_checkpoint
from refusals import refusal
from ricnet.models.checkpoints import find_encoder
from ricnet.nets.encoders import Backbone, EncoderOptions, build_encoder, choose_encoder
from ricnet.nets.pretrained import allowed_settings, architecture_from_json, build, read_hf, read_timm, rebuild

transformers = pytest.importorskip("transformers", reason="transformers is not installed (ricnet[hf])")


@pytest.fixture(scope="module")
def resnet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_checkpoint(tmp_path_factory.mktemp("resnet"))


@pytest.fixture
def copied(resnet: Path, tmp_path: Path) -> Path:
    """A copy to be spoiled."""
    for file in resnet.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def test_scales_and_normalises_as_the_checkpoint_says(resnet: Path) -> None:
    images = torch.randint(0, 256, (3, 3, 16, 16), dtype=torch.uint8)
    mean, std = (torch.tensor(PROCESSOR[name]).view(3, 1, 1) for name in ("image_mean", "image_std"))
    network = transformers.AutoModel.from_pretrained(resnet).eval()
    with torch.no_grad():
        expected = network(pixel_values=(images / 255 - mean) / std).pooler_output.flatten(1)
        torch.testing.assert_close(read_hf(resnet)(images), expected)


def test_resizes_to_what_the_checkpoint_reads(resnet: Path) -> None:
    encoder, small = read_hf(resnet), torch.randint(0, 256, (2, 3, 8, 8), dtype=torch.uint8)
    larger = F.interpolate(small.float(), (16, 16), mode="bicubic")
    with torch.no_grad():
        torch.testing.assert_close(encoder(small), encoder(larger), atol=1e-5, rtol=1e-4)


def test_grey_images_are_seen_in_all_channels(resnet: Path) -> None:
    encoder, grey = read_hf(resnet), torch.randint(0, 256, (2, 1, 16, 16), dtype=torch.uint8)
    with torch.no_grad():
        torch.testing.assert_close(encoder(grey), encoder(grey.expand(-1, 3, -1, -1)))


@pytest.mark.parametrize(
    ("processor", "size", "mean"),
    [
        ({"size": 24, "image_mean": [0.5] * 3, "image_std": [1] * 3}, (24, 24), 0.5),
        ({"size": {"height": 8, "width": 24}, "image_mean": [0.5] * 3, "image_std": [1] * 3}, (8, 24), 0.5),
        (
            {"size": {"shortest_edge": 32}, "crop_size": {"height": 28, "width": 28}, "do_center_crop": True}
            | {"image_mean": [0.5] * 3, "image_std": [1] * 3},
            (28, 28),
            0.5,
        ),
        ({"size": 24, "do_normalize": False}, (24, 24), 0.0),
        ({"size": 24, "rescale_factor": 2 / 255, "image_mean": [0.5] * 3, "image_std": [1] * 3}, (24, 24), 0.25),
    ],
)
def test_reads_every_form_of_processor(
    copied: Path, processor: dict[str, Any], size: tuple[int, int], mean: float
) -> None:
    (copied / "preprocessor_config.json").write_text(json.dumps(processor))
    architecture = read_hf(copied).architecture
    assert architecture.size == size
    assert architecture.mean == pytest.approx((mean,) * 3)


@pytest.mark.parametrize(
    "change",
    [
        *({"rescale_factor": factor} for factor in ("a", None, 0)),
        *({"size": size} for size in (16.5, True, [16.5, 16], [0, 16])),
        *({"image_mean": mean} for mean in ([], [0.5] * 4)),
    ],
)
def test_a_processor_that_makes_no_sense_is_refused(copied: Path, change: dict[str, Any]) -> None:
    processor = {"size": 24, "image_mean": [0.5] * 3, "image_std": [1] * 3} | change
    (copied / "preprocessor_config.json").write_text(json.dumps(processor))
    with refusal("preprocessor_config.json"):
        read_hf(copied)


def test_without_a_pooler_the_class_token_is_read(tmp_path: Path) -> None:
    """As in checkpoints of classifiers, whose pooler transformers would fill with random numbers."""
    save_checkpoint(tmp_path, "vit")
    file = tmp_path / "model.safetensors"
    save_file({name: t for name, t in load_file(file).items() if "pooler" not in name}, file, {"format": "pt"})
    encoder, images = read_hf(tmp_path), torch.randint(0, 256, (2, 3, 16, 16), dtype=torch.uint8)
    pixels = (images.float() - encoder.mean) / encoder.std
    with torch.no_grad():
        torch.testing.assert_close(encoder(images), encoder.network(pixels).last_hidden_state[:, 0])
    again = rebuild(encoder.architecture, encoder.state_dict(), "a file")
    with torch.no_grad():
        torch.testing.assert_close(again(images), encoder(images))


def test_of_images_and_texts_the_part_that_sees_is_read(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, "clip")
    encoder, images = read_hf(tmp_path), torch.randint(0, 256, (2, 3, 16, 16), dtype=torch.uint8)
    whole = transformers.AutoModel.from_pretrained(tmp_path).eval()
    again = rebuild(encoder.architecture, encoder.state_dict(), "a file")
    with torch.no_grad():
        expected = whole.vision_model(encoder.pixels(images)).pooler_output
        torch.testing.assert_close(encoder(images), expected)
        torch.testing.assert_close(again(images), expected)


def test_texts_do_not_depend_on_their_padding(tmp_path: Path) -> None:
    encoder = read_hf(save_checkpoint(tmp_path, "bert"))
    short = torch.tensor([[3, 4, 5]])
    with torch.no_grad():
        hidden = encoder.network(input_ids=short).last_hidden_state
        torch.testing.assert_close(encoder(short), hidden.mean(1))
        torch.testing.assert_close(encoder(F.pad(short, (0, 5))), hidden.mean(1))
        assert encoder(torch.zeros(1, 4, dtype=torch.int64)).isfinite().all()


def test_it_is_built_again_from_what_config_json_says(resnet: Path) -> None:
    encoder = read_hf(resnet)
    entry = json.loads(json.dumps(encoder.architecture.to_json()))
    again = rebuild(architecture_from_json(entry, "config.json"), encoder.state_dict(), "a file")
    images = torch.randint(0, 256, (2, 3, 16, 16), dtype=torch.uint8)
    with torch.no_grad():
        assert torch.equal(again(images), encoder(images))


def test_batch_norm_and_dropout_stay_still(resnet: Path) -> None:
    encoder = read_hf(resnet)
    before = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    encoder.train()(torch.randint(0, 256, (4, 3, 16, 16), dtype=torch.uint8)).sum().backward()
    assert all(torch.equal(tensor, before[name]) for name, tensor in encoder.state_dict().items())
    assert any(parameter.grad is not None for parameter in encoder.parameters())


def test_a_frozen_one_takes_no_gradient_and_its_features_are_normalised(resnet: Path) -> None:
    options = EncoderOptions("hf:x", width=0.1, freeze=True)
    backbone = Backbone(build_encoder(options, (12,)), (3, 16, 16), features=read_hf(resnet), frozen=True)
    images = torch.randint(0, 256, (32, 3, 16, 16), dtype=torch.uint8)
    backbone.fit_normalization(images)
    backbone(images).sum().backward()
    assert backbone.features is not None
    assert all(parameter.grad is None for parameter in backbone.features.parameters())
    normal = backbone.normalized(backbone.features(images))
    torch.testing.assert_close(normal.mean(0), torch.zeros(12), atol=1e-4, rtol=0)


# Hostile or broken checkpoints


def test_pickles_are_refused(copied: Path) -> None:
    (copied / "model.safetensors").rename(copied / "pytorch_model.bin")
    with refusal("pytorch_model.bin", "safetensors"):
        read_hf(copied)


def test_a_pickle_that_is_called_safetensors_is_refused(copied: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(copied / "exploded"),)

    torch.save(Bomb(), copied / "model.safetensors")
    with refusal("model.safetensors"):
        read_hf(copied)
    assert not (copied / "exploded").exists()


def test_a_header_of_ten_gigabytes_is_refused(copied: Path) -> None:
    (copied / "model.safetensors").write_bytes(struct.pack("<Q", 10 << 30) + b'{"a":{}}')
    with refusal("model.safetensors"):
        read_hf(copied)


@pytest.mark.parametrize("name", ["../weights.safetensors", "/etc/passwd", "", 7, "missing.safetensors"])
def test_a_path_outside_of_its_folder_is_refused(copied: Path, name: object) -> None:
    (copied.parent / "weights.safetensors").write_bytes((copied / "model.safetensors").read_bytes())
    (copied / "model.safetensors").unlink()
    (copied / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    with refusal("model.safetensors.index.json", name):
        read_hf(copied)


def test_code_that_comes_with_a_checkpoint_is_never_run(copied: Path) -> None:
    config = json.loads((copied / "config.json").read_text())
    (copied / "code.py").write_text(f"import os; os.mkdir({str(copied / 'exploded')!r})")
    own = {"model_type": "mine", "auto_map": {"AutoConfig": "code.Config", "AutoModel": "code.Model"}}
    (copied / "config.json").write_text(json.dumps(config | own))
    with refusal(copied, "code"):
        read_hf(copied)
    (copied / "config.json").write_text(json.dumps(config | {"auto_map": own["auto_map"]}))
    read_hf(copied)  # transformers has this network, so that it does not need the code
    assert not (copied / "exploded").exists()


def test_only_what_describes_the_network_reaches_transformers() -> None:
    """Declared keys, and numbers under older ones; at any depth nothing that names code."""
    asked = {"attn_implementation": "a/b", "_experts_implementation": "a/b", "quantization_config": {"bits": 4}}
    part = {"hidden_size": 8, "auto_map": {}, **asked}
    entry = {"model_type": "clip", "projection_dim": 8, "rope_theta": 1e6, "notes": "text", "vision_config": part}
    kept = allowed_settings({**entry, **asked, "text_config": {"hidden_act": "gelu", **asked}}, transformers.CLIPConfig)
    assert kept == {
        "model_type": "clip",
        "projection_dim": 8,
        "rope_theta": 1e6,
        "vision_config": {"hidden_size": 8},
        "text_config": {"hidden_act": "gelu"},
    }
    scaled = {"model_type": "llama", "rope_scaling": {"rope_type": "linear", "factor": 2.0, "kernel_config": "a/b"}}
    assert allowed_settings(scaled, transformers.LlamaConfig)["rope_scaling"] == {"rope_type": "linear", "factor": 2.0}


@pytest.mark.parametrize("kind", [["resnet"], {}, 3])
def test_a_kind_that_is_no_text_is_refused(copied: Path, kind: object) -> None:
    (copied / "config.json").write_text(json.dumps({"model_type": kind}))
    with refusal(copied, "model_type"):
        read_hf(copied)


@pytest.mark.parametrize("changes", [{"hidden_sizes": [8, 1 << 40]}, {"hidden_sizes": [1 << 14, 1 << 14]}])
def test_a_network_larger_than_its_weights_is_refused(copied: Path, changes: dict[str, Any]) -> None:
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps(config | changes))
    with refusal(copied):
        read_hf(copied)


def test_missing_weights_are_refused(copied: Path) -> None:
    weights = load_file(copied / "model.safetensors")
    weights.pop(next(iter(weights)))
    save_file(weights, copied / "model.safetensors", {"format": "pt"})
    with refusal(copied, "weights"):
        read_hf(copied)


def test_without_a_processor_nothing_is_guessed(copied: Path) -> None:
    (copied / "preprocessor_config.json").unlink()
    with refusal("preprocessor_config.json"):
        read_hf(copied)


@pytest.mark.parametrize(
    "change", [{"library": "mine"}, {"size": [1 << 20, 4]}, {"mean": ["x"]}, {"network": 3}, {"more": 1}]
)
def test_an_architecture_from_a_file_is_checked(resnet: Path, change: dict[str, Any]) -> None:
    entry = read_hf(resnet).architecture.to_json()
    with refusal("config.json", "encoder"):
        architecture_from_json(entry | change, "config.json")


def test_a_kind_that_transformers_lacks_is_named(resnet: Path) -> None:
    entry = read_hf(resnet).architecture.to_json()
    entry["network"]["model_type"] = "nonesuch"
    with refusal("'nonesuch'"):
        build(architecture_from_json(entry, "config.json"))


@pytest.mark.parametrize(
    ("typed", "meant"), [("timm/resnet50", "timm:resnet50"), ("microsoft/resnet-50", "hf:microsoft/resnet-50")]
)
def test_a_name_of_the_hub_gets_its_prefix(typed: str, meant: str) -> None:
    with refusal(meant):
        choose_encoder(typed, (3, 32, 32))


def test_only_what_has_learned_can_be_frozen() -> None:
    with refusal("freeze"):
        EncoderOptions("resnet18", freeze=True)


def test_a_missing_extra_names_its_command_before_anything_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ricnet.errors.find_spec", lambda name: None)
    with refusal("pip install 'ricnet[hf]'"):
        find_encoder("hf:microsoft/resnet-50")


# timm


def test_timm_needs_its_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("ricnet.errors.find_spec", lambda name: None)
    with refusal("pip install 'ricnet[timm]'"):
        read_timm("resnet18", tmp_path / "weights.safetensors")


def test_a_timm_that_cannot_be_imported_is_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As with a torchvision that was built for another torch."""
    (tmp_path / "timm.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    monkeypatch.setattr("ricnet.errors.find_spec", lambda name: name)
    with refusal("timm", "torchvision::nms does not exist", "install"):
        read_timm("resnet18", tmp_path / "weights.safetensors")


def test_timm_reads_no_pickles(tmp_path: Path) -> None:
    with refusal("weights.pth"):
        read_timm("resnet18", tmp_path / "weights.pth")


def test_timm_loads_by_name_and_leaves_the_classifier_out(tmp_path: Path) -> None:
    timm = require_timm()
    whole = timm.create_model("test_resnet.r160_in1k", pretrained=False).eval()
    save_file(whole.state_dict(), tmp_path / "weights.safetensors")
    encoder = read_timm("test_resnet.r160_in1k", tmp_path / "weights.safetensors")
    images = torch.randint(0, 256, (2, 3, 160, 160), dtype=torch.uint8)
    pixels = (images.float() - encoder.mean) / encoder.std
    with torch.no_grad():
        torch.testing.assert_close(encoder(images), whole.forward_head(whole.forward_features(pixels), pre_logits=True))
    save_file({"a": torch.zeros(1)}, tmp_path / "other.safetensors")
    with refusal("other.safetensors", "test_resnet"):
        read_timm("test_resnet.r160_in1k", tmp_path / "other.safetensors")
