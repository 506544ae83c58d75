import torch

from ricnet.nets.encoders import EncoderOptions, build_encoder


def parameters(name: str, shape: tuple[int, ...] = (3, 32, 32), **options: object) -> int:
    encoder = build_encoder(EncoderOptions(encoder=name, **options), shape)  # type: ignore[arg-type]
    return sum(p.numel() for p in encoder.parameters())


def test_resnets_have_the_published_number_of_parameters() -> None:
    """torchvision's resnet18 and resnet34 have 11,689,512 and 21,797,672, of which 513,000 are the last layer."""
    assert parameters("resnet18", (3, 224, 224)) == 11_689_512 - 513_000
    assert parameters("resnet34", (3, 224, 224)) == 21_797_672 - 513_000


def test_small_images_keep_their_resolution_through_the_stem() -> None:
    for shape, stem, side in [((3, 32, 32), "auto", 32), ((3, 128, 128), "auto", 32), ((3, 32, 32), "original", 8)]:
        encoder = build_encoder(EncoderOptions("resnet10", width=0.125, stem=stem), shape)  # type: ignore[arg-type]
        assert encoder.stem(torch.zeros(1, *shape)).shape[-1] == side
