"""A folder of images as data: one subfolder a class, at the top or below train/, val/ and test/."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median

import torch
from jaxtyping import UInt8
from torch import Tensor

from ricnet.data.dataset import PHOTOGRAPH_SIDE, PHOTOGRAPHS, Augmentation, Dataset, Parts, Split
from ricnet.data.images import find_images, image_form, in_threads, is_image, read_images, refuse_haystack
from ricnet.data.memory import Damaged, fits_memory, pack_rows
from ricnet.errors import RicnetError, listed

LARGEST, SMALLEST = 128, 8
"""Bounds of the resolution that is chosen from the data."""
UNREAD = frozenset({".heic", ".heif", ".avif", ".jp2", ".svg", ".dng", ".cr2", ".cr3", ".nef", ".arw"})
_VAL_NAMES = ("val", "valid", "validation")


@dataclass(frozen=True)
class _Tree:
    """Which files belong to which class of which part."""

    parts: dict[str, dict[str, list[Path]]]
    notes: tuple[str, ...] = ()

    @property
    def class_names(self) -> tuple[str, ...]:
        return tuple(sorted(self.parts["train"]))

    @property
    def files(self) -> list[Path]:
        return [path for classes in self.parts.values() for paths in classes.values() for path in paths]


def read_folder(folder: Path, resolution: int | None, cache: Path) -> Parts:
    """All images in memory, or in a file in `cache` where they do not fit."""
    try:
        tree = _survey(folder)
    except OSError as error:
        raise RicnetError(f"{folder} cannot be searched ({error}); make it readable.") from error
    _check_classes(tree, folder)
    shape, broken = _choose_shape(tree.files, resolution, folder)
    if not fits_memory(len(tree.files) * math.prod(shape)):
        return _read_to_disk(tree, folder, shape, broken, cache)
    splits = {}
    for part, classes in tree.parts.items():
        splits[part] = read_split(_readable(classes, broken), tree.class_names, shape, broken)
        _refuse_empty(splits[part], part, folder, broken)
    notes = (*tree.notes, *([_damage(broken, folder)] if broken else []))
    return Parts(splits["train"], tree.class_names, splits.get("test"), splits.get("val"), _augmentation(shape), notes)


def _augmentation(shape: tuple[int, int, int]) -> Augmentation:
    """Small or grey images may be letters or drawings, in which left and right matter."""
    channels, side, _ = shape
    is_photograph = channels == 3 and side > PHOTOGRAPH_SIDE
    return PHOTOGRAPHS if is_photograph else Augmentation(crop_padding=side // 8)


def _read_to_disk(
    tree: _Tree, folder: Path, shape: tuple[int, int, int], broken: dict[Path, str], cache: Path
) -> Parts:
    """Splits of numbers, that is of places in one list of files, which are read when it is known which goes where."""
    files: list[Path] = []
    splits = {}
    for part, classes in tree.parts.items():
        readable = _readable(classes, broken)
        labels = [tree.class_names.index(name) for name, paths in readable.items() for _ in paths]
        numbers = torch.arange(len(files), len(files) + len(labels))
        splits[part] = Split(numbers, torch.tensor(labels, dtype=torch.int64))
        _refuse_empty(splits[part], part, folder, broken)
        files += [path for paths in readable.values() for path in paths]
    size = len(files) * math.prod(shape) / 1e9
    place = f"{len(files):,} images, {size:.1f} GB, are read from {cache}: they do not fit into memory."
    notes = (*tree.notes, place, *([_damage(broken, folder)] if broken else []))
    last = partial(_fill, files, tree, folder, shape, broken, cache)
    parts = (splits["train"], tree.class_names, splits.get("test"), splits.get("val"))
    return Parts(*parts, _augmentation(shape), notes, last)


def _readable(classes: dict[str, list[Path]], broken: dict[Path, str]) -> dict[str, list[Path]]:
    return {name: [path for path in paths if path not in broken] for name, paths in classes.items()}


def _refuse_empty(split: Split, part: str, folder: Path, broken: dict[Path, str]) -> None:
    if not len(split):
        raise RicnetError(f"{folder / part} holds no image that can be read; {_damage(broken, folder)}.")


def _fill(
    files: list[Path],
    tree: _Tree,
    folder: Path,
    shape: tuple[int, int, int],
    broken: dict[Path, str],
    cache: Path,
    numbered: Dataset,
) -> Dataset | Parts:
    def read(rows: list[int]) -> tuple[UInt8[Tensor, "n c h w"], dict[int, str]]:
        images, damaged = read_images([files[row] for row in rows], shape)
        return images, {row: damaged[files[row]] for row in rows if files[row] in damaged}

    what = [(str(path), (about := path.stat()).st_size, about.st_mtime_ns) for path in files]
    try:
        return pack_rows(numbered, read, shape, torch.uint8, what, cache)
    except Damaged as damaged:  # a header tells nothing of the body; in memory, too, such files are in no split
        unread = {files[row]: text for row, text in damaged.rows.items()}
        return _read_to_disk(tree, folder, shape, broken | unread, cache)


def read_split(
    classes: dict[str, list[Path]],
    class_names: Sequence[str],
    shape: tuple[int, int, int],
    broken: dict[Path, str],
) -> Split:
    """Images and labels; files that cannot be read are added to `broken`."""
    labelled = {path: class_names.index(name) for name, paths in classes.items() for path in paths}
    images, damaged = read_images(list(labelled), shape)
    broken |= damaged
    labels = [label for path, label in labelled.items() if path not in damaged]
    return Split(images, torch.tensor(labels, dtype=torch.int64))


def class_folders(folder: Path, seen: Counter[str] | None = None) -> dict[str, list[Path]]:
    """The images of each subfolder, by its name; `seen` counts all there is, by suffix."""
    seen = Counter() if seen is None else seen
    seen.update(path.suffix.lower() for path in folder.iterdir())
    classes = {}
    for child in _subfolders(folder):
        classes[child.name] = find_images(child, seen)
        refuse_haystack(seen, folder)
    return classes


def _subfolders(folder: Path) -> list[Path]:
    return sorted(child for child in folder.iterdir() if child.is_dir() and not child.name.startswith("."))


def _survey(folder: Path) -> _Tree:
    if not folder.is_dir():
        raise RicnetError(f"{folder} is no folder; give the path of a folder of images.")
    children = [child.name for child in _subfolders(folder)]
    _refuse_loose_images(folder, "one subfolder a class")
    val = next((name for name in _VAL_NAMES if name in children), None)
    seen: Counter[str] = Counter()
    if "train" in children and (not _loose(folder / "train") or set(children) <= {"train", "test", *_VAL_NAMES}):
        tree = _survey_parts(folder, val, "test" in children, seen)
    else:
        tree = _with_empty_noted({"train": class_folders(folder, seen)}, ())
    unread = _unread(seen)
    if not tree.files:
        raise RicnetError(f"{folder} holds no images{unread}; put them into one subfolder a class.")
    return replace(tree, notes=(*tree.notes, f"Passed over were files{unread}.")) if unread else tree


def _survey_parts(folder: Path, val: str | None, has_test: bool, seen: Counter[str]) -> _Tree:
    places = {"train": "train"} | ({"test": "test"} if has_test else {}) | ({"val": val} if val else {})
    notes = []
    if val and not has_test:
        places = {"train": "train", "test": val}
        notes.append(f"{val}/ is the test set; the validation rows are cut from train/.")
    ignored = [f"{child.name}/" for child in _subfolders(folder) if child.name not in places.values()]
    if ignored:
        notes.append(f"Beside train/, these folders were not used: {listed(ignored)}.")
    for place in places.values():
        _refuse_loose_images(folder / place, f"one subfolder a class below {place}/")
    seen.update(path.suffix.lower() for path in folder.iterdir())
    parts = {part: class_folders(folder / place, seen) for part, place in places.items()}
    return _with_empty_noted(parts, tuple(notes))


def _unread(seen: Counter[str]) -> str:
    """Photographs in forms that need conversion, of which telephones make many, must not vanish in silence."""
    counts = [f"{seen[suffix]} {suffix}" for suffix in sorted(UNREAD) if seen[suffix]]
    return f" of a kind that is not read ({listed(counts)}: convert to .jpg or .png)" if counts else ""


def _with_empty_noted(parts: dict[str, dict[str, list[Path]]], notes: tuple[str, ...]) -> _Tree:
    empty = sorted({name for classes in parts.values() for name, paths in classes.items() if not paths})
    if empty:
        notes = (*notes, f"Folders without images were passed over: {listed(empty)}.")
    full = {part: {name: paths for name, paths in classes.items() if paths} for part, classes in parts.items()}
    return _Tree(full, notes)


def _loose(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.iterdir()) if is_image(path)]


def _refuse_loose_images(folder: Path, wanted: str) -> None:
    loose = _loose(folder)
    if loose:
        raise RicnetError(
            f"{folder} has {len(loose)} images outside of class folders, such as {loose[0].name}; "
            f"the class of an image is the name of its folder, so arrange them as {wanted}."
        )


def _check_classes(tree: _Tree, folder: Path) -> None:
    for part, classes in tree.parts.items():
        if not classes:
            raise RicnetError(f"{folder}: the {part} part holds no images; put them into one subfolder a class.")
        unknown = sorted(set(classes) - set(tree.class_names))
        if unknown:
            raise RicnetError(
                f"{folder}: {listed(unknown)} occurs in the {part} part but not in train/; "
                "add training images of it or remove it."
            )


def _choose_shape(
    files: list[Path], resolution: int | None, folder: Path
) -> tuple[tuple[int, int, int], dict[Path, str]]:
    """Channels and side that suit the readable files, and the files whose header cannot be read."""
    broken: dict[Path, str] = {}

    def form(path: Path) -> tuple[int, int, bool] | None:
        try:
            return image_form(path)
        except RicnetError as error:
            broken[path] = str(error)
            return None

    forms = [form for form in in_threads(form, files) if form]
    if not forms:
        raise RicnetError(f"{folder} holds no image that can be read; {_damage(broken, folder)}.")
    channels = 1 if all(grey for _, _, grey in forms) else 3
    side = resolution or choose_side([(width, height) for width, height, _ in forms])
    return (channels, side, side), broken


def choose_side(sizes: list[tuple[int, int]]) -> int:
    """The median shorter side within bounds; equal squares keep their size, so that no pixel is resampled."""
    width, height = sizes[0]
    if width == height <= LARGEST and len(set(sizes)) == 1:
        return width
    return min(max(round(median(min(size) for size in sizes)), SMALLEST), LARGEST)


def _damage(broken: dict[Path, str], folder: Path) -> str:
    names = [str(path.relative_to(folder)) for path in sorted(broken)]
    files = "file" if len(names) == 1 else "files"
    return f"{len(names)} {files} could not be read; skipped: {listed(names)}"
