"""Checkpoints of transformers, also hostile and broken ones."""

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from refusals import refusal
from ricnet.models.locate import find_encoder
from ricnet.nets.checkpoints import allowed_settings, architecture_from_json
from ricnet.nets.pretrained import build, read_hf

transformers = pytest.importorskip("transformers", reason="transformers is not installed (ricnet[hf])")


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


def changed(file: str, **changes: object) -> Callable[[Path], None]:
    """Damage: other entries in a JSON file."""

    def change(folder: Path) -> None:
        entry = json.loads((folder / file).read_text())
        (folder / file).write_text(json.dumps(entry | changes))

    return change


def without_a_weight(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights.pop(next(iter(weights)))
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def with_a_long_header(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 10 << 30) + b'{"a":{}}')


DAMAGES: list[tuple[Callable[[Path], object], tuple[str, ...]]] = [
    (lambda folder: (folder / "model.safetensors").rename(folder / "pytorch_model.bin"), ("pytorch_model.bin", "safe")),
    (lambda folder: (folder / "model.safetensors").unlink(), ("holds no model.safetensors",)),
    (lambda folder: (folder / "config.json").unlink(), ("holds no config.json",)),
    (lambda folder: (folder / "config.json").write_text("{"), ("config.json cannot be read",)),
    (lambda folder: (folder / "config.json").write_text("[]"), ("config.json is not a JSON object",)),
    (with_a_long_header, ("model.safetensors is not a safetensors file",)),
    (without_a_weight, ("lacks weights",)),
    *((changed("config.json", model_type=kind), ("model_type",)) for kind in (["resnet"], {}, 3)),
    (changed("config.json", model_type="x", architecture="resnet18"), ("timm", "timm:resnet18")),
    *((changed("config.json", hidden_sizes=sizes), ("config.json",)) for sizes in ([8, 1 << 40], [1 << 14, 1 << 14])),
    (lambda folder: (folder / "preprocessor_config.json").unlink(), ("has no preprocessor_config.json",)),
    *(
        (changed("preprocessor_config.json", **{name: value}), ("preprocessor_config.json",))
        for name, values in {
            "rescale_factor": ("a", None, 0),
            "size": (16.5, True, [16.5, 16], [0, 16]),
            "image_mean": ([], [0.5] * 4),
        }.items()
        for value in values
    ),
]


@pytest.mark.parametrize(("damage", "named"), DAMAGES)
def test_damaged_and_hostile_checkpoints_are_refused(
    copied: Path, damage: Callable[[Path], object], named: tuple[str, ...]
) -> None:
    damage(copied)
    with refusal(copied, *named):
        read_hf(copied)


def test_a_pickle_that_is_called_safetensors_is_refused(copied: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(copied / "exploded"),)

    torch.save(Bomb(), copied / "model.safetensors")
    with refusal("model.safetensors"):
        read_hf(copied)
    assert not (copied / "exploded").exists()


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


def test_only_settings_of_the_network_reach_transformers() -> None:
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


def test_a_kind_that_transformers_lacks_is_named(resnet: Path) -> None:
    entry = read_hf(resnet).architecture.to_json()
    entry["network"]["model_type"] = "nonesuch"
    with refusal("'nonesuch'"):
        build(architecture_from_json(entry, "config.json"))


def test_a_missing_extra_names_its_command_before_anything_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ricnet.errors.find_spec", lambda name: None)
    with refusal("pip install 'ricnet[hf]'"):
        find_encoder("hf:microsoft/resnet-50")
