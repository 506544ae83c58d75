"""What is here of the named data sets: to list them, to fetch them, to check them."""

from dataclasses import dataclass
from pathlib import Path

import pooch
import torch

from ricnet.data.dataset import Split
from ricnet.data.downloads import Progress, PublishedFile, fetch
from ricnet.data.registry import SOURCES
from ricnet.data.sources import data_folder, find_source, load


@dataclass(frozen=True)
class FileState:
    name: str
    path: Path | None
    """What is read for it, perhaps the unpacked folder; None where nothing is found."""
    size: int | None
    """Bytes on disk, or as published where nothing is found."""
    checksum: str = "not checked"
    """`ok`, `differs`, `unpacked` or `another form` (neither has a published checksum), `missing`, `not checked`."""


@dataclass(frozen=True)
class Listing:
    name: str
    title: str
    files: tuple[FileState, ...]

    @property
    def present(self) -> bool:
        return all(file.path for file in self.files)


@dataclass(frozen=True)
class SplitSummary:
    rows: int
    class_counts: dict[str, int]


@dataclass(frozen=True)
class Check:
    name: str
    title: str
    files: tuple[FileState, ...]
    input_shape: tuple[int, ...]
    splits: dict[str, SplitSummary]
    notes: tuple[str, ...]


def list_datasets(data_dir: str | Path | None = None) -> list[Listing]:
    folder = data_folder(data_dir)
    return [
        Listing(name, source.title, tuple(map(_state, source.files, source.find(folder))))
        for name, source in SOURCES.items()
    ]


def get_dataset(name: str, data_dir: str | Path | None = None, progress: Progress | None = None) -> Listing:
    """Fetch what is missing; what is here in any form is left alone."""
    source, folder = find_source(name), data_folder(data_dir)
    for file, path in zip(source.files, source.find(folder), strict=True):
        if path is None:
            fetch(file, folder / source.folder, progress)
    return Listing(name, source.title, tuple(map(_state, source.files, source.find(folder))))


def check_dataset(name: str, data_dir: str | Path | None = None) -> Check:
    """Compare checksums with the published ones, then read the whole set."""
    source, folder = find_source(name), data_folder(data_dir)
    files = tuple(_checked(file, path) for file, path in zip(source.files, source.find(folder), strict=True))
    dataset = load(name, data_dir=folder)
    splits = {"train": dataset.train, "val": dataset.val, "test": dataset.test}
    summaries = {part: _summary(split, dataset.class_names) for part, split in splits.items()}
    return Check(name, source.title, files, dataset.input_shape, summaries, dataset.notes)


def _state(file: PublishedFile, path: Path | None) -> FileState:
    if path is None:
        return FileState(file.name, None, file.size, "missing")
    return FileState(file.name, path, _size(path))


def _checked(file: PublishedFile, path: Path | None) -> FileState:
    if path is None:
        return FileState(file.name, None, file.size, "missing")
    if path.is_dir():
        verdict = "unpacked"
    elif path.name != file.name:
        verdict = "another form"
    else:
        verdict = "ok" if pooch.file_hash(str(path), alg="md5") == file.md5 else "differs"
    return FileState(file.name, path, _size(path), verdict)


def _size(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


def _summary(split: Split, class_names: tuple[str, ...]) -> SplitSummary:
    counts = torch.bincount(split.labels, minlength=len(class_names)).tolist()
    return SplitSummary(len(split), dict(zip(class_names, counts, strict=True)))
