"""Order of an epoch, and augmentation of batches on the training device."""

import hashlib
import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64, UInt8
from torch import Tensor

from ricnet.data.dataset import Augmentation
from ricnet.distributed import Shard

GREY = 128
CROP_RATIO = 4 / 3
"""Maximum ratio of the sides of a resized crop."""


def epoch_order(rows: int, seed: int, epoch: int) -> Int64[Tensor, "rows"]:
    """A permutation that depends only on (seed, epoch), so that a resumed run continues with the same batches. It is
    seeded by a hash: with seed + epoch, neighbouring seeds would share their orders one epoch apart."""
    digest = hashlib.sha256(f"ricnet epoch order {seed} {epoch}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))
    return torch.randperm(rows, generator=generator)


def augment(
    images: UInt8[Tensor, "n c h w"],
    augmentation: Augmentation,
    shard: Shard | None = None,
    generator: torch.Generator | None = None,
) -> UInt8[Tensor, "n c h w"]:
    """Random crops, mirroring, colours and cutout, as `augmentation` says.

    If the images are a shard of a minibatch, random numbers are drawn for all of it, so that the result does not depend
    on the number of processes. They come from torch's global generator unless one is given. Nothing here waits for the
    device, and no shape depends on random numbers, so that an update can be recorded as a CUDA graph.
    """
    shard = shard or Shard(len(images))
    crop = _crop_and_resize if augmentation.crop_area < 1 else _shift_and_mirror
    varied = _vary_colours(crop(images, augmentation, shard, generator), augmentation.colour, shard, generator)
    return _cut_out(varied, augmentation.cutout, shard, generator)


def _crop_and_resize(
    images: UInt8[Tensor, "n c h w"], augmentation: Augmentation, shard: Shard, generator: torch.Generator | None
) -> UInt8[Tensor, "n c h w"]:
    """Bilinear interpolation by two matrices for each image. A crop is never larger than the image, so no pixels are
    averaged."""
    _, _, h, w = images.shape
    heights, widths, tops, lefts = crop_boxes(augmentation.crop_area, shard, images.device, generator)
    rows, columns = _interpolation(tops, heights, h), _interpolation(lefts, widths, w)
    if augmentation.flip:
        mirrored = torch.rand(shard.rows, 1, 1, device=images.device, generator=generator)[shard.own] < 0.5
        columns = torch.where(mirrored, columns.flip(1), columns)
    resized = rows[:, None] @ images.float() @ columns.mT[:, None]
    return resized.round_().clamp_(0, 255).to(torch.uint8)


def crop_boxes(
    least: float, shard: Shard, device: torch.device, generator: torch.Generator | None = None
) -> Float[Tensor, "4 n"]:
    """Heights, widths, tops and lefts as shares of the sides of the image. The area is uniform from `least` to 1, the
    logarithm of the ratio of the sides uniform among those that fit."""
    area, ratio, top, left = torch.rand(4, shard.rows, device=device, generator=generator)[:, shard.own]
    area = 1 - (1 - least) * area
    widest = area.log().neg().clamp(max=math.log(CROP_RATIO))
    stretch = ((2 * ratio - 1) * widest / 2).exp()
    height, width = area.sqrt() / stretch, area.sqrt() * stretch
    return torch.stack([height, width, top * (1 - height), left * (1 - width)])


def _interpolation(starts: Float[Tensor, "n"], sizes: Float[Tensor, "n"], length: int) -> Float[Tensor, "n to of"]:
    """Weights that resize the part from start to start + size (shares of the side) to `length` pixels."""
    pixels = torch.arange(length, device=starts.device)
    middles = length * starts[:, None] + (pixels + 0.5) * sizes[:, None] - 0.5
    distances = middles.clamp(0, length - 1)[:, :, None] - pixels
    return (1 - distances.abs()).clamp_(min=0)


def _vary_colours(
    images: UInt8[Tensor, "n c h w"], most: float, shard: Shard, generator: torch.Generator | None
) -> UInt8[Tensor, "n c h w"]:
    """Brightness scales the image, contrast its distance from the mean, saturation the distance from grey."""
    if not most:
        return images
    drawn = torch.rand(3, shard.rows, 1, 1, 1, device=images.device, generator=generator)
    factors = 1 + most * (2 * drawn - 1)
    brightness, contrast, saturation = factors[:, shard.own]
    pixels = images.float()
    grey = pixels.mean(1, keepdim=True)
    mean = grey.mean((2, 3), keepdim=True)
    varied: Tensor = brightness * (mean + contrast * (grey - mean + saturation * (pixels - grey)))
    return varied.round_().clamp_(0, 255).to(torch.uint8)


def _shift_and_mirror(
    images: UInt8[Tensor, "n c h w"], augmentation: Augmentation, shard: Shard, generator: torch.Generator | None
) -> UInt8[Tensor, "n c h w"]:
    """One gather for the whole batch, without waiting for the device."""
    pad, flip = augmentation.crop_padding, augmentation.flip
    if not (pad or flip):
        return images
    n, c, h, w = images.shape
    columns = torch.arange(w, device=images.device).expand(n, w)
    if flip:
        mirrored = torch.rand(shard.rows, 1, device=images.device, generator=generator)[shard.own] < 0.5
        columns = torch.where(mirrored, w - 1 - columns, columns)
    rows = torch.arange(h, device=images.device).expand(n, h)
    if pad:
        size = (2, shard.rows, 1)
        offsets = torch.randint(2 * pad + 1, size, device=images.device, generator=generator)[:, shard.own]
        rows, columns = rows + offsets[0], columns + offsets[1]
        images = F.pad(images, (pad, pad, pad, pad))
    cells = rows[:, :, None] * images.shape[3] + columns[:, None, :]
    index = cells.reshape(n, 1, h * w).expand(n, c, h * w)
    return images.flatten(2).gather(2, index).reshape(n, c, h, w)


def _cut_out(
    images: UInt8[Tensor, "n c h w"], side: int, shard: Shard, generator: torch.Generator | None
) -> UInt8[Tensor, "n c h w"]:
    """The centre of the square may be any pixel, so that all pixels are hidden about equally often."""
    if not side:
        return images
    _, _, h, w = images.shape
    rows = _hidden(shard, h, side, images.device, generator)
    columns = _hidden(shard, w, side, images.device, generator)
    return images.masked_fill((rows[:, :, None] & columns[:, None, :])[:, None], GREY)


def _hidden(
    shard: Shard, length: int, side: int, device: torch.device, generator: torch.Generator | None
) -> Bool[Tensor, "n length"]:
    """Mask of the pixels along one axis that lie within the square."""
    start = torch.randint(length, (shard.rows, 1), device=device, generator=generator)[shard.own] - side // 2
    place = torch.arange(length, device=device)
    return (place >= start) & (place < start + side)
