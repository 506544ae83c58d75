"""Image files of any size and mode as tensors of one shape."""

from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image, ImageOps
from torch import Tensor

from ricnet.errors import RicnetError

EXTENSIONS = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"})
_WIDE = ("I", "I;16", "I;16L", "I;16B", "I;16N")
_GREY = ("1", "L", "LA", "La", "F", *_WIDE)


def find_images(folder: Path) -> list[Path]:
    """Every image below, in the order of their paths; hidden files and folders are passed over."""
    found = (path for path in folder.rglob("*") if is_image(path))
    return sorted(path for path in found if not any(part.startswith(".") for part in path.relative_to(folder).parts))


def is_image(path: Path) -> bool:
    return path.suffix.lower() in EXTENSIONS and not path.name.startswith(".") and path.is_file()


def read_image(path: Path, input_shape: tuple[int, ...]) -> UInt8[Tensor, "c h w"]:
    """Scaled until it covers (height, width), then cropped at the centre; upright as the camera's EXIF tag says.

    Transparent pixels are seen on white, as on a page; 16-bit grey keeps its upper 8 bits; of an animation the
    first frame counts.
    """
    try:
        channels, height, width = input_shape
        with Image.open(path) as image:
            # JPEGs decode faster at a fraction of their size; twice the target leaves the quality to the resizing.
            image.draft(image.mode, (2 * width, 2 * height))
            upright = ImageOps.exif_transpose(image)
            fitted = ImageOps.fit(_flatten(upright, channels), (width, height), Image.Resampling.BICUBIC)
        pixels = np.array(fitted).reshape(height, width, channels)
    except FileNotFoundError as error:
        raise RicnetError(f"{path} does not exist.") from error
    except Exception as error:  # decoders fail in many ways, a decompression bomb among them
        raise RicnetError(f"{path} is no image that can be read ({error}); replace or remove it.") from error
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()


def image_form(path: Path) -> tuple[int, int, bool]:
    """Width, height and whether it is grey, from the header alone."""
    try:
        with Image.open(path) as image:
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
