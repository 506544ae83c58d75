"""TrivialAugment: each operation against Pillow's, and what a batch gets."""

import math

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from ricnet.data import Augmentation, augment
from ricnet.data.trivial import GREY, MOST_BITS_LOST, MOST_BLEND, MOST_DEGREES, MOST_SHEAR, Operation, change
from ricnet.distributed import Shard

STRENGTHS = [-1.0, -0.4, 0.0, 0.7, 1.0]


@pytest.fixture(scope="module")
def photograph() -> Tensor:
    """Smooth colours, as of a photograph: (3, 24, 24)."""
    torch.manual_seed(0)
    coarse = torch.rand(1, 3, 4, 4) * 220 + 20
    return torch.nn.functional.interpolate(coarse, (24, 24), mode="bicubic")[0].clamp(0, 255).round().to(torch.uint8)


def as_picture(image: Tensor) -> Image.Image:
    return Image.fromarray(image.permute(1, 2, 0).numpy())


def as_numbers(picture: Image.Image) -> np.ndarray:
    return np.asarray(picture).transpose(2, 0, 1).astype(int)


def made(image: Tensor, operation: Operation, strength: float) -> np.ndarray:
    return change(image[None], torch.tensor([operation]), torch.tensor([strength]))[0].numpy().astype(int)


@pytest.mark.parametrize("strength", STRENGTHS)
@pytest.mark.parametrize(
    ("operation", "enhance"),
    [(Operation.BRIGHTNESS, ImageEnhance.Brightness), (Operation.CONTRAST, ImageEnhance.Contrast)],
)
def test_brightness_and_contrast_are_those_of_pillow(photograph, operation, enhance, strength: float) -> None:
    grey = (
        photograph.float().mean(0).round().to(torch.uint8).expand(3, -1, -1).contiguous()
    )  # Pillow's grey is weighted
    theirs = as_numbers(enhance(as_picture(grey)).enhance(1 + MOST_BLEND * strength))
    assert np.abs(made(grey, operation, strength) - theirs).max() <= 1


@pytest.mark.parametrize("strength", STRENGTHS)
def test_saturation_moves_colours_from_and_to_grey(photograph, strength: float) -> None:
    pixels = photograph.float()
    grey = pixels.mean(0, keepdim=True)
    wanted = (grey + (1 + MOST_BLEND * strength) * (pixels - grey)).clamp(0, 255).round()
    assert np.abs(made(photograph, Operation.SATURATION, strength) - wanted.numpy()).max() <= 1


def test_sharpness_keeps_even_parts_and_changes_edges_both_ways() -> None:
    edge = torch.full((3, 8, 8), 60, dtype=torch.uint8)
    edge[:, :, 4:] = 180
    softer, sharper = (made(edge, Operation.SHARPNESS, strength)[0, 4] for strength in (-1.0, 1.0))
    assert list(softer) == [60, 60, 60, 96, 144, 180, 180, 180]  # nine tenths of the way to the mean of three columns
    assert list(sharper) == [60, 60, 60, 24, 216, 180, 180, 180]


@pytest.mark.parametrize("strength", STRENGTHS)
def test_posterizing_keeps_the_upper_bits(photograph, strength: float) -> None:
    bits = 8 - round(MOST_BITS_LOST * abs(strength))
    theirs = as_numbers(ImageOps.posterize(as_picture(photograph), bits))
    assert np.array_equal(made(photograph, Operation.POSTERIZE, strength), theirs)


@pytest.mark.parametrize("strength", STRENGTHS)
def test_solarizing_inverts_bright_pixels(photograph, strength: float) -> None:
    dark = photograph.clone()
    dark[:, 0] = 0
    theirs = as_numbers(ImageOps.solarize(as_picture(dark), math.ceil(256 * (1 - abs(strength)))))
    assert np.array_equal(made(dark, Operation.SOLARIZE, strength), theirs)


def test_a_wide_image_is_turned_as_a_square_one_is(photograph: Tensor) -> None:
    """In the middle, where nothing comes from outside; by bilinear interpolation in both."""
    square = photograph.repeat(1, 2, 2)
    wide = square[:, 12:36]
    for operation in (Operation.ROTATE, Operation.SHEAR_X, Operation.SHEAR_Y):
        turned = made(square, operation, 0.4)[:, 18:30, 18:30]
        assert np.abs(made(wide, operation, 0.4)[:, 6:18, 18:30] - turned).max() <= 1


def test_stretching_is_autocontrast_of_each_colour(photograph) -> None:
    theirs = as_numbers(ImageOps.autocontrast(as_picture(photograph)))
    assert np.abs(made(photograph, Operation.STRETCH, 0.3) - theirs).max() <= 1
    even = torch.full((3, 4, 4), 7, dtype=torch.uint8)
    assert np.array_equal(made(even, Operation.STRETCH, 1.0), even.numpy())


@pytest.mark.parametrize("strength", [-1.0, 0.5])
@pytest.mark.parametrize("operation", [Operation.ROTATE, Operation.SHEAR_X, Operation.SHEAR_Y])
def test_distortions_are_those_of_pillow(photograph, operation: Operation, strength: float) -> None:
    """Pillow's matrix maps a place in the result to one in the image, in pixels from the corner."""
    angle, shear = np.deg2rad(MOST_DEGREES * strength), MOST_SHEAR * strength
    a, b, c, d = {
        Operation.ROTATE: (np.cos(angle), -np.sin(angle), np.sin(angle), np.cos(angle)),
        Operation.SHEAR_X: (1, shear, 0, 1),
        Operation.SHEAR_Y: (1, 0, shear, 1),
    }[operation]
    middle = 12
    places = (a, b, middle - a * middle - b * middle, c, d, middle - c * middle - d * middle)
    picture = as_picture(photograph)
    theirs = as_numbers(
        picture.transform((24, 24), Image.Transform.AFFINE, places, Image.Resampling.BILINEAR, fillcolor=(GREY,) * 3)
    )
    inside = (slice(None), slice(6, 18), slice(6, 18))
    ours = made(photograph, operation, strength)
    assert np.abs(ours[inside] - theirs[inside]).max() <= 2
    assert np.abs(ours - photograph.numpy().astype(int)).max() > 20


@pytest.mark.parametrize("operation", [op for op in Operation if op != Operation.STRETCH])
def test_no_strength_changes_nothing(photograph, operation: Operation) -> None:
    assert np.array_equal(made(photograph, operation, 0.0), photograph.numpy())


def test_each_image_of_a_batch_gets_one_operation_and_all_occur(photograph) -> None:
    torch.manual_seed(0)
    batch = photograph.expand(600, -1, -1, -1)
    varied = augment(batch, Augmentation(trivial=True))
    share = (varied == batch).flatten(1).all(1).double().mean()
    assert 0.06 < share < 0.3  # NONE has a share of 1/11; weak operations change nothing either
    every = change(batch[: len(Operation)], torch.arange(len(Operation)), torch.full((len(Operation),), 0.8))
    for operation, image in zip(Operation, every, strict=True):
        assert np.array_equal(image.numpy(), made(photograph, operation, 0.8))
    assert len({image.numpy().tobytes() for image in every}) == len(Operation)


def test_parts_of_a_batch_are_changed_as_the_whole(photograph) -> None:
    batch, how = photograph.expand(6, -1, -1, -1), Augmentation(trivial=True)
    whole = augment(batch, how, Shard(6), torch.Generator().manual_seed(1))
    part = augment(batch[2:5], how, Shard(6, slice(2, 5)), torch.Generator().manual_seed(1))
    assert torch.equal(part, whole[2:5])
