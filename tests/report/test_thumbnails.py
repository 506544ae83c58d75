import base64
import io

import numpy as np
import pytest
from PIL import Image

from ricnet.report.thumbnails import SIDE, bars, data_uri, small_image


def decoded(uri: str) -> tuple[str, Image.Image]:
    head, _, content = uri.partition(";base64,")
    return head, Image.open(io.BytesIO(base64.b64decode(content)))


def test_small_images_keep_every_pixel() -> None:
    pixels = np.arange(3 * 4 * 5, dtype=np.uint8).reshape(3, 4, 5)
    head, image = decoded(data_uri(pixels))
    assert head == "data:image/png"
    np.testing.assert_array_equal(np.asarray(image), pixels.transpose(1, 2, 0))


def test_grey_runs_from_black_to_white() -> None:
    image = np.asarray(small_image(np.array([[[0, 8], [12, 16]]], dtype=np.uint8)))
    assert image.tolist() == [[0, 127], [191, 255]]
    assert np.asarray(small_image(np.full((1, 2, 2), 7, dtype=np.uint8))).tolist() == [[0, 0], [0, 0]]


def test_photographs_are_small() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 240, 160), dtype=np.uint8)
    head, image = decoded(data_uri(pixels))
    assert (head, image.size) == ("data:image/jpeg", (SIDE * 160 // 240, SIDE))
    assert len(data_uri(pixels)) < 12_000  # noise is the worst a photograph can be


def test_bars_rise_and_hang_from_zero() -> None:
    """From −1 to 3 is 100 high: zero lies at 75, and a unit is 25."""
    assert bars(np.array([3.0, -1.0])) == "M0 75v-75h40V75zM50 75v25h40V75z"


@pytest.mark.parametrize("features", [[0.0, 0.0], [np.nan, np.inf], [5.0]])
def test_bars_of_odd_features_stay_inside(features: list[float]) -> None:
    path = bars(np.array(features))
    assert "nan" not in path
    assert "inf" not in path
    assert path.count("M") == len(features)
