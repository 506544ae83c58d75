import gzip
import pickle
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import torch

from ricnet.data import Augmentation, load
from ricnet.data.dataset import PHOTOGRAPHS
from ricnet.data.formats import read_idx
from ricnet.errors import RicnetError

from .samples import human_labels, idx_bytes

Writer = Callable[..., np.ndarray]


@pytest.mark.parametrize("key", [bytes, str])
def test_cifar10_from_its_folder(tmp_path: Path, write_cifar: Writer, key: type) -> None:
    labels = write_cifar(tmp_path, key=key)
    data = load("cifar10", data_dir=tmp_path)
    assert (len(data.train), len(data.val), len(data.test)) == (180, 20, 40)
    assert data.input_shape == (3, 32, 32)
    assert data.class_names[3] == "cat"
    assert data.augmentation == Augmentation(4, True)
    assert torch.bincount(data.train.labels).tolist() == [18] * 10
    assert len(labels) == 200


def test_pixels_are_planes_of_rows(tmp_path: Path, write_cifar: Writer) -> None:
    write_cifar(tmp_path)
    batch = pickle.loads((tmp_path / "cifar-10-batches-py/test_batch").read_bytes())
    first = load("cifar10", data_dir=tmp_path).test.inputs[0]
    assert first[0, 0, :5].tolist() == batch[b"data"][0, :5].tolist()
    assert first[2, 31, 31] == batch[b"data"][0, 3071]


def test_cifar10_from_its_archive_is_unpacked_once(cifar_archive: Path) -> None:
    assert len(load("cifar10", data_dir=cifar_archive.parent).test) == 40
    cifar_archive.unlink()
    assert len(load("cifar10", data_dir=cifar_archive.parent).test) == 40


def test_missing_and_foreign_batches_are_named(tmp_path: Path, write_cifar: Writer) -> None:
    write_cifar(tmp_path)
    path = tmp_path / "cifar-10-batches-py" / "data_batch_3"
    for content in ([1, 2], {b"data": np.zeros((4, 3072), np.uint8)}, {b"data": np.zeros((1, 9)), b"labels": [0]}):
        path.write_bytes(pickle.dumps(content))
        with pytest.raises(RicnetError, match="data_batch_3"):
            load("cifar10", data_dir=tmp_path)
    twice: list[object] = [0]
    for _ in range(40):  # were it made an array, it would have 2^40 elements
        twice = [twice, twice]
    for labels in (twice, [[0], [1, 2]], [2**70], ["0"], None):
        path.write_bytes(pickle.dumps({b"data": np.zeros((1, 3072), np.uint8), b"labels": labels}))
        with pytest.raises(RicnetError, match="data_batch_3 has labels"):
            load("cifar10", data_dir=tmp_path)
    path.write_bytes(pickle.dumps({b"data": np.zeros((1, 3072), np.uint8), b"labels": [10]}))
    with pytest.raises(RicnetError, match="data_batch_3 has labels"):
        load("cifar10", data_dir=tmp_path)
    path.unlink()
    with pytest.raises(RicnetError, match="data_batch_3 is missing"):
        load("cifar10", data_dir=tmp_path)


def save_pt(path: Path, table: dict[str, np.ndarray]) -> None:
    torch.save(table, path.with_suffix(".pt"))


def save_npy(path: Path, table: dict[str, np.ndarray]) -> None:
    np.save(path.with_suffix(".npy"), np.array(table, dtype=object), allow_pickle=True)


@pytest.mark.parametrize("save", [save_pt, save_npy])
@pytest.mark.parametrize(("name", "wrong"), [("cifar10n-aggregate", 10), ("cifar10n-worst", 80)])
def test_cifar10n_is_noisy_in_train_and_val_only(
    tmp_path: Path, write_cifar: Writer, save: Callable[..., None], name: str, wrong: int
) -> None:
    save(tmp_path / "CIFAR-10_human", human_labels(write_cifar(tmp_path)))
    clean, noisy = load("cifar10", data_dir=tmp_path), load(name, data_dir=tmp_path)
    assert torch.equal(clean.test.labels, noisy.test.labels)
    by_image = {
        image.numpy().tobytes(): int(label)
        for split in (clean.train, clean.val)
        for image, label in zip(split.inputs, split.labels, strict=True)
    }
    differing = sum(
        by_image[image.numpy().tobytes()] != int(label)
        for split in (noisy.train, noisy.val)
        for image, label in zip(split.inputs, split.labels, strict=True)
    )
    assert differing == wrong


def test_human_labels_in_another_order_are_refused(tmp_path: Path, write_cifar: Writer) -> None:
    save_npy(tmp_path / "CIFAR-10_human_ordered", human_labels(write_cifar(tmp_path)[::-1].copy()))
    with pytest.raises(RicnetError, match=r"CIFAR-10_human_ordered\.npy is not in the order"):
        load("cifar10n-worst", data_dir=tmp_path)


def test_human_labels_of_another_set_are_refused(tmp_path: Path, write_cifar: Writer) -> None:
    save_pt(tmp_path / "CIFAR-10_human", {"clean_label": write_cifar(tmp_path)})
    with pytest.raises(RicnetError, match="lacks aggre_label"):
        load("cifar10n-aggregate", data_dir=tmp_path)


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
