"""The one door to data: a name, a folder of images, an .npz file or a table becomes a Dataset."""

import os
from collections.abc import Sequence
from pathlib import Path

import pooch

from ricnet.data.arrays import read_npz
from ricnet.data.columns import Columns
from ricnet.data.dataset import Dataset
from ricnet.data.folders import read_folder
from ricnet.data.noise import flip_labels
from ricnet.data.registry import SOURCES, Source
from ricnet.data.splits import Parts
from ricnet.data.table_files import SUFFIXES, is_table, read_table
from ricnet.data.tables import labelled_table, with_target
from ricnet.errors import RicnetError, nearest
from ricnet.io import split_target, user_path


def load(
    spec: str | Path,
    *,
    data_dir: str | Path | None = None,
    resolution: int | None = None,
    val_fraction: float = 0.1,
    label_noise: float = 0.0,
    target: str | None = None,
    columns: Columns | None = None,
    class_names: Sequence[str] = (),
    undivided: bool = False,
) -> Dataset:
    """Nothing is fetched from the network; files that are missing are named.

    A registered name wins over a folder of that name: write ./NAME for the folder. The classes of a table are in its
    column `target`, which may also be part of its name: my.csv#label. `columns` and `class_names` are those of a model
    that is to be tried on a table; without them they are learned from it. `undivided` is for data that is only to be
    measured: its parts stay as they are, and where it has no test part, all of it is test data. It may be of one class.
    """
    if not 0 < val_fraction < 1:
        raise RicnetError(f"val_fraction is {val_fraction}; it must lie between 0 and 1.")
    if resolution is not None and resolution < 1:
        raise RicnetError(f"resolution is {resolution}; it must be a number of pixels above 0.")
    path, target = split_target(with_target(str(spec), target))
    if is_table(path):
        table = read_table(user_path(path))
        dataset = labelled_table(table, target, val_fraction, columns, undivided, class_names)
    else:
        dataset = _read(spec, data_dir, resolution).dataset(str(spec), val_fraction, undivided)
    if resolution is not None and dataset.input_shape[1:] != (resolution, resolution):
        raise RicnetError(
            f"{spec} has inputs of shape {dataset.input_shape}, which a resolution of {resolution} cannot change; "
            "leave the resolution out (it is for folders of images and imagewoof)."
        )
    return flip_labels(dataset, label_noise)


def whole_path(spec: str) -> str:
    """A name as it is; a path whole, so that a run can be resumed and evaluated from anywhere."""
    name, target = split_target(spec)
    path = user_path(name)
    return with_target(str(path.resolve()), target) if name not in SOURCES and path.exists() else spec


def data_folder(data_dir: str | Path | None = None) -> Path:
    """The argument, else RICNET_DATA, else the user's cache folder."""
    return user_path(data_dir or os.environ.get("RICNET_DATA") or pooch.os_cache("ricnet"))


def find_source(name: str) -> Source:
    if name not in SOURCES:
        close = nearest(name, SOURCES)
        meant = f" (did you mean {close}?)" if close else ""
        raise RicnetError(
            f"No data set is called {name!r}{meant}; known are {', '.join(SOURCES)}, "
            "and a folder of images, an .npz file or a .csv table can be given by its path."
        )
    return SOURCES[name]


def _read(spec: str | Path, data_dir: str | Path | None, resolution: int | None) -> Parts:
    if spec in SOURCES or spec == "":  # an empty text is an unset variable, not the current folder
        return _read_named(str(spec), data_folder(data_dir), resolution)
    path = user_path(spec)
    if path.is_dir():
        return read_folder(path, resolution, data_folder(data_dir) / "packed")
    if path.suffix.lower() == ".npz":
        return read_npz(path, data_folder(data_dir) / "packed")
    if path.exists():
        raise RicnetError(
            f"{path} is neither a folder of images, nor an .npz file, nor a table ({', '.join(SUFFIXES)}); give one of "
            "these."
        )
    if isinstance(spec, Path) or "/" in spec or os.sep in spec:
        raise RicnetError(
            f"{path} does not exist; give a folder of images, an .npz file, a table, or one of {', '.join(SOURCES)}."
        )
    return _read_named(spec, data_folder(data_dir), resolution)  # says which names there are


def _read_named(name: str, folder: Path, resolution: int | None) -> Parts:
    source = find_source(name)
    train, test = source.read(_locate(name, source, folder), resolution)
    notes = _namesake_note(name, folder / source.folder)
    return Parts(train, source.class_names, test, augmentation=source.augmentation, notes=notes)


def _namesake_note(name: str, home: Path) -> tuple[str, ...]:
    """A folder called like a data set, unless that is where the data set lies."""
    if not Path(name).is_dir() or Path(name).resolve() == home.resolve():
        return ()
    return (f"{name} is the data set of that name, not the folder {name} that is here; write ./{name} for the folder.",)


def _locate(name: str, source: Source, folder: Path) -> list[Path]:
    found = source.find(folder)
    missing = [file.name for file, path in zip(source.files, found, strict=True) if path is None]
    if missing:
        raise RicnetError(
            f"{name} is not here yet: run `ric data get {name}`, "
            f"or put {' and '.join(missing)} into {folder / source.folder}."
        )
    return [path for path in found if path is not None]
