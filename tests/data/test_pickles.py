import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from refusals import refusal
from ricnet.data.formats import read_npy_object, read_pickle, read_pt


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


def save_npy(code: object, path: Path) -> None:
    np.save(path, np.array(code, dtype=object), allow_pickle=True)


def save_pt(code: object, path: Path) -> None:
    torch.save({"clean_label": code}, path)


@pytest.mark.parametrize(
    ("name", "save", "read"),
    [("a.pkl", save_pickle, read_pickle), ("a.npy", save_npy, read_npy_object), ("a.pt", save_pt, read_pt)],
)
def test_code_is_refused_by_its_name_and_not_run_and_damage_is_named(
    tmp_path: Path, name: str, save: Callable[[object, Path], None], read: Callable[[Path], object]
) -> None:
    save(Malicious(tmp_path / "run"), tmp_path / name)
    with refusal(name, f"{os.system.__module__}.system"):
        read(tmp_path / name)
    assert not (tmp_path / "run").exists()
    for content in (b"", b"no pickle at all", pickle.dumps(np.arange(99))[:60]):
        (tmp_path / name).write_bytes(content)
        with refusal(name):
            read(tmp_path / name)


def nested_tuples(depth: int) -> bytes:
    """Each holds the one before twice, so that hashing or printing the last visits 2^depth of them."""
    return b")" + b"".join(b"q\x00h\x00\x86" for _ in range(depth))


BOMBS = {
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


@pytest.mark.parametrize("content", BOMBS.values(), ids=BOMBS)
def test_little_files_that_claim_much_are_refused_at_once(tmp_path: Path, content: bytes) -> None:
    with refusal("batch"):
        back(tmp_path, content)


def test_files_of_another_form_are_refused(tmp_path: Path) -> None:
    """The second was found by fuzzing: even to ask zipfile whether an archive on many disks is one fails."""
    np.save(tmp_path / "plain.npy", np.arange(4))
    with refusal("plain.npy"):
        read_npy_object(tmp_path / "plain.npy")
    torch.save({"labels": np.arange(5)}, tmp_path / "a.pt")
    content = bytearray((tmp_path / "a.pt").read_bytes())
    disks = content.rindex(b"PK\x06\x07") + 16
    content[disks : disks + 4] = b"\xff\x00\x00\x00"
    (tmp_path / "a.pt").write_bytes(content)
    with refusal("a.pt"):
        read_pt(tmp_path / "a.pt")
