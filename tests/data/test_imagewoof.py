import shutil
import tarfile
from pathlib import Path

import pytest

from ricnet.data import load
from ricnet.data.dataset import PHOTOGRAPHS
from ricnet.errors import RicnetError


def test_imagewoof_from_its_folder(imagewoof_dir: Path) -> None:
    data = load("imagewoof", data_dir=imagewoof_dir, val_fraction=0.3)
    assert (len(data.train), len(data.val), len(data.test)) == (20, 10, 10)
    assert data.input_shape == (3, 128, 128)
    assert data.class_names[8] == "Samoyed"
    assert data.test.labels.tolist() == list(range(10))
    assert data.augmentation == PHOTOGRAPHS


def test_imagewoof_from_its_archive_at_another_resolution(imagewoof_dir: Path) -> None:
    with tarfile.open(imagewoof_dir / "imagewoof2-160.tgz", "w:gz") as files:
        files.add(imagewoof_dir / "imagewoof2-160", "imagewoof2-160")
    shutil.rmtree(imagewoof_dir / "imagewoof2-160")
    assert load("imagewoof", data_dir=imagewoof_dir, resolution=24).input_shape == (3, 24, 24)


def test_a_missing_breed_and_a_damaged_file_are_named(imagewoof_dir: Path) -> None:
    damaged = imagewoof_dir / "imagewoof2-160/val/n02111889/0.JPEG"
    damaged.write_bytes(damaged.read_bytes()[:100])
    with pytest.raises(RicnetError, match=r"n02111889/0\.JPEG"):
        load("imagewoof", data_dir=imagewoof_dir, resolution=16)
    shutil.rmtree(imagewoof_dir / "imagewoof2-160/train/n02115641")
    with pytest.raises(RicnetError, match="n02115641 holds no images"):
        load("imagewoof", data_dir=imagewoof_dir, resolution=16)
