import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from ricnet import untrusted
from ricnet.untrusted import parse_json, printable, read_arrays, read_text


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
    with pytest.raises(ValueError, match="the array x: "):
        read_arrays(archive(tmp_path / "a.npz", x=content))


def test_sizes_and_compressions_are_limited(tmp_path: Path) -> None:
    with io.BytesIO() as file:
        np.save(file, np.zeros(20_000))
        content = file.getvalue()
    path = archive(tmp_path / "a.npz", x=content)
    assert read_arrays(path)["x"].size == 20_000
    with pytest.raises(ValueError, match=r"would take more than 0\.0 GB"):
        read_arrays(path, limit=100_000)
    with zipfile.ZipFile(tmp_path / "b.npz", "w", zipfile.ZIP_LZMA) as odd:
        odd.writestr("x.npy", content)
    with pytest.raises(ValueError, match="x: it is no array"):
        read_arrays(tmp_path / "b.npz")


def test_other_files(tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_bytes(b"no archive")
    with pytest.raises(ValueError, match="not a zip file"):
        read_arrays(tmp_path / "a.npz")
    with zipfile.ZipFile(tmp_path / "b.npz", "w") as odd:
        odd.writestr("\x1b[31m.txt", b"text")
    with pytest.raises(ValueError, match=r"the array �\[31m\.txt: it is no array"):
        read_arrays(tmp_path / "b.npz")


def test_text_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_text("é" * 10)
    assert read_text(tmp_path / "a") == "é" * 10
    monkeypatch.setattr(untrusted, "LARGEST_TEXT", 19)
    with pytest.raises(ValueError, match="larger than 0 MB"):
        read_text(tmp_path / "a")


def test_json_of_any_depth() -> None:
    assert parse_json('{"a": [1]}') == {"a": [1]}
    for text in ("[" * 100_000, '{"a":' * 100_000):
        with pytest.raises(ValueError, match="nested too deeply"):
            parse_json(text)
    for text in ("NaN", "[-Infinity]", '{"a": 1e999}'):
        with pytest.raises(ValueError, match="no number that JSON has"):
            parse_json(text)
    with pytest.raises(ValueError, match="digits"):
        parse_json("9" * 5000)


def test_what_a_terminal_obeys_is_replaced() -> None:
    assert printable("a\x1b[31m\x07\x9b\r\ud800é\n") == "a�[31m����é\n"
