"""`load` makes a `Dataset` of a registered name, a folder of images or texts, an .npz file or a table. Files of
registered data sets are listed, downloaded from mirrors, checked and unpacked."""

import os
import tarfile
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from filelock import FileLock

from ricnet.data.arrays import read_npz
from ricnet.data.columns import Columns
from ricnet.data.dataset import PHOTOGRAPH_SIDE, Augmentation, Dataset, GivenSplits, Split, altered, class_counts
from ricnet.data.images import holds_texts, read_folder, stored_side
from ricnet.data.labels import TableTask, labelled_table, read_text_folder
from ricnet.data.tables import Table, frame_table, read_table
from ricnet.data.texts import Tokenizer
from ricnet.errors import RicnetError, require, setting, what_else
from ricnet.io import TABLES, frame_name, is_frame, is_table, split_target, user_path, with_target

if TYPE_CHECKING:
    from pandas import DataFrame

Reader = TypeVar("Reader", bound=Callable[..., Dataset | tuple[Split, Split]])
Progress = Callable[[str, int, int | None], None]
"""Called with the name of a file, the bytes so far, and the total (None if the host does not say)."""
_CHUNK = 1 << 18  # bytes read at once
_TIMEOUT_S = 30
MOST_OVERSIZE = 4.0
"""Largest side of stored photographs, as a multiple of the resolution."""


@dataclass(frozen=True)
class PublishedFile:
    name: str
    md5: str
    urls: tuple[str, ...]
    forms: tuple[str, ...]
    """Names of the file or of its unpacked folder; the first one found is read."""

    def find(self, places: tuple[Path, ...]) -> Path | None:
        candidates = (place / form for form in self.forms for place in places)
        return next((path for path in candidates if path.exists()), None)


@dataclass(frozen=True)
class Source:
    """A data set known by name."""

    title: str
    class_names: tuple[str, ...]
    read: Callable[..., Dataset | tuple[Split, Split]]
    augmentation: Augmentation
    files: tuple[PublishedFile, ...]
    folder: str
    """Subfolder of the data folder for the files; they are also found in the data folder itself."""
    resizable: bool
    resolution: int | None = None
    native: int | None = None
    """Shorter side of its photographs in pixels."""

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
    resolution: int | None = None,
    native: int | None = None,
) -> Callable[[Reader], Reader]:
    """Decorator that registers a data set by name, for `train`, `load`, studies and every command.

    The function returns a `Dataset`, or training and test rows as two `Split`s of the classes named here; validation
    rows are then cut from the training rows. It is called with the paths of `files`, which `ric data get` fetches into
    `folder` of the data folder. If the set is `resizable`, the function also gets the `resolution` that the user asks
    for, or None. The argument `resolution` is the default side; --oversize needs it. `native` is the shorter side of
    the photographs in pixels, up to which `fast` stores them larger than the network reads them.
    """

    def register(read: Reader) -> Reader:
        home = (name if folder is None else folder) if files else ""
        names, own = tuple(class_names), tuple(files)
        DATASETS[name] = Source(title or name, names, read, augmentation, own, home, resizable, resolution, native)
        return read

    return register


def is_resizable(spec: str | Path) -> bool:
    """Whether its images can be read at any resolution, as those of a folder."""
    source = DATASETS.get(str(spec))
    return source.resizable if source is not None else user_path(split_target(str(spec))[0]).is_dir()


