import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from ricnet.data import Dataset, load, memory
from ricnet.data.memory import activation_bytes, fitting_batch, free_bytes, map_array
from ricnet.errors import RicnetError

NET = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Sequential(nn.Flatten(), nn.Linear(4 * 25, 10)))
BYTES = 4 * (4 * 25 + 4 * 25 + 4 * 25 + 10)
"""Of the outputs of its four layers for one 5 × 5 image."""


def test_the_outputs_of_all_layers_are_counted() -> None:
    NET.train()
    assert activation_bytes(NET, torch.zeros(1, 1, 5, 5)) == BYTES
    assert NET.training
    assert not any(module._forward_hooks for module in NET.modules())


def test_a_batch_is_halved_until_it_fits() -> None:
    image = torch.zeros(1, 1, 5, 5)
    for_one = int(memory.KEPT * BYTES / memory.SHARE)
    assert fitting_batch(NET, image, 256, 256 * for_one) == 256
    assert fitting_batch(NET, image, 256, 256 * for_one - 10) == 128
    assert fitting_batch(NET, image, 100, 26 * for_one) == 25
    assert fitting_batch(NET, image, 128, 0) == 8
    assert fitting_batch(NET, image, 5, 0) == 5


def test_free_memory_is_known_or_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert free_bytes(torch.device("cpu")) > 10**6
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "MemTotal: 9 kB\nMemAvailable:  5 kB\n")
    assert free_bytes(torch.device("cpu")) == 5 * 1024
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "")
    assert free_bytes(torch.device("cpu")) > 10**6


Writer = Callable[..., Path]


@pytest.fixture
def no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda _: 100)
    monkeypatch.setattr(memory, "CHUNK", 7)


def assert_same(made: Dataset, expected: Dataset) -> None:
    for name in ("train", "val", "test"):
        mine, its = getattr(made, name), getattr(expected, name)
        assert torch.equal(mine.inputs, its.inputs), name
        assert mine.inputs.dtype == its.inputs.dtype
        assert torch.equal(mine.labels, its.labels), name
    assert made.class_names == expected.class_names
    assert made.augmentation == expected.augmentation


@pytest.mark.parametrize("parts", [("",), ("train", "test"), ("train", "val", "test")])
def test_images_on_the_disk_are_those_in_memory(
    parts: tuple[str, ...], tmp_path: Path, write_folder: Writer, request: pytest.FixtureRequest
) -> None:
    for number, part in enumerate(parts):
        write_folder(tmp_path / "pets" / part, rows=12 - number)
    in_memory = load(tmp_path / "pets", data_dir=tmp_path)
    request.getfixturevalue("no_memory")
    on_disk = load(tmp_path / "pets", data_dir=tmp_path)
    assert_same(on_disk, in_memory)
    assert "do not fit into memory" in on_disk.notes[0]


def test_what_is_only_measured_is_one_part_on_the_disk_too(
    tmp_path: Path, write_folder: Writer, request: pytest.FixtureRequest
) -> None:
    folder = write_folder(tmp_path / "pets", rows=4)
    cut = folder / "a" / "0.png"
    cut.write_bytes(cut.read_bytes()[:60])
    for part, rows in (("train", 1), ("test", 2)):
        write_folder(tmp_path / "parts" / part, rows=rows)
    places = (folder, tmp_path / "parts")
    in_memory = [load(place, data_dir=tmp_path, undivided=True) for place in places]
    request.getfixturevalue("no_memory")
    on_disk = [load(place, data_dir=tmp_path, undivided=True) for place in places]
    for one, other in zip(on_disk, in_memory, strict=True):
        assert_same(one, other)
    assert [(len(data.train), len(data.val), len(data.test)) for data in on_disk] == [(0, 0, 7), (2, 0, 4)]


