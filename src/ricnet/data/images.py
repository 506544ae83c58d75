"""Image files of any size and mode as tensors of one shape."""

import io
import os
import re
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from ricnet.errors import RicnetError

EXTENSIONS = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"})
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
"""Of all that Pillow reads, those with the extensions above, whatever a file is called; some others start programs."""
MOST_PIXELS = 178_000_000
"""In an image; a file of a few kilobytes can claim any number of them. Pillow draws its line a little higher."""
LARGE = 16_000_000
"""Pixels beyond which images are decoded one at a time: each takes up to 16 bytes a pixel while it is.

Of a JPEG these are the pixels it is decoded to; but one of several scans, such as a progressive one, is first held at
its full size, in up to 8 bytes a pixel, so half of those count at least.
"""
MOST_OTHERS, OTHERS_PER_IMAGE = 100_000, 100
"""Files and folders that a search passes over before it gives up, unless there is an image among so many of them: a
home folder takes minutes, and what was meant is a folder of images."""
_TAGS = re.compile(r"PIL\.TiffImagePlugin")
"""Where Pillow reads the tags of a camera, whatever kind the file is of."""
_ONE_AT_A_TIME = threading.Lock()
_WIDE = ("I", "I;16", "I;16L", "I;16B", "I;16N")
_GREY = ("1", "L", "LA", "La", "F", *_WIDE)
S = TypeVar("S")
T = TypeVar("T")


def find_images(folder: Path, seen: Counter[str] | None = None) -> list[Path]:
    """Every image below, in the order of their paths; hidden files and folders are passed over, and links to folders
    not followed. `seen` counts what there is, by suffix."""
    found: list[Path] = []
    own: Counter[str] = Counter()
    for place, folders, files in os.walk(folder, onerror=_raise_unless_closed):
        folders[:] = sorted(_shown(folders))  # whether a search gives up must not depend on the disk's order
        paths = [Path(place, name) for name in _shown(files)]
        found += filter(is_image, paths)
        own.update([path.suffix.lower() for path in paths] + [""] * len(folders))
        refuse_haystack(own, folder)
    if seen is not None:
        seen.update(own)
    return sorted(found)


def _shown(names: Iterable[str]) -> list[str]:
    return [name for name in names if not name.startswith(".")]


def _raise_unless_closed(error: OSError) -> None:
    """Folders that are not ours to read are passed over, and those that are gone again."""
    if not isinstance(error, PermissionError | FileNotFoundError | ProcessLookupError):
        raise error


def refuse_haystack(seen: Counter[str], folder: Path) -> None:
    """End a search that has seen far more of other things than of images."""
    images = sum(seen[suffix] for suffix in EXTENSIONS)
    if seen.total() - images > max(MOST_OTHERS, OTHERS_PER_IMAGE * images):
        found = "no image" if not images else "1 image" if images == 1 else f"only {images:,} images"
        raise RicnetError(
            f"{folder} has {found} among the first {seen.total():,} files and folders in it; give a folder of images."
        )


def is_image(path: Path) -> bool:
    return path.suffix.lower() in EXTENSIONS and not path.name.startswith(".") and path.is_file()


def read_image(path: Path, input_shape: tuple[int, ...]) -> UInt8[Tensor, "c h w"]:
    """An image file as `decode_image` says."""
    try:
        with path.open("rb") as file:
            return decode_image(file, str(path), input_shape)
    except FileNotFoundError as error:
        raise RicnetError(f"{path} does not exist.") from error
    except OSError as error:
        raise RicnetError(f"{path} cannot be read ({error.strerror}).") from error


