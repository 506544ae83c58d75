import hashlib
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pooch
import pytest
import torch

from ricnet.data import Dataset, Split, check_dataset, get_dataset, list_datasets, load
from ricnet.data.registry import DATASETS, data_folder, register_dataset
from ricnet.errors import RicnetError

from .samples import CONTENT, REFUSED, human_labels, published

FILES = {file.name: file for source in DATASETS.values() for file in source.files}


def test_the_names_are_those_of_the_command_line() -> None:
    expected = ["digits", "fashion-mnist", "cifar10", "cifar10n-aggregate", "cifar10n-worst", "svhn", "imagewoof"]
    assert list(DATASETS) == expected


@pytest.mark.parametrize("name", FILES)
def test_every_file_can_be_fetched_and_recognised(name: str) -> None:
    file = FILES[name]
    assert re.fullmatch("[0-9a-f]{32}", file.md5)
    assert file.urls
    assert all(url.endswith(f"/{name}") for url in file.urls)
    assert name in file.forms


def test_the_unpacked_form_and_the_set_s_own_folder_come_first(tmp_path: Path) -> None:
    source = DATASETS["cifar10"]
    assert source.find(tmp_path) == [None]
    (tmp_path / "cifar-10-python.tar.gz").touch()
    assert source.find(tmp_path) == [tmp_path / "cifar-10-python.tar.gz"]
    (tmp_path / "cifar-10-batches-py").mkdir()
    assert source.find(tmp_path) == [tmp_path / "cifar-10-batches-py"]
    (tmp_path / "cifar10" / "cifar-10-batches-py").mkdir(parents=True)
    assert source.find(tmp_path) == [tmp_path / "cifar10" / "cifar-10-batches-py"]


def test_an_unknown_name_gets_the_known_ones_and_a_guess() -> None:
    with pytest.raises(RicnetError, match=r"'cifar-10' \(did you mean cifar10\?\); known are digits, "):
        load("cifar-10")
    with pytest.raises(RicnetError, match="known are digits") as caught:
        load("zzz")
    assert "mean" not in str(caught.value)
    with pytest.raises(RicnetError, match="No data set is called ''"):
        load("")


@pytest.mark.parametrize("spec", ["no/such/folder", "./nothing", Path("nothing")])
def test_a_path_that_does_not_exist_is_named(spec: str | Path) -> None:
    with pytest.raises(RicnetError, match=f"{Path(spec)} does not exist"):
        load(spec)


def test_a_file_of_another_kind_is_named(tmp_path: Path) -> None:
    (tmp_path / "table.xlsx").touch()
    with pytest.raises(RicnetError, match=r"table\.xlsx is neither"):
        load(tmp_path / "table.xlsx")


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("cifar10", "cifar-10-python.tar.gz into .*cifar10"),
        ("cifar10n-worst", r"cifar-10-python\.tar\.gz and CIFAR-10_human\.pt into .*cifar10"),
        ("svhn", r"train_32x32\.mat and test_32x32\.mat into .*svhn"),
    ],
)
def test_missing_files_are_named_with_the_command_that_gets_them(tmp_path: Path, name: str, files: str) -> None:
    with pytest.raises(RicnetError, match=f"`ric data get {name}`, or put {files}"):
        load(name, data_dir=tmp_path)


def test_a_folder_called_like_a_data_set_is_not_passed_over_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fashion_dir: Path, write_folder: Callable[..., Path]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load("digits").notes == ()
    write_folder(tmp_path / "digits")
    [note] = load("digits").notes
    assert note.endswith("not the folder digits that is here; write ./digits for the folder.")
    assert load("./digits").class_names == ("a", "b")
    assert load("fashion-mnist", data_dir=fashion_dir).notes == ()  # its own home


def test_only_what_is_missing_is_named(tmp_path: Path, write_cifar: Callable[..., np.ndarray]) -> None:
    write_cifar(tmp_path)
    with pytest.raises(RicnetError, match=r"put CIFAR-10_human\.pt into"):
        load("cifar10n-aggregate", data_dir=tmp_path)


def test_the_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RICNET_DATA", raising=False)
    assert data_folder() == pooch.os_cache("ricnet")
    monkeypatch.setenv("RICNET_DATA", str(tmp_path))
    assert data_folder() == tmp_path
    assert data_folder("elsewhere") == Path("elsewhere")


