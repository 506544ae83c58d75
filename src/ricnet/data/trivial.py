"""TrivialAugment (Müller and Hutter 2021) for a batch on the training device: each image is changed by one operation,
chosen at random, with random strength. Shear, rotation and the strength of the others have the ranges of RandAugment.
Translation is left out, because crops move images already, and equalisation, because it needs a histogram per image."""

from enum import IntEnum

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

Images = UInt8[Tensor, "n c h w"]
Pixels = Float[Tensor, "n c h w"]
PerImage = Float[Tensor, "n 1 1 1"]

GREY = 128
MOST_SHEAR, MOST_DEGREES, MOST_BLEND = 0.3, 30.0, 0.9
MOST_BITS_LOST = 6


class Operation(IntEnum):
    NONE = 0
    SHEAR_X = 1
    SHEAR_Y = 2
    ROTATE = 3
    BRIGHTNESS = 4
    CONTRAST = 5
    SATURATION = 6
    SHARPNESS = 7
    POSTERIZE = 8
    SOLARIZE = 9
    STRETCH = 10


def change(images: Images, operations: Int64[Tensor, "n"], strengths: Float[Tensor, "n"]) -> Images:
    """Apply to each image its operation. Strengths lie in [−1, 1]; posterising and solarising use the absolute value.

    Every operation is computed for all images and masked for images with another one: nothing waits for the device, so
    that an update can be recorded as a CUDA graph.
    """
    chosen, strength = operations[:, None, None, None], strengths[:, None, None, None]
    pixels = _distorted(images.float(), operations, strengths).round()
    for step in (_blended, _posterized, _solarized, _stretched):
        pixels = step(pixels, chosen, strength)
    return pixels.round().clamp(0, 255).to(torch.uint8)


def _distorted(pixels: Pixels, operations: Int64[Tensor, "n"], strengths: Float[Tensor, "n"]) -> Pixels:
    """Shear or rotate around the centre; what comes from outside is grey."""

    def of(operation: Operation, most: float) -> Float[Tensor, "n"]:
        return torch.where(operations == operation, most * strengths, 0.0)

    angle = torch.deg2rad(of(Operation.ROTATE, MOST_DEGREES))
    cosine, sine = angle.cos(), angle.sin()
    right, down, nothing = of(Operation.SHEAR_X, MOST_SHEAR), of(Operation.SHEAR_Y, MOST_SHEAR), torch.zeros_like(angle)
    shape = pixels.shape[-2] / pixels.shape[-1]  # the grid reaches from −1 to 1 along both sides
    rows = [cosine, shape * (right - sine), nothing, (down + sine) / shape, cosine, nothing]
    matrix = torch.stack(rows, 1).view(-1, 2, 3)
    grid = F.affine_grid(matrix, list(pixels.shape), align_corners=False)
    moved = GREY + F.grid_sample(pixels - GREY, grid, align_corners=False)
    still = ((angle == 0) & (right == 0) & (down == 0))[:, None, None, None]
    return torch.where(still, pixels, moved)


def _blended(pixels: Pixels, chosen: Int64[Tensor, "n 1 1 1"], strength: PerImage) -> Pixels:
    """Move away from or towards black, the mean grey, the grey image, or the blurred image."""
    grey = pixels.mean(1, keepdim=True)
    blurred = F.avg_pool2d(F.pad(pixels, (1, 1, 1, 1), mode="replicate"), 3, stride=1)
    towards = {
        Operation.BRIGHTNESS: torch.zeros_like(pixels),
        Operation.CONTRAST: grey.mean((2, 3), keepdim=True).expand_as(pixels),
        Operation.SATURATION: grey.expand_as(pixels),
        Operation.SHARPNESS: blurred,
    }
    for operation, end in towards.items():
        pixels = torch.where(chosen == operation, pixels + MOST_BLEND * strength * (pixels - end), pixels)
    return pixels.clamp(0, 255).round()


def _posterized(pixels: Pixels, chosen: Int64[Tensor, "n 1 1 1"], strength: PerImage) -> Pixels:
    """Keep 8 to 2 bits of each colour."""
    step = 2.0 ** (MOST_BITS_LOST * strength.abs()).round()
    return torch.where(chosen == Operation.POSTERIZE, pixels.div(step, rounding_mode="floor") * step, pixels)


def _solarized(pixels: Pixels, chosen: Int64[Tensor, "n 1 1 1"], strength: PerImage) -> Pixels:
    """Invert the bright pixels: none at strength 0, all at 1."""
    bright = pixels >= 256 * (1 - strength.abs())
    return torch.where((chosen == Operation.SOLARIZE) & bright, 255 - pixels, pixels)


def _stretched(pixels: Pixels, chosen: Int64[Tensor, "n 1 1 1"], strength: PerImage) -> Pixels:
    """Stretch each colour to the whole range."""
    low, high = pixels.amin((2, 3), keepdim=True), pixels.amax((2, 3), keepdim=True)
    stretched = 255 * (pixels - low) / (high - low).clamp(min=1)
    return torch.where((chosen == Operation.STRETCH) & (high > low), stretched, pixels)