def decode_image(
    file: io.BytesIO | io.BufferedReader, name: str, input_shape: tuple[int, ...]
) -> UInt8[Tensor, "c h w"]:
    """Scaled until it covers (height, width), then cropped at the centre; upright as the camera's EXIF tag says.

    Transparent pixels are seen on white, as on a page; 16-bit grey keeps its upper 8 bits; of an animation the
    first frame counts.
    """
    try:
        with _open(file) as image:
            pixels = _pixels(image, *input_shape)
    except UnidentifiedImageError:  # its own words name the object that was read
        raise RicnetError(f"{name} is no image of a kind that can be read; replace or remove it.") from None
    except Exception as error:  # decoders fail in many ways, a decompression bomb among them
        raise RicnetError(f"{name} is no image that can be read ({error}); replace or remove it.") from error
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()


def _open(file: io.BytesIO | io.BufferedReader | Path) -> Image.Image:
    """Pillow warns of damaged tags in several words, though the picture beside them is whole. The filter against that
    stays: those that threads put up and take down for a while undo each other."""
    if ("ignore", None, UserWarning, _TAGS, 0) not in warnings.filters:
        warnings.filterwarnings("ignore", category=UserWarning, module=_TAGS.pattern)
    return Image.open(file, formats=FORMATS)


def _pixels(image: Image.Image, channels: int, height: int, width: int) -> UInt8[np.ndarray, "h w c"]:
    stored = image.width * image.height
    if stored > MOST_PIXELS:
        raise ValueError(f"{stored:,} pixels could be a decompression bomb")
    # JPEGs decode faster at a fraction of their size; twice the target leaves the quality to the resizing.
    image.draft(image.mode, (2 * width, 2 * height))
    with _turn(max(image.width * image.height, stored // 2)):
        upright = ImageOps.exif_transpose(image)
        fitted = ImageOps.fit(_flatten(upright, channels), (width, height), Image.Resampling.BICUBIC)
        return np.array(fitted).reshape(height, width, channels)


def _turn(pixels: int) -> AbstractContextManager[object]:
    return _ONE_AT_A_TIME if pixels > LARGE else nullcontext()


def read_images(
    paths: Sequence[Path], input_shape: tuple[int, ...]
) -> tuple[UInt8[Tensor, "n c h w"], dict[Path, str]]:
    """Those that can be read, in their order, and for each other file what is wrong with it."""
    images: UInt8[Tensor, "n c h w"] = torch.empty((len(paths), *input_shape), dtype=torch.uint8)
    broken: dict[Path, str] = {}

    def read(row: int) -> None:
        try:
            images[row] = read_image(paths[row], input_shape)
        except RicnetError as error:
            broken[paths[row]] = str(error)

    in_threads(read, range(len(paths)))
    whole = [row for row, path in enumerate(paths) if path not in broken]
    return (images if not broken else images[whole]), broken


def in_threads(function: Callable[[S], T], items: Iterable[S]) -> list[T]:
    # Decoding and resizing release the interpreter's lock.
    with ThreadPoolExecutor(min(32, (os.cpu_count() or 1) + 4)) as pool:
        return list(pool.map(function, items))


def image_form(path: Path) -> tuple[int, int, bool]:
    """Width, height and whether it is grey, from the header alone."""
    try:
        with _open(path) as image:
            return image.width, image.height, image.mode in _GREY
    except Exception as error:  # as above
        raise RicnetError(f"{path} is no image that can be read ({error}); replace or remove it.") from error


def _flatten(image: Image.Image, channels: int) -> Image.Image:
    if image.mode in _WIDE:
        image = Image.fromarray((np.asarray(image).clip(0, 65535) // 256).astype(np.uint8))
    elif image.mode == "F":
        image = Image.fromarray(as_bytes(np.asarray(image)))
    elif image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("L" if channels == 1 else "RGB")


def as_bytes(values: np.ndarray, scale: float | None = None) -> np.ndarray:
    """Real-valued pixels as 0..255: those that never exceed 1 are taken as fractions of full brightness."""
    if scale is None:
        scale = 255.0 if values.max() <= 1 else 1.0
    scaled = np.rint(values.astype(np.float64) * scale)
    if not (np.isfinite(scaled).all() and scaled.min() >= 0 and scaled.max() <= 255):
        raise ValueError("pixel values lie outside 0..1 and 0..255")
    return scaled.astype(np.uint8)
