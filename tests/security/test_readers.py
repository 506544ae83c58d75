"""Modified data files are read, or refused in one sentence."""

import gzip
import hashlib
import io
import pickle
import tarfile
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import torch
from hypothesis import strategies as st
from PIL import Image

from ricnet.data import load, read_image, read_table
from ricnet.data.formats import read_idx, read_npy_object, read_pickle, read_pt, read_svhn
from ricnet.data.registry import unpack
from ricnet.errors import RicnetError

from .attack import attack, briefly_and_long, mutated

Read = Callable[[Path], object]
ROWS = np.arange(24, dtype=np.uint8)


def written(write: Callable[[io.BytesIO], object]) -> bytes:
    with io.BytesIO() as file:
        write(file)
        return file.getvalue()


def packed(content: bytes) -> bytes:
    """As a tar archive, compressed only after the changes: gzip would hide them behind its checksum."""

    def write(file: io.BytesIO) -> None:
        with tarfile.open(fileobj=file, mode="w") as files:
            member = tarfile.TarInfo("set/1")
            member.size = len(content)
            files.addfile(member, io.BytesIO(content))

    return written(write)


def unpack_compressed(path: Path) -> object:
    archive = path.with_suffix(".tgz")
    archive.write_bytes(gzip.compress(path.read_bytes()))
    return unpack(archive, "set", hashlib.md5(archive.read_bytes()).hexdigest())


def image(kind: str) -> bytes:
    pixels = np.random.default_rng(0).integers(0, 256, (9, 7, 3), dtype=np.uint8)
    return written(lambda file: Image.fromarray(pixels).save(file, kind))


def pair(path: Path) -> object:
    return read_svhn(path, path)


LABELS = {"clean_label": ROWS.astype(np.int64) % 10, "aggre_label": ROWS.astype(np.int64) % 10}
BATCH = {b"data": np.zeros((2, 3072), np.uint8), b"labels": [0, 1], "scalar": np.int64(3)}
MATLAB = {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": [[1], [2]]}
TABLE = b'size,colour,kind\n1,red,a\n2.5,"blue",b\n,red,a\n' + b"3,blue,b\n1,red,a\n" * 8
LINES = b'{"size": 1, "colour": "red", "kind": "a"}\n{"size": null, "seen": "2024-02-29", "kind": "b"}\n' * 8
IDX = b"\x00\x00\x08\x03\x00\x00\x00\x02\x00\x00\x00\x03\x00\x00\x00\x04" + ROWS.tobytes()
FILES: dict[str, tuple[bytes, Read]] = {
    "a.csv": (TABLE, lambda path: (read_table(path), load(path, target="kind"))),
    "a.csv.gz": (gzip.compress(TABLE), lambda path: (read_table(path), load(path, target="kind"))),
    "a.jsonl": (LINES, lambda path: (read_table(path), load(path, target="kind"))),
    "a.idx": (IDX, lambda path: read_idx(path, 3)),
    "a.idx.gz": (gzip.compress(b"\x00\x00\x08\x01\x00\x00\x00\x18" + ROWS.tobytes()), lambda path: read_idx(path, 1)),
    "a.mat": (written(lambda file: scipy.io.savemat(file, MATLAB)), pair),
    "a.pickle": (pickle.dumps(BATCH, 2), read_pickle),
    "b.pickle": (pickle.dumps(BATCH, 5), read_pickle),
    "c.pickle": (pickle.dumps(BATCH, 0), read_pickle),
    "a.npy": (written(lambda file: np.save(file, np.array(LABELS, dtype=object), allow_pickle=True)), read_npy_object),
    "a.pt": (written(lambda file: torch.save(LABELS, file)), read_pt),
    "a.tar": (packed(b"content"), unpack_compressed),
    **{f"a.{kind}": (image(kind), lambda path: read_image(path, (3, 8, 8))) for kind in ("png", "gif", "bmp", "ppm")},
    **{f"a.{kind}": (image(kind), lambda path: read_image(path, (1, 8, 8))) for kind in ("jpeg", "webp", "tiff")},
}


@briefly_and_long
def test_changed_files(tmp_path: Path, seconds: float | None) -> None:
    def strike(data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(FILES)))
        whole, read = FILES[name]
        (tmp_path / name).write_bytes(data.draw(mutated(whole)))
        with suppress(RicnetError):
            read(tmp_path / name)

    attack(strike, None if seconds is None else 4 * seconds, few=60)


@briefly_and_long
def test_changed_arrays_in_a_whole_archive(tmp_path: Path, seconds: float | None) -> None:
    x, y = (written(lambda file, a=array: np.save(file, a)) for array in (np.zeros((8, 3)), np.array(list("abababab"))))

    def strike(data: st.DataObject) -> None:
        with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in (("x", x), ("y", y)):
                archive.writestr(f"{name}.npy", data.draw(mutated(content)) if data.draw(st.booleans()) else content)
        with suppress(RicnetError):
            load(tmp_path / "a.npz")

    attack(strike, seconds, few=30)


@briefly_and_long
def test_an_archive_of_arrays_itself(tmp_path: Path, seconds: float | None) -> None:
    whole = written(lambda file: np.savez(file, x=np.zeros((8, 3)), y=np.arange(8) % 2))

    def strike(data: st.DataObject) -> None:
        (tmp_path / "a.npz").write_bytes(data.draw(mutated(whole)))
        with suppress(RicnetError):
            load(tmp_path / "a.npz")

    attack(strike, seconds, few=20)


@briefly_and_long
def test_tables_of_any_text(tmp_path: Path, seconds: float | None) -> None:
    cells = st.text('ab1,;"\x1b\n é', max_size=4) | st.sampled_from(
        ["", "1", "nan", "1e400", '"', ";", "=1", "9" * 5000, "a", "b"]
    )

    def strike(data: st.DataObject) -> None:
        width = data.draw(st.integers(1, 4))
        rows = data.draw(st.lists(st.lists(cells, min_size=width, max_size=width), min_size=1, max_size=8))
        lines = [data.draw(st.sampled_from(",;\t|")).join(row) for row in [*rows[:1], *rows[1:] * 3]]
        (tmp_path / "a.csv").write_bytes("\n".join(lines).encode("utf-8", "surrogatepass"))
        with suppress(RicnetError):
            load(tmp_path / "a.csv", target=rows[0][0] or "a")

    attack(strike, seconds, few=30)


@pytest.mark.parametrize("name", sorted(FILES))
def test_the_files_are_whole_before_they_are_changed(tmp_path: Path, name: str) -> None:
    whole, read = FILES[name]
    (tmp_path / name).write_bytes(whole)
    read(tmp_path / name)