def load(
    spec: "str | Path | DataFrame",
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
    test: "str | Path | DataFrame | None" = None,
    test_fraction: float | None = None,
    calibration_fraction: float = 0.0,
    oversize: float | None = 1.0,
    final_fit: bool = False,
) -> Dataset:
    """Read a data set from local files; nothing is downloaded.

    spec: a registered name, else a path (write ./NAME for a folder that is called like a data set), or a data frame.
    target, text: for tables, the column of the classes (my.csv#label does the same), and a column of texts to learn
        from instead of all others, by the `tokenizer` of a pretrained checkpoint.
    columns, class_names: those of a model that is evaluated on a table; by default they are learned from it.
    undivided: for data that is only evaluated: given parts are kept, and without a test part all rows are test rows.
        There may be a single class.
    test, test_fraction: a table of test rows, or the share of rows to hold out if there is no test part (None: a
        quarter, 0: none).
    calibration_fraction: the share of training rows to hold out for guarantees.
    oversize: side of stored photographs as a multiple of the resolution. None: 1.25, or less if the photographs
        have fewer pixels; no effect on other data.
    final_fit: whether the validation rows are training rows too.
    """
    require(0 < val_fraction < 1, "val_fraction", val_fraction, "between 0 and 1")
    require(resolution is None or resolution >= 1, "resolution", resolution, "at least 1 pixel")
    within = oversize is None or 1 <= oversize <= MOST_OVERSIZE
    require(within, "oversize", oversize, f"from 1 to {MOST_OVERSIZE:g}")
    require(test_fraction is None or 0 <= test_fraction < 1, "test_fraction", test_fraction, "from 0 to below 1")
    if test is not None and test_fraction is not None:
        raise RicnetError(f"{setting('test')} and {setting('test_fraction')} exclude each other; leave one out.")
    parts: GivenSplits | Dataset
    path, target = ("", target) if is_frame(spec) else split_target(with_target(str(spec), target))
    if is_frame(spec) or is_table(path):
        task = TableTask(target, text, tokenizer, columns, class_names)
        table = frame_table(spec) if is_frame(spec) else read_table(user_path(path), task.check)
        name, parts = labelled_table(table, task, None if test is None else _read_test(test))
    else:
        for each, value in (("test", test), ("text", text)):
            if value is not None:
                raise RicnetError(f"{setting(each, value)} is for tables, and {path} is not a table; leave it out.")
        name, parts = str(spec), _read(spec, data_folder(data_dir), resolution, oversize, columns, tokenizer)
    if isinstance(parts, Dataset) and test_fraction is not None:
        raise RicnetError(f"{name} has a test part of its own; leave {setting('test_fraction')} out.")
    if isinstance(parts, Dataset) and calibration_fraction:
        raise RicnetError(f"{name} has splits of its own; leave {setting('calibration_fraction')} out.")
    fractions = (val_fraction, undivided, test_fraction, calibration_fraction)
    dataset = parts if isinstance(parts, Dataset) else parts.dataset(name, *fractions)
    if is_frame(spec):
        dataset = replace(dataset, name=frame_name(target or ""))
    if oversize not in (None, dataset.oversize):
        raise RicnetError(
            f"{setting('oversize', oversize)} is for photographs (colour images of more than {PHOTOGRAPH_SIDE} pixels "
            f"a side), which {name} does not hold; leave it out."
        )
    if resolution is not None and dataset.view_shape[1:] != (resolution, resolution):
        raise RicnetError(
            f"{name} has inputs of shape {dataset.input_shape}, which a resolution of {resolution} cannot change; "
            "leave the resolution out (it is for folders of images and imagewoof)."
        )
    return altered(dataset, train_fraction, label_noise, final_fit)


def _read_test(test: "str | Path | DataFrame") -> Table:
    if is_frame(test):
        return frame_table(test, "the test data frame")
    if not is_table(test):
        raise RicnetError(f"{setting('test', test)} is not a table ({', '.join(TABLES)}); give one.")
    return read_table(user_path(test))


def _read(
    spec: str | Path,
    folder: Path,
    resolution: int | None,
    oversize: float | None,
    columns: Columns | None,
    tokenizer: Tokenizer | None,
) -> GivenSplits | Dataset:
    if spec in DATASETS or spec == "":  # an empty name is an unset shell variable, not the current folder
        return _read_named(str(spec), folder, resolution, oversize)
    path = user_path(spec)
    if path.is_dir() and holds_texts(path):
        return read_text_folder(path, columns, tokenizer)
    if path.is_dir():
        return read_folder(path, resolution, folder / "packed", oversize)
    if path.suffix.lower() == ".npz":
        return read_npz(path, folder / "packed", columns)
    if path.exists() or isinstance(spec, Path) or "/" in spec or os.sep in spec:
        raise RicnetError(
            f"{path} {'is not supported' if path.exists() else 'does not exist'}; give a folder of images or texts, "
            f"an .npz file, a table ({', '.join(TABLES)}), or one of {', '.join(DATASETS)}."
        )
    return _read_named(spec, folder, resolution, oversize)  # its error lists the names


def _read_named(name: str, folder: Path, resolution: int | None, oversize: float | None) -> GivenSplits | Dataset:
    source = find_source(name)
    found = source.find(folder)
    missing = [file.name for file, path in zip(source.files, found, strict=True) if path is None]
    if missing:
        raise RicnetError(
            f"{name} is not here yet: run `ric data get {name}`, "
            f"or put {' and '.join(missing)} into {folder / source.folder}."
        )
    side, scale = resolution or source.resolution, 1.0
    if source.resizable and side is not None and source.augmentation.crop_area < 1:
        resolution, scale = stored_side(side, source.native or side, oversize)
    read = source.read(*found, **({"resolution": resolution} if source.resizable else {}))
    notes: tuple[str, ...] = ()
    if Path(name).is_dir() and Path(name).resolve() != (folder / source.folder).resolve():
        notes = (f"{name} is the registered data set, not the folder {name} here; write ./{name} for the folder.",)
    if isinstance(read, Dataset):
        return replace(read, name=name, notes=(*notes, *read.notes), oversize=scale)
    train, test = read
    return GivenSplits(train, source.class_names, test, None, source.augmentation, notes, oversize=scale)


def find_source(name: str) -> Source:
    if name not in DATASETS:
        raise RicnetError(f"No data set is called {name!r}, nor a file or folder; {what_else(name, DATASETS)}")
    return DATASETS[name]


def whole_path(spec: str) -> str:
    """The absolute path, so that a run can be resumed and evaluated from any folder; a registered name is unchanged."""
    name, target = split_target(spec)
    path = user_path(name)
    return with_target(str(path.resolve()), target) if name not in DATASETS and path.exists() else spec


