"""`Dataset`: training, validation and test splits as tensors, with class names and augmentation. Also here: splitting
of rows, and label noise."""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64, Num, UInt64
from torch import Tensor

from ricnet.data.columns import Columns
from ricnet.errors import RicnetError, listed, listing, require, setting

SEED = 0  # of every split, so that all runs on a data set have the same test and validation rows
TEST_FRACTION = 0.25
MOST_HASHED = 1 << 32  # bytes; larger data is not searched for copies
HASHED_ROWS = 4096  # rows that are hashed at once
UNEVEN = 3  # max/min class ratio before a note
PHOTOGRAPH_SIDE = 48  # colour images with more pixels a side count as photographs


@dataclass(frozen=True)
class Split:
    """Labelled examples: uint8 images (n, channels, height, width), float32 features (n, columns), or token ids (n,
    tokens), int32 or int64."""

    inputs: Num[Tensor, "n ..."]
    labels: Int64[Tensor, "n"]
    weights: Float[Tensor, "n"] | None = None
    """Weight of each example in training and in choosing the epoch; None: equal weights."""
    texts: Sequence[str] | None = None
    """The texts behind token ids; None for other data."""
    shown: Num[Tensor, "n ..."] | None = None
    """The original inputs, for reports, if `inputs` are features computed from them."""

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def hashes(self) -> UInt64[np.ndarray, "n"]:
        """A hash of each example's input, without its class. Texts are hashed themselves if they are stored."""
        if self.texts is not None:
            rows: Iterable[Any] = (text.encode(errors="replace") for text in self.texts)
        else:
            rows = (row for part in self.inputs.split(HASHED_ROWS) for row in part.cpu().contiguous().numpy())
        return np.frombuffer(b"".join(hashlib.blake2b(row, digest_size=8).digest() for row in rows), dtype=np.uint64)

    def take(self, rows: Int64[Tensor, "m"]) -> "Split":
        weights = None if self.weights is None else self.weights[rows]
        texts = None if self.texts is None else [self.texts[row] for row in rows.tolist()]
        shown = None if self.shown is None else self.shown[rows]
        return Split(self.inputs[rows], self.labels[rows], weights, texts, shown)


def balanced(split: Split) -> Split:
    """The split with weights that give all classes the same total; the mean weight is 1."""
    classes, place, counts = split.labels.unique(return_inverse=True, return_counts=True)
    weights = len(split) / (len(classes) * counts[place]).float()
    return replace(split, weights=weights if split.weights is None else weights * split.weights)


@dataclass(frozen=True)
class Augmentation:
    """Random changes to a training image that keep its class."""

    crop_padding: int = 0
    """Pad by this many black pixels, then crop to the old size at a random place; 0: off."""
    flip: bool = False
    """Mirror half of the images left to right. Not for digits or letters."""
    cutout: int = 0
    """Side of a grey square at a random place, perhaps partly outside (DeVries and Taylor 2017); 0: off."""
    crop_area: float = 1.0
    """Minimum area of a random crop, with sides in a ratio from 3/4 to 4/3, that is resized to the whole image (Szegedy
    et al. 2015). It replaces padded crops; 1: off."""
    colour: float = 0.0
    """Maximum relative change of brightness, contrast and saturation; 0: off."""
    reflect: bool = False
    """Pad with the mirrored border instead of black pixels."""
    trivial: bool = False
    """Change each image by one operation chosen at random (`ricnet.data.trivial`)."""


PHOTOGRAPHS = Augmentation(flip=True, crop_area=0.35, colour=0.4)


def view_shape(input_shape: tuple[int, ...], oversize: float) -> tuple[int, ...]:
    """Shape that a network reads; of images stored at `oversize` times its resolution, the shape of their centre."""
    if len(input_shape) != 3:
        return input_shape
    channels, height, width = input_shape
    return channels, round(height / oversize), round(width / oversize)


