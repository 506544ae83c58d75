import gzip
import io
import os
import pickle
import shutil
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import torch

from refusals import cases, refusal
from ricnet.data import Augmentation, Dataset, formats, load
from ricnet.data.dataset import PHOTOGRAPHS
from ricnet.data.formats import read_idx, read_npy_object, read_pickle, read_pt

from .samples import balanced, human_labels, idx_bytes, md5_of, write_cifar


@pytest.mark.parametrize("key", [bytes, str])
def test_cifar10_from_its_folder(tmp_path: Path, key: type) -> None:
    write_cifar(tmp_path, key=key)
    data = load("cifar10", data_dir=tmp_path)
    assert (len(data.train), len(data.val), len(data.test)) == (180, 20, 40)
    assert (data.input_shape, data.class_names[3], data.augmentation) == ((3, 32, 32), "cat", Augmentation(4, True))
    assert torch.bincount(data.train.labels).tolist() == [18] * 10
    batch = pickle.loads((tmp_path / "cifar-10-batches-py/test_batch").read_bytes())
    rows, first = batch[b"data" if key is bytes else "data"], data.test.inputs[0]  # planes of rows
    assert (first[0, 0, :5].tolist(), first[2, 31, 31]) == (rows[0, :5].tolist(), rows[0, 3071])


def test_cifar10_from_its_archive_is_unpacked_once(cifar_archive: Path) -> None:
    assert len(load("cifar10", data_dir=cifar_archive.parent).test) == 40
    cifar_archive.unlink()
    assert len(load("cifar10", data_dir=cifar_archive.parent).test) == 40


def doubled(depth: int) -> list[object]:
    """Nested lists; as an array it would have 2^depth elements."""
    inner: list[object] = [0]
    for _ in range(depth):
        inner = [inner, inner]
    return inner


def labelled(labels: object) -> dict[bytes, object]:
    return {b"data": np.zeros((1, 3072), np.uint8), b"labels": labels}


@pytest.mark.parametrize(
    "content",
    cases(
        {
            "missing": None,
            "a list": [1, 2],
            "no labels": {b"data": np.zeros((4, 3072), np.uint8)},
            "nine pixels": {b"data": np.zeros((1, 9)), b"labels": [0]},
            "nested labels": labelled(doubled(40)),
            "ragged labels": labelled([[0], [1, 2]]),
            "a label of 70 bits": labelled([2**70]),
            "a text as label": labelled(["0"]),
            "labels None": labelled(None),
            "class 10": labelled([10]),
        }
    ),
)
def test_foreign_and_missing_batches_are_named(tmp_path: Path, content: object) -> None:
    write_cifar(tmp_path)
    path = tmp_path / "cifar-10-batches-py" / "data_batch_3"
    path.unlink()
    if content is not None:
        path.write_bytes(pickle.dumps(content))
    with refusal("data_batch_3"):
        load("cifar10", data_dir=tmp_path)


def save_pt(path: Path, table: dict[str, np.ndarray]) -> None:
    torch.save(table, path.with_suffix(".pt"))


def save_npy(path: Path, table: dict[str, np.ndarray]) -> None:
    np.save(path.with_suffix(".npy"), np.array(table, dtype=object), allow_pickle=True)


def by_image(data: Dataset) -> dict[bytes, int]:
    rows = [row for part in (data.train, data.val) for row in zip(part.inputs, part.labels, strict=True)]
    return {image.numpy().tobytes(): int(label) for image, label in rows}


@pytest.mark.parametrize("save", [save_pt, save_npy])
@pytest.mark.parametrize(("name", "wrong"), [("cifar10n-aggregate", 10), ("cifar10n-worst", 80)])
def test_cifar10n_is_noisy_in_train_and_val_only(
    tmp_path: Path, save: Callable[..., None], name: str, wrong: int
) -> None:
    save(tmp_path / "CIFAR-10_human", human_labels(write_cifar(tmp_path)))
    clean, noisy = load("cifar10", data_dir=tmp_path), load(name, data_dir=tmp_path)
    assert torch.equal(clean.test.labels, noisy.test.labels)
    truth = by_image(clean)
    assert sum(truth[image] != label for image, label in by_image(noisy).items()) == wrong


