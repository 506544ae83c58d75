"""Files that the documentation uses: folders of photos, some of them broken, and a table."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    random = np.random.default_rng(0)
    for name, low in (("cat", 0), ("dog", 120)):
        for i in range(12):
            _photo(tmp_path / "photos" / name / f"{i}.jpg", random.integers(low, low + 130, (24, 20, 3), np.uint8))
    for i, name in enumerate(("ridgeback", "samoyed", "sheepdog")):
        for j in range(12):
            pixels = random.integers(80 * i, 80 * i + 90, (24 + j, 30, 3), np.uint8)
            _photo(tmp_path / "dogs" / name / f"{j}.jpg", pixels[..., 0] if j == 5 else pixels)
    (tmp_path / "dogs" / "samoyed" / "broken.jpg").write_bytes(b"<html>")
    for place in ("new.jpg", "more/1.jpg", "more/2.jpg", "new/beagle.jpg", "new/samoyed-1.jpg"):
        _photo(tmp_path / place, random.integers(0, 255, (24, 20, 3), np.uint8))
    _table(tmp_path / "my.csv", random)
    _table(tmp_path / "new.csv", random)
    _cells(tmp_path / "cells.csv", random)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _photo(path: Path, pixels: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def _table(path: Path, random: np.random.Generator) -> None:
    """Two numbers with gaps, a text, and the class in `label`."""
    rows = ["height,weight,colour,label"]
    for i in range(90):
        kind = i % 3
        height = "" if i % 17 == 0 else f"{random.normal(kind, 0.5):.3f}"
        rows.append(f"{height},{random.normal(-kind, 0.5):.3f},{'red' if i % 2 else 'blue'},{'abc'[kind]}")
    path.write_text("\n".join(rows) + "\n")


def _cells(path: Path, random: np.random.Generator) -> None:
    """As the tutorial on tables makes it, for the pages that go on from there."""
    rows = [
        f"{random.normal(i % 2):.2f},{random.random():.2f},{i},{('fine', 'middling')[i // 2 % 2]},"
        f"{('benign', 'malignant')[i % 2]}"
        for i in range(40)
    ]
    path.write_text("\n".join(["radius,smoothness,symmetry,texture,diagnosis", *rows]) + "\n")
