"""scripts/unpack_development_data.py on small generated sheets."""

import runpy
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
from PIL import Image

from ricnet.data import load
from ricnet.data.registry import check_dataset

SCRIPT = Path(__file__).parents[2] / "scripts" / "unpack_development_data.py"


@pytest.fixture
def tool() -> dict[str, Any]:
    tool = runpy.run_path(str(SCRIPT))
    tool["read_sheet"].__globals__["TILES"] = 5  # 25 images a sheet
    return tool


def save_sheet(tiles: np.ndarray, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    sheet = tiles.reshape(-1, 5, 32, 32, 3).transpose(0, 2, 1, 3, 4).reshape(-1, 160, 3)
    Image.fromarray(sheet).save(path, lossless=True)


def test_cifar_is_written_once_all_pieces_are_found(
    tmp_path: Path, tool: dict[str, Any], rng: np.random.Generator, capsys: pytest.CaptureFixture[str]
) -> None:
    sources, dest = [tmp_path / "one", tmp_path / "two"], tmp_path / "dest"
    dest.mkdir()
    tiles = rng.integers(0, 256, (24, 25, 32, 32, 3), dtype=np.uint8)
    for i, name in enumerate([*tool["TRAIN_SHEETS"], *tool["TEST_SHEETS"]]):
        save_sheet(tiles[i], sources[i % 2] / name)
    labels = {"train": np.arange(500) % 10, "test": np.arange(100) % 10}
    human = {name: labels["train"] for name in tool["HUMAN_KEYS"].values() if name != "train"}
    np.savez(sources[1] / "cifar10" / "labels.npz", **labels, **human)
    tool["unpack_cifar"](sources[:1], dest)
    assert "13 of 25" in capsys.readouterr().out
    assert not list(dest.iterdir())
    tool["unpack_cifar"](sources, dest)
    data = load("cifar10n-worst", data_dir=dest)
    assert (len(data.train), len(data.val), len(data.test)) == (450, 50, 100)
    assert np.array_equal(data.test.inputs.numpy(), tiles[20:].reshape(100, 32, 32, 3).transpose(0, 3, 1, 2))
    tool["unpack_cifar"](sources, dest)
    assert "already there" in capsys.readouterr().out


def test_svhn_is_written_as_published_and_cut_at_its_labels(
    tmp_path: Path, tool: dict[str, Any], rng: np.random.Generator, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two training sheets, the second of three rows of tiles, the last of which ends in black; one of test images."""
    source, dest = tmp_path / "source", tmp_path / "dest"
    dest.mkdir()
    tiles = rng.integers(0, 256, (65, 32, 32, 3), dtype=np.uint8)
    for name, part in {"train_00": tiles[:25], "train_01": tiles[25:40]}.items():
        save_sheet(part, source / "svhn" / f"{name}.webp")
    labels = {"train": np.arange(37, dtype=np.uint8) % 10, "test": np.arange(25, dtype=np.uint8) % 10}
    tool["unpack_svhn"]([source], dest)
    np.savez(source / "svhn" / "labels.npz", **labels)
    tool["unpack_svhn"]([source], dest)
    said = capsys.readouterr().out
    assert "svhn/labels.npz is missing" in said
    assert "test not written" in said
    save_sheet(tiles[40:], source / "svhn" / "test_00.webp")
    tool["unpack_svhn"]([source], dest)
    data = load("svhn", data_dir=dest)
    assert (len(data.train) + len(data.val), data.test.labels.tolist()) == (37, labels["test"].tolist())
    assert np.array_equal(data.test.inputs.numpy(), tiles[40:].transpose(0, 3, 1, 2))
    content = scipy.io.loadmat(dest / "svhn" / "train_32x32.mat")
    assert content["X"].shape == (32, 32, 3, 37)
    assert content["y"].ravel().tolist() == [10, 1, 2, 3, 4, 5, 6, 7, 8, 9] * 3 + [10, 1, 2, 3, 4, 5, 6]
    assert [file.checksum for file in check_dataset("svhn", data_dir=dest).files] == ["differs", "differs"]


def test_imagewoof_parts_may_come_one_by_one(tmp_path: Path, tool: dict[str, Any]) -> None:
    for part in ("train", "val"):
        archive = tmp_path / part / "imagewoof2-160" / f"{part}.zip"
        archive.parent.mkdir(parents=True)
        with zipfile.ZipFile(archive, "w") as files:
            files.writestr(f"{part}/n02111889/1.webp", b"image")
        tool["unpack_imagewoof"]([tmp_path / part], tmp_path)
    for part in ("train", "val"):
        assert (tmp_path / "imagewoof2-160" / part / "n02111889" / "1.webp").is_file()
