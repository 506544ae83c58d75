"""Turn compact copies of the data sets into their official forms.

    python scripts/unpack_development_data.py SOURCE [SOURCE ...] DEST

A SOURCE may hold `cifar10/` and `svhn/` (WebP sheets, 50 tiles of 32 × 32 pixels abreast, in the official order, and
`labels.npz`) and `imagewoof2-160/` (`train.zip`, `val.zip`); the pieces of one set may lie in several sources. DEST
receives `cifar-10-batches-py/` and `CIFAR-10_human.npy`, and `svhn/`, once all their sheets are found, and
`imagewoof2-160/`. What DEST already has is left alone, so the command can be repeated. It needs only numpy, pillow and,
for SVHN, scipy.

The files differ from the published ones, so `ric data check` reports other checksums for SVHN. Their images are nearly
the same: rebuilt from the full-number images, with pixels that differ by at most 1 of 255.
"""

import argparse
import math
import pickle
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.io
from PIL import Image

TILES, SIDE = 50, 32
TRAIN_SHEETS = [f"cifar10/train_{i:02d}.webp" for i in range(20)]
TEST_SHEETS = [f"cifar10/test_{i:02d}.webp" for i in range(4)]
LABELS = "cifar10/labels.npz"
CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
SVHN_LABELS = "svhn/labels.npz"
HUMAN_KEYS = {  # the authors' key : ours
    "clean_label": "train",
    "aggre_label": "cifar10n_aggregate",
    "worse_label": "cifar10n_worst",
    "random_label1": "cifar10n_random1",
    "random_label2": "cifar10n_random2",
    "random_label3": "cifar10n_random3",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, nargs="+", help="folder with cifar10/, svhn/ or imagewoof2-160/")
    parser.add_argument("dest", type=Path, help="folder that receives the official forms")
    arguments = parser.parse_args()
    for source in arguments.source:
        if not source.is_dir():
            parser.error(f"{source} is no folder")
    arguments.dest.mkdir(parents=True, exist_ok=True)
    unpack_cifar(arguments.source, arguments.dest)
    unpack_svhn(arguments.source, arguments.dest)
    unpack_imagewoof(arguments.source, arguments.dest)


def unpack_cifar(sources: Sequence[Path], dest: Path) -> None:
    found = {piece: find(sources, piece) for piece in [*TRAIN_SHEETS, *TEST_SHEETS, LABELS]}
    missing = [piece for piece, path in found.items() if path is None]
    if missing:
        print(f"CIFAR-10: not written; {len(missing)} of {len(found)} pieces missing, the first is {missing[0]}")
        return
    pieces = {piece: path for piece, path in found.items() if path is not None}
    with np.load(pieces[LABELS]) as archive:
        labels = {key: archive[key].astype(np.int64) for key in archive.files}

    def write_batches(folder: Path) -> None:
        # Official batches hold 10,000 images: four sheets.
        names = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
        every_label = np.concatenate([labels["train"], labels["test"]])
        sheets = [*TRAIN_SHEETS, *TEST_SHEETS]
        for i, name in enumerate(names):
            rows = np.concatenate([read_sheet(pieces[sheet]) for sheet in sheets[4 * i : 4 * i + 4]])
            part = every_label[len(rows) * i : len(rows) * (i + 1)].tolist()
            dump({b"batch_label": name.encode(), b"data": rows, b"labels": part}, folder / name)
        meta = {b"label_names": [c.encode() for c in CLASSES], b"num_cases_per_batch": 10_000, b"num_vis": 3072}
        dump(meta, folder / "batches.meta")

    def write_human_labels(path: Path) -> None:
        human = {theirs: labels[ours] for theirs, ours in HUMAN_KEYS.items() if ours in labels}
        with path.open("wb") as file:
            np.save(file, np.array(human, dtype=object), allow_pickle=True)

    once(dest / "cifar-10-batches-py", write_batches, is_folder=True)
    once(dest / "CIFAR-10_human.npy", write_human_labels, is_folder=False)


def read_sheet(path: Path) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Rows as in CIFAR-10's batches: 3,072 bytes an image, the red plane first. A last sheet may be less high."""
    with Image.open(path) as sheet:
        pixels = np.asarray(sheet.convert("RGB"))
    tiles = pixels.reshape(-1, SIDE, TILES, SIDE, 3).transpose(0, 2, 4, 1, 3)
    return np.ascontiguousarray(tiles.reshape(-1, 3 * SIDE * SIDE))


def unpack_svhn(sources: Sequence[Path], dest: Path) -> None:
    path = find(sources, SVHN_LABELS)
    if path is None:
        print(f"SVHN: not written; {SVHN_LABELS} is missing")
        return
    with np.load(path) as archive:
        labels = {part: archive[part] for part in ("train", "test")}
    for part, own in labels.items():
        sheets = [f"svhn/{part}_{i:02d}.webp" for i in range(math.ceil(len(own) / TILES**2))]
        found = [path for sheet in sheets if (path := find(sources, sheet)) is not None]
        if len(found) < len(sheets):
            print(f"SVHN: {part} not written; {len(sheets) - len(found)} of {len(sheets)} sheets are missing")
            continue
        (dest / "svhn").mkdir(exist_ok=True)

        def write(target: Path, found: Sequence[Path] = found, own: np.ndarray[Any, Any] = own) -> None:
            rows = np.concatenate([read_sheet(path) for path in found])[: len(own)]  # the last tiles may be black
            pixels = rows.reshape(-1, 3, SIDE, SIDE).transpose(2, 3, 1, 0)
            digits = np.where(own == 0, 10, own).astype(np.uint8)[:, None]  # in SVHN 10 stands for the digit 0
            scipy.io.savemat(target, {"X": pixels, "y": digits})

        once(dest / "svhn" / f"{part}_32x32.mat", write, is_folder=False)


def unpack_imagewoof(sources: Sequence[Path], dest: Path) -> None:
    for part in ("train", "val"):
        archive = find(sources, f"imagewoof2-160/{part}.zip")
        if archive is None:
            print(f"ImageWoof: {part} not written; imagewoof2-160/{part}.zip is missing")
            continue
        (dest / "imagewoof2-160").mkdir(exist_ok=True)

        def extract(folder: Path, archive: Path = archive, part: str = part) -> None:
            with zipfile.ZipFile(archive) as files:
                files.extractall(folder)
            inner = folder / part
            for child in list(inner.iterdir()):
                child.rename(folder / child.name)
            inner.rmdir()

        once(dest / "imagewoof2-160" / part, extract, is_folder=True)


def find(sources: Sequence[Path], piece: str) -> Path | None:
    return next((source / piece for source in sources if (source / piece).is_file()), None)


def dump(value: object, path: Path) -> None:
    with path.open("wb") as file:
        pickle.dump(value, file, protocol=2)


def once(target: Path, write: Callable[[Path], None], *, is_folder: bool) -> None:
    """Write a draft, then rename it, so that `target` is always complete."""
    if target.exists():
        print(f"{target}: already there")
        return
    beside = Path(tempfile.mkdtemp(prefix=".unpacking-", dir=target.parent))
    try:
        new = beside / target.name
        if is_folder:
            new.mkdir()
        write(new)
        new.rename(target)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    print(f"{target}: written")


if __name__ == "__main__":
    main()
