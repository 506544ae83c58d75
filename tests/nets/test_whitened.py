import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import ricnet
from refusals import refusal
from ricnet.data import Dataset, Split
from ricnet.nets.backbone import Backbone
from ricnet.nets.encoders import EncoderOptions, build_encoder
from ricnet.nets.whitened import EPSILON, SCALE, Block, Whitened, Whitening


def test_whitened_patches_are_uncorrelated_with_variance_one_and_both_signs() -> None:
    torch.manual_seed(0)
    noise = torch.randn(40, 3, 12, 12)
    images = 5 * F.avg_pool2d(noise, 3, 1, 1) + noise[:, :1]  # neighbours and channels are correlated
    layer = Whitening(3)
    layer.fit(images)
    assert layer.weight.shape == (24, 3, 2, 2)
    outputs = layer(images)
    assert torch.equal(outputs[:, 12:], -outputs[:, :12])
    rows = outputs[:, :12].movedim(1, 3).reshape(-1, 12).double()
    torch.testing.assert_close(rows.T.cov(correction=0), torch.eye(12).double(), atol=0.02, rtol=0)


def test_whitening_by_hand() -> None:
    """Patches of one channel that vary only in their mean, ±s in all four pixels: the only variance is 4s², along
    (1, 1, 1, 1)/2; directions without variance are divided by √ε."""
    images = torch.tensor([3.0, -3.0]).view(2, 1, 1, 1).expand(2, 1, 5, 5)
    layer = Whitening(1)
    layer.fit(images)
    assert layer(images).abs().amax((0, 2, 3)).max().item() == pytest.approx(6 / math.sqrt(36 + EPSILON), rel=1e-4)
    assert layer.weight.flatten(1).norm(dim=1).max().item() == pytest.approx(1 / math.sqrt(EPSILON), rel=1e-4)


@pytest.mark.parametrize("deep", [False, True])
def test_a_block_written_out(deep: bool) -> None:
    torch.manual_seed(0)
    block = Block(2, 3, deep)
    with torch.no_grad():
        block.norm1.bias.fill_(0.3)
    x = torch.randn(4, 2, 7, 7)

    def normed(values: torch.Tensor, bias: float = 0.0) -> torch.Tensor:
        return F.batch_norm(values, None, None, training=True) + bias

    first = F.gelu(normed(F.max_pool2d(F.conv2d(x, block.first.weight, padding=1), 2), 0.3))
    second = F.gelu(normed(F.conv2d(first, block.second.weight, padding=1)))
    expected = second
    if deep:
        assert block.third is not None
        expected = F.gelu(normed(F.conv2d(second, block.third[0].weight, padding=1)) + first)
    torch.testing.assert_close(block(x), expected)
    assert [name for name, p in block.named_parameters() if not p.requires_grad and "norm" in name] == [
        "norm1.weight",
        "norm2.weight",
    ]


@pytest.mark.parametrize(("name", "size"), [("whitened", 256), ("whitened-deep", 512)])
def test_sizes_stages_and_embedding(name: str, size: int) -> None:
    encoder = build_encoder(EncoderOptions(name, width=0.25), (3, 32, 32)).eval()
    x = torch.randn(2, 3, 32, 32)
    assert encoder(x).shape == (2, size // 4)
    assert len(encoder.stages("stage")) == 3  # type: ignore[operator]
    for stage in encoder.stages("stage"):  # type: ignore[operator]
        x = stage(x)
    assert x.shape == (2, size // 4, 3, 3)


def test_the_embedding_is_the_scaled_maximum() -> None:
    encoder = Whitened(1, (2, 3, 4), deep=False).eval()
    seen = x = torch.randn(2, 1, 12, 12)
    for stage in encoder.stages("block"):
        seen = stage(seen)
    torch.testing.assert_close(encoder(x), SCALE * seen.flatten(2).max(2).values)


def test_it_is_fitted_with_the_normalisation_and_kept_as_state() -> None:
    torch.manual_seed(0)
    images = torch.randint(0, 256, (30, 3, 16, 16), dtype=torch.uint8)
    backbone = Backbone(build_encoder(EncoderOptions("whitened", width=0.1), (3, 16, 16)), (3, 16, 16))
    before = backbone.encoder.whitening.weight.clone()
    backbone.fit_normalization(images)
    rows = backbone.encoder.whitening(backbone.normalized(images))[:, :12].movedim(1, 3).reshape(-1, 12)
    torch.testing.assert_close(rows.detach().T.cov(), torch.eye(12), atol=0.05, rtol=0)
    assert not torch.equal(backbone.encoder.whitening.weight, before)
    assert "encoder.whitening.weight" in backbone.state_dict()
    assert "encoder.whitening.weight" not in dict(backbone.named_parameters())


@pytest.mark.parametrize("shape", [(3, 8, 32), (3, 8, 8), (12,)])
def test_inputs_that_are_too_small_are_refused(shape: tuple[int, ...]) -> None:
    with refusal("encoder", "whitened"):
        build_encoder(EncoderOptions("whitened"), shape)


@pytest.mark.parametrize("exits", ["none", "stage"])
def test_it_learns_textures_and_is_loaded_with_its_whitening(exits: str, tmp_path: Path) -> None:
    """Horizontal and vertical stripes in noise, at random phases."""
    generator, labels = torch.Generator().manual_seed(0), torch.arange(240) % 2
    phases = torch.randint(0, 4, (240, 1, 1, 1), generator=generator)
    stripes = ((torch.arange(16).view(1, 1, 1, 16) + phases) % 4 < 2).float().expand(-1, 3, 16, -1)
    images = torch.where(labels.view(-1, 1, 1, 1) == 1, stripes, stripes.mT)
    noisy = 60 + 60 * images + 40 * torch.randn(images.shape, generator=generator)
    rows = Split(noisy.clamp(0, 255).to(torch.uint8), labels)
    data = Dataset("stripes", rows.take(torch.arange(160)), *(rows.take(torch.arange(160, 240)),) * 2, ("a", "b"))
    how: dict[str, Any] = {"encoder": "whitened", "width": 0.1, "optimizer": "muon", "average": 0.0, "exits": exits}
    model = ricnet.train(
        data, method="supervised", epochs=6, batch_size=32, lr=0.02, out=tmp_path, device="cpu", baselines=False, **how
    )
    assert (model.predict_proba(data.test.inputs).argmax(1) == data.test.labels.numpy()).mean() > 0.9
    again = ricnet.load(tmp_path)
    assert torch.equal(whitening(again).weight, whitening(model).weight)
    assert not torch.equal(whitening(again).weight, Whitening(3).weight)


def whitening(model: ricnet.Classifier) -> Whitening:
    return next(part for part in model.model.modules() if isinstance(part, Whitening))
