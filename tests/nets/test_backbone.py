import torch
from torch import nn

from refusals import refusal
from ricnet.nets.backbone import Backbone
from ricnet.nets.encoders import EncoderOptions, build_encoder


def test_any_module_is_an_encoder_if_it_returns_vectors() -> None:
    assert Backbone(nn.Flatten(), (3, 4, 4)).embedding_size == 48
    with refusal((1, 3, 4, 4)):
        Backbone(nn.Identity(), (3, 4, 4))


def test_token_ids_are_not_normalised() -> None:
    backbone = Backbone(encoder := build_encoder(EncoderOptions("words", width=0.25), (4,)), (4,))
    ids = torch.randint(0, 2**31 - 1, (5, 4), dtype=torch.int32)
    backbone.fit_normalization(ids)
    torch.testing.assert_close(backbone(ids), encoder(ids))


def test_backbone_normalises_with_training_statistics() -> None:
    images = torch.randint(0, 256, (50, 3, 4, 4), dtype=torch.uint8)
    images[:, 2] = 7
    backbone = Backbone(nn.Flatten(), (3, 4, 4))
    backbone.fit_normalization(images)
    normal = backbone(images).view(50, 3, 16)
    torch.testing.assert_close(normal.mean((0, 2)), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(normal.std((0, 2), correction=0), torch.tensor([1.0, 1.0, 0.0]), atol=1e-4, rtol=0)


def test_autocast_lowers_the_encoder_only() -> None:
    seen: list[torch.dtype] = []

    class Probe(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result = super().forward(x)
            seen.append(result.dtype)
            return result

    backbone = Backbone(Probe(4, 2), (4,))
    backbone.autocast = torch.bfloat16
    assert backbone(torch.randn(3, 4)).dtype == torch.float32
    assert seen == [torch.float32, torch.bfloat16]
