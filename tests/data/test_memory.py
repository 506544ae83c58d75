import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from refusals import refusal
from ricnet.data import Dataset, batches, load
from ricnet.data.arrays import map_array
from ricnet.machine import SHARE, fits_memory, free_bytes
from ricnet.training.speed import KEPT, activation_bytes, fitting_batch

from .samples import write_folder

NET = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Sequential(nn.Flatten(), nn.Linear(4 * 25, 10)))
BYTES = 4 * (4 * 25 + 4 * 25 + 4 * 25 + 10)
"""Of the outputs of its four layers for one 5 × 5 image."""


def test_a_batch_is_halved_until_the_outputs_of_all_layers_fit() -> None:
    image = torch.zeros(1, 1, 5, 5)
    NET.train()
    assert activation_bytes(NET, image) == BYTES
    assert NET.training
    assert not any(module._forward_hooks for module in NET.modules())
    for_one = int(KEPT * BYTES / SHARE)
    cases = [(256, 256 * for_one, 256), (256, 256 * for_one - 10, 128), (100, 26 * for_one, 25), (128, 0, 8), (5, 0, 5)]
    assert [fitting_batch(NET, image, batch, free) for batch, free, _ in cases] == [fits for *_, fits in cases]


def test_free_memory_is_known_or_guessed_and_shared_by_the_processes_of_a_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cpu = torch.device("cpu")
    assert free_bytes(cpu) > 10**6
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", lambda *_, **__: "MemTotal: 9 kB\nMemAvailable:  5 kB\n")
        assert free_bytes(cpu) == 5 * 1024
        patch.setattr(Path, "read_text", lambda *_, **__: "")
        assert free_bytes(cpu) > 10**6
    monkeypatch.setattr("ricnet.machine.free_bytes", lambda _: 1000)
    assert [fits_memory(size) for size in (500, 501)] == [True, False]
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "5")
    assert [fits_memory(size) for size in (100, 101)] == [True, False]


@pytest.fixture
def no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ricnet.machine.free_bytes", lambda _: 100)
    monkeypatch.setattr(batches, "CHUNK", 7)


def assert_same(made: Dataset, expected: Dataset) -> None:
    for name in ("train", "val", "test"):
        mine, its = getattr(made, name), getattr(expected, name)
        assert torch.equal(mine.inputs, its.inputs), name
        assert mine.inputs.dtype == its.inputs.dtype
        assert torch.equal(mine.labels, its.labels), name
    assert (made.class_names, made.augmentation) == (expected.class_names, expected.augmentation)


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:150])  # the header is whole


