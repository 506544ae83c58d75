import re
from pathlib import Path

import pytest

from ricnet.data.registry import DATASETS

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
