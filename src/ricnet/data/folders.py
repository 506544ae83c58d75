"""A folder of images as data: one subfolder a class, at the top or below train/, val/ and test/."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
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
VAL_NAMES = ("val", "valid", "validation")

Classes = dict[str, list[Path]]
"""The images of each class, by its name."""


@dataclass(frozen=True)
class Tree:
    """Which files of a folder belong to which class of which part."""

    folder: Path
    parts: dict[str, Classes]
    notes: tuple[str, ...]

    @property
    def class_names(self) -> tuple[str, ...]:
        return tuple(sorted(self.parts["train"]))

    @property
    def files(self) -> list[Path]:
        return [path for classes in self.parts.values() for paths in classes.values() for path in paths]


def read_folder(folder: Path, resolution: int | None, cache: Path) -> Parts:
    """All images in memory, or in a file in `cache` where they do not fit."""
    try:
        tree = survey(folder)
    except OSError as error:
        raise RicnetError(f"{folder} cannot be searched ({error}); make it readable.") from error
    shape, broken = _choose_shape(tree, resolution)
    return _read_tree(tree, shape, broken, cache)


def _read_tree(tree: Tree, shape: tuple[int, int, int], broken: dict[Path, str], cache: Path) -> Parts:
    """Where images do not fit into memory, the inputs are their places in one list of files, which are read when it is
    known which goes where."""
    on_disk = not fits_memory(len(tree.files) * math.prod(shape))
    splits, files = {}, list[Path]()
    for part, classes in tree.parts.items():
        readable = {name: [path for path in paths if path not in broken] for name, paths in classes.items()}
        if on_disk:
            labels = label_files(readable, tree.class_names)
            places = torch.arange(len(files), len(files) + len(labels))
            splits[part] = Split(places, torch.tensor(list(labels.values()), dtype=torch.int64))
            files += labels
        else:
            splits[part], damaged = read_labelled(readable, tree.class_names, shape)
            broken = broken | damaged
        if not len(splits[part]):
            raise RicnetError(f"{tree.folder / part} holds no image that can be read; {_damage(broken, tree.folder)}.")
    notes = list(tree.notes)
    if on_disk:
        size = len(files) * math.prod(shape) / 1e9
        notes.append(f"{len(files):,} images, {size:.1f} GB, are read from {cache}: they do not fit into memory.")
    if broken:
        notes.append(_damage(broken, tree.folder))
    channels, side, _ = shape
    # Small or grey images may be letters or drawings, in which left and right matter.
    photographs = channels == 3 and side > PHOTOGRAPH_SIDE
    augmentation = PHOTOGRAPHS if photographs else Augmentation(crop_padding=side // 8)
    fill = partial(_fill, tree, shape, broken, cache, files) if on_disk else None
    given = splits["train"], tree.class_names, splits.get("test"), splits.get("val")
    return Parts(*given, augmentation, tuple(notes), fill)


def _fill(
    tree: Tree,
    shape: tuple[int, int, int],
    broken: dict[Path, str],
    cache: Path,
    files: list[Path],
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
        return _read_tree(tree, shape, broken | unread, cache)


def read_labelled(
    classes: Classes, class_names: Sequence[str], shape: tuple[int, int, int]
) -> tuple[Split, dict[Path, str]]:
    """Images and labels, and what is wrong with the files that cannot be read."""
    labels = label_files(classes, class_names)
    images, damaged = read_images(list(labels), shape)
    kept = [label for path, label in labels.items() if path not in damaged]
    return Split(images, torch.tensor(kept, dtype=torch.int64)), damaged


def label_files(classes: Classes, class_names: Sequence[str]) -> dict[Path, int]:
    number = {name: i for i, name in enumerate(class_names)}
    return {path: number[name] for name, paths in classes.items() for path in paths}


# Which files there are


def survey(folder: Path) -> Tree:
    if not folder.is_dir():
        raise RicnetError(f"{folder} is no folder; give the path of a folder of images.")
    children = [child.name for child in _subfolders(folder)]
    _refuse_loose_images(folder, "one subfolder a class")
    seen: Counter[str] = Counter()
    notes: list[str] = []
    if "train" in children and (not _loose(folder / "train") or set(children) <= {"train", "test", *VAL_NAMES}):
        parts = _survey_parts(folder, children, seen, notes)
    else:
        parts = {"train": class_folders(folder, seen)}
    if empty := sorted({name for classes in parts.values() for name, paths in classes.items() if not paths}):
        notes.append(f"Folders without images were passed over: {listed(empty)}.")
    # Photographs in forms that need conversion, of which telephones make many, must not vanish in silence.
    counts = [f"{seen[suffix]} {suffix}" for suffix in sorted(UNREAD) if seen[suffix]]
    unread = f" of a kind that is not read ({listed(counts)}: convert to .jpg or .png)" if counts else ""
    if unread:
        notes.append(f"Passed over were files{unread}.")
    full = {part: {name: paths for name, paths in classes.items() if paths} for part, classes in parts.items()}
    tree = Tree(folder, full, tuple(notes))
    if not tree.files:
        raise RicnetError(f"{folder} holds no images{unread}; put them into one subfolder a class.")
    _check_classes(tree)
    return tree


def _survey_parts(folder: Path, children: list[str], seen: Counter[str], notes: list[str]) -> dict[str, Classes]:
    places: dict[str, str] = {part: part for part in ("train", "test") if part in children}
    if val := next((name for name in VAL_NAMES if name in children), None):
        places["val" if "test" in places else "test"] = val
        if "val" not in places:
            notes.append(f"{val}/ is the test set; the validation rows are cut from train/.")
    if ignored := [f"{name}/" for name in children if name not in places.values()]:
        notes.append(f"Beside train/, these folders were not used: {listed(ignored)}.")
    for place in places.values():
        _refuse_loose_images(folder / place, f"one subfolder a class below {place}/")
    seen.update(path.suffix.lower() for path in folder.iterdir())
    return {part: class_folders(folder / place, seen) for part, place in places.items()}


def class_folders(folder: Path, seen: Counter[str] | None = None) -> Classes:
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


def _loose(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.iterdir()) if is_image(path)]


def _refuse_loose_images(folder: Path, wanted: str) -> None:
    loose = _loose(folder)
    if loose:
        raise RicnetError(
            f"{folder} has {len(loose)} images outside of class folders, such as {loose[0].name}; "
            f"the class of an image is the name of its folder, so arrange them as {wanted}."
        )


def _check_classes(tree: Tree) -> None:
    for part, classes in tree.parts.items():
        if not classes:
            raise RicnetError(f"{tree.folder}: the {part} part holds no images; put them into one subfolder a class.")
        unknown = sorted(set(classes) - set(tree.class_names))
        if unknown:
            raise RicnetError(
                f"{tree.folder}: {listed(unknown)} occurs in the {part} part but not in train/; "
                "add training images of it or remove it."
            )


# Their shape


def _choose_shape(tree: Tree, resolution: int | None) -> tuple[tuple[int, int, int], dict[Path, str]]:
    """Channels and side that suit the readable files, and the files whose header cannot be read."""
    broken: dict[Path, str] = {}

    def form(path: Path) -> tuple[int, int, bool] | None:
        try:
            return image_form(path)
        except RicnetError as error:
            broken[path] = str(error)
            return None

    forms = [form for form in in_threads(form, tree.files) if form]
    if not forms:
        raise RicnetError(f"{tree.folder} holds no image that can be read; {_damage(broken, tree.folder)}.")
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
