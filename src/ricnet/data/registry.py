"""`load` makes a `Dataset` of a registered name, a folder of images or texts, an .npz file or a table."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import pooch

from ricnet.data.arrays import read_npz
from ricnet.data.columns import Columns
from ricnet.data.dataset import Augmentation, Dataset, Parts, Split, altered, class_counts
from ricnet.data.downloads import Progress, PublishedFile, fetch
from ricnet.data.images import holds_texts, read_folder
from ricnet.data.labels import TableTask, labelled_table, read_text_folder
from ricnet.data.tables import Table, read_table
from ricnet.data.texts import Tokenizer
from ricnet.errors import RicnetError, nearest, require, setting
from ricnet.io import TABLES, is_table, split_target, user_path, with_target

Reader = TypeVar("Reader", bound=Callable[..., Dataset | tuple[Split, Split]])


@dataclass(frozen=True)
class Source:
    """A data set known by name."""

    title: str
    class_names: tuple[str, ...]
    read: Callable[..., Dataset | tuple[Split, Split]]
    augmentation: Augmentation
    files: tuple[PublishedFile, ...]
    folder: str
    """Where below the data folder the files are put; they are also found directly in it."""
    resizable: bool

    def find(self, data_dir: Path) -> list[Path | None]:
        return [file.find((data_dir / self.folder, data_dir)) for file in self.files]


DATASETS: dict[str, Source] = {}
"""Registered data sets, those of users included."""


def register_dataset(
    name: str,
    title: str = "",
    class_names: Sequence[str] = (),
    augmentation: Augmentation = Augmentation(),  # noqa: B008 — it is frozen
    *,
    files: Sequence[PublishedFile] = (),
    folder: str | None = None,
    resizable: bool = False,
) -> Callable[[Reader], Reader]:
    """Decorator that registers a data set by name, for `train`, `load`, studies and every command.

    The function returns a `Dataset`, or training and test rows as two `Split`s of the classes named here; validation
    rows are then cut from the training rows. It is called with the paths of `files`, which `ric data get` fetches into
    `folder` of the data folder, and, if the set is `resizable`, with a `resolution` (None for its own).
    """

    def register(read: Reader) -> Reader:
        home = name if folder is None else folder
        DATASETS[name] = Source(
            title or name, tuple(class_names), read, augmentation, tuple(files), home if files else "", resizable
        )
        return read

    return register


def is_resizable(spec: str | Path) -> bool:
    """Whether its images can be read at any resolution, as those of a folder."""
    source = DATASETS.get(str(spec))
    return source.resizable if source is not None else user_path(split_target(str(spec))[0]).is_dir()


def load(
    spec: str | Path,
    *,
    data_dir: str | Path | None = None,
    resolution: int | None = None,
    val_fraction: float = 0.1,
    train_fraction: float = 1.0,
    label_noise: float = 0.0,
    target: str | None = None,
    text: str | None = None,
    tokenizer: Tokenizer | None = None,
    columns: Columns | None = None,
    class_names: Sequence[str] = (),
    undivided: bool = False,
    test: str | Path | None = None,
    test_fraction: float | None = None,
) -> Dataset:
    """Read a data set from local files; nothing is downloaded.

    spec: a registered name, else a path (write ./NAME for a folder that is called like a data set).
    target, text: for tables, the column of the classes (my.csv#label does the same), and a column of texts to learn
        from instead of all others, by the `tokenizer` of a pretrained checkpoint.
    columns, class_names: those of a model that is evaluated on a table; by default they are learned from it.
    undivided: for data that is only evaluated: parts stay as they are, and without a test part all rows are test rows.
        There may be a single class.
    test, test_fraction: a table of test rows, or the share of rows to hold out if there is no test part (None: a
        quarter, 0: none).
    """
    if not 0 < val_fraction < 1:
        raise RicnetError(f"val_fraction is {val_fraction}; it must lie between 0 and 1.")
    if resolution is not None and resolution < 1:
        raise RicnetError(f"resolution is {resolution}; it must be a number of pixels above 0.")
    check_test(test, test_fraction)
    path, target = split_target(with_target(str(spec), target))
    parts: Parts | Dataset
    if is_table(path):
        task = TableTask(target, text, tokenizer, columns, class_names)
        table = read_table(user_path(path), task.check)
        name, parts = labelled_table(table, task, None if test is None else read_test(test))
    else:
        _refuse_table_settings(path, test, text)
        name, parts = str(spec), _read(spec, data_folder(data_dir), resolution, columns, tokenizer)
    dataset = _divided(parts, name, val_fraction, undivided, test_fraction)
    if resolution is not None and dataset.input_shape[1:] != (resolution, resolution):
        raise RicnetError(
            f"{spec} has inputs of shape {dataset.input_shape}, which a resolution of {resolution} cannot change; "
            "leave the resolution out (it is for folders of images and imagewoof)."
        )
    return altered(dataset, train_fraction, label_noise)


def _divided(
    parts: Parts | Dataset, name: str, val_fraction: float, undivided: bool, test_fraction: float | None
) -> Dataset:
    if isinstance(parts, Parts):
        return parts.dataset(name, val_fraction, undivided, test_fraction)
    if test_fraction is not None:
        raise RicnetError(f"{name} has a test part of its own; leave {setting('test_fraction')} out.")
    return parts


def _refuse_table_settings(path: str, test: str | Path | None, text: str | None) -> None:
    for name, value in (("test", test), ("text", text)):
        if value is not None:
            raise RicnetError(f"{setting(name, value)} is for tables, which {path} is not; leave it out.")


def check_test(test: Any, test_fraction: float | None) -> None:
    require(test_fraction is None or 0 <= test_fraction < 1, "test_fraction", test_fraction, "from 0 to below 1")
    if test is not None and test_fraction is not None:
        raise RicnetError(f"{setting('test')} and {setting('test_fraction')} exclude each other; leave one out.")


def read_test(test: str | Path) -> Table:
    """A table of test rows."""
    if not is_table(test):
        raise RicnetError(f"{setting('test', test)} is not a table ({', '.join(TABLES)}); give one.")
    return read_table(user_path(test))


def _read(
    spec: str | Path, folder: Path, resolution: int | None, columns: Columns | None, tokenizer: Tokenizer | None
) -> Parts | Dataset:
    if spec in DATASETS or spec == "":  # an empty text is an unset variable, not the current folder
        return _read_named(str(spec), folder, resolution)
    path = user_path(spec)
    if path.is_dir() and holds_texts(path):
        return read_text_folder(path, columns, tokenizer)
    if path.is_dir():
        return read_folder(path, resolution, folder / "packed")
    if path.suffix.lower() == ".npz":
        return read_npz(path, folder / "packed", columns)
    if path.exists():
        raise RicnetError(
            f"{path} is neither a folder of images or texts, nor an .npz file, nor a table ({', '.join(TABLES)}); "
            "give one of these."
        )
    if isinstance(spec, Path) or "/" in spec or os.sep in spec:
        raise RicnetError(
            f"{path} does not exist; give a folder of images or texts, an .npz file, a table, or one of "
            f"{', '.join(DATASETS)}."
        )
    return _read_named(spec, folder, resolution)  # says which names there are


def _read_named(name: str, folder: Path, resolution: int | None) -> Parts | Dataset:
    source = find_source(name)
    found = source.find(folder)
    missing = [file.name for file, path in zip(source.files, found, strict=True) if path is None]
    if missing:
        raise RicnetError(
            f"{name} is not here yet: run `ric data get {name}`, "
            f"or put {' and '.join(missing)} into {folder / source.folder}."
        )
    wish: dict[str, Any] = {"resolution": resolution} if source.resizable else {}
    read = source.read(*found, **wish)
    notes: tuple[str, ...] = ()
    if Path(name).is_dir() and Path(name).resolve() != (folder / source.folder).resolve():
        notes = (f"{name} is the registered data set, not the folder {name} here; write ./{name} for the folder.",)
    if isinstance(read, Dataset):
        return replace(read, name=name, notes=(*notes, *read.notes))
    train, test = read
    return Parts(train, source.class_names, test, augmentation=source.augmentation, notes=notes)


def find_source(name: str) -> Source:
    if name not in DATASETS:
        close = nearest(name, DATASETS)
        meant = f" (did you mean {close}?)" if close else ""
        raise RicnetError(
            f"No data set is called {name!r}{meant}; known are {', '.join(DATASETS)}, "
            "and a folder of images or texts, an .npz file or a .csv table can be given by its path."
        )
    return DATASETS[name]


def whole_path(spec: str) -> str:
    """A path made absolute, so that a run can be resumed and evaluated from anywhere; a registered name as it is."""
    name, target = split_target(spec)
    path = user_path(name)
    return with_target(str(path.resolve()), target) if name not in DATASETS and path.exists() else spec


def data_folder(data_dir: str | Path | None = None) -> Path:
    """The argument, else RICNET_DATA, else the user's cache folder."""
    return user_path(data_dir or os.environ.get("RICNET_DATA") or pooch.os_cache("ricnet"))


# Files of the registered data sets: list, fetch, check


@dataclass(frozen=True)
class FileState:
    name: str
    path: Path | None
    """The file or its unpacked folder; None if neither is found."""
    size: int | None
    """Bytes on disk, or as published if it is not found."""
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
class Check(Listing):
    input_shape: tuple[int, ...]
    splits: dict[str, SplitSummary]
    notes: tuple[str, ...]


def list_datasets(data_dir: str | Path | None = None) -> list[Listing]:
    folder = data_folder(data_dir)
    return [Listing(name, source.title, _states(source, folder)) for name, source in DATASETS.items()]


def get_dataset(name: str, data_dir: str | Path | None = None, progress: Progress | None = None) -> Listing:
    """Download missing files; a file that is here in any form is left alone."""
    source, folder = find_source(name), data_folder(data_dir)
    for file, path in zip(source.files, source.find(folder), strict=True):
        if path is None:
            fetch(file, folder / source.folder, progress)
    return Listing(name, source.title, _states(source, folder))


def check_dataset(name: str, data_dir: str | Path | None = None) -> Check:
    """Compare checksums with the published ones, then read the whole set."""
    source, folder = find_source(name), data_folder(data_dir)
    files = _states(source, folder, compare=True)
    dataset = load(name, data_dir=folder)
    splits = {
        part: SplitSummary(len(split), class_counts(split.labels, dataset.class_names))
        for part, split in (("train", dataset.train), ("val", dataset.val), ("test", dataset.test))
    }
    return Check(name, source.title, files, dataset.input_shape, splits, dataset.notes)


def _states(source: Source, folder: Path, compare: bool = False) -> tuple[FileState, ...]:
    return tuple(_state(file, path, compare) for file, path in zip(source.files, source.find(folder), strict=True))


def _state(file: PublishedFile, path: Path | None, compare: bool) -> FileState:
    if path is None:
        return FileState(file.name, None, file.size, "missing")
    size = sum(each.stat().st_size for each in ([path] if path.is_file() else path.rglob("*")) if each.is_file())
    if not compare:
        return FileState(file.name, path, size)
    if path.is_dir():
        return FileState(file.name, path, size, "unpacked")
    if path.name != file.name:
        return FileState(file.name, path, size, "another form")
    whole = pooch.file_hash(str(path), alg="md5") == file.md5
    return FileState(file.name, path, size, "ok" if whole else "differs")