def test_a_resolution_that_cannot_be_had_is_refused() -> None:
    assert load("digits", resolution=8).input_shape == (1, 8, 8)
    with pytest.raises(RicnetError, match="a resolution of 32 cannot change"):
        load("digits", resolution=32)
    with pytest.raises(RicnetError, match="resolution is -1"):
        load("digits", resolution=-1)


@pytest.mark.parametrize("fraction", [0.0, 1.0, 7.0])
def test_a_fraction_outside_its_range_is_quoted(fraction: float) -> None:
    with pytest.raises(RicnetError, match=f"val_fraction is {fraction}"):
        load("digits", val_fraction=fraction)


def test_the_list_says_what_is_here(tmp_path: Path, write_cifar: Callable[..., np.ndarray]) -> None:
    write_cifar(tmp_path)
    listings = {listing.name: listing for listing in list_datasets(tmp_path)}
    assert [name for name, listing in listings.items() if listing.present] == ["digits", "cifar10"]
    images, labels = listings["cifar10n-worst"].files
    assert images.path == tmp_path / "cifar-10-batches-py"
    assert images.size is not None
    assert images.size > 6 * 40 * 3072
    assert (labels.path, labels.checksum, labels.size) == (None, "missing", 2_401_007)


def test_what_is_missing_is_fetched_into_the_set_s_folder(
    tmp_path: Path, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = replace(DATASETS["svhn"], files=(published(f"{host}/good"),))
    monkeypatch.setitem(DATASETS, "svhn", source)
    for _ in range(2):  # the second time there is nothing to do
        assert get_dataset("svhn", tmp_path).present
    assert (tmp_path / "svhn" / "set.bin").read_bytes() == CONTENT


def test_hosts_that_do_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DATASETS, "svhn", replace(DATASETS["svhn"], files=(published(REFUSED),)))
    with pytest.raises(RicnetError, match=r"set\.bin .* put it into .*svhn"):
        get_dataset("svhn", tmp_path)


def test_unknown_names_are_refused(tmp_path: Path) -> None:
    for action in (get_dataset, check_dataset):
        with pytest.raises(RicnetError, match="mean svhn"):
            action("shvn", tmp_path)


def test_a_check_reads_everything(tmp_path: Path, write_cifar: Callable[..., np.ndarray]) -> None:
    table = human_labels(write_cifar(tmp_path))
    np.save(tmp_path / "CIFAR-10_human.npy", np.array(table, dtype=object), allow_pickle=True)
    check = check_dataset("cifar10n-worst", tmp_path)
    assert [file.checksum for file in check.files] == ["unpacked", "another form"]
    assert check.input_shape == (3, 32, 32)
    assert {part: split.rows for part, split in check.splits.items()} == {"train": 180, "val": 20, "test": 40}
    assert check.splits["test"].class_counts["truck"] == 4


def test_a_check_compares_checksums(fashion_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert {file.checksum for file in check_dataset("fashion-mnist", fashion_dir).files} == {"differs"}
    source = DATASETS["fashion-mnist"]
    md5s = [hashlib.md5((fashion_dir / source.folder / file.name).read_bytes()).hexdigest() for file in source.files]
    files = tuple(replace(file, md5=md5) for file, md5 in zip(source.files, md5s, strict=True))
    monkeypatch.setitem(DATASETS, "fashion-mnist", replace(source, files=files))
    assert {file.checksum for file in check_dataset("fashion-mnist", fashion_dir).files} == {"ok"}


def test_digits_are_always_here(tmp_path: Path) -> None:
    assert check_dataset("digits", tmp_path).splits["train"].rows == 1213


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
    assert check_dataset("mine", tmp_path).splits["test"].class_counts == {"no": 1, "yes": 1}
    with pytest.raises(RicnetError, match=r"'minee' \(did you mean mine\?\)"):
        load("minee")


@pytest.mark.usefixtures("own_datasets")
def test_its_function_may_return_a_whole_data_set_and_is_given_its_files(tmp_path: Path, host: str) -> None:
    @register_dataset("whole", files=[published(f"{host}/good")], resizable=True)
    def read(path: Path, resolution: int | None) -> Dataset:
        assert (path.read_bytes(), resolution) == (CONTENT, None)
        return Dataset("any", rows_of(0, 1), rows_of(1), rows_of(0), ("a", "b"), notes=("found",))

    with pytest.raises(RicnetError, match=r"run `ric data get whole`, or put set\.bin into .*/whole"):
        load("whole", data_dir=tmp_path)
    get_dataset("whole", tmp_path)
    data = load("whole", data_dir=tmp_path)
    assert (data.name, data.notes, len(data.train)) == ("whole", ("found",), 2)
