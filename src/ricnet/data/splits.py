"""How rows are divided: stratified, deterministic, every class on both sides."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from ricnet.data.dataset import Augmentation, Dataset, Split
from ricnet.data.words import listed
from ricnet.errors import RicnetError

SEED = 0
"""Of every split the package makes, so that all runs on a data set share their test and validation rows."""
TEST_FRACTION = 0.25
UNEVEN = 3
"""How many times the smallest class the largest one may be before the user is told."""


def split_off(
    labels: Int64[Tensor, "n"], fraction: float, seed: int
) -> tuple[Int64[Tensor, "rest"], Int64[Tensor, "taken"]]:
    """Rows that stay and rows that are taken, each in rising order.

    scikit-learn's train_test_split does not fit: it may leave a small class without a row on one side.
    """
    if not 0 < fraction < 1:
        raise RicnetError(f"The fraction to split off is {fraction}; it must lie between 0 and 1.")
    rng = np.random.RandomState(seed)  # the one stream numpy promises never to change
    classes, counts = labels.unique(return_counts=True)
    # Rounding the running sum keeps the total exact, whatever the sizes of the classes.
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
    rest, taken = split_off(rows.labels, fraction, SEED)
    return rows.take(rest), rows.take(taken)


def require_rows(
    labels: Int64[Tensor, "n"], class_names: Sequence[str], needed: int, where: str, notes: Sequence[str] = ()
) -> None:
    """Refuse a class too small to appear in every split, by its name and before any split is made. `notes` say what
    else to mend, files that cannot be read for instance, perhaps the very ones that the class lacks."""
    counts = torch.bincount(labels, minlength=len(class_names)).tolist()
    small = [f"{name!r} ({count})" for name, count in zip(class_names, counts, strict=True) if count < needed]
    if small:
        refusal = (
            f"{where}: every class needs at least {needed} examples to be split, "
            f"but too few are in {listed(small)}; add examples or remove the class."
        )
        raise RicnetError(" ".join([refusal, *notes]))


def divisible(labels: Int64[Tensor, "n"], class_names: Sequence[str]) -> bool:
    """Whether there are classes to tell apart, each with a row for all three splits."""
    return len(class_names) > 1 and int(torch.bincount(labels, minlength=len(class_names)).min()) >= 3


def uneven_note(labels: Int64[Tensor, "n"], class_names: Sequence[str]) -> tuple[str, ...]:
    """One sentence where classes differ so much in size that accuracy alone misleads."""
    counts = torch.bincount(labels, minlength=len(class_names))
    most, least = int(counts.argmax()), int(counts.argmin())
    if counts[most] < UNEVEN * counts[least]:
        return ()
    return (
        f"Classes are uneven: {counts[most]:,} examples of {class_names[most]!r} but {counts[least]:,} of "
        f"{class_names[least]!r}; always answering {class_names[most]!r} would be right for "
        f"{counts[most] / counts.sum():.0%}, so do not go by accuracy alone.",
    )


@dataclass(frozen=True)
class Parts:
    """What a source holds; the splits it lacks are cut from `train`."""

    train: Split
    class_names: tuple[str, ...]
    test: Split | None = None
    val: Split | None = None
    augmentation: Augmentation = field(default_factory=Augmentation)
    notes: tuple[str, ...] = ()
    fill: Callable[[Dataset], "Dataset | Parts"] | None = None
    """Where the rows do not fit into memory, `inputs` are only their numbers, and this puts the rows in their place; or
    it gives the parts without rows that it found damaged, to be split as if those had never been there."""

    def dataset(self, name: str, val_fraction: float, undivided: bool = False) -> Dataset:
        """Where `undivided`, parts stay as they are, and what has no test part is test data as a whole."""
        train, val, test = self._undivided() if undivided else self._divided(name, val_fraction)
        notes = (*self.notes, *uneven_note(self.train.labels, self.class_names))
        dataset = Dataset(name, train, val, test, self.class_names, self.augmentation, notes)
        filled = dataset if self.fill is None else self.fill(dataset)
        return filled.dataset(name, val_fraction, undivided) if isinstance(filled, Parts) else filled

    def _undivided(self) -> tuple[Split, Split, Split]:
        none = self.train.take(torch.empty(0, dtype=torch.int64))
        if self.test is None:
            return none, none, self.train
        return self.train, none if self.val is None else self.val, self.test

    def _divided(self, name: str, val_fraction: float) -> tuple[Split, Split, Split]:
        if len(self.class_names) < 2:
            raise RicnetError(f"{name} has one class only, {self.class_names[0]!r}; a classifier needs at least two.")
        missing = (self.test is None) + (self.val is None)
        require_rows(self.train.labels, self.class_names, 1 + missing, name, self.notes)
        train, test = (self.train, self.test) if self.test is not None else cut(self.train, TEST_FRACTION)
        train, val = (train, self.val) if self.val is not None else cut(train, val_fraction)
        return train, val, test
