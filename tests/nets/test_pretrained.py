import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from nets.checkpoints import PROCESSOR, save_checkpoint
from ricnet.nets.architecture import architecture_from_json
from ricnet.nets.backbone import Backbone
from ricnet.nets.encoders import EncoderOptions, build_encoder
from ricnet.nets.pretrained import read_hf, rebuild

transformers = pytest.importorskip("transformers", reason="transformers is not installed (ricnet[hf])")


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
    assert backbone.frozen_encoder is backbone.features
    normal = backbone.normalized(backbone.features(images))
    torch.testing.assert_close(normal.mean(0), torch.zeros(12), atol=1e-4, rtol=0)
