"""Batches of tensors that live on the training device: the order of an epoch, and augmentation in place of a loader."""

import hashlib

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Int64, UInt8
from torch import Tensor

from ricnet.data.dataset import Augmentation
from ricnet.processes import Share

GREY = 128


def epoch_order(rows: int, seed: int, epoch: int) -> Int64[Tensor, "rows"]:
    """A permutation that depends on (seed, epoch) alone, so that a resumed run sees what an unbroken one would.

    Hashed, because with seed + epoch the runs of neighbouring seeds would share their orders one epoch apart.
    """
    digest = hashlib.sha256(f"ricnet epoch order {seed} {epoch}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))
    return torch.randperm(rows, generator=generator)


def augment(
    images: UInt8[Tensor, "n c h w"], augmentation: Augmentation, share: Share | None = None
) -> UInt8[Tensor, "n c h w"]:
    """A random window of each black-padded image, half of them mirrored, a square of it greyed out.

    Where the images are a share of a minibatch, random numbers are drawn for all of it, so that what happens to an
    image does not depend on how many processes there are.
    """
    share = share or Share(len(images))
    return _cut_out(_shift_and_mirror(images, augmentation, share), augmentation.cutout, share)


def _shift_and_mirror(
    images: UInt8[Tensor, "n c h w"], augmentation: Augmentation, share: Share
) -> UInt8[Tensor, "n c h w"]:
    """One gather for the whole batch: no loop over images, nothing the host has to wait for."""
    pad, flip = augmentation.crop_padding, augmentation.flip
    if not (pad or flip):
        return images
    n, c, h, w = images.shape
    columns = torch.arange(w, device=images.device).expand(n, w)
    if flip:
        mirrored = share.mine(torch.rand(share.rows, 1, device=images.device), 0) < 0.5
        columns = torch.where(mirrored, w - 1 - columns, columns)
    rows = torch.arange(h, device=images.device).expand(n, h)
    if pad:
        offsets = share.mine(torch.randint(2 * pad + 1, (2, share.rows, 1), device=images.device), 1)
        rows, columns = rows + offsets[0], columns + offsets[1]
        images = F.pad(images, (pad, pad, pad, pad))
    cells = rows[:, :, None] * images.shape[3] + columns[:, None, :]
    index = cells.reshape(n, 1, h * w).expand(n, c, h * w)
    return images.flatten(2).gather(2, index).reshape(n, c, h, w)


def _cut_out(images: UInt8[Tensor, "n c h w"], side: int, share: Share) -> UInt8[Tensor, "n c h w"]:
    """The square's middle may be any pixel, so that every pixel is hidden about equally often."""
    if not side:
        return images
    _, _, h, w = images.shape
    rows = _hidden(share, h, side, images.device)
    columns = _hidden(share, w, side, images.device)
    return images.masked_fill((rows[:, :, None] & columns[:, None, :])[:, None], GREY)


def _hidden(share: Share, length: int, side: int, device: torch.device) -> Bool[Tensor, "n length"]:
    """Which of the pixels along one axis lie within the square."""
    start = share.mine(torch.randint(length, (share.rows, 1), device=device), 0) - side // 2
    place = torch.arange(length, device=device)
    return (place >= start) & (place < start + side)
