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
