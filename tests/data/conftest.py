"""Small copies of the data sets in their official forms, as files."""

import gzip
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from ricnet.data import formats
from ricnet.data.formats import BREEDS

from .samples import Host, balanced, idx_bytes, md5_of, save_image, write_cifar


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture
def cifar_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_cifar(tmp_path / "made")
    archive = tmp_path / "data" / "cifar-10-python.tar.gz"
    archive.parent.mkdir()
    with tarfile.open(archive, "w:gz") as files:
        files.add(tmp_path / "made" / "cifar-10-batches-py", "cifar-10-batches-py")
    monkeypatch.setattr(formats, "_CIFAR10", replace(formats._CIFAR10, md5=md5_of(archive)))
    return archive


@pytest.fixture
def fashion_dir(tmp_path: Path, rng: np.random.Generator) -> Path:
    folder = tmp_path / "fashion-mnist"
    folder.mkdir()
    for part, rows in (("train", 60), ("t10k", 20)):
        images = rng.integers(0, 256, (rows, 28, 28))
        (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx_bytes(images)))
        (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx_bytes(balanced(rows))))
    return tmp_path


@pytest.fixture
def imagewoof_dir(tmp_path: Path) -> Path:
    for part, rows in (("train", 3), ("val", 1)):
        for wnid in BREEDS:
            for row in range(rows):
                save_image(tmp_path / "imagewoof2-160" / part / wnid / f"{row}.JPEG", (20, 16))
    return tmp_path


@pytest.fixture
def host() -> Iterator[str]:
    Host.ranges = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Host)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()
