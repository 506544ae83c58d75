import gzip
from pathlib import Path

import numpy as np
import pytest

from ricnet.data import Augmentation, load
from ricnet.data.formats import read_idx
from ricnet.errors import RicnetError

from .samples import idx_bytes


def test_fashion_mnist_from_gz(fashion_dir: Path) -> None:
    data = load("fashion-mnist", data_dir=fashion_dir, val_fraction=0.2)
    assert (len(data.train), len(data.val), len(data.test)) == (48, 12, 20)
    assert data.input_shape == (1, 28, 28)
    assert data.augmentation == Augmentation(2, True)
    assert data.test.labels[:10].tolist() == list(range(10))


def test_fashion_mnist_from_plain_files_directly_in_the_data_folder(fashion_dir: Path) -> None:
    for path in (fashion_dir / "fashion-mnist").iterdir():
        (fashion_dir / path.stem).write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    assert len(load("fashion-mnist", data_dir=fashion_dir).test) == 20


def test_values_and_axes(tmp_path: Path) -> None:
    array = np.arange(24).reshape(2, 3, 4)
    (tmp_path / "a").write_bytes(idx_bytes(array))
    assert np.array_equal(read_idx(tmp_path / "a", axes=3).numpy(), array)


@pytest.mark.parametrize(
    "damage",
    [lambda b: b[:-3], lambda b: b"", lambda b: gzip.compress(b"\0\0\x08\x01\0\0\0\x09ab"), lambda b: b"<html>"],
)
def test_damaged_files_are_named(fashion_dir: Path, damage: object) -> None:
    path = fashion_dir / "fashion-mnist" / "t10k-labels-idx1-ubyte.gz"
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    with pytest.raises(RicnetError, match="t10k-labels-idx1-ubyte"):
        load("fashion-mnist", data_dir=fashion_dir)


def test_labels_of_other_images_are_refused(fashion_dir: Path) -> None:
    folder = fashion_dir / "fashion-mnist"
    (folder / "t10k-labels-idx1-ubyte.gz").write_bytes((folder / "train-labels-idx1-ubyte.gz").read_bytes())
    with pytest.raises(RicnetError, match=r"20 images but .* 60 labels"):
        load("fashion-mnist", data_dir=fashion_dir)


def test_what_unpacks_to_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress(idx_bytes(np.zeros((100, 100, 100)))))
    monkeypatch.setattr("ricnet.data.formats.LARGEST_IDX", 500_000)
    with pytest.raises(RicnetError, match=r"a\.gz is no whole idx file \(it has more than 0 MB\)"):
        read_idx(tmp_path / "a.gz", axes=3)


def test_a_shape_beyond_the_content_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"\x00\x00\x08\x03" + b"\xff" * 12 + b"pixels")
    with pytest.raises(RicnetError, match="a is no whole idx file"):
        read_idx(tmp_path / "a", axes=3)
