from collections.abc import Callable
from pathlib import Path

import numpy as np
import pooch
import pytest

from ricnet.data import load
from ricnet.data.registry import data_folder
from ricnet.errors import RicnetError


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