def test_images_are_decoded_once_and_anew_when_they_change(
    tmp_path: Path, write_folder: Writer, no_memory: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_folder(tmp_path / "pets", rows=8)
    first = load(folder, data_dir=tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("ricnet.data.images.read_images", None)
        assert_same(load(folder, data_dir=tmp_path), first)
    next(iter(folder.rglob("*.png"))).touch()
    load(folder, data_dir=tmp_path)
    assert len(list((tmp_path / "packed").glob("*.rows"))) == 2
    assert not list((tmp_path / "packed").glob(".*"))


@pytest.mark.parametrize("parts", [("",), ("train", "val", "test")])
def test_a_damaged_image_is_left_out_before_the_split_and_named_each_time(
    parts: tuple[str, ...],
    tmp_path: Path,
    write_folder: Writer,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    for part in parts:
        write_folder(tmp_path / "pets" / part, rows=20)
    path = sorted((tmp_path / "pets").rglob("*.png"))[3]
    path.write_bytes(path.read_bytes()[:150])  # the header is whole
    in_memory = load(tmp_path / "pets", data_dir=tmp_path)
    request.getfixturevalue("no_memory")
    for _ in range(2):
        data = load(tmp_path / "pets", data_dir=tmp_path)
        assert_same(data, in_memory)
        assert data.notes[-1] == in_memory.notes[-1]
        assert path.name in data.notes[-1]
        assert len(list((tmp_path / "packed").glob("*.rows"))) == 1
        monkeypatch.setattr("ricnet.data.images.read_images", None)  # both files of the cache are found again


def test_a_part_of_damaged_images_alone_is_refused(tmp_path: Path, write_folder: Writer, no_memory: None) -> None:
    for part in ("train", "test"):
        write_folder(tmp_path / "pets" / part)
    for path in (tmp_path / "pets" / "test").rglob("*.png"):
        path.write_bytes(path.read_bytes()[:150])
    with pytest.raises(RicnetError, match=r"test holds no image that can be read; 8 files could not be read"):
        load(tmp_path / "pets", data_dir=tmp_path)


def test_the_rows_are_on_the_disk_before_they_take_their_name(
    tmp_path: Path, write_folder: Writer, no_memory: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_folder(tmp_path / "pets", rows=8)
    seen: list[str] = []
    fsync, rename = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda file: seen.append("flushed") or fsync(file))
    monkeypatch.setattr(os, "replace", lambda *names: seen.append("named") or rename(*names))
    load(folder, data_dir=tmp_path)
    assert seen == ["flushed", "named", "flushed"]  # the file, then its folder
    path = next(iter(folder.rglob("*.png")))
    path.write_bytes(path.read_bytes()[:150])
    seen.clear()
    load(folder, data_dir=tmp_path)
    assert seen == 2 * ["flushed", "named", "flushed"]  # what is damaged, then the rows that are not


def test_a_file_that_was_cut_off_is_made_anew(tmp_path: Path, write_folder: Writer, no_memory: None) -> None:
    folder = write_folder(tmp_path / "pets", rows=8)
    first = load(folder, data_dir=tmp_path)
    expected = first.train.inputs.clone()
    path = next(iter((tmp_path / "packed").glob("*.rows")))
    content = path.read_bytes()
    path.unlink()  # what is mapped must not shrink
    path.write_bytes(content[:-100])
    assert torch.equal(load(folder, data_dir=tmp_path).train.inputs, expected)
    assert path.read_bytes() == content


@pytest.mark.parametrize("kind", ["bytes", "fractions", "features", "given parts"])
def test_arrays_on_the_disk_are_those_in_memory(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    rng = np.random.default_rng(0)
    y = np.arange(40) % 2
    arrays = {
        "bytes": {"x": rng.integers(0, 256, (40, 6, 6, 3), dtype=np.uint8), "y": y},
        "fractions": {"x": rng.random((40, 6, 6)), "y": y},
        "features": {"x": np.asfortranarray(rng.normal(size=(40, 5))), "y": y},
        "given parts": {
            **{"x_train": rng.integers(0, 256, (40, 3, 6, 6), dtype=np.uint8), "y_train": y},
            **{"x_test": rng.integers(0, 256, (9, 3, 6, 6)), "y_test": y[:9]},
        },
    }[kind]
    np.savez(tmp_path / "data.npz", **arrays)
    in_memory = load(tmp_path / "data.npz", data_dir=tmp_path)
    request.getfixturevalue("no_memory")
    assert_same(load(tmp_path / "data.npz", data_dir=tmp_path), in_memory)


def test_of_large_arrays_only_the_data_is_looked_at(
    tmp_path: Path, no_memory: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither mapped, which one of objects cannot be, nor read, which takes memory."""
    x, y = np.random.default_rng(0).normal(size=(40, 5)), np.arange(40) % 2
    np.savez(tmp_path / "data.npz", x=x, y=y, x_names=np.array([{}], dtype=object), notes=np.zeros(10**5))
    monkeypatch.setattr("ricnet.data.arrays.free_bytes", lambda _: 2000)  # not enough for the notes
    assert len(load(tmp_path / "data.npz", data_dir=tmp_path).train) == 27


def test_what_is_wrong_with_large_arrays_is_said(
    tmp_path: Path, no_memory: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.zeros((40, 50))
    monkeypatch.setattr("ricnet.data.arrays._BLOCK", 16)
    np.savez_compressed(tmp_path / "small.npz", x=x, y=np.arange(40) % 2)
    with pytest.raises(RicnetError, match=r"numpy\.savez instead"):
        load(tmp_path / "small.npz", data_dir=tmp_path)
    x[33, 4] = np.inf
    np.savez(tmp_path / "infinite.npz", x=x, y=np.arange(40) % 2)
    with pytest.raises(RicnetError, match="inf in row 33, column 4"):
        load(tmp_path / "infinite.npz", data_dir=tmp_path)


def test_a_full_disk_is_one_sentence(
    tmp_path: Path, write_folder: Writer, no_memory: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_folder(tmp_path / "pets", rows=8)
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 10}))
    with pytest.raises(RicnetError, match=r"has 0\.0 GB left; name another folder with --data-dir"):
        load(folder, data_dir=tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(RicnetError, match="cannot take the data"):
        load(folder, data_dir=tmp_path / "file")


def test_processes_on_one_machine_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda _: 1000)
    assert memory.fits_memory(500)
    assert not memory.fits_memory(501)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "5")
    assert memory.fits_memory(100)
    assert not memory.fits_memory(101)


def test_the_file_is_mapped_not_read(tmp_path: Path) -> None:
    rows = torch.arange(24, dtype=torch.float32).view(4, 3, 2)
    (tmp_path / "some.rows").write_bytes(rows.numpy().tobytes())
    mapped = memory.map_rows(tmp_path / "some.rows", (3, 2), torch.float32)
    assert torch.equal(mapped, rows)
    assert str(tmp_path / "some.rows") in Path("/proc/self/maps").read_text() or not Path("/proc").exists()


ARRAYS = {
    "x": np.arange(24, dtype=np.float32).reshape(4, 6),
    "fortran": np.asfortranarray(np.arange(24).reshape(4, 6)),
    "a_longer_name": np.arange(7, dtype=np.uint8),
}


def test_arrays_are_found_where_they_lie(tmp_path: Path) -> None:
    np.savez(tmp_path / "some.npz", **ARRAYS)
    for name, array in ARRAYS.items():
        mapped = map_array(tmp_path / "some.npz", name)
        assert isinstance(mapped, np.memmap)
        assert mapped.dtype == array.dtype
        assert np.array_equal(mapped, array)


def test_what_cannot_be_mapped_is_refused(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "small.npz", **ARRAYS)
    with pytest.raises(RicnetError, match="x does not fit into memory"):
        map_array(tmp_path / "small.npz", "x")
    np.savez(tmp_path / "objects.npz", x=np.array([{}], dtype=object))
    with pytest.raises(ValueError, match="Python objects"):
        map_array(tmp_path / "objects.npz", "x")
