import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ricnet.data import check_dataset, get_dataset, list_datasets
from ricnet.data.registry import DATASETS
from ricnet.errors import RicnetError

from .samples import CONTENT, REFUSED, human_labels, published


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
