import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from nets.checkpoints import require_timm
from refusals import refusal
from ricnet.nets.pretrained import read_timm, rebuild
from ricnet.nets.timm import timm_source


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
