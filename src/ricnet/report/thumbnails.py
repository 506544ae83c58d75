"""An input as a picture small enough to stand in a page: in pixels where it is an image, in bars where it is not."""

import base64
import io

import numpy as np
from jaxtyping import Num, UInt8
from PIL import Image

SIDE = 96  # pixels; more are not seen at the size of a thumbnail
BARS = "A row of numbers is drawn as grey bars, one for each number that the model reads, up where it is positive."
LOSSLESS = 64 * 64  # small images show their pixels, each of which counts


def small_image(pixels: Num[np.ndarray, "channels height width"]) -> Image.Image:
    """Grey or colour, no side longer than `SIDE`; a grey image from its darkest value to its brightest."""
    image = Image.fromarray(pixels.transpose(1, 2, 0) if len(pixels) == 3 else _stretched(pixels[0]))
    image.thumbnail((SIDE, SIDE))
    return image


def _stretched(plane: Num[np.ndarray, "height width"]) -> UInt8[np.ndarray, "height width"]:
    low, high = float(plane.min()), float(plane.max())
    return ((plane - low) * (255 / ((high - low) or 1))).astype(np.uint8)


def data_uri(pixels: Num[np.ndarray, "channels height width"]) -> str:
    """PNG for small images, JPEG for photographs: the page stays small whatever the size of the data's images."""
    image = small_image(pixels)
    kind, options = ("png", {"optimize": True}) if image.width * image.height <= LOSSLESS else ("jpeg", {"quality": 80})
    with io.BytesIO() as file:
        image.save(file, kind, **options)
        return f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode()}"


def bars(features: Num[np.ndarray, "features"], width: float = 100, height: float = 100) -> str:
    """A bar for each feature, up where it is positive: the path of an SVG of this size."""
    finite = np.nan_to_num(features.astype(np.float64), posinf=0.0, neginf=0.0)
    top, bottom = max(finite.max(initial=0.0), 0.0), min(finite.min(initial=0.0), 0.0)
    unit = height / ((top - bottom) or 1.0)
    zero, pitch = top * unit, width / max(len(finite), 1)
    return "".join(
        f"M{i * pitch:.4g} {zero:.4g}v{-value * unit:.4g}h{0.8 * pitch:.4g}V{zero:.4g}z"
        for i, value in enumerate(finite)
    )
