"""The 8 × 8 digits that ship with scikit-learn: data without a download."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits

from ricnet.data.dataset import Split
from ricnet.data.splits import TEST_FRACTION, cut


def read_digits(_paths: Sequence[Path], _resolution: int | None) -> tuple[Split, Split]:
    digits = load_digits()
    pixels = np.rint(digits.images * (255 / 16)).astype(np.uint8)  # published as 0..16
    images = torch.from_numpy(pixels)[:, None]
    return cut(Split(images, torch.from_numpy(digits.target.astype(np.int64))), TEST_FRACTION)
