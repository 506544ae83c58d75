"""Which classes are taken for which: the confusion matrix, precision and recall, the pairs confused most."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Integer

from ricnet.report.tables import Cell, Grid
from ricnet.report.words import number, percent, short

MOST_CLASSES = 20
"""Whose matrix can be read."""
MOST_ROWS = 100
"""Classes that are listed; of more, those found least often."""
PAIRS = 10


@dataclass(frozen=True)
class Confusion:
    counts: Integer[np.ndarray, "classes classes"]
    """True class by row, answer by column."""
    names: tuple[str, ...]

    @property
    def recall(self) -> Float[np.ndarray, "classes"]:
        """Of the examples of a class, the share that is answered with it; NaN where there are none."""
        return _share(self.counts.diagonal(), self.counts.sum(axis=1))

    @property
    def precision(self) -> Float[np.ndarray, "classes"]:
        """Of the answers with a class, the share that is right; NaN where it is never the answer."""
        return _share(self.counts.diagonal(), self.counts.sum(axis=0))

    def pairs(self, most: int = PAIRS) -> list[tuple[int, int, int]]:
        """The true class, the answer and how often, the commonest mistakes first."""
        wrong = self.counts * ~np.eye(len(self.counts), dtype=bool)
        order = np.argsort(-wrong, axis=None, kind="stable")[:most]
        places = zip(*np.unravel_index(order, wrong.shape), strict=True)
        return [(int(i), int(j), int(wrong[i, j])) for i, j in places if wrong[i, j]]

    def rows(self) -> list[int]:
        """The classes to list, in their order, or where they are too many those of lowest recall."""
        if len(self.names) <= MOST_ROWS:
            return list(range(len(self.names)))
        worst = np.argsort(np.nan_to_num(self.recall, nan=np.inf), kind="stable")[:MOST_ROWS]
        return [int(k) for k in worst]


def confusion(labels: Integer[np.ndarray, "n"], answers: Integer[np.ndarray, "n"], names: Sequence[str]) -> Confusion:
    counts = np.zeros((len(names), len(names)), dtype=np.int64)
    np.add.at(counts, (labels, answers), 1)
    return Confusion(counts, tuple(names))


def class_grid(found: Confusion) -> Grid:
    """A row a class."""
    truly, answered = found.counts.sum(axis=1), found.counts.sum(axis=0)
    rows = [
        [
            Cell(short(found.names[k], 24)),
            Cell(_percent(found.precision[k])),
            Cell(_percent(found.recall[k])),
            Cell(number(int(truly[k]), 0)),
            Cell(number(int(answered[k]), 0)),
        ]
        for k in found.rows()
    ]
    return Grid(["Class", "Precision", "Recall", "Examples", "Answers"], rows)


def matrix_grid(found: Confusion) -> Grid:
    """A row a true class, its right answers in bold; a dot for none."""
    rows = [
        [Cell(short(name)), *(Cell(number(n, 0) if n else "·", best=k == j and n > 0) for j, n in enumerate(row))]
        for k, (name, row) in enumerate(zip(found.names, found.counts.tolist(), strict=True))
    ]
    return Grid(["true class ↓ answer →", *(short(name) for name in found.names)], rows)


def pair_words(found: Confusion, true: int, answer: int, times: int) -> str:
    total = int(found.counts[true].sum())
    names = short(found.names[true], 24), short(found.names[answer], 24)
    return f"{names[0]} taken for {names[1]}: {times:,} of {total:,} ({percent(times / total, 1)})"


def _percent(share: float) -> str:
    return percent(float(share), 1)


def _share(part: Integer[np.ndarray, "classes"], whole: Integer[np.ndarray, "classes"]) -> Float[np.ndarray, "classes"]:
    shares: np.ndarray = np.divide(part, whole, out=np.full(len(whole), np.nan), where=whole > 0)
    return shares
