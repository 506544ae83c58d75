import pytest
import torch
from torch import nn

from refusals import refusal
from ricnet.nets.backbone import embedding_size
from ricnet.nets.encoders import (
    EncoderOptions,
    build_encoder,
    choose_encoder,
    register_encoder,
)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 9, 7), (1, 28, 28), (3, 32, 32), (13,)])
def test_auto_fits_any_input(shape: tuple[int, ...]) -> None:
    encoder = build_encoder(EncoderOptions(width=0.25, activation="silu"), shape)
    assert encoder(torch.randn(2, *shape)).shape == (2, embedding_size(encoder, shape))


def test_auto_is_chosen_by_size() -> None:
    assert [choose_encoder("auto", s) for s in [(5,), (1, 8, 8), (3, 32, 32)]] == ["mlp", "conv", "resnet18"]


def test_width_multiplies_the_embedding() -> None:
    encoder = build_encoder(EncoderOptions("resnet18", width=0.5), (3, 32, 32))
    assert embedding_size(encoder, (3, 32, 32)) == 256


@pytest.mark.parametrize(
    ("name", "shape", "named"),
    [
        ("resnet50", (3, 32, 32), ("resnet50", "mean resnet10")),
        ("timm/resnet50", (3, 32, 32), ("mean timm:resnet50",)),
        ("microsoft/resnet-50", (3, 32, 32), ("mean hf:microsoft/resnet-50",)),
        ("resnet18", (13,), ("rows of 13 numbers", "leave it out")),
        ("words", (3, 8, 8), ("words", "images")),
        ("tfidf", (3, 8, 8), ("tfidf", "images")),
    ],
)
def test_unknown_and_unfit_encoders_are_named(name: str, shape: tuple[int, ...], named: tuple[str, ...]) -> None:
    with refusal("encoder", *named):
        build_encoder(EncoderOptions(name), shape)


@pytest.mark.parametrize(
    ("name", "options", "pretrained"),
    [
        ("resnet18", {}, False),
        ("custom", {}, False),
        ("custom", {"freeze": True}, True),
        ("hf:a/b", {}, True),
        ("timm:resnet18", {"freeze": True}, True),
    ],
)
def test_hf_timm_and_frozen_encoders_are_pretrained(name: str, options: dict[str, bool], pretrained: bool) -> None:
    assert EncoderOptions(name, **options).pretrained is pretrained


def test_only_pretrained_encoders_can_be_frozen() -> None:
    with refusal("freeze", "resnet18"):
        EncoderOptions("resnet18", freeze=True)


def test_an_encoder_can_be_registered_from_outside() -> None:
    @register_encoder("sum-of-pixels")
    def build(options: EncoderOptions, input_shape: tuple[int, ...]) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(192, 7))

    assert embedding_size(build_encoder(EncoderOptions("sum-of-pixels"), (3, 8, 8)), (3, 8, 8)) == 7


def parameters(name: str, shape: tuple[int, ...] = (3, 32, 32), **options: object) -> int:
    encoder = build_encoder(EncoderOptions(encoder=name, **options), shape)  # type: ignore[arg-type]
    return sum(p.numel() for p in encoder.parameters())


def test_resnets_have_the_published_number_of_parameters() -> None:
    """torchvision's resnet18 and resnet34 have 11,689,512 and 21,797,672, of which 513,000 are the last layer."""
    assert parameters("resnet18", (3, 224, 224)) == 11_689_512 - 513_000
    assert parameters("resnet34", (3, 224, 224)) == 21_797_672 - 513_000


def test_small_images_keep_their_resolution_through_the_stem() -> None:
    known = [((3, 32, 32), "auto", 32), ((3, 128, 128), "auto", 32), ((3, 128, 128), "half", 64)]
    for shape, stem, side in [*known, ((3, 32, 32), "original", 8)]:
        encoder = build_encoder(EncoderOptions("resnet10", width=0.125, stem=stem), shape)  # type: ignore[arg-type]
        assert encoder.stem(torch.zeros(1, *shape)).shape[-1] == side
