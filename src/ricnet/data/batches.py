"""Batches of tensors that live on the training device: the order of an epoch, and augmentation in place of a loader."""

import hashlib

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Int64, UInt8
from torch import Tensor

from ricnet.data.dataset import Augmentation

GREY = 128


def epoch_order(rows: int, seed: int, epoch: int) -> Int64[Tensor, "rows"]:
    """A permutation that depends on (seed, epoch) alone, so that a resumed run sees what an unbroken one would.

    Hashed, because with seed + epoch the runs of neighbouring seeds would share their orders one epoch apart.
    """
    digest = hashlib.sha256(f"ricnet epoch order {seed} {epoch}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))
    return torch.randperm(rows, generator=generator)


def augment(images: UInt8[Tensor, "n c h w"], augmentation: Augmentation) -> UInt8[Tensor, "n c h w"]:
    """A random window of each black-padded image, half of them mirrored, a square of it greyed out."""
    return _cut_out(_shift_and_mirror(images, augmentation), augmentation.cutout)


def _shift_and_mirror(images: UInt8[Tensor, "n c h w"], augmentation: Augmentation) -> UInt8[Tensor, "n c h w"]:
    """One gather for the whole batch: no loop over images, nothing the host has to wait for."""
    pad, flip = augmentation.crop_padding, augmentation.flip
    if not (pad or flip):
        return images
    n, c, h, w = images.shape
    columns = torch.arange(w, device=images.device).expand(n, w)
    if flip:
        mirrored = torch.rand(n, 1, device=images.device) < 0.5
        columns = torch.where(mirrored, w - 1 - columns, columns)
    rows = torch.arange(h, device=images.device).expand(n, h)
    if pad:
        offsets = torch.randint(2 * pad + 1, (2, n, 1), device=images.device)
        rows, columns = rows + offsets[0], columns + offsets[1]
        images = F.pad(images, (pad, pad, pad, pad))
    cells = rows[:, :, None] * images.shape[3] + columns[:, None, :]
    index = cells.reshape(n, 1, h * w).expand(n, c, h * w)
    return images.flatten(2).gather(2, index).reshape(n, c, h, w)


def _cut_out(images: UInt8[Tensor, "n c h w"], side: int) -> UInt8[Tensor, "n c h w"]:
    """The square's middle may be any pixel, so that every pixel is hidden about equally often."""
    if not side:
        return images
    n, _, h, w = images.shape
    rows = _hidden(n, h, side, images.device)
    columns = _hidden(n, w, side, images.device)
    return images.masked_fill((rows[:, :, None] & columns[:, None, :])[:, None], GREY)


def _hidden(n: int, length: int, side: int, device: torch.device) -> Bool[Tensor, "n length"]:
    """Which of the pixels along one axis lie within the square."""
    start = torch.randint(length, (n, 1), device=device) - side // 2
    place = torch.arange(length, device=device)
    return (place >= start) & (place < start + side)
