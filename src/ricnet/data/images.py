"""Image files as tensors of one shape, and folders of images as data: one subfolder for each class, at the top or below
train/, val/ and test/. Folders of texts are searched in the same way."""

import io
import math
import os
import re
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import Num, UInt8
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from ricnet.data.batches import Damaged, pack_rows
from ricnet.data.dataset import PHOTOGRAPH_SIDE, PHOTOGRAPHS, Augmentation, Dataset, GivenSplits, Split
from ricnet.errors import RicnetError, counted, listed
from ricnet.io import opened
from ricnet.machine import fits_memory

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
"""Formats that Pillow may read, for any file name; some of its other formats start programs."""
UNSUPPORTED = frozenset({".heic", ".heif", ".avif", ".jp2", ".svg", ".dng", ".cr2", ".cr3", ".nef", ".arw"})
VAL_NAMES = ("val", "valid", "validation")
OVERSIZE = 1.25  # default side of stored photographs, as a multiple of the resolution
MAX_SIDE, MIN_SIDE = 128, 8  # bounds of the resolution chosen from the data, in pixels
TOO_LARGE = "is too large"
MOST_PIXELS = 178_000_000
"""Maximum pixels of an image: a file of a few kilobytes can claim any number. Pillow's own limit is a little higher."""
LARGE_PIXELS = 16_000_000
"""Images of more pixels are decoded one at a time: decoding takes up to 16 bytes a pixel. A JPEG may be decoded at a
fraction of its size; half of its stored pixels count at least, because a progressive one is first decoded in full, at
up to 8 bytes a pixel."""
BLOCK = 4096
"""Bytes that Pillow reads and decodes at once. Decoding can be interrupted only between two reads, and a larger block
of a JPEG may hold hundreds of scans of the whole image."""
MOST_OTHERS, OTHERS_PER_IMAGE = 100_000, 100
"""A search gives up after this many other files and folders, or this many for each image: searching a home folder by
mistake would take minutes."""
_TAGS = re.compile(r"PIL\.TiffImagePlugin")  # the module of Pillow that reads camera tags of all formats
_ONE_AT_A_TIME = threading.Lock()
_WIDE = ("I", "I;16", "I;16L", "I;16B", "I;16N")
_GREY = ("1", "L", "LA", "La", "F", *_WIDE)
Classes = dict[str, list[Path]]
"""Files of each class, by its name."""
S = TypeVar("S")
T = TypeVar("T")


class Kind(NamedTuple):
    """Files that a folder is searched for."""

    noun: str
    suffixes: frozenset[str]

    def matches(self, path: Path) -> bool:
        return path.suffix.lower() in self.suffixes and not path.name.startswith(".") and path.is_file()


IMAGES = Kind("image", frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}))
TEXTS = Kind("text", frozenset({".txt"}))


# Image files


def read_image(path: Path, input_shape: tuple[int, ...]) -> UInt8[Tensor, "c h w"]:
    with opened(path) as file:
        return decode_image(file, str(path), input_shape)


def decode_image(
    file: io.BytesIO | io.BufferedReader, name: str, input_shape: tuple[int, ...]
) -> UInt8[Tensor, "c h w"]:
    """Rotate by the EXIF tag, scale to cover (height, width), and crop at the centre.

    Transparent pixels become white; 16-bit grey keeps its upper 8 bits. 32-bit integers (TIFF) have no known range: up
    to 255 they are read as bytes, up to 65,535 as 16-bit grey, others are refused. Of an animation the first frame is
    read.
    """
    try:
        with _open(file) as image:
            pixels = _pixels(image, *input_shape)
    except UnidentifiedImageError:  # its message names a Python object
        raise RicnetError(f"{name} is not an image in a supported format; replace or remove it.") from None
    except Exception as error:  # decoders fail in many ways
        raise _refusal(name, error) from error
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()


