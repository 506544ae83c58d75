"""Parts of small data sets for the tests."""

import hashlib
import pickle
import struct
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ricnet.data.registry import PublishedFile

ROWS = 40
"""In each batch of the small CIFAR-10."""
CONTENT = bytes(range(256)) * 4000
REFUSED = "http://127.0.0.1:9/set.bin"  # the discard port: nobody listens there


def balanced(rows: int, classes: int = 10) -> np.ndarray:
    return np.arange(rows) % classes


def human_labels(clean: np.ndarray) -> dict[str, np.ndarray]:
    aggregate, worst = clean.copy(), clean.copy()
    aggregate[:10] = (aggregate[:10] + 1) % 10
    worst[:80] = (worst[:80] + 1) % 10
    table = {"clean_label": clean, "aggre_label": aggregate, "worse_label": worst}
    return table | {f"random_label{i}": worst for i in (1, 2, 3)}


def idx_bytes(array: np.ndarray) -> bytes:
    return struct.pack(f">{1 + array.ndim}I", 0x0800 + array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def save_image(path: Path, size: tuple[int, int] = (12, 12), mode: str = "RGB", value: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    seed = sum(path.name.encode()) + value
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).convert(mode).save(path)
    return path


def write_cifar(data_dir: Path, key: type = bytes) -> np.ndarray:
    """Returns the training labels."""
    folder, rng, labels = data_dir / "cifar-10-batches-py", np.random.default_rng(0), []
    folder.mkdir(parents=True)
    data, names = ("data", "labels") if key is str else (b"data", b"labels")
    for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
        labels.append(rng.permutation(balanced(ROWS)))
        pixels = rng.integers(0, 256, (ROWS, 3072), dtype=np.uint8)
        (folder / name).write_bytes(pickle.dumps({data: pixels, names: labels[-1].tolist()}, 2))
    return np.concatenate(labels[:5])


def write_folder(folder: Path, classes: str = "ab", rows: int = 4, **form: Any) -> Path:
    """A class a letter."""
    for name in classes:
        for row in range(rows):
            save_image(folder / name / f"{row}.png", **form)
    return folder


class Host(BaseHTTPRequestHandler):
    """Serves CONTENT in several moods; notes which ranges were asked for."""

    ranges: list[str | None]

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        self.ranges.append(asked)
        if self.path == "/absent":
            self.send_error(404)
            return
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and self.path != "/deaf" else 0
        if start >= len(CONTENT):
            self.send_error(416)
            return
        body = b"other" if self.path == "/wrong" else CONTENT[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if self.path == "/breaks" else body)

    def log_message(self, *_: object) -> None:
        pass


def published(*urls: str) -> PublishedFile:
    return PublishedFile("set.bin", hashlib.md5(CONTENT).hexdigest(), urls, ("set.bin",))


def md5_of(path: Path) -> str:
    return hashlib.md5(path.read_bytes()).hexdigest()
