import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from ricnet.data.pickles import read_npy_object, read_pickle, read_pt
from ricnet.errors import RicnetError


class Malicious:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.target}",)


@pytest.mark.parametrize("protocol", range(6))
def test_arrays_texts_and_numbers_come_back_under_every_protocol(tmp_path: Path, protocol: int) -> None:
    path = tmp_path / "batch"
    value = {b"data": np.arange(6, dtype=np.uint8).reshape(2, 3), "labels": [1, 2], "scalar": np.int64(7)}
    path.write_bytes(pickle.dumps(value, protocol))
    back = {key if isinstance(key, bytes) else key.encode(): item for key, item in read_pickle(path).items()}
    assert np.array_equal(back[b"data"], value[b"data"])
    assert back[b"labels"] == [1, 2]
    assert back[b"scalar"] == 7


@pytest.mark.parametrize("module", ["numpy.core", "numpy._core"])
def test_both_names_of_numpys_core_are_understood(tmp_path: Path, module: str) -> None:
    path = tmp_path / "batch"
    content = pickle.dumps(np.arange(5), 2)
    for name in (b"numpy._core", b"numpy.core"):
        content = content.replace(b"c" + name + b".multiarray", b"c" + module.encode() + b".multiarray")
    path.write_bytes(content)
    assert np.array_equal(read_pickle(path), np.arange(5))


def test_python_2_strings_come_back_as_bytes(tmp_path: Path) -> None:
    path = tmp_path / "batch"
    path.write_bytes(b"\x80\x02}q\x00U\x06labelsq\x01]q\x02K\x03as.")  # {'labels': [3]} as Python 2 wrote it
    assert read_pickle(path) == {b"labels": [3]}


def test_code_in_a_pickle_is_refused_and_not_run(tmp_path: Path) -> None:
    path, target = tmp_path / "data_batch_1", tmp_path / "run"
    path.write_bytes(pickle.dumps({"data": Malicious(target)}))
    with pytest.raises(RicnetError, match=r"data_batch_1 asks for (posix|nt)\.system"):
        read_pickle(path)
    assert not target.exists()


def test_code_in_an_npy_is_refused_and_not_run(tmp_path: Path) -> None:
    path, target = tmp_path / "CIFAR-10_human.npy", tmp_path / "run"
    np.save(path, np.array(Malicious(target), dtype=object), allow_pickle=True)
    with pytest.raises(RicnetError, match=r"CIFAR-10_human\.npy asks for"):
        read_npy_object(path)
    assert not target.exists()


def test_code_in_a_pt_is_refused_and_not_run(tmp_path: Path) -> None:
    path, target = tmp_path / "CIFAR-10_human.pt", tmp_path / "run"
    torch.save({"clean_label": Malicious(target)}, path)
    with pytest.raises(RicnetError, match=r"CIFAR-10_human\.pt"):
        read_pt(path)
    assert not target.exists()


def test_builtins_and_foreign_codecs_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "batch"
    for content in (b"cbuiltins\neval\n(V1\ntR.", b"c_codecs\nencode\n(Vabc\nVidna\ntR."):
        path.write_bytes(content)
        with pytest.raises(RicnetError, match="batch"):
            read_pickle(path)


@pytest.mark.parametrize("content", [b"", b"no pickle at all", pickle.dumps(np.arange(99))[:60]])
def test_damaged_files_are_named(tmp_path: Path, content: bytes) -> None:
    for name, read in (("a.pkl", read_pickle), ("a.npy", read_npy_object), ("a.pt", read_pt)):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(RicnetError, match=name):
            read(path)


def test_a_plain_npy_array_is_not_an_object(tmp_path: Path) -> None:
    np.save(tmp_path / "plain.npy", np.arange(4))
    with pytest.raises(RicnetError, match=r"plain\.npy"):
        read_npy_object(tmp_path / "plain.npy")