def _refusal(name: str | Path, error: Exception) -> RicnetError:
    """The error for a user. Pillow raises DecompressionBombError too, at a limit near ours."""
    if isinstance(error, Image.DecompressionBombError):
        most = f"{MOST_PIXELS / 1e6:g} megapixels"
        return RicnetError(f"{name} {TOO_LARGE}: images of at most {most} are read; make it smaller.")
    return RicnetError(f"{name} is not a readable image ({error}); replace or remove it.")


def _open(file: io.BytesIO | io.BufferedReader | Path) -> Image.Image:
    """Without Pillow's warnings about damaged tags, which do not concern the pixels. The filter is never removed:
    threads would undo each other's filters."""
    if ("ignore", None, UserWarning, _TAGS, 0) not in warnings.filters:
        warnings.filterwarnings("ignore", category=UserWarning, module=_TAGS.pattern)
    return Image.open(file, formats=FORMATS)


def _pixels(image: Image.Image, channels: int, height: int, width: int) -> UInt8[np.ndarray, "h w c"]:
    stored = image.width * image.height
    if stored > MOST_PIXELS:
        raise Image.DecompressionBombError
    # JPEGs decode faster at a fraction of their size; twice the target keeps the quality of resizing.
    image.draft(image.mode, (2 * width, 2 * height))
    image.decodermaxblock = BLOCK  # type: ignore[attr-defined]  # of ImageFile, which all that are opened are
    with _ONE_AT_A_TIME if max(image.width * image.height, stored // 2) > LARGE_PIXELS else nullcontext():
        is_int32 = image.mode == "I" and image.format == "TIFF"  # other formats have 16-bit grey in that mode
        upright = ImageOps.exif_transpose(image)
        fitted = ImageOps.fit(_flatten(upright, channels, is_int32), (width, height), Image.Resampling.BICUBIC)
        return np.array(fitted).reshape(height, width, channels)


def _flatten(image: Image.Image, channels: int, is_int32: bool) -> Image.Image:
    if is_int32:
        values = np.asarray(image)
        if values.min() < 0 or values.max() > 65535:
            raise ValueError("pixel values lie outside 0..255 and 0..65535")
        image = Image.fromarray((values if values.max() <= 255 else values // 256).astype(np.uint8))
    elif image.mode in _WIDE:
        image = Image.fromarray((np.asarray(image).clip(0, 65535) // 256).astype(np.uint8))
    elif image.mode == "F":
        image = Image.fromarray(as_bytes(np.asarray(image)))
    elif image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("L" if channels == 1 else "RGB")


def as_bytes(values: np.ndarray, scale: float | None = None) -> np.ndarray:
    """Real pixels as 0..255. By default they are fractions of full brightness if none exceeds 1."""
    if scale is None:
        scale = 255.0 if values.max() <= 1 else 1.0
    scaled = np.rint(values.astype(np.float64) * scale)
    if not (np.isfinite(scaled).all() and scaled.min() >= 0 and scaled.max() <= 255):
        raise ValueError("pixel values lie outside 0..1 and 0..255")
    return scaled.astype(np.uint8)


def image_form(path: Path) -> tuple[int, int, bool]:
    """Width, height and whether it is grey, from the header."""
    try:
        with _open(path) as image:
            return image.width, image.height, image.mode in _GREY
    except Exception as error:  # decoders fail in many ways
        raise _refusal(path, error) from error


def in_threads(read: Callable[[S], T], items: Iterable[S]) -> tuple[list[T], dict[S, str]]:
    """What is read of each item, in order, and what is wrong with items that cannot be read. Pillow decodes and resizes
    without the interpreter lock."""
    broken: dict[S, str] = {}

    def attempt(item: S) -> list[T]:
        try:
            return [read(item)]
        except RicnetError as error:
            broken[item] = str(error)
            return []

    with ThreadPoolExecutor(min(32, (os.cpu_count() or 1) + 4)) as pool:
        return [found for each in pool.map(attempt, items) for found in each], broken


def read_images(
    paths: Sequence[Path], input_shape: tuple[int, ...]
) -> tuple[UInt8[Tensor, "n c h w"], dict[Path, str]]:
    """The readable images in order, and for each other file what is wrong with it."""
    images: UInt8[Tensor, "n c h w"] = torch.empty((len(paths), *input_shape), dtype=torch.uint8)

    def read(row: int) -> int:
        images[row] = read_image(paths[row], input_shape)
        return row

    whole, broken = in_threads(read, range(len(paths)))
    return (images[whole] if broken else images), {paths[row]: why for row, why in broken.items()}


# Folders of images as data


def read_folder(folder: Path, resolution: int | None, cache: Path, oversize: float | None = 1.0) -> GivenSplits:
    """All images in memory, or in a file in `cache` if they do not fit. Their shape is chosen from all headers.
    Photographs are stored at `oversize` times the resolution (see `stored_side`), other images at the resolution."""
    try:
        tree = survey(folder)
    except OSError as error:
        raise RicnetError(f"{folder} cannot be searched ({error}); make it readable.") from error
    forms, broken = in_threads(image_form, tree.files)
    if not forms:
        raise RicnetError(f"{folder} holds no image that can be read; {damage(broken, folder)}.")
    sizes = [(width, height) for width, height, _ in forms]
    side = resolution or choose_side(sizes)
    # Small or grey images may be letters or drawings, which must not be mirrored or cut.
    channels = 1 if all(grey for _, _, grey in forms) else 3
    if channels == 3 and side > PHOTOGRAPH_SIDE:
        stored, ratio = stored_side(side, shorter_side(sizes), oversize)
        plan = Plan((channels, stored, stored), PHOTOGRAPHS, ratio)
    else:
        plan = Plan((channels, side, side), Augmentation(crop_padding=side // 8))
    return _read_tree(tree, plan, broken, cache)


def choose_side(sizes: list[tuple[int, int]]) -> int:
    """The median shorter side within bounds; squares of one size keep it, so that no pixel is resampled."""
    width, height = sizes[0]
    if width == height <= MAX_SIDE and len(set(sizes)) == 1:
        return width
    return min(max(shorter_side(sizes), MIN_SIDE), MAX_SIDE)


def shorter_side(sizes: list[tuple[int, int]]) -> int:
    """Median of the shorter sides."""
    return round(median(min(size) for size in sizes))


def stored_side(side: int, native: int, oversize: float | None) -> tuple[int, float]:
    """Side at which photographs are stored for a network that reads `side` pixels, and the ratio of the two. None
    stands for OVERSIZE, or less where the photographs have only `native` pixels a side."""
    if oversize is not None:
        return round(oversize * side), oversize
    stored = max(side, min(round(OVERSIZE * side), native))
    return stored, stored / side


class Plan(NamedTuple):
    """How the images of a folder are stored and varied."""

    shape: tuple[int, int, int]
    augmentation: Augmentation
    oversize: float = 1.0


def _read_tree(tree: "Tree", plan: Plan, broken: dict[Path, str], cache: Path) -> GivenSplits:
    """If images do not fit into memory, inputs are indices of files, which are read after the split."""
    files, notes = [path for path in tree.files if path not in broken], list(tree.notes)
    size = len(files) * math.prod(plan.shape)
    on_disk = not fits_memory(size)
    if on_disk:
        inputs = torch.arange(len(files))
        notes.append(f"{len(files):,} images, {size / 1e9:.1f} GB, are read from {cache}: they do not fit into memory.")
    else:
        inputs, damaged = read_images(files, plan.shape)
        broken = broken | damaged
    splits = tree.splits(inputs, broken)
    for part, split in splits.items():
        if not len(split):
            raise RicnetError(f"{tree.folder / part} holds no image that can be read; {damage(broken, tree.folder)}.")
    if broken:
        notes.append(damage(broken, tree.folder))
    fill = partial(_pack, tree, plan, broken, cache, files) if on_disk else None
    given = splits["train"], tree.class_names, splits.get("test"), splits.get("val")
    return GivenSplits(*given, plan.augmentation, tuple(notes), fill, plan.oversize)


def _pack(
    tree: "Tree",
    plan: Plan,
    broken: dict[Path, str],
    cache: Path,
    files: list[Path],
    numbered: Dataset,
) -> Dataset | GivenSplits:
    def read(rows: list[int]) -> tuple[UInt8[Tensor, "n c h w"], dict[int, str]]:
        images, damaged = read_images([files[row] for row in rows], plan.shape)
        return images, {row: damaged[files[row]] for row in rows if files[row] in damaged}

    what = [(str(path), (about := path.stat()).st_size, about.st_mtime_ns) for path in files]
    try:
        return pack_rows(numbered, read, plan.shape, torch.uint8, what, cache)
    except Damaged as damaged:  # a good header, but a damaged body: split again without these files
        unread = {files[row]: text for row, text in damaged.rows.items()}
        return _read_tree(tree, plan, broken | unread, cache)


# Finding files


class Tree(NamedTuple):
    """Files of a folder by split and class."""

    folder: Path
    parts: dict[str, Classes]
    notes: tuple[str, ...]

    @property
    def class_names(self) -> tuple[str, ...]:
        return tuple(sorted(self.parts["train"]))

    @property
    def files(self) -> list[Path]:
        return [path for classes in self.parts.values() for paths in classes.values() for path in paths]

    def splits(self, inputs: Num[Tensor, "n ..."], broken: Collection[Path]) -> dict[str, Split]:
        """The splits, of the `inputs` of all files that are not broken, in the order of `files`."""
        number, splits, start = {name: i for i, name in enumerate(self.class_names)}, {}, 0
        for part, classes in self.parts.items():
            labels = [number[name] for name, paths in classes.items() for path in paths if path not in broken]
            splits[part] = Split(inputs[start : start + len(labels)], torch.tensor(labels, dtype=torch.int64))
            start += len(labels)
        return splits


def find_files(folder: Path, kind: Kind, seen: Counter[str] | None = None, top: Path | None = None) -> list[Path]:
    """All files of this kind below a folder, sorted by path, without hidden files and folders; links to folders are not
    followed. `seen` counts all files below `top`, by suffix; if far more are others, the search ends."""
    seen = Counter() if seen is None else seen
    found: list[Path] = []
    for place, folders, files in os.walk(folder, onerror=_raise_unless_closed):
        folders[:] = sorted(_shown(folders))  # so that giving up does not depend on the disk's order
        paths = [Path(place, name) for name in _shown(files)]
        found += [path for path in paths if kind.matches(path)]
        seen.update([path.suffix.lower() for path in paths] + [""] * len(folders))
        count = sum(seen[suffix] for suffix in kind.suffixes)
        if seen.total() - count > max(MOST_OTHERS, OTHERS_PER_IMAGE * count):
            few = f"only {counted(count, kind.noun)}" if count else f"no {kind.noun}"
            raise RicnetError(
                f"{top or folder} has {few} among the first {seen.total():,} files and folders in it; give a folder "
                f"of {kind.noun}s."
            )
    return sorted(found)


def find_images(folder: Path) -> list[Path]:
    return find_files(folder, IMAGES)


def _shown(names: Iterable[str]) -> list[str]:
    return [name for name in names if not name.startswith(".")]


def _raise_unless_closed(error: OSError) -> None:
    """Skip folders that may not be read or no longer exist."""
    if not isinstance(error, PermissionError | FileNotFoundError | ProcessLookupError):
        raise error


def holds_texts(folder: Path) -> bool:
    """Whether subfolders hold texts and no images; beside images, texts are captions. The search gives up after too
    many other files."""
    found, others = False, 0
    for place, folders, files in os.walk(folder):
        suffixes = [Path(name).suffix.lower() for name in files if not name.startswith(".")]
        texts = sum(suffix in TEXTS.suffixes for suffix in suffixes)
        others += len(folders) + len(files) - texts
        if others > MOST_OTHERS or not (IMAGES.suffixes | UNSUPPORTED).isdisjoint(suffixes):
            return False
        found |= texts > 0 and Path(place) != folder
    return found


def survey(folder: Path, kind: Kind = IMAGES) -> Tree:
    children = [child.name for child in _subfolders(folder)]
    _refuse_loose(folder, "one subfolder for each class", kind)
    seen: Counter[str] = Counter()
    notes: list[str] = []
    if "train" in children and (not _loose(folder / "train", kind) or set(children) <= {"train", "test", *VAL_NAMES}):
        parts = _survey_parts(folder, children, seen, notes, kind)
    else:
        parts = {"train": class_folders(folder, seen, kind)}
    if empty := sorted({name for classes in parts.values() for name, paths in classes.items() if not paths}):
        notes.append(f"Folders without {kind.noun}s were skipped: {listed(empty)}.")
    # Phones write some of these formats, so they are named to the user.
    counts = [f"{seen[suffix]} {suffix}" for suffix in sorted(UNSUPPORTED) if seen[suffix]]
    unread = f" in unsupported formats ({listed(counts)}: convert to .jpg or .png)" if counts else ""
    if unread:
        notes.append(f"Skipped: files{unread}.")
    full = {part: {name: paths for name, paths in classes.items() if paths} for part, classes in parts.items()}
    tree = Tree(folder, full, tuple(notes))
    if not tree.files:
        raise RicnetError(f"{folder} holds no {kind.noun}s{unread}; put them into one subfolder for each class.")
    for part, classes in tree.parts.items():
        unknown = sorted(set(classes) - set(tree.class_names))
        if unknown:
            raise RicnetError(
                f"{folder}: {listed(unknown)} occurs in the {part} part but not in train/; "
                f"add training {kind.noun}s of it or remove it."
            )
        if not classes:
            raise RicnetError(
                f"{folder}: the {part} part holds no {kind.noun}s; put them into one subfolder for each class."
            )
    return tree


def _survey_parts(
    folder: Path, children: list[str], seen: Counter[str], notes: list[str], kind: Kind
) -> dict[str, Classes]:
    places: dict[str, str] = {part: part for part in ("train", "test") if part in children}
    if val := next((name for name in VAL_NAMES if name in children), None):
        places["val" if "test" in places else "test"] = val
        if "val" not in places:
            notes.append(f"{val}/ is the test set; the validation rows are cut from train/.")
    if ignored := [f"{name}/" for name in children if name not in places.values()]:
        notes.append(f"Beside train/, these folders were not used: {listed(ignored)}.")
    for place in places.values():
        _refuse_loose(folder / place, f"one subfolder for each class below {place}/", kind)
    seen.update(path.suffix.lower() for path in folder.iterdir())
    return {part: class_folders(folder / place, seen, kind) for part, place in places.items()}


def class_folders(folder: Path, seen: Counter[str] | None = None, kind: Kind = IMAGES) -> Classes:
    """Files of each subfolder, by its name; `seen` counts all files, by suffix."""
    seen = Counter() if seen is None else seen
    seen.update(path.suffix.lower() for path in folder.iterdir())
    return {child.name: find_files(child, kind, seen, folder) for child in _subfolders(folder)}


def _subfolders(folder: Path) -> list[Path]:
    return sorted(child for child in folder.iterdir() if child.is_dir() and not child.name.startswith("."))


def _loose(folder: Path, kind: Kind) -> list[Path]:
    return [path for path in sorted(folder.iterdir()) if kind.matches(path)]


def _refuse_loose(folder: Path, wanted: str, kind: Kind) -> None:
    loose = _loose(folder, kind)
    if loose and kind is IMAGES:  # a loose text may be a read-me
        raise RicnetError(
            f"{folder} has {counted(len(loose), 'image')} outside of class folders, such as {loose[0].name}; "
            f"the class of an image is the name of its folder, so arrange them as {wanted}."
        )


def damage(broken: dict[Path, str], folder: Path) -> str:
    large = [path for path in sorted(broken) if TOO_LARGE in broken[path]]
    others = [path for path in sorted(broken) if TOO_LARGE not in broken[path]]
    parts = {"could not be read": others, f"{'is' if len(large) == 1 else 'are'} too large": large}
    return "; ".join(
        f"{counted(len(paths), 'file')} {why}; skipped: {listed([str(path.relative_to(folder)) for path in paths])}"
        for why, paths in parts.items()
        if paths
    )