def data_folder(data_dir: str | Path | None = None) -> Path:
    """The argument, else RICNET_DATA, else the user's cache folder."""
    import pooch

    return user_path(data_dir or os.environ.get("RICNET_DATA") or pooch.os_cache("ricnet"))


# Files of the registered data sets: list, fetch, check


@dataclass(frozen=True)
class FileState:
    name: str
    path: Path | None
    """The file or its unpacked folder; None if neither is found."""
    checksum: str
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
class Check(Listing):
    input_shape: tuple[int, ...]
    class_counts: dict[str, dict[str, int]]
    """Rows of each class, by split."""
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
    files, dataset = _states(source, folder, compare=True), load(name, data_dir=folder)
    splits = {"train": dataset.train, "val": dataset.val, "test": dataset.test}
    counts = {part: class_counts(split.labels, dataset.class_names) for part, split in splits.items()}
    return Check(name, source.title, files, dataset.input_shape, counts, dataset.notes)


def _states(source: Source, folder: Path, compare: bool = False) -> tuple[FileState, ...]:
    found = zip(source.files, source.find(folder), strict=True)
    return tuple(
        FileState(file.name, path, _checksum(file, path) if compare else "not checked") for file, path in found
    )


def _checksum(file: PublishedFile, path: Path | None) -> str:
    import pooch

    if path is None:
        return "missing"
    if path.is_dir() or path.name != file.name:
        return "unpacked" if path.is_dir() else "another form"
    return "ok" if pooch.file_hash(str(path), alg="md5") == file.md5 else "differs"


def fetch(file: PublishedFile, folder: Path, progress: Progress | None = None) -> Path:
    """Try each mirror in turn. A broken transfer is resumed, also by another process or from another mirror. A second
    process that wants the same file waits for the first."""
    import pooch

    reasons = []
    download = partial(_download, folder / f".{file.name}.part", file.name, progress)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / f".{file.name}.lock"):
            for url in file.urls:
                try:
                    return Path(
                        pooch.retrieve(url, f"md5:{file.md5}", fname=file.name, path=folder, downloader=download)
                    )
                except (OSError, HTTPException) as error:
                    reasons.append(f"{urlsplit(url).hostname}: {getattr(error, 'reason', error)}")
                except ValueError:  # pooch found another checksum and removed the file
                    reasons.append(f"{urlsplit(url).hostname}: the file that came has a wrong checksum")
    except OSError as error:
        raise RicnetError(
            f"{folder} cannot be written ({error}); choose another with {setting('data_dir')} or RICNET_DATA."
        ) from error
    raise RicnetError(
        f"{file.name} could not be fetched ({'; '.join(reasons)}); "
        f"get it by hand, for instance from {file.urls[0]}, and put it into {folder}."
    )


def _download(part: Path, name: str, progress: Progress | None, url: str, output_file: Any, _pooch: Any) -> None:
    """A downloader for pooch that keeps a partial file; pooch checks the checksum and moves the file into place."""
    try:
        _transfer(url, part, name, progress)
    except urllib.error.HTTPError as error:
        if error.code != HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise
        part.unlink()  # it has more bytes than the published file, so it is of another one
        _transfer(url, part, name, progress)
    part.replace(output_file)


def _transfer(url: str, part: Path, name: str, progress: Progress | None) -> None:
    done = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "ricnet"} | ({"Range": f"bytes={done}-"} if done else {})
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
        if response.status != HTTPStatus.PARTIAL_CONTENT:
            done = 0
        length = response.headers.get("Content-Length")
        total = done + int(length) if length else None
        with part.open("ab" if done else "wb") as sink:
            while chunk := response.read(_CHUNK):
                sink.write(chunk)
                done += len(chunk)
                if progress:
                    progress(name, done, total)
    if total is not None and done < total:
        raise ConnectionError(f"the connection ended after {done} of {total} bytes")


# Archives


def unpack(archive: Path, folder: str, md5: str) -> Path:
    """Unpack `folder` of an archive beside it. Only the published archive is unpacked: others may hold links, or unpack
    to any size. The folder is complete or absent; an interrupted attempt leaves only a hidden temporary folder."""
    import pooch

    target = archive.parent / folder
    if target.is_dir():
        return target
    try:
        if pooch.file_hash(str(archive), alg="md5") != md5:
            raise RicnetError(
                f"{archive} is not the published archive (its MD5 is not {md5}), so it was not unpacked; get it again "
                f"with ric data get, or unpack {folder} by hand."
            )
        with tempfile.TemporaryDirectory(prefix=".unpacking-", dir=archive.parent) as beside:
            with tarfile.open(archive) as files:
                files.extractall(beside, filter="data")
            try:
                Path(beside, folder).rename(target)
            except OSError:
                if not target.is_dir():  # else another process was faster
                    raise
    except (OSError, tarfile.TarError) as error:
        raise RicnetError(f"{archive} could not be unpacked ({error}); free space, or unpack it by hand.") from error
    return target
