import errno
import io
import math
import os
import zipfile
from pathlib import Path
from typing import Any

import jaxtyping
import numpy as np
import pytest

import ricnet.io
from refusals import cases, refusal
from ricnet.io import (
    Absent,
    Maybe,
    Unwritable,
    draft_of,
    is_count,
    is_number,
    misfit,
    open_no_link,
    parse_json,
    printable,
    read_arrays,
    read_json,
    read_text,
    split_target,
    user_path,
    write_atomically,
)


def test_home_is_understood(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert user_path("~/x") == tmp_path / "x"
    assert user_path(Path("a/b")) == Path("a/b")


@pytest.mark.parametrize("text", ["x" * 300, "a\x00b", "~nobody-of-that-name/x", "\ud800", "", None])
def test_invalid_paths_are_named(text: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty one would be the current folder, and a shell makes it of a variable that is not set."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # it would refuse None before
    with refusal("path"):
        user_path(text)


@pytest.mark.parametrize("text", ["https://example.org/my.csv", "s3://bucket/photos", "file:///my.npz"])
def test_an_address_is_no_file_that_does_not_exist(text: str) -> None:
    with refusal(text, "URL", "download"):
        user_path(text)


def test_table_and_target_are_split() -> None:
    assert split_target("a/my.csv#the label") == ("a/my.csv", "the label")
    assert split_target("my.TSV#a/b#c") == ("my.TSV", "a/b#c")
    assert split_target("photos#2") == ("photos#2", None)


def put(text: str, path: Path, keep: Path | None = None) -> None:
    write_atomically(path, lambda draft: draft.write_text(text) and None, keep)


def test_the_file_is_flushed_before_it_takes_its_name_and_the_name_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    fsync, replace = os.fsync, os.replace

    def note_fsync(descriptor: int) -> None:
        seen.append("folder" if os.path.samestat(os.fstat(descriptor), tmp_path.stat()) else "file")
        fsync(descriptor)

    def note_replace(source: Path, target: Path) -> None:
        seen.append(f"{Path(source).name} → {Path(target).name}")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "replace", note_replace)
    put("one", tmp_path / "a")
    assert seen == ["file", ".a.draft → a", "folder"]
    seen.clear()
    put("two", tmp_path / "a", keep=tmp_path / "b")
    assert seen == ["file", "a → b", ".a.draft → a", "folder"]
    assert [(tmp_path / name).read_text() for name in "ab"] == ["two", "one"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EIO])
def test_a_failed_write_is_one_sentence_and_keeps_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    path = tmp_path / "a"
    put("old", path)

    def fail(_: int) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with refusal(path, os.strerror(code), kind=Unwritable):
            put("new", path)
    assert path.read_text() == "old"
    assert not draft_of(path).exists()


def test_a_folder_that_is_gone_and_one_that_cannot_be_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with refusal("gone", kind=Unwritable):
        put("new", tmp_path / "gone" / "a")
    fsync = os.fsync

    def fail_for_folders(descriptor: int) -> None:
        if os.path.samestat(os.fstat(descriptor), tmp_path.stat()):
            raise OSError(errno.EINVAL, "Invalid argument")  # as some network file systems do
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fail_for_folders)
    (tmp_path / "a.json").write_text("{}")
    put('{"new": 1}', tmp_path / "a.json")
    assert read_json(tmp_path / "a.json") == {"new": 1}


