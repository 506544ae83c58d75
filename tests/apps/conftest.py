from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ricnet.apps.cli import main

TINY = ["--epochs", "2", "--width", "0.1", "--horizon", "4", "--device", "cpu"]


@pytest.fixture(scope="session")
def digits_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small trained run; tests read it and leave it alone."""
    out = tmp_path_factory.mktemp("runs") / "digits"
    main(["train", "--out", str(out), *TINY])
    return out


@pytest.fixture(scope="session")
def exits_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with an exit after each of its three stages."""
    out = tmp_path_factory.mktemp("runs") / "exits"
    settings = "--method anytime --value-coef 0.5 --exits stage --encoder conv --epochs 2 --width 0.25 --device cpu"
    main(["train", "--out", str(out), *settings.split()])
    return out


@pytest.fixture(scope="session")
def image_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes of 12 × 12 colour images: bright and dark."""
    folder = tmp_path_factory.mktemp("images")
    random = np.random.default_rng(0)
    for name, low in (("bright", 150), ("dark", 0)):
        (folder / name).mkdir()
        for i in range(20):
            pixels = random.integers(low, low + 100, (12, 12, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{i}.png")
    return folder
