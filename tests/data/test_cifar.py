import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from ricnet.data import Augmentation, load
from ricnet.errors import RicnetError

from .samples import human_labels

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
