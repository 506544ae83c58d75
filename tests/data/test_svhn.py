from pathlib import Path

import numpy as np
import pytest
import scipy.io

from ricnet.data import Augmentation, load
from ricnet.errors import RicnetError


@pytest.fixture
def svhn_dir(tmp_path: Path, rng: np.random.Generator) -> Path:
    (tmp_path / "svhn").mkdir()
    for part, rows in (("train", 60), ("test", 20)):
        pixels = rng.integers(0, 256, (32, 32, 3, rows), dtype=np.uint8)
        labels = (np.arange(rows) % 10 + 1).astype(np.uint8)[:, None]
        scipy.io.savemat(tmp_path / "svhn" / f"{part}_32x32.mat", {"X": pixels, "y": labels})
    return tmp_path


def test_svhn_calls_ten_zero_and_turns_the_axes(svhn_dir: Path) -> None:
    data = load("svhn", data_dir=svhn_dir)
    assert data.test.labels[:10].tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]
    pixels = scipy.io.loadmat(svhn_dir / "svhn" / "test_32x32.mat")["X"]
    assert data.test.inputs[7, 2, 3, 5] == pixels[3, 5, 2, 7]
    assert data.input_shape == (3, 32, 32)
    assert data.augmentation == Augmentation(4, False)


@pytest.mark.parametrize("keep", [0, 100, 5000])
def test_cut_off_files_are_named(svhn_dir: Path, keep: int) -> None:
    path = svhn_dir / "svhn" / "train_32x32.mat"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(RicnetError, match=r"train_32x32\.mat is no whole SVHN file"):
        load("svhn", data_dir=svhn_dir)


@pytest.mark.parametrize("content", [{"X": np.zeros((2, 2))}, {"X": np.zeros((32, 32, 3, 2)), "y": [[1], [2]]}])
def test_other_matlab_files_are_refused(svhn_dir: Path, content: dict[str, object]) -> None:
    scipy.io.savemat(svhn_dir / "svhn" / "test_32x32.mat", content)
    with pytest.raises(RicnetError, match=r"test_32x32\.mat"):
        load("svhn", data_dir=svhn_dir)


def test_cells_within_cells_are_not_followed(svhn_dir: Path) -> None:
    inner: object = np.zeros(1)
    for _ in range(50):
        cell = np.empty(1, dtype=object)
        cell[0] = inner
        inner = cell
    scipy.io.savemat(svhn_dir / "svhn" / "test_32x32.mat", {"X": inner, "y": [[1]]})
    with pytest.raises(RicnetError, match=r"test_32x32\.mat is no whole SVHN file \(X is cell"):
        load("svhn", data_dir=svhn_dir)
