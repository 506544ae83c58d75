import hashlib
import io
import re
import tarfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pooch
import pytest
import torch

from refusals import refusal
from ricnet.data import Dataset, Split, check_dataset, get_dataset, list_datasets, load
from ricnet.data.registry import DATASETS, data_folder, fetch, register_dataset, unpack

from .samples import CONTENT, REFUSED, Host, human_labels, md5_of, published, write_cifar, write_folder


def test_the_names_are_those_of_the_command_line_and_every_file_can_be_fetched_and_recognised() -> None:
    expected = "digits fashion-mnist cifar10 cifar10n-aggregate cifar10n-worst svhn imagewoof"
    assert list(DATASETS) == expected.split()
    for file in (file for source in DATASETS.values() for file in source.files):
        assert re.fullmatch("[0-9a-f]{32}", file.md5), file.name
        assert {url.rpartition("/")[2] for url in file.urls} == {file.name}
        assert file.name in file.forms


def test_the_unpacked_form_and_the_set_s_own_folder_come_first(tmp_path: Path) -> None:
    source = DATASETS["cifar10"]
    assert source.find(tmp_path) == [None]
    (tmp_path / "cifar-10-python.tar.gz").touch()
    assert source.find(tmp_path) == [tmp_path / "cifar-10-python.tar.gz"]
    for home in (tmp_path, tmp_path / "cifar10"):
        (home / "cifar-10-batches-py").mkdir(parents=True)
        assert source.find(tmp_path) == [home / "cifar-10-batches-py"]


@pytest.mark.parametrize(
    ("spec", "options", "named"),
    [
        ("cifar-10", {}, ("'cifar-10'", "mean cifar10", "digits")),
        ("zzz", {}, ("'zzz'", "digits")),
        ("", {}, ("''",)),
        ("no/such/folder", {}, ("no/such/folder",)),
        ("./nothing", {}, ("nothing",)),
        (Path("nothing"), {}, ("nothing",)),
        ("digits", {"resolution": 32}, ("resolution", "32")),
        ("digits", {"resolution": -1}, ("resolution", "-1")),
        ("digits", {"val_fraction": 0.0}, ("val_fraction", "0.0")),
        ("digits", {"val_fraction": 1.0}, ("val_fraction", "1.0")),
        ("digits", {"val_fraction": 7.0}, ("val_fraction", "7.0")),
    ],
)
def test_errors_name_data_that_cannot_be_loaded(
    spec: str | Path, options: dict[str, object], named: tuple[str, ...]
) -> None:
    with refusal(*named):
        load(spec, **options)


def test_a_file_of_another_kind_is_named_and_a_resolution_that_is_there_is_fine(tmp_path: Path) -> None:
    (tmp_path / "table.xlsx").touch()
    with refusal("table.xlsx"):
        load(tmp_path / "table.xlsx")
    assert load("digits", resolution=8).input_shape == (1, 8, 8)


@pytest.mark.parametrize(
    ("name", "files", "folder"),
    [
        ("cifar10", "cifar-10-python.tar.gz", "cifar10"),
        ("cifar10n-worst", "cifar-10-python.tar.gz and CIFAR-10_human.pt", "cifar10"),
        ("svhn", "train_32x32.mat and test_32x32.mat", "svhn"),
    ],
)
def test_missing_files_are_named_with_the_command_that_gets_them(
    tmp_path: Path, name: str, files: str, folder: str
) -> None:
    with refusal(f"`ric data get {name}`", files, str(tmp_path / folder)):
        load(name, data_dir=tmp_path)


def test_a_folder_called_like_a_data_set_is_not_passed_over_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fashion_dir: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load("digits").notes == ()
    write_folder(tmp_path / "digits")
    [note] = load("digits").notes
    assert "./digits" in note
    assert load("./digits").class_names == ("a", "b")
    assert load("fashion-mnist", data_dir=fashion_dir).notes == ()  # its own home


def test_the_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RICNET_DATA", raising=False)
    assert data_folder() == pooch.os_cache("ricnet")
    monkeypatch.setenv("RICNET_DATA", str(tmp_path))
    assert data_folder() == tmp_path
    assert data_folder("elsewhere") == Path("elsewhere")


