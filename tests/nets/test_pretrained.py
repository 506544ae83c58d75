import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn

from nets.checkpoints import PROCESSOR, require_timm, save_checkpoint
from refusals import cases, refusal
from ricnet.nets.backbone import Backbone
from ricnet.nets.checkpoints import architecture_from_json
from ricnet.nets.encoders import EncoderOptions, build_encoder
from ricnet.nets.pretrained import read_hf, read_timm, rebuild, timm_source

transformers = pytest.importorskip("transformers", reason="transformers is not installed (ricnet[hf])")


def test_scales_and_normalises_by_the_checkpoint(resnet: Path) -> None:
    images = torch.randint(0, 256, (3, 3, 16, 16), dtype=torch.uint8)
    mean, std = (torch.tensor(PROCESSOR[name]).view(3, 1, 1) for name in ("image_mean", "image_std"))
    network = transformers.AutoModel.from_pretrained(resnet).eval()
    with torch.no_grad():
        expected = network(pixel_values=(images / 255 - mean) / std).pooler_output.flatten(1)
        torch.testing.assert_close(read_hf(resnet)(images), expected)


def test_resizes_to_the_size_of_the_checkpoint(resnet: Path) -> None:
    encoder, small = read_hf(resnet), torch.randint(0, 256, (2, 3, 8, 8), dtype=torch.uint8)
    larger = F.interpolate(small.float(), (16, 16), mode="bicubic")
    with torch.no_grad():
        torch.testing.assert_close(encoder(small), encoder(larger), atol=1e-5, rtol=1e-4)


def test_grey_images_are_seen_in_all_channels(resnet: Path) -> None:
    encoder, grey = read_hf(resnet), torch.randint(0, 256, (2, 1, 16, 16), dtype=torch.uint8)
    with torch.no_grad():
        torch.testing.assert_close(encoder(grey), encoder(grey.expand(-1, 3, -1, -1)))


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


def test_rebuilt_from_config_json(resnet: Path) -> None:
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
    assert backbone.frozen_encoder is backbone.features
    normal = backbone.normalized(backbone.features(images))
    torch.testing.assert_close(normal.mean(0), torch.zeros(12), atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("find", "named"),
    cases(
        {
            "not installed": (lambda name: None, "pip install 'ricnet[timm]'"),
            "for another torch": (lambda name: name, ("timm", "torchvision::nms does not exist", "install")),
        }
    ),
)
def test_a_timm_that_cannot_be_imported_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, find: Callable[[str], str | None], named: Any
) -> None:
    (tmp_path / "timm.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    monkeypatch.setattr("ricnet.errors.find_spec", find)
    with refusal(named):
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


class Small(nn.Linear):
    """As timm makes networks: with settings, and without a classifier on top."""

    def __init__(self) -> None:
        super().__init__(3, 4)
        self.pretrained_cfg = {"input_size": (3, 8, 6), "mean": (0.5,) * 3, "std": (0.2,) * 3, "classifier": "head"}
        self.pretrained_cfg |= {"hf_hub_id": "timm/small"}

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return super().forward(pixels.mean((2, 3)))


@pytest.fixture
def small_timm(monkeypatch: pytest.MonkeyPatch) -> None:
    """A timm of one network."""
    made = SimpleNamespace(
        __version__="1.0", is_model="small".__eq__, list_models=lambda pattern: ["small"], create_model=_create
    )
    monkeypatch.setitem(sys.modules, "timm", made)
    monkeypatch.setattr("ricnet.errors.find_spec", lambda name: name)


def _create(name: str, pretrained: bool, num_classes: int) -> nn.Module:
    assert (pretrained, num_classes) == (False, 0)
    return Small()


@pytest.mark.usefixtures("small_timm")
def test_weights_of_a_file_replace_random_ones(tmp_path: Path) -> None:
    weights = Small().state_dict() | {"head.weight": torch.zeros(2, 4)}
    save_file(weights, tmp_path / "weights.safetensors")
    encoder = read_timm("small", tmp_path / "weights.safetensors")
    assert torch.equal(encoder.network.weight, weights["weight"])
    assert (encoder.architecture.size, encoder.architecture.mean) == ((8, 6), (0.5,) * 3)
    assert timm_source("small") == "timm/small"
    assert torch.equal(rebuild(encoder.architecture, encoder.state_dict(), "a file").network.weight, weights["weight"])


@pytest.mark.usefixtures("small_timm")
@pytest.mark.parametrize(
    ("name", "weights", "named"),
    [
        ("large", {"weight": torch.zeros(4, 3)}, ("timm:large", "it has small")),
        ("small", {"weight": torch.zeros(4, 3)}, ("weights.safetensors", "small of timm", "bias")),
        ("small", {"weight": torch.zeros(4, 4), "bias": torch.zeros(4)}, ("weights.safetensors", "see weight")),
    ],
)
def test_unknown_networks_and_other_weights_are_refused(
    tmp_path: Path, name: str, weights: dict[str, torch.Tensor], named: tuple[str, ...]
) -> None:
    save_file(weights, tmp_path / "weights.safetensors")
    with refusal(*named):
        read_timm(name, tmp_path / "weights.safetensors")