def test_what_python_2_and_numpy_write_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "batch"
    for value in (
        np.arange(6.0).reshape(2, 3).T,
        np.array([1, 2], dtype=">i4"),
        np.array(["a", "bc"]),
        np.zeros((0, 3), np.uint8),
        np.array([True, False]),
    ):
        for protocol in (2, 5):
            path.write_bytes(pickle.dumps(value, protocol))
            back = read_pickle(path)
            assert np.array_equal(back, value)
            assert (back.dtype.kind, back.dtype.itemsize) == (value.dtype.kind, value.dtype.itemsize)


def test_torch_s_old_files_are_read_too(tmp_path: Path) -> None:
    path = tmp_path / "old.pt"
    torch.save({"labels": np.arange(5)}, path, _use_new_zipfile_serialization=False)
    assert np.array_equal(read_pt(path)["labels"], np.arange(5))


def nested_tuples(depth: int) -> bytes:
    """Each holds the one before twice, so that hashing or printing the last visits 2^depth of them."""
    return b"\x80\x02)" + b"".join(b"q\x00h\x00\x86" for _ in range(depth))


BOMBS = {
    "the length of a text": b"\x80\x04\x8d" + (1 << 60).to_bytes(8, "little") + b".",
    "the length of a bytearray": b"\x80\x05\x96" + (1 << 40).to_bytes(8, "little") + b".",
    "the shape of an array": b"cnumpy\nndarray\n((I1000000000000\ntR.",
    "an array without content": (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I9000000000000\ntVb\ntR"
        b"(I1\n(I9000000000000\ntcnumpy\ndtype\n(Vu1\nI0\nI1\ntRI00\nVshort\ntb."
    ),
    "a type of zero bytes": b"cnumpy\ndtype\n(VS0\ntR.",
    "a type of gigabytes": b"cnumpy\ndtype\n(VV2000000000\ntR.",
    "a key that takes ages to hash": b"\x80\x02}" + nested_tuples(60)[2:] + b"Ns.",
    "a set of such": b"\x80\x04\x8f(" + nested_tuples(60)[2:] + b"\x90.",
    "an attribute of a function": b"c_codecs\nencode\n}Vx\nI1\nsb.",
    "a mark that is not there": b"\x80\x02t.",
}


@pytest.mark.parametrize("name", BOMBS)
def test_little_files_that_claim_much_are_refused_at_once(tmp_path: Path, name: str) -> None:
    path = tmp_path / "batch"
    path.write_bytes(BOMBS[name])
    with pytest.raises(RicnetError, match="batch"):
        read_pickle(path)


def test_a_number_of_many_digits_is_no_hang(tmp_path: Path) -> None:
    path = tmp_path / "batch"
    path.write_bytes(b"L" + b"9" * 1_000_000 + b"L\n.")
    with pytest.raises(RicnetError, match="batch is damaged"):
        read_pickle(path)


def test_places_in_the_memo_and_lengths_of_frames_are_only_numbers(tmp_path: Path) -> None:
    """Python's own reader makes room for as many as the number says."""
    path = tmp_path / "batch"
    for content in (b"\x80\x02Nr\xff\xff\xff\x7f.", b"\x80\x04\x95" + (1 << 60).to_bytes(8, "little") + b"N."):
        path.write_bytes(content)
        assert read_pickle(path) is None


def test_an_archive_on_many_disks_is_refused(tmp_path: Path) -> None:
    """Found by fuzzing: even to ask zipfile whether this is an archive fails."""
    path = tmp_path / "a.pt"
    torch.save({"labels": np.arange(5)}, path)
    content = bytearray(path.read_bytes())
    disks = content.rindex(b"PK\x06\x07") + 16
    content[disks : disks + 4] = b"\xff\x00\x00\x00"
    path.write_bytes(content)
    with pytest.raises(RicnetError, match=r"a\.pt is damaged"):
        read_pt(path)