@pytest.mark.parametrize("parts", [("",), ("train", "test"), ("train", "val", "test")])
@pytest.mark.parametrize("damaged", [False, True])
@pytest.mark.parametrize("undivided", [False, True])
def test_images_on_the_disk_are_those_in_memory_and_damaged_ones_are_named_each_time(
    parts: tuple[str, ...],
    damaged: bool,
    undivided: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    folder = tmp_path / "pets"
    for number, part in enumerate(parts):
        write_folder(folder / part, rows=12 - number)
    path = sorted(folder.rglob("*.png"))[3]
    if damaged:
        cut_short(path)
    in_memory = load(folder, data_dir=tmp_path, undivided=undivided)
    request.getfixturevalue("no_memory")
    for _ in range(2):
        on_disk = load(folder, data_dir=tmp_path, undivided=undivided)
        assert_same(on_disk, in_memory)
        assert "memory" in on_disk.notes[0]
        assert on_disk.notes[1:] == in_memory.notes
        assert (path.name in on_disk.notes[-1]) == damaged
        assert len(list((tmp_path / "packed").glob("*.rows"))) == 1
        monkeypatch.setattr("ricnet.data.images.read_images", None)  # decoded once, and found again
    assert not list((tmp_path / "packed").glob(".*"))


def test_images_are_decoded_anew_when_they_change_or_their_file_was_cut_off(tmp_path: Path, no_memory: None) -> None:
    folder = write_folder(tmp_path / "pets", rows=8)
    expected = load(folder, data_dir=tmp_path).train.inputs.clone()
    packed = next(iter((tmp_path / "packed").glob("*.rows")))
    content = packed.read_bytes()
    packed.unlink()  # what is mapped must not shrink
    packed.write_bytes(content[:-100])
    assert torch.equal(load(folder, data_dir=tmp_path).train.inputs, expected)
    assert packed.read_bytes() == content
    next(iter(folder.rglob("*.png"))).touch()
    load(folder, data_dir=tmp_path)
    assert len(list((tmp_path / "packed").glob("*.rows"))) == 2


def test_a_part_of_damaged_images_alone_is_refused(tmp_path: Path, no_memory: None) -> None:
    for part in ("train", "test"):
        write_folder(tmp_path / "pets" / part)
    for path in (tmp_path / "pets" / "test").rglob("*.png"):
        cut_short(path)
    with refusal("pets/test", "8 files"):
        load(tmp_path / "pets", data_dir=tmp_path)


def test_the_rows_are_on_the_disk_before_they_take_their_name(
    tmp_path: Path, no_memory: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, seen = write_folder(tmp_path / "pets", rows=8), list[str]()
    fsync, rename = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda file: seen.append("flushed") or fsync(file))
    monkeypatch.setattr(os, "replace", lambda *names: seen.append("named") or rename(*names))
    load(folder, data_dir=tmp_path)
    assert seen == ["flushed", "named", "flushed"]  # the file, then its folder
    cut_short(next(iter(folder.rglob("*.png"))))
    seen.clear()
    load(folder, data_dir=tmp_path)
    assert seen == 2 * ["flushed", "named", "flushed"]  # what is damaged, then the rows that are not


RNG, Y = np.random.default_rng(0), np.arange(40) % 2
KINDS = {
    "bytes": {"x": RNG.integers(0, 256, (40, 6, 6, 3), dtype=np.uint8), "y": Y},
    "fractions": {"x": RNG.random((40, 6, 6)), "y": Y},
    "features": {"x": np.asfortranarray(RNG.normal(size=(40, 5))), "y": Y},
    "given parts": {
        **{"x_train": RNG.integers(0, 256, (40, 3, 6, 6), dtype=np.uint8), "y_train": Y},
        **{"x_test": RNG.integers(0, 256, (9, 3, 6, 6)), "y_test": Y[:9]},
    },
}


@pytest.mark.parametrize("arrays", KINDS.values(), ids=KINDS)
def test_arrays_on_the_disk_are_those_in_memory_and_nothing_else_is_looked_at(
    arrays: dict[str, np.ndarray], tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither mapped, which an array of objects cannot be, nor read, which takes memory."""
    others = {"x_names": np.array([{}], dtype=object), "notes": np.zeros(10**5)}
    np.savez(tmp_path / "data.npz", **arrays, **others)
    in_memory = load(tmp_path / "data.npz", data_dir=tmp_path)
    request.getfixturevalue("no_memory")
    monkeypatch.setattr("ricnet.data.arrays.free_bytes", lambda _: 2000)  # not enough for the notes
    assert_same(load(tmp_path / "data.npz", data_dir=tmp_path), in_memory)


def test_what_is_wrong_with_large_arrays_is_said(
    tmp_path: Path, no_memory: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.zeros((40, 50))
    monkeypatch.setattr("ricnet.data.arrays._BLOCK", 16)
    np.savez_compressed(tmp_path / "small.npz", x=x, y=Y)
    with refusal("small.npz", "numpy.savez"):
        load(tmp_path / "small.npz", data_dir=tmp_path)
    x[33, 4] = np.inf
    np.savez(tmp_path / "infinite.npz", x=x, y=Y)
    with refusal("infinite.npz", "inf in row 33, column 4"):
        load(tmp_path / "infinite.npz", data_dir=tmp_path)


def test_a_full_disk_is_one_sentence(tmp_path: Path, no_memory: None, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_folder(tmp_path / "pets", rows=8)
    (tmp_path / "file").touch()
    with refusal("file", "data_dir"):
        load(folder, data_dir=tmp_path / "file")
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 10}))
    with refusal("0.0 GB", "data_dir"):
        load(folder, data_dir=tmp_path)


def test_files_are_mapped_not_read(tmp_path: Path) -> None:
    rows = torch.arange(24, dtype=torch.float32).view(4, 3, 2)
    (tmp_path / "some.rows").write_bytes(rows.numpy().tobytes())
    mapped = batches.map_rows(tmp_path / "some.rows", (3, 2), torch.float32)
    assert torch.equal(mapped, rows)
    assert str(tmp_path / "some.rows") in Path("/proc/self/maps").read_text() or not Path("/proc").exists()
    arrays = {
        "x": np.arange(24, dtype=np.float32).reshape(4, 6),
        "fortran": np.asfortranarray(np.arange(24).reshape(4, 6)),
        "a_longer_name": np.arange(7, dtype=np.uint8),
    }
    np.savez(tmp_path / "some.npz", **arrays, objects=np.array([{}], dtype=object))
    for name, array in arrays.items():
        found = map_array(tmp_path / "some.npz", name)
        assert isinstance(found, np.memmap)
        assert found.dtype == array.dtype
        assert np.array_equal(found, array)
    with pytest.raises(ValueError, match="objects"):
        map_array(tmp_path / "some.npz", "objects")
