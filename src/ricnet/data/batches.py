"""Order of an epoch, augmentation of batches on the training device, and rows that do not fit into memory: they are
written once to a file, split by split, and memory-mapped, so that processes share the pages they read."""

import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64, Num, UInt8
from rich.console import Console
from rich.progress import track
from torch import Tensor

from ricnet.core.policies import Dirichlet
from ricnet.data.dataset import Augmentation, Dataset, Split
from ricnet.data.trivial import GREY, Operation, change
from ricnet.distributed import Shard
from ricnet.errors import RicnetError, setting
from ricnet.io import replace_file

CROP_RATIO = 4 / 3  # maximum ratio of the sides of a resized crop
CHUNK = 1024  # rows that are read and written at once
ReadRows = Callable[[list[int]], tuple[Num[Tensor, "n ..."], dict[int, str]]]
"""Reads rows by their numbers: returns the readable ones in order, and for each other row what is wrong with it."""


def epoch_order(rows: int, seed: int, epoch: int) -> Int64[Tensor, "rows"]:
    """A permutation that depends only on (seed, epoch), so that a resumed run continues with the same batches. It is
    seeded by a hash: with seed + epoch, neighbouring seeds would share their orders one epoch apart."""
    digest = hashlib.sha256(f"ricnet epoch order {seed} {epoch}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))
    return torch.randperm(rows, generator=generator)


def first_mirrored(rows: int, seed: int) -> Bool[Tensor, "rows"]:
    """Mask of the images that alternating flips mirror in the first epoch; every epoch mirrors those that the one
    before did not."""
    return epoch_order(rows, seed, -1) % 2 == 0


Images = UInt8[Tensor, "n c h w"]
Mask = Bool[Tensor, "n"]


class Random(NamedTuple):
    """Random numbers for the images of a shard. They are drawn for the whole minibatch, so that they do not depend on
    the number of processes."""

    shard: Shard
    device: torch.device
    generator: torch.Generator | None = None
    """None for torch's global one."""

    def uniform(self, count: int) -> Float[Tensor, "count n"]:
        return torch.rand(count, self.shard.rows, device=self.device, generator=self.generator)[:, self.shard.own]

    def integers(self, below: int, count: int) -> Int64[Tensor, "count n 1"]:
        size = (count, self.shard.rows, 1)
        return torch.randint(below, size, device=self.device, generator=self.generator)[:, self.shard.own]


def augment(
    images: Images,
    augmentation: Augmentation,
    shard: Shard | None = None,
    generator: torch.Generator | None = None,
    size: tuple[int, ...] | None = None,
    mirrored: Mask | None = None,
) -> UInt8[Tensor, "n c h2 w2"]:
    """Random crops, mirroring, colours, one more operation and cutout, as `augmentation` says. `size` is the height and
    width of the results, at most and by default those of the images. `mirrored` is the mask of images to mirror, by
    default half of them at random.

    Nothing here waits for the device, and no shape depends on random numbers, so that an update can be recorded as a
    CUDA graph.
    """
    random = Random(shard or Shard(len(images)), images.device, generator)
    size = size or (images.shape[2], images.shape[3])
    crop = _crop_and_resize if augmentation.crop_area < 1 else _shift_and_mirror
    changed = _vary_colours(crop(images, size, augmentation, random, mirrored), augmentation.colour, random)
    if augmentation.trivial:
        changed = change(changed, random.integers(len(Operation), 1)[0, :, 0], 2 * random.uniform(1)[0] - 1)
    return _cut_out(changed, augmentation.cutout, random)


def _crop_and_resize(
    images: Images, size: tuple[int, ...], augmentation: Augmentation, random: Random, mirrored: Mask | None
) -> UInt8[Tensor, "n c h2 w2"]:
    """Bilinear interpolation by two matrices for each image."""
    _, _, h, w = images.shape
    heights, widths, tops, lefts = crop_boxes(augmentation.crop_area, random)
    rows, columns = _interpolation(tops, heights, h, size[0]), _interpolation(lefts, widths, w, size[1])
    if augmentation.flip:
        mirrored = random.uniform(1)[0] < 0.5 if mirrored is None else mirrored
        columns = torch.where(mirrored[:, None, None], columns.flip(1), columns)
    resized = rows[:, None] @ images.float() @ columns.mT[:, None]
    return resized.round_().clamp_(0, 255).to(torch.uint8)


def crop_boxes(least: float, random: Random) -> Float[Tensor, "4 n"]:
    """Heights, widths, tops and lefts as shares of the sides of the image. The area is uniform from `least` to 1, the
    logarithm of the ratio of the sides uniform among those that fit."""
    area, ratio, top, left = random.uniform(4)
    area = 1 - (1 - least) * area
    widest = area.log().neg().clamp(max=math.log(CROP_RATIO))
    stretch = ((2 * ratio - 1) * widest / 2).exp()
    height, width = area.sqrt() / stretch, area.sqrt() * stretch
    return torch.stack([height, width, top * (1 - height), left * (1 - width)])


def _interpolation(starts: Float[Tensor, "n"], sizes: Float[Tensor, "n"], of: int, to: int) -> Float[Tensor, "n to of"]:
    """Weights that resize the part from start to start + size (shares of a side of `of` pixels) to `to` pixels. Where
    that reduces it, each new pixel averages the old ones that it covers, as resizing with antialiasing does."""
    middles = of * starts[:, None] + (torch.arange(to, device=starts.device) + 0.5) * (of / to * sizes[:, None]) - 0.5
    distances = middles.clamp(0, of - 1)[:, :, None] - torch.arange(of, device=starts.device)
    if of == to:  # a crop is never larger than the image, so nothing is reduced
        return (1 - distances.abs()).clamp_(min=0)
    width = (of / to * sizes).clamp(min=1)[:, None, None]  # width of the triangular filter, in old pixels
    weights = (1 - distances.abs() / width).clamp_(min=0)
    return weights / weights.sum(2, keepdim=True)


def _vary_colours(images: Images, most: float, random: Random) -> Images:
    """Brightness scales the image, contrast its distance from the mean, saturation the distance from grey."""
    if not most:
        return images
    brightness, contrast, saturation = 1 + most * (2 * random.uniform(3)[:, :, None, None, None] - 1)
    pixels = images.float()
    grey = pixels.mean(1, keepdim=True)
    mean = grey.mean((2, 3), keepdim=True)
    varied: Tensor = brightness * (mean + contrast * (grey - mean + saturation * (pixels - grey)))
    return varied.round_().clamp_(0, 255).to(torch.uint8)


def _shift_and_mirror(
    images: Images, size: tuple[int, ...], augmentation: Augmentation, random: Random, mirrored: Mask | None
) -> UInt8[Tensor, "n c h2 w2"]:
    """One gather for the whole batch, without waiting for the device."""
    pad, flip = augmentation.crop_padding, augmentation.flip
    n, c, h, w = images.shape
    tall, wide = size
    if not (pad or flip or size != (h, w)):
        return images
    columns = torch.arange(wide, device=images.device).expand(n, wide)
    if flip:
        mirrored = random.uniform(1)[0] < 0.5 if mirrored is None else mirrored
        columns = torch.where(mirrored[:, None], wide - 1 - columns, columns)
    rows = torch.arange(tall, device=images.device).expand(n, tall)
    if pad or size != (h, w):
        offsets = _offsets(2 * pad + h - tall, 2 * pad + w - wide, random)
        rows, columns = rows + offsets[0], columns + offsets[1]
        if augmentation.reflect:
            rows, columns = _reflected(rows - pad, h), _reflected(columns - pad, w)
        else:
            images = F.pad(images, (pad, pad, pad, pad))
    cells = rows[:, :, None] * images.shape[3] + columns[:, None, :]
    index = cells.reshape(n, 1, tall * wide).expand(n, c, tall * wide)
    return images.flatten(2).gather(2, index).reshape(n, c, tall, wide)


def _reflected(places: Int64[Tensor, "n length"], length: int) -> Int64[Tensor, "n length"]:
    """Pixel indices; those outside of the image are mirrored at its outermost pixel."""
    return (length - 1 - (length - 1 - places.abs()).abs()).clamp(min=0)


def _offsets(most_down: int, most_right: int, random: Random) -> Int64[Tensor, "2 n 1"]:
    """Random shifts in pixels, down and to the right, from 0 to these maxima."""
    if most_down == most_right:
        return random.integers(most_down + 1, 2)
    return torch.cat([random.integers(most + 1, 1) for most in (most_down, most_right)])


def _cut_out(images: Images, side: int, random: Random) -> Images:
    """The centre of the square may be any pixel, so that all pixels are hidden about equally often."""
    if not side:
        return images
    _, _, h, w = images.shape
    rows, columns = _hidden(h, side, random), _hidden(w, side, random)
    return images.masked_fill((rows[:, :, None] & columns[:, None, :])[:, None], GREY)


def _hidden(length: int, side: int, random: Random) -> Bool[Tensor, "n length"]:
    """Mask of the pixels along one axis that lie within the square."""
    start = random.integers(length, 1)[0] - side // 2
    place = torch.arange(length, device=random.device)
    return (place >= start) & (place < start + side)


# Mixup


def mix(
    inputs: Num[Tensor, "n ..."],
    labels: Int64[Tensor, "n"],
    classes: int,
    alpha: float,
    shard: Shard | None = None,
    generator: torch.Generator | None = None,
) -> tuple[Float[Tensor, "n ..."], Float[Tensor, "n classes"]]:
    """Mixup (Zhang et al. 2018): λ·x_i + (1 − λ)·x_j and λ·e_i + (1 − λ)·e_j with λ ~ Beta(α, α) for each example i,
    where j is the example at the opposite position of the batch, the last for the first. With several processes, each
    mixes its own part. Batches are in random order, so partners are random."""
    shard = shard or Shard(len(inputs))
    both = torch.full((shard.rows, 2), alpha, device=inputs.device)
    share = Dirichlet(both, both).sample(generator)[shard.own, 0].exp()

    def mixed(rows: Float[Tensor, "n *any"]) -> Float[Tensor, "n *any"]:
        weight = share.view(-1, *(1,) * (rows.ndim - 1))
        return weight * rows + (1 - weight) * rows.flip(0)

    return mixed(inputs.float()), mixed(F.one_hot(labels, classes).float())


# Rows that do not fit into memory


class Damaged(RicnetError):
    """Some rows cannot be read."""

    def __init__(self, rows: dict[int, str]) -> None:
        super().__init__(f"{len(rows)} rows cannot be read: {next(iter(rows.values()))}")
        self.rows = rows
        """What is wrong with each, by row number."""


def pack_rows(
    numbered: Dataset, read: ReadRows, row_shape: tuple[int, ...], dtype: torch.dtype, source: object, folder: Path
) -> Dataset:
    """Replace row numbers, the inputs of a data set, by rows that are mapped from a file in `folder`.

    `source` identifies the data, as JSON; the file is written once for each. Unreadable rows are stored too and raise
    `Damaged`: the caller leaves them out and splits again.
    """
    splits = (numbered.train, numbered.val, numbered.test)
    order = torch.cat([split.inputs for split in splits])
    key = hashlib.sha256(json.dumps([source, row_shape, str(dtype)]).encode() + order.numpy().tobytes()).hexdigest()[
        :24
    ]
    path, damaged = folder / f"{key}.rows", folder / f"{key}.damaged"
    row_bytes = math.prod(row_shape) * dtype.itemsize
    if not damaged.is_file() and not (path.is_file() and path.stat().st_size == len(order) * row_bytes):
        _write(path, damaged, order, read, row_bytes)
    if damaged.is_file():
        raise Damaged({int(row): text for row, text in json.loads(damaged.read_text("utf-8")).items()})
    rows = map_rows(path, row_shape, dtype).split([len(split) for split in splits])
    train, val, test = (Split(own, split.labels) for own, split in zip(rows, splits, strict=True))
    return replace(numbered, train=train, val=val, test=test)


def map_rows(path: Path, row_shape: tuple[int, ...], dtype: torch.dtype) -> Num[Tensor, "n ..."]:
    size = path.stat().st_size // dtype.itemsize
    return torch.from_file(str(path), shared=False, size=size, dtype=dtype).view(-1, *row_shape)


def _write(path: Path, damaged: Path, order: Int64[Tensor, "n"], read: ReadRows, row_bytes: int) -> None:
    """Write the rows, or the list of damaged ones, to a draft that is renamed, so that a file is always complete."""
    draft = path.with_name(f".{path.stem}.{os.getpid()}.draft")
    broken: dict[int, str] = {}
    console = Console(stderr=True)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        needed, free = len(order) * row_bytes, shutil.disk_usage(path.parent).free
        if needed > free:
            raise RicnetError(
                f"the data does not fit into memory and needs {needed / 1e9:.1f} GB on the disk, but {path.parent} has "
                f"{free / 1e9:.1f} GB left; name another folder with {setting('data_dir')}, or lower "
                f"{setting('resolution')}."
            )
        with draft.open("wb") as file:
            chunks = list(order.split(CHUNK))
            for some in track(chunks, "writing data to the disk", console=console, disable=not console.is_terminal):
                rows, unread = read(some.tolist())
                file.write(rows.numpy().tobytes())
                broken |= unread
        if broken:
            draft.write_text(json.dumps(broken), "utf-8")
        replace_file(draft, damaged if broken else path)
    except OSError as error:
        raise RicnetError(
            f"{path.parent} cannot be written ({error.strerror or error}), and the data does not fit into memory; "
            f"name another folder with {setting('data_dir')}."
        ) from error
    finally:
        with suppress(OSError):
            draft.unlink()