@pytest.mark.parametrize(
    ("name", "save", "file", "table", "named"),
    cases(
        {
            "another set": ("aggregate", save_pt, "human.pt", lambda clean: {"clean_label": clean}, "aggre_label"),
            "another order": ("worst", save_npy, "human_ordered.npy", lambda clean: human_labels(clean[::-1]), "order"),
        }
    ),
)
def test_human_labels_of_other_images_are_refused(
    tmp_path: Path, name: str, save: Callable[..., None], file: str, table: Callable[..., object], named: str
) -> None:
    save(tmp_path / f"CIFAR-10_{file}", table(write_cifar(tmp_path).copy()))
    with refusal(f"CIFAR-10_{file}", named):
        load(f"cifar10n-{name}", data_dir=tmp_path)


def test_fashion_mnist_from_gz_or_from_plain_files_directly_in_the_data_folder(fashion_dir: Path) -> None:
    data = load("fashion-mnist", data_dir=fashion_dir, val_fraction=0.2)
    assert (len(data.train), len(data.val), len(data.test)) == (48, 12, 20)
    assert (data.input_shape, data.augmentation) == ((1, 28, 28), Augmentation(2, True))
    assert data.test.labels[:10].tolist() == list(range(10))
    for path in (fashion_dir / "fashion-mnist").iterdir():
        (fashion_dir / path.stem).write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    assert len(load("fashion-mnist", data_dir=fashion_dir).test) == 20


def test_idx_values_and_axes(tmp_path: Path) -> None:
    array = np.arange(24).reshape(2, 3, 4)
    (tmp_path / "a").write_bytes(idx_bytes(array))
    assert np.array_equal(read_idx(tmp_path / "a", axes=3).numpy(), array)


@pytest.mark.parametrize(
    ("name", "content", "named"),
    cases(
        {
            "a shape beyond the content": ("a", b"\0\0\x08\x03" + b"\xff" * 12 + b"pixels", "a is not a complete"),
            "unpacks to too much": ("a.gz", gzip.compress(idx_bytes(np.zeros((100, 100, 100)))), "more than"),
        }
    ),
)
def test_idx_files_whose_size_is_wrong_are_refused(
    tmp_path: Path, name: str, content: bytes, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / name).write_bytes(content)
    monkeypatch.setattr("ricnet.data.formats.LARGEST_IDX", 500_000)
    with refusal(name, named):
        read_idx(tmp_path / name, axes=3)


@pytest.mark.parametrize(
    ("damage", "named"),
    cases(
        {
            "cut off": (lambda whole: whole[:-3], "t10k-labels-idx1-ubyte"),
            "empty": (lambda whole: b"", "t10k-labels-idx1-ubyte"),
            "a web page": (lambda whole: b"<html>", "t10k-labels-idx1-ubyte"),
            "two of nine labels": (lambda _: gzip.compress(b"\0\0\x08\x01\0\0\0\x09ab"), "t10k-labels-idx1-ubyte"),
            "labels of other images": (lambda _: gzip.compress(idx_bytes(balanced(60))), ("20 images", "60 labels")),
        }
    ),
)
def test_damaged_idx_files_are_named(fashion_dir: Path, damage: Callable[[bytes], bytes], named: Any) -> None:
    path = fashion_dir / "fashion-mnist" / "t10k-labels-idx1-ubyte.gz"
    path.write_bytes(damage(path.read_bytes()))
    with refusal(named):
        load("fashion-mnist", data_dir=fashion_dir)


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
    assert (data.input_shape, data.augmentation) == ((3, 32, 32), Augmentation(4, False))


def nested(depth: int) -> np.ndarray:
    """Cells within cells."""
    inner = np.zeros(1)
    for _ in range(depth):
        cell = np.empty(1, dtype=object)
        cell[0] = inner
        inner = cell
    return inner


@pytest.mark.parametrize(
    ("content", "named"),
    cases(
        {
            "no labels": ({"X": np.zeros((2, 2))}, "y"),
            "fractions": ({"X": np.zeros((32, 32, 3, 2)), "y": [[1], [2]]}, "float64"),
            "nested cells": ({"X": nested(50), "y": [[1]]}, "X is cell"),
        }
    ),
)
def test_other_matlab_files_are_refused(svhn_dir: Path, content: dict[str, object], named: str) -> None:
    scipy.io.savemat(svhn_dir / "svhn" / "test_32x32.mat", content)
    with refusal("test_32x32.mat", named):
        load("svhn", data_dir=svhn_dir)


@pytest.mark.parametrize("keep", [0, 100, 5000])
def test_cut_off_matlab_files_are_named(svhn_dir: Path, keep: int) -> None:
    path = svhn_dir / "svhn" / "train_32x32.mat"
    path.write_bytes(path.read_bytes()[:keep])
    with refusal("train_32x32.mat"):
        load("svhn", data_dir=svhn_dir)