def npy(header: str, content: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    text = header.ljust(117).encode() + b"\n"
    return b"\x93NUMPY" + version + len(text).to_bytes(2, "little") + text + content


def archive(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)
    return path


def test_plain_arrays_come_back(tmp_path: Path) -> None:
    arrays = {"a": np.arange(6).reshape(2, 3), "b": np.array(["x", "yz"]), "c": np.float32(2), "d": np.zeros((0, 4))}
    np.savez_compressed(tmp_path / "a.npz", **arrays)
    found = read_arrays(tmp_path / "a.npz")
    assert list(found) == list(arrays)
    assert all(np.array_equal(found[name], array) for name, array in arrays.items())
    assert found["a"].flags.writeable


@pytest.mark.parametrize(
    "content",
    [
        npy("{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,)}", bytes(8)),
        npy("{'descr': '<f8', 'fortran_order': False, 'shape': (-1,)}", bytes(8)),
        npy("{'descr': '<U0', 'fortran_order': False, 'shape': (1000000000000,)}"),
        npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", b"cos\nsystem\n(Vtrue\ntR."),
        npy("{'descr': '<f8', 'fortran_order': False, 'shape': (2,)}", bytes(8)),
        npy("(" * 100, bytes(8)),
        npy("{'descr': '<f8'}", bytes(8), b"\x09\x00"),
        b"\x93NUMPY",
        b"",
    ],
)
def test_headers_that_lie(tmp_path: Path, content: bytes) -> None:
    with refusal("the array x: ", kind=ValueError):
        read_arrays(archive(tmp_path / "a.npz", x=content))


def test_sizes_and_compressions_are_limited(tmp_path: Path) -> None:
    with io.BytesIO() as file:
        np.save(file, np.zeros(20_000))
        content = file.getvalue()
    path = archive(tmp_path / "a.npz", x=content)
    assert read_arrays(path)["x"].size == 20_000
    with refusal("GB", kind=ValueError):
        read_arrays(path, limit=100_000)
    for name, compression in (("x.npy", zipfile.ZIP_LZMA), ("\x1b[31m.txt", zipfile.ZIP_STORED)):
        with zipfile.ZipFile(tmp_path / "b.npz", "w", compression) as odd:
            odd.writestr(name, content)
        with refusal("x" if name == "x.npy" else "�[31m.txt", kind=ValueError):
            read_arrays(tmp_path / "b.npz")
    (tmp_path / "a.npz").write_bytes(b"no archive")
    with refusal("zip", kind=ValueError):
        read_arrays(tmp_path / "a.npz")


def test_text_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_text("é" * 10)
    assert read_text(tmp_path / "a") == "é" * 10
    monkeypatch.setattr(ricnet.io, "LARGEST_TEXT", 19)
    with refusal("MB", kind=ValueError):
        read_text(tmp_path / "a")


def test_json_is_parsed() -> None:
    assert parse_json('{"a": [1]}') == {"a": [1]}


@pytest.mark.parametrize(
    ("text", "named"),
    cases(
        {
            "nested lists": ("[" * 100_000, "deep"),
            "nested objects": ('{"a":' * 100_000, "deep"),
            "5,000 digits": ("9" * 5000, "digits"),
            **{text: (text, "not a finite number") for text in ("NaN", "[-Infinity]", '{"a": 1e999}')},
        }
    ),
)
def test_json_that_cannot_be_read_is_refused(text: str, named: str) -> None:
    with refusal(named, kind=ValueError):
        parse_json(text)


def test_numbers_are_finite_and_no_truths() -> None:
    assert all(map(is_number, [0, -1.5, 10**15]))
    assert not any(map(is_number, [True, None, "1", math.nan, math.inf, 10**16, 10**400, [], {}]))
    assert not any(map(is_count, [-1, 1.0, True]))


@pytest.mark.parametrize(
    ("entry", "place"),
    [
        ({"a": 1, "b": [{"c": 1}]}, None),
        ({"a": 1, "b": [{"c": 1}], "d": None, "e": 2, "f": "anything"}, None),
        ({"b": [{"c": 1}]}, "a"),
        ({"a": 1, "b": []}, "b"),
        ({"a": 1, "b": [{"c": 1}, {"c": "1"}]}, "b[1].c"),
        ({"a": 1, "b": [{"c": 1}], "d": "1"}, "d"),
        ({"a": 1, "b": [{"c": 1}], "e": None}, "e"),  # found by fuzzing: what may be absent is not null
        ([], ""),
        (None, ""),
    ],
)
def test_the_first_misfit_is_named(entry: object, place: str | None) -> None:
    form = {"a": is_count, "b": [{"c": is_count}], "d": Maybe(is_count), "e": Absent(is_count)}
    assert misfit(entry, form) == place


def test_control_characters_are_replaced() -> None:
    assert printable("a\x1b[31m\x07\x9b\r\ud800é\n") == "a�[31m����é\n"


def test_links_are_replaced_and_special_files_refused(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_text("mine")
    for name in ("file", ".file.draft"):
        (tmp_path / name).unlink(missing_ok=True)
        (tmp_path / name).symlink_to(mine)
        write_atomically(tmp_path / "file", lambda draft: draft.write_text("ours"))
        assert ((tmp_path / "file").read_text(), mine.read_text()) == ("ours", "mine")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "mine"]
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to(tmp_path / "fifo")
    for name in ("fifo", "link"):
        with refusal(name):
            write_atomically(tmp_path / name, lambda draft: draft.write_text("ours"))
    with pytest.raises(OSError, match="symbolic"):
        open_no_link(str(tmp_path / "link"), os.O_WRONLY | os.O_APPEND)