def test_the_list_shows_present_files_and_only_missing_ones_are_fetched(tmp_path: Path) -> None:
    write_cifar(tmp_path)
    listings = {listing.name: listing for listing in list_datasets(tmp_path)}
    assert [name for name, listing in listings.items() if listing.present] == ["digits", "cifar10"]
    images, labels = listings["cifar10n-worst"].files
    assert images.path == tmp_path / "cifar-10-batches-py"
    assert labels.path is None
    with refusal("put CIFAR-10_human.pt into"):
        load("cifar10n-aggregate", data_dir=tmp_path)


def test_missing_files_are_fetched_into_the_folder_of_the_data_set(
    tmp_path: Path, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(DATASETS, "svhn", replace(DATASETS["svhn"], files=(published(REFUSED),)))
    with refusal("set.bin", str(tmp_path / "svhn")):
        get_dataset("svhn", tmp_path)
    monkeypatch.setitem(DATASETS, "svhn", replace(DATASETS["svhn"], files=(published(f"{host}/good"),)))
    for _ in range(2):  # the second time there is nothing to do
        assert get_dataset("svhn", tmp_path).present
    assert (tmp_path / "svhn" / "set.bin").read_bytes() == CONTENT
    for action in (get_dataset, check_dataset):
        with refusal("mean svhn"):
            action("shvn", tmp_path)


def test_a_check_reads_everything(tmp_path: Path) -> None:
    table = human_labels(write_cifar(tmp_path))
    np.save(tmp_path / "CIFAR-10_human.npy", np.array(table, dtype=object), allow_pickle=True)
    check = check_dataset("cifar10n-worst", tmp_path)
    assert [file.checksum for file in check.files] == ["unpacked", "another form"]
    assert check.input_shape == (3, 32, 32)
    assert {part: sum(counts.values()) for part, counts in check.class_counts.items()} == {
        "train": 180,
        "val": 20,
        "test": 40,
    }
    assert check.class_counts["test"]["truck"] == 4
    assert sum(check_dataset("digits", tmp_path).class_counts["train"].values()) == 1213  # always there


def test_a_check_compares_checksums(fashion_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert {file.checksum for file in check_dataset("fashion-mnist", fashion_dir).files} == {"differs"}
    source = DATASETS["fashion-mnist"]
    md5s = [hashlib.md5((fashion_dir / source.folder / file.name).read_bytes()).hexdigest() for file in source.files]
    files = tuple(replace(file, md5=md5) for file, md5 in zip(source.files, md5s, strict=True))
    monkeypatch.setitem(DATASETS, "fashion-mnist", replace(source, files=files))
    assert {file.checksum for file in check_dataset("fashion-mnist", fashion_dir).files} == {"ok"}


@pytest.fixture
def own_datasets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ricnet.data.registry.DATASETS", dict(DATASETS))


def rows_of(*labels: int) -> Split:
    return Split(torch.arange(2.0 * len(labels)).view(-1, 2), torch.tensor(labels))


@pytest.mark.usefixtures("own_datasets")
def test_a_data_set_of_one_s_own_is_one_call(tmp_path: Path) -> None:
    @register_dataset("mine", "Two of each", class_names=("no", "yes"))
    def read() -> tuple[Split, Split]:
        return rows_of(*[0, 1] * 10), rows_of(0, 1)

    data = load("mine", val_fraction=0.2)
    assert (data.name, data.class_names) == ("mine", ("no", "yes"))
    assert [len(split) for split in (data.train, data.val, data.test)] == [16, 4, 2]
    listing = list_datasets(tmp_path)[-1]
    assert (listing.name, listing.title, listing.present) == ("mine", "Two of each", True)
    assert check_dataset("mine", tmp_path).class_counts["test"] == {"no": 1, "yes": 1}
    with refusal("'minee'", "mean mine"):
        load("minee")


@pytest.mark.usefixtures("own_datasets")
def test_its_function_may_return_a_whole_data_set_and_is_given_its_files(tmp_path: Path, host: str) -> None:
    @register_dataset("whole", files=[published(f"{host}/good")], resizable=True)
    def read(path: Path, resolution: int | None) -> Dataset:
        assert (path.read_bytes(), resolution) == (CONTENT, None)
        return Dataset("any", rows_of(0, 1), rows_of(1), rows_of(0), ("a", "b"), notes=("found",))

    with refusal("`ric data get whole`", "set.bin", "/whole"):
        load("whole", data_dir=tmp_path)
    get_dataset("whole", tmp_path)
    data = load("whole", data_dir=tmp_path)
    assert (data.name, data.notes, len(data.train)) == ("whole", ("found",), 2)


def left(folder: Path) -> list[str]:
    return [child.name for child in folder.iterdir() if child.suffix != ".lock"]


def test_a_good_file_arrives_whole_and_tells_of_its_progress(tmp_path: Path, host: str) -> None:
    seen: list[tuple[str, int, int | None]] = []
    path = fetch(published(f"{host}/good"), tmp_path / "new", lambda *told: seen.append(told))
    assert (path, path.read_bytes()) == (tmp_path / "new" / "set.bin", CONTENT)
    assert seen[-1] == ("set.bin", len(CONTENT), len(CONTENT))
    assert left(path.parent) == ["set.bin"]


def test_a_second_process_waits_for_the_first_download(tmp_path: Path, host: str) -> None:
    with ThreadPoolExecutor() as pool:
        paths = list(pool.map(lambda _: fetch(published(f"{host}/good"), tmp_path), range(4)))
    assert {path.read_bytes() for path in paths} == {CONTENT}
    assert Host.ranges == [None]


def test_the_next_mirror_is_tried(tmp_path: Path, host: str) -> None:
    file = published(REFUSED, f"{host}/absent", f"{host}/wrong", f"{host}/good")
    assert fetch(file, tmp_path).read_bytes() == CONTENT


def test_a_broken_transfer_goes_on_where_it_stopped(tmp_path: Path, host: str) -> None:
    with refusal("set.bin", str(len(CONTENT) // 2), str(len(CONTENT))):
        fetch(published(f"{host}/breaks"), tmp_path)
    assert not (tmp_path / "set.bin").exists()
    assert fetch(published(f"{host}/good"), tmp_path).read_bytes() == CONTENT
    assert Host.ranges == [None, f"bytes={len(CONTENT) // 2}-"]


@pytest.mark.parametrize(("path", "kept"), [("good", b"x" * len(CONTENT)), ("deaf", CONTENT[:100])])
def test_a_partial_file_that_does_not_help_is_dropped(tmp_path: Path, host: str, path: str, kept: bytes) -> None:
    (tmp_path / ".set.bin.part").write_bytes(kept)
    assert fetch(published(f"{host}/{path}"), tmp_path).read_bytes() == CONTENT


def test_a_failed_download_leaves_nothing_and_names_the_manual_way(tmp_path: Path, host: str) -> None:
    with refusal("set.bin", "checksum"):
        fetch(published(f"{host}/wrong"), tmp_path)
    with refusal("set.bin", "127.0.0.1: ", REFUSED, f"into {tmp_path}"):
        fetch(published(REFUSED), tmp_path)
    assert left(tmp_path) == []
    (tmp_path / "taken").write_text("a file")
    with refusal("taken", "data_dir"):
        fetch(published(REFUSED), tmp_path / "taken")


def tar(folder: str, name: str) -> bytes:
    with io.BytesIO() as file:
        with tarfile.open(fileobj=file, mode="w:gz") as files:
            found = tarfile.TarInfo(f"{folder}/{name}")
            found.size = 3
            files.addfile(found, io.BytesIO(b"one"))
        return file.getvalue()


BAD_ARCHIVES = {
    "cut off": (tar("set", "1.txt")[:-20], "not the published"),
    "no archive": (b"<html>not found</html>", "not the published"),
    "another folder": (tar("other", "1.txt"), "unpacked"),
    "a path outside": (tar("..", "escaped.txt"), "outside"),
}


@pytest.mark.parametrize(("content", "reason"), BAD_ARCHIVES.values(), ids=BAD_ARCHIVES)
def test_a_refused_archive_leaves_nothing(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "inner").mkdir()
    archive = tmp_path / "inner" / "set.tgz"
    archive.write_bytes(content)
    with refusal("set.tgz", reason):
        unpack(archive, "set", "0" * 32 if "published" in reason else md5_of(archive))
    assert sorted(tmp_path.rglob("*")) == [archive.parent, archive]


def test_a_folder_is_unpacked_beside_its_archive_once(tmp_path: Path) -> None:
    (tmp_path / "set.tgz").write_bytes(tar("set", "a/1.txt"))
    md5 = md5_of(tmp_path / "set.tgz")
    for _ in range(2):
        assert unpack(tmp_path / "set.tgz", "set", md5) == tmp_path / "set"
        assert (tmp_path / "set/a/1.txt").read_bytes() == b"one"
        assert {path.name for path in tmp_path.iterdir()} <= {"set.tgz", "set"}
        (tmp_path / "set.tgz").unlink(missing_ok=True)