def test_imagewoof_from_its_folder_or_from_its_archive_at_another_resolution(
    imagewoof_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = load("imagewoof", data_dir=imagewoof_dir, val_fraction=0.3)
    assert (len(data.train), len(data.val), len(data.test)) == (20, 10, 10)
    assert (data.input_shape, data.class_names[8]) == ((3, 128, 128), "Samoyed")
    assert data.test.labels.tolist() == list(range(10))
    assert data.augmentation == PHOTOGRAPHS
    larger = load("imagewoof", data_dir=imagewoof_dir, oversize=1.25)
    assert (larger.input_shape, larger.view_shape, data.oversize) == ((3, 160, 160), (3, 128, 128), 1.0)
    with tarfile.open(imagewoof_dir / "imagewoof2-160.tgz", "w:gz") as files:
        files.add(imagewoof_dir / "imagewoof2-160", "imagewoof2-160")
    shutil.rmtree(imagewoof_dir / "imagewoof2-160")
    with refusal("imagewoof2-160.tgz", "not the published archive"):
        load("imagewoof", data_dir=imagewoof_dir)
    made = replace(formats._IMAGEWOOF, md5=md5_of(imagewoof_dir / "imagewoof2-160.tgz"))
    monkeypatch.setattr(formats, "_IMAGEWOOF", made)
    assert load("imagewoof", data_dir=imagewoof_dir, resolution=24).input_shape == (3, 24, 24)


@pytest.mark.parametrize(
    ("damage", "place"),
    cases(
        {
            "a damaged file": (lambda path: path.write_bytes(path.read_bytes()[:100]), "val/n02111889/0.JPEG"),
            "a missing breed": (shutil.rmtree, "train/n02115641"),
        }
    ),
)
def test_incomplete_imagewoof_is_refused(imagewoof_dir: Path, damage: Callable[[Path], object], place: str) -> None:
    damage(imagewoof_dir / "imagewoof2-160" / place)
    with refusal(place.partition("/")[2]):
        load("imagewoof", data_dir=imagewoof_dir, resolution=16)


def back(tmp_path: Path, content: bytes) -> Any:
    (tmp_path / "batch").write_bytes(content)
    return read_pickle(tmp_path / "batch")


@pytest.mark.parametrize("protocol", range(6))
def test_arrays_texts_and_numbers_come_back_under_every_protocol(tmp_path: Path, protocol: int) -> None:
    value = {b"data": np.arange(6, dtype=np.uint8).reshape(2, 3), "labels": [1, 2], "scalar": np.int64(7)}
    read = back(tmp_path, pickle.dumps(value, protocol))
    found = {key if isinstance(key, bytes) else key.encode(): item for key, item in read.items()}
    assert np.array_equal(found[b"data"], value[b"data"])
    assert (found[b"labels"], found[b"scalar"]) == ([1, 2], 7)


@pytest.mark.parametrize("protocol", [2, 5])
@pytest.mark.parametrize(
    "value",
    [
        np.arange(6.0).reshape(2, 3).T,
        np.array([1, 2], dtype=">i4"),
        np.array(["a", "bc"]),
        np.zeros((0, 3), np.uint8),
        np.array([True, False]),
    ],
)
def test_arrays_of_every_kind_come_back(tmp_path: Path, value: np.ndarray, protocol: int) -> None:
    read = back(tmp_path, pickle.dumps(value, protocol))
    assert np.array_equal(read, value)
    assert (read.dtype.kind, read.dtype.itemsize) == (value.dtype.kind, value.dtype.itemsize)


@pytest.mark.parametrize("module", [b"numpy.core", b"numpy._core"])
def test_both_names_of_numpys_core_are_understood(tmp_path: Path, module: bytes) -> None:
    content = pickle.dumps(np.arange(5), 2)
    for name in (b"numpy._core", b"numpy.core"):
        content = content.replace(b"c" + name + b".multiarray", b"c" + module + b".multiarray")
    assert np.array_equal(back(tmp_path, content), np.arange(5))


def test_python_2_strings_come_back_as_bytes_and_claims_of_size_are_only_numbers(tmp_path: Path) -> None:
    """Python's own reader makes room for as many places in the memo, and as long a frame, as the number says."""
    assert back(tmp_path, b"\x80\x02}q\x00U\x06labelsq\x01]q\x02K\x03as.") == {b"labels": [3]}
    assert back(tmp_path, b"\x80\x02Nr\xff\xff\xff\x7f.") is None
    assert back(tmp_path, b"\x80\x04\x95" + (1 << 60).to_bytes(8, "little") + b"N.") is None


def test_torch_s_old_files_are_read_too(tmp_path: Path) -> None:
    torch.save({"labels": np.arange(5)}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    assert np.array_equal(read_pt(tmp_path / "old.pt")["labels"], np.arange(5))


class Malicious:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.target}",)


def save_pickle(code: object, path: Path) -> None:
    path.write_bytes(pickle.dumps({"data": code}))


def code_in_npy(code: object, path: Path) -> None:
    np.save(path, np.array(code, dtype=object), allow_pickle=True)


def code_in_pt(code: object, path: Path) -> None:
    torch.save({"clean_label": code}, path)


@pytest.mark.parametrize(
    ("name", "save", "read"),
    [("a.pkl", save_pickle, read_pickle), ("a.npy", code_in_npy, read_npy_object), ("a.pt", code_in_pt, read_pt)],
)
def test_code_in_a_file_is_named_and_not_run(
    tmp_path: Path, name: str, save: Callable[[object, Path], None], read: Callable[[Path], object]
) -> None:
    save(Malicious(tmp_path / "run"), tmp_path / name)
    with refusal(name, f"{os.system.__module__}.system"):
        read(tmp_path / name)
    assert not (tmp_path / "run").exists()


def plain_array() -> bytes:
    with io.BytesIO() as file:
        np.save(file, np.arange(4))
        return file.getvalue()


def on_many_disks() -> bytes:
    """A zip that claims to be on many disks (found by fuzzing: `zipfile.is_zipfile` raises an error)."""
    with io.BytesIO() as file:
        torch.save({"labels": np.arange(5)}, file)
        content = file.getvalue()
    place = content.rindex(b"PK\x06\x07") + 16
    return content[:place] + b"\xff\0\0\0" + content[place + 4 :]


DAMAGED = {"empty": b"", "no pickle": b"no pickle at all", "cut off": pickle.dumps(np.arange(99))[:60]}


@pytest.mark.parametrize("content", cases(DAMAGED | {"a plain array": plain_array(), "on disks": on_many_disks()}))
@pytest.mark.parametrize("read", [read_pickle, read_npy_object, read_pt])
def test_damaged_files_and_files_of_another_form_are_named(
    tmp_path: Path, read: Callable[[Path], object], content: bytes
) -> None:
    (tmp_path / "a.bin").write_bytes(content)
    with refusal("a.bin"):
        read(tmp_path / "a.bin")


def nested_tuples(depth: int) -> bytes:
    """Each holds the one before twice, so that hashing or printing the last visits 2^depth of them."""
    return b")" + b"".join(b"q\x00h\x00\x86" for _ in range(depth))


BOMBS: dict[str, object] = {
    "a builtin": b"cbuiltins\neval\n(V1\ntR.",
    "another codec": b"c_codecs\nencode\n(Vabc\nVidna\ntR.",
    "the length of a text": b"\x80\x04\x8d" + (1 << 60).to_bytes(8, "little") + b".",
    "the length of a bytearray": b"\x80\x05\x96" + (1 << 40).to_bytes(8, "little") + b".",
    "the shape of an array": b"cnumpy\nndarray\n((I1000000000000\ntR.",
    "an array without content": (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I9000000000000\ntVb\ntR"
        b"(I1\n(I9000000000000\ntcnumpy\ndtype\n(Vu1\nI0\nI1\ntRI00\nVshort\ntb."
    ),
    "a type of zero bytes": b"cnumpy\ndtype\n(VS0\ntR.",
    "a type of gigabytes": b"cnumpy\ndtype\n(VV2000000000\ntR.",
    "a key that takes ages to hash": b"\x80\x02}" + nested_tuples(60) + b"Ns.",
    "a set of such": b"\x80\x04\x8f(" + nested_tuples(60) + b"\x90.",
    "an attribute of a function": b"c_codecs\nencode\n}Vx\nI1\nsb.",
    "a mark that is not there": b"\x80\x02t.",
    "a number of many digits": b"L" + b"9" * 1_000_000 + b"L\n.",
}


@pytest.mark.parametrize("content", cases(BOMBS))
def test_little_files_that_claim_much_are_refused_at_once(tmp_path: Path, content: bytes) -> None:
    with refusal("batch"):
        back(tmp_path, content)
