"""The one door to data: a name, a folder of images or an .npz file becomes a Dataset."""

import difflib
import os
from pathlib import Path

import pooch

from ricnet.data.arrays import read_npz
from ricnet.data.dataset import Dataset
from ricnet.data.folders import read_folder
from ricnet.data.noise import flip_labels
from ricnet.data.registry import SOURCES, Source
from ricnet.data.splits import Parts
from ricnet.errors import RicnetError


def load(
    spec: str | Path,
    *,
    data_dir: str | Path | None = None,
    resolution: int | None = None,
    val_fraction: float = 0.1,
    label_noise: float = 0.0,
) -> Dataset:
    """Nothing is fetched from the network; files that are missing are named.

    A registered name wins over a folder of that name: write ./NAME for the folder.
    """
    if not 0 < val_fraction < 1:
        raise RicnetError(f"val_fraction is {val_fraction}; it must lie between 0 and 1.")
    if resolution is not None and resolution < 1:
        raise RicnetError(f"resolution is {resolution}; it must be a number of pixels above 0.")
    dataset = _read(spec, data_dir, resolution).dataset(str(spec), val_fraction)
    if resolution is not None and dataset.input_shape[1:] != (resolution, resolution):
        raise RicnetError(
            f"{spec} has inputs of shape {dataset.input_shape}, which a resolution of {resolution} cannot change; "
            "leave the resolution out (it is for folders of images and imagewoof)."
        )
    return flip_labels(dataset, label_noise)


def whole_path(spec: str) -> str:
    """A name as it is; a path whole, so that a run can be resumed and evaluated from anywhere."""
    path = Path(spec).expanduser()
    return str(path.resolve()) if spec not in SOURCES and path.exists() else spec


def data_folder(data_dir: str | Path | None = None) -> Path:
    """The argument, else RICNET_DATA, else the user's cache folder."""
    return Path(data_dir or os.environ.get("RICNET_DATA") or pooch.os_cache("ricnet")).expanduser()


def find_source(name: str) -> Source:
    if name not in SOURCES:
        close = difflib.get_close_matches(name, SOURCES, n=1)
        meant = f" (did you mean {close[0]}?)" if close else ""
        raise RicnetError(
            f"No data set is called {name!r}{meant}; known are {', '.join(SOURCES)}, "
            "and a folder of images or an .npz file can be given by its path."
        )
    return SOURCES[name]


def _read(spec: str | Path, data_dir: str | Path | None, resolution: int | None) -> Parts:
    if spec in SOURCES or spec == "":  # an empty text is an unset variable, not the current folder
        return _read_named(str(spec), data_folder(data_dir), resolution)
    path = Path(spec).expanduser()
    if path.is_dir():
        return read_folder(path, resolution)
    if path.suffix.lower() == ".npz":
        return read_npz(path)
    if path.exists():
        raise RicnetError(f"{path} is neither a folder of images nor an .npz file; give one of these or a name.")
    if isinstance(spec, Path) or "/" in spec or os.sep in spec:
        raise RicnetError(
            f"{path} does not exist; give a folder of images, an .npz file, or one of {', '.join(SOURCES)}."
        )
    return _read_named(spec, data_folder(data_dir), resolution)  # says which names there are


def _read_named(name: str, folder: Path, resolution: int | None) -> Parts:
    source = find_source(name)
    train, test = source.read(_locate(name, source, folder), resolution)
    return Parts(train, source.class_names, test, augmentation=source.augmentation)


def _locate(name: str, source: Source, folder: Path) -> list[Path]:
    found = source.find(folder)
    missing = [file.name for file, path in zip(source.files, found, strict=True) if path is None]
    if missing:
        raise RicnetError(
            f"{name} is not here yet: run `ric data get {name}`, "
            f"or put {' and '.join(missing)} into {folder / source.folder}."
        )
    return [path for path in found if path is not None]