def small_crops(shape: Sequence[int]) -> Augmentation:
    """Augmentation for arrays of this shape: padding as usual for CIFAR-10, less for smaller images."""
    return Augmentation(crop_padding=min(4, min(shape[2:]) // 8) if len(shape) == 4 else 0)


@dataclass(frozen=True)
class Dataset:
    """Three splits. Data that is only evaluated may lack training and validation rows; without held-out data there are
    no test rows."""

    name: str
    train: Split
    val: Split
    test: Split
    class_names: tuple[str, ...]
    augmentation: Augmentation = Augmentation()
    notes: tuple[str, ...] = ()
    """Notes for the user, such as skipped files."""
    columns: Columns | None = None
    """How the columns of a table are encoded; None for other data."""
    calibration: Split | None = None
    """Rows held out for guarantees; they are used neither in training nor in any choice."""
    oversize: float = 1.0
    """Side of the images as a multiple of the resolution that networks read; above 1 only with random crops."""

    def __post_init__(self) -> None:
        for name in self.class_names:
            try:
                name.encode("utf-8")
            except UnicodeEncodeError:  # a folder's name may be any bytes, but a run stores it as text
                raise RicnetError(f"{self.name}: the class {name!r} is not UTF-8 text; rename it.") from None
        for part, split in (("train", self.train), ("val", self.val), ("test", self.test)):
            inputs, labels, classes = split.inputs, split.labels, len(self.class_names)
            if len(inputs) != len(labels):
                raise RicnetError(
                    f"{self.name}: its {part} split has {len(inputs)} inputs but {len(labels)} labels; give one each."
                )
            if len(labels) and (labels.min() < 0 or labels.max() >= classes):
                raise RicnetError(f"{self.name}: a label of its {part} split is not in 0 … {classes - 1}; correct it.")

    @property
    def input_shape(self) -> tuple[int, ...]:
        return tuple(self.train.inputs.shape[1:])

    @property
    def view_shape(self) -> tuple[int, ...]:
        """Shape of what a network reads of an input."""
        return view_shape(self.input_shape, self.oversize)

    @property
    def is_image(self) -> bool:
        return len(self.input_shape) == 3

    @property
    def is_text(self) -> bool:
        return self.train.inputs.dtype in (torch.int32, torch.int64) and not self.is_image

    @property
    def unit(self) -> str:
        """Noun for its examples."""
        return "images" if self.is_image else "texts" if self.is_text else "rows"


# Splits: stratified, deterministic, every class on both sides


def split_off(
    labels: Int64[Tensor, "n"], fraction: float, seed: int
) -> tuple[Int64[Tensor, "rest"], Int64[Tensor, "taken"]]:
    """Rows that stay and rows that are taken, in ascending order. Unlike scikit-learn's train_test_split, it puts a row
    of every class on each side."""
    require(0 < fraction < 1, "fraction", fraction, "between 0 and 1")
    rng = np.random.RandomState(seed)  # numpy promises never to change this stream
    classes, counts = labels.unique(return_counts=True)
    # Rounding the running sum keeps the total exact.
    shares = np.diff(np.rint(fraction * counts.cumsum(0).double().numpy()), prepend=0)
    taken = []
    for label, count, share in zip(classes.tolist(), counts.tolist(), shares, strict=True):
        if count < 2:
            raise RicnetError(f"Class {label} has one example only; a split needs at least 2 of every class.")
        rows = np.flatnonzero((labels == label).numpy())
        taken.append(rng.permutation(rows)[: min(max(int(share), 1), count - 1)])
    is_taken = torch.zeros(len(labels), dtype=torch.bool)
    is_taken[torch.from_numpy(np.concatenate(taken))] = True
    return torch.nonzero(~is_taken).flatten(), torch.nonzero(is_taken).flatten()


def cut(rows: Split, fraction: float) -> tuple[Split, Split]:
    """Rows that stay, and a stratified sample of them."""
    rest, taken = split_off(rows.labels, fraction, SEED)
    return rows.take(rest), rows.take(taken)


def set_aside(rows: Split, fraction: float) -> tuple[Split, Split]:
    """Rows that stay, and a random sample, not stratified, because guarantees need exchangeable rows; but the first row
    of every class stays."""
    first = np.unique(rows.labels.numpy(), return_index=True)[1]
    order = np.random.RandomState(SEED).permutation(np.delete(np.arange(len(rows)), first))
    taken = np.zeros(len(rows), dtype=bool)
    taken[order[: round(fraction * len(rows))]] = True
    rest, kept = (rows.take(torch.from_numpy(np.flatnonzero(part))) for part in (~taken, taken))
    return rest, kept


def _joined(first: Split, second: Split) -> Split:
    texts = None if first.texts is None or second.texts is None else [*first.texts, *second.texts]
    return Split(torch.cat([first.inputs, second.inputs]), torch.cat([first.labels, second.labels]), texts=texts)


def class_counts(labels: Int64[Tensor, "n"], class_names: Sequence[str]) -> dict[str, int]:
    return dict(zip(class_names, torch.bincount(labels, minlength=len(class_names)).tolist(), strict=True))


def divisible(labels: Int64[Tensor, "n"], class_names: Sequence[str], splits: int = 3) -> bool:
    """Whether there are several classes, each with a row for every split."""
    return len(class_names) > 1 and min(class_counts(labels, class_names).values()) >= splits


def uneven_note(labels: Int64[Tensor, "n"], class_names: Sequence[str]) -> tuple[str, ...]:
    """A note if class sizes differ so much that accuracy alone misleads."""
    counts = class_counts(labels, class_names)
    most, least = max(counts, key=counts.__getitem__), min(counts, key=counts.__getitem__)
    if counts[most] < UNEVEN * counts[least]:
        return ()
    return (
        f"Classes are uneven: {counts[most]:,} examples of {most!r} but {counts[least]:,} of {least!r}; always "
        f"answering {most!r} would be right for {counts[most] / len(labels):.0%}, so do not go by accuracy alone.",
    )


def copies_note(dataset: Dataset, final_fit: bool = False) -> tuple[str, ...]:
    """A note if test or validation rows are exact copies of training rows; nothing is dropped. Copies in
    a table may differ in columns that are not read, and in rare values. A final fit trains on the validation rows. Data
    of more than `MOST_HASHED` bytes is not searched."""
    splits = {"test": dataset.test} | ({} if final_fit else {"validation": dataset.val})
    if not few_bytes(dataset.train, *splits.values()):
        return ()
    copies = {name: int(np.isin(split.hashes, dataset.train.hashes).sum()) for name, split in splits.items()}
    found = [f"{count:,} of {len(splits[name]):,} {name} {dataset.unit}" for name, count in copies.items() if count]
    if not found:
        return ()
    where = "" if dataset.columns is None or dataset.is_text else " in the columns that are read"
    return (
        f"{listing(found)} are exact copies of training {dataset.unit}{where}, so results on them may be too good; "
        "remove the copies unless new data will contain as many.",
    )


def few_bytes(*splits: Split) -> bool:
    """Whether the data is small enough to hash each row."""
    return sum(split.inputs.nbytes for split in splits) <= MOST_HASHED


@dataclass(frozen=True)
class GivenSplits:
    """The splits that a source comes with; missing ones are cut from `train`."""

    train: Split
    class_names: tuple[str, ...]
    test: Split | None = None
    val: Split | None = None
    augmentation: Augmentation = field(default_factory=Augmentation)
    notes: tuple[str, ...] = ()
    fill: Callable[[Dataset], "Dataset | GivenSplits"] | None = None
    """If the inputs are row numbers, replaces them by the rows after the splits are made. If some rows are damaged, it
    may return parts without them, which are split again."""
    oversize: float = 1.0
    """As in `Dataset`."""

    def dataset(
        self,
        name: str,
        val_fraction: float,
        undivided: bool = False,
        test_fraction: float | None = None,
        calibration_fraction: float = 0.0,
    ) -> Dataset:
        """Cut missing splits from the training rows: for testing `test_fraction` (None: TEST_FRACTION, 0: none), for
        calibration `calibration_fraction` of the rest. If `undivided`, nothing is cut, and data without a test part is
        all test data."""
        none = self.train.take(torch.empty(0, dtype=torch.int64))
        held = None
        if not undivided:
            train, val, test = self._divided(name, val_fraction, test_fraction, none)
            train, held = set_aside(train, calibration_fraction) if calibration_fraction else (train, None)
        elif self.test is None:
            train, val, test = none, none, self.train
        else:
            train, val, test = self.train, none if self.val is None else self.val, self.test
        notes = (*self.notes, *uneven_note(self.train.labels, self.class_names))
        if not len(test):
            notes = (f"Nothing is held out for testing ({setting('test_fraction', 0)}).", *notes)
        # `fill` knows no calibration rows, so they are appended to the test rows: nothing is learned from either.
        unseen = test if held is None else _joined(test, held)
        dataset = Dataset(name, train, val, unseen, self.class_names, self.augmentation, notes, oversize=self.oversize)
        filled = dataset if self.fill is None else self.fill(dataset)
        if isinstance(filled, GivenSplits):
            return filled.dataset(name, val_fraction, undivided, test_fraction, calibration_fraction)
        if held is None:
            return filled
        first, last = torch.arange(len(unseen)).split([len(test), len(held)])
        return replace(filled, test=filled.test.take(first), calibration=filled.test.take(last))

    def _divided(
        self, name: str, val_fraction: float, test_fraction: float | None, none: Split
    ) -> tuple[Split, Split, Split]:
        if len(self.class_names) < 2:
            raise RicnetError(f"{name} has one class only, {self.class_names[0]!r}; a classifier needs at least two.")
        if self.test is not None and test_fraction is not None:
            raise RicnetError(f"{name} has a test part of its own; leave {setting('test_fraction')} out.")
        cuts_test = self.test is None and test_fraction != 0
        needed = 1 + cuts_test + (self.val is None)
        counts = class_counts(self.train.labels, self.class_names)
        small = {each: count for each, count in counts.items() if count < needed}
        if small:  # the notes may name unreadable files of these classes
            named = listed([f"{each!r} ({count})" for each, count in small.items()])
            refusal = (
                f"{name}: every class needs at least {needed} examples to be split, but {len(small)} of {len(counts)} "
                f"classes have fewer, together {sum(small.values())} of {len(self.train):,} examples: {named}; add "
                "examples of them, leave them out, or give them one name, such as 'other'."
            )
            raise RicnetError(" ".join([refusal, *self.notes]))
        train, test = self.train, none if self.test is None else self.test
        if cuts_test:
            train, test = cut(train, TEST_FRACTION if test_fraction is None else test_fraction)
        train, val = (train, self.val) if self.val is not None else cut(train, val_fraction)
        return train, val, test


# Fewer training rows, and label noise


def altered(
    dataset: Dataset, train_fraction: float = 1.0, label_noise: float = 0.0, final_fit: bool = False
) -> Dataset:
    """The data set with label noise, with fewer training rows, or with the validation rows added to them. Labels are
    flipped first, so that the wrong ones do not depend on `train_fraction`."""
    dataset = take_fraction(flip_labels(dataset, label_noise), train_fraction)
    return with_all_rows(dataset) if final_fit else dataset


def with_all_rows(dataset: Dataset) -> Dataset:
    """Add the validation rows to the training rows. They also remain the validation split, to show progress."""
    if dataset.train.weights is not None or dataset.val.weights is not None:
        fit = setting("final_fit", True)
        raise RicnetError(f"{fit} cannot be used with row weights, which {dataset.name} has; leave it out.")
    note = (
        f"{setting('final_fit', True)}: the {len(dataset.val):,} validation {dataset.unit} are trained on too, so "
        "results on them are those of training rows."
    )
    train = _joined(dataset.train, dataset.val)
    return replace(dataset, train=train, notes=(*dataset.notes, note))


def take_fraction(dataset: Dataset, fraction: float) -> Dataset:
    """Keep this share of the training rows, stratified, with at least one row of each class. Smaller subsets are part
    of larger ones."""
    require(0 < fraction <= 1, "train_fraction", fraction, "above 0 and at most 1")
    if fraction == 1:
        return dataset
    labels, rng = dataset.train.labels, np.random.RandomState(SEED)
    place = np.empty(len(labels))
    classes = labels.unique().tolist()
    for label in classes:
        rows = rng.permutation(np.flatnonzero((labels == label).numpy()))
        place[rows] = (np.arange(len(rows)) + 0.5) / len(rows)
        place[rows[:1]] = 0  # no class is left out
    count = max(round(fraction * len(labels)), len(classes))
    taken = np.lexsort((rng.permutation(len(labels)), place))[:count]
    return replace(dataset, train=dataset.train.take(torch.from_numpy(np.sort(taken))))


def flip_labels(dataset: Dataset, share: float) -> Dataset:
    """Give this share of the training and validation rows another class, drawn uniformly. The same rows are flipped in
    every run; test labels stay clean, as in CIFAR-10N."""
    require(0 <= share < 1, "label_noise", share, "from 0 to below 1")
    if share == 0:
        return dataset
    rng = np.random.RandomState(SEED)
    classes = len(dataset.class_names)

    def flip(split: Split) -> Split:
        count = round(share * len(split))
        rows = torch.from_numpy(rng.permutation(len(split))[:count])
        shift = torch.from_numpy(rng.randint(1, classes, size=count))
        labels = split.labels.clone()
        labels[rows] = (labels[rows] + shift) % classes
        return replace(split, labels=labels)

    return replace(dataset, train=flip(dataset.train), val=flip(dataset.val))
