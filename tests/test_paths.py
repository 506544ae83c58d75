from pathlib import Path
from typing import Any

import jaxtyping
import pytest

from ricnet.errors import RicnetError
from ricnet.paths import split_target, user_path


def test_home_is_understood(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert user_path("~/x") == tmp_path / "x"
    assert user_path(Path("a/b")) == Path("a/b")


@pytest.mark.parametrize("text", ["x" * 300, "a\x00b", "~nobody-of-that-name/x", "\ud800", "", None])
def test_what_cannot_be_a_path_is_named(text: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty one would be the current folder, and a shell makes it of a variable that is not set."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # it would refuse None before
    with pytest.raises(RicnetError, match="cannot be a path"):
        user_path(text)


@pytest.mark.parametrize("text", ["https://example.org/my.csv", "s3://bucket/photos", "file:///my.npz"])
def test_an_address_is_no_file_that_does_not_exist(text: str) -> None:
    with pytest.raises(RicnetError, match=f"^{text} is an address.*download it first.*give the path of the file"):
        user_path(text)


def test_a_table_is_told_from_its_target() -> None:
    assert split_target("a/my.csv#the label") == ("a/my.csv", "the label")
    assert split_target("my.TSV#a/b#c") == ("my.TSV", "a/b#c")
    assert split_target("photos#2") == ("photos#2", None)
