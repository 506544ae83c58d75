"""The development tool, on sheets small enough to make here."""

import runpy
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ricnet.data import load

SCRIPT = Path(__file__).parents[2] / "scripts" / "unpack_development_data.py"


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    tool = runpy.run_path(str(SCRIPT))
    tool["read_sheet"].__globals__["TILES"] = 5  # 25 images a sheet
    return tool


def test_cifar_is_written_once_all_pieces_are_found(
    tmp_path: Path, tool: dict[str, Any], rng: np.random.Generator, capsys: pytest.CaptureFixture[str]
) -> None:
    sources, dest = [tmp_path / "one", tmp_path / "two"], tmp_path / "dest"
    dest.mkdir()
    tiles = rng.integers(0, 256, (24, 25, 32, 32, 3), dtype=np.uint8)
    for i, name in enumerate([*tool["TRAIN_SHEETS"], *tool["TEST_SHEETS"]]):
        path = sources[i % 2] / name
        path.parent.mkdir(parents=True, exist_ok=True)
        sheet = tiles[i].reshape(5, 5, 32, 32, 3).transpose(0, 2, 1, 3, 4).reshape(160, 160, 3)
        Image.fromarray(sheet).save(path, lossless=True)
    labels = {"train": np.arange(500) % 10, "test": np.arange(100) % 10}
    human = {name: labels["train"] for name in tool["HUMAN_KEYS"].values() if name != "train"}
    np.savez(sources[1] / "cifar10" / "labels.npz", **labels, **human)
    tool["unpack_cifar"](sources[:1], dest)
    assert "13 of 25 pieces missing" in capsys.readouterr().out
    assert not list(dest.iterdir())
    tool["unpack_cifar"](sources, dest)
    data = load("cifar10n-worst", data_dir=dest)
    assert (len(data.train), len(data.val), len(data.test)) == (450, 50, 100)
    assert np.array_equal(data.test.inputs.numpy(), tiles[20:].reshape(100, 32, 32, 3).transpose(0, 3, 1, 2))
    tool["unpack_cifar"](sources, dest)
    assert "already there" in capsys.readouterr().out


def test_imagewoof_parts_may_come_one_by_one(tmp_path: Path, tool: dict[str, Any]) -> None:
    for part in ("train", "val"):
        archive = tmp_path / part / "imagewoof2-160" / f"{part}.zip"
        archive.parent.mkdir(parents=True)
        with zipfile.ZipFile(archive, "w") as files:
            files.writestr(f"{part}/n02111889/1.webp", b"image")
        tool["unpack_imagewoof"]([tmp_path / part], tmp_path)
    found = sorted(
        path.relative_to(tmp_path / "imagewoof2-160") for path in (tmp_path / "imagewoof2-160").rglob("*.webp")
    )
    assert found == [Path("train/n02111889/1.webp"), Path("val/n02111889/1.webp")]
