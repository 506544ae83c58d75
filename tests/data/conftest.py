"""Small copies of the data sets in their official forms, as files."""

import gzip
import pickle
import tarfile
import threading
from collections.abc import Callable, Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from ricnet.data.formats import BREEDS

from .samples import ROWS, Host, balanced, idx_bytes, save_image


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture
def write_cifar(rng: np.random.Generator) -> Callable[..., np.ndarray]:
    def write(data_dir: Path, *, protocol: int = 2, key: type = bytes) -> np.ndarray:
        """Returns the training labels."""
        folder = data_dir / "cifar-10-batches-py"
        folder.mkdir(parents=True)
        encode = (lambda text: text.encode()) if key is bytes else str
        labels = []
        for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
            y = rng.permutation(balanced(ROWS))
            x = rng.integers(0, 256, (ROWS, 3072), dtype=np.uint8)
            (folder / name).write_bytes(pickle.dumps({encode("data"): x, encode("labels"): y.tolist()}, protocol))
            labels.append(y)
        return np.concatenate(labels[:5])

    return write


@pytest.fixture
def cifar_archive(tmp_path: Path, write_cifar: Callable[..., np.ndarray]) -> Path:
    write_cifar(tmp_path / "made")
    archive = tmp_path / "data" / "cifar-10-python.tar.gz"
    archive.parent.mkdir()
    with tarfile.open(archive, "w:gz") as files:
        files.add(tmp_path / "made" / "cifar-10-batches-py", "cifar-10-batches-py")
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
def write_folder() -> Callable[..., Path]:
    def write(folder: Path, classes: str = "ab", rows: int = 4, **form: object) -> Path:
        for name in classes:
            for row in range(rows):
                save_image(folder / name / f"{row}.png", **form)  # type: ignore[arg-type]
        return folder

    return write


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
