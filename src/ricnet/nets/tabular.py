"""The input layer of tables: piecewise linear features of each column, and a factor for columns that seem to be noise.

Both are computed from training rows before training and stored with the weights. The factors are what wide tables need:
on 5,600 rows of 500 columns, 20 of them informative, they lower the NLL of an MLP from 1.60 to .23
(docs/archive/experiments.md, "Columns of tables").
"""

import math

import torch
from jaxtyping import Float, Int64, Integer
from torch import Tensor

from ricnet.nets.fitted import FittedLayer

MAX_POSITIONS = 512
"""Maximum number of bins of all columns together."""
MIN_BINS, MAX_BINS, ROWS_PER_BIN = 4, 64, 1_000
"""Minimum and maximum number of bins of a column; between them it has one bin per `ROWS_PER_BIN` training rows. Where
`MAX_POSITIONS` does not suffice for the minimum, columns have fewer."""
MIN_GROUPS, MAX_GROUPS = 2, 8
"""Minimum and maximum number of groups that a column is cut into for the chi-squared test."""
MIN_EXPECTED = 5
"""Minimum mean number of rows of a class in a group, as the chi-squared test requires."""
FREE_COLUMNS = 10
"""In tables of up to this many columns all factors are 1."""
NARROWEST = 1e-5
"""Narrowest bin, in standard deviations; narrower ones cannot be told apart in single precision."""


class ColumnFeatures(FittedLayer):
    """(batch, columns), standardised → (batch, columns + positions): each column, and its position within each of its
    bins, clipped to 0..1 and centred (piecewise linear encoding, Gorishniy et al. 2022), times the column's factor.

    Columns of two values, such as one-hot columns, have no bins. Tables of more than `MAX_POSITIONS` / 2 columns have
    none at all. Until `fit` is called, all positions are 0 and all factors are 1.
    """

    rows_to_fit = MAX_BINS * ROWS_PER_BIN
    column: Tensor
    lower: Tensor
    slope: Tensor
    centre: Tensor
    factor: Tensor

    def __init__(self, columns: int) -> None:
        super().__init__()
        wide = 2 * columns > MAX_POSITIONS  # less than two bins a column; a single one is the column itself
        positions = 0 if wide else min(MAX_POSITIONS, MAX_BINS * columns)
        self.size = columns + positions
        self.register_buffer("column", torch.zeros(positions, dtype=torch.int64))
        for name in ("lower", "slope", "centre"):
            self.register_buffer(name, torch.zeros(positions))
        self.register_buffer("factor", torch.ones(columns))

    @torch.no_grad()
    def fit(self, rows: Float[Tensor, "n columns"], labels: Int64[Tensor, "n"] | None) -> None:
        """Compute the bins and, if there are labels, the factors."""
        ordered, used = rows.sort(0).values, 0
        several = (ordered.diff(dim=0) > NARROWEST).sum(0).gt(1).nonzero().flatten().tolist()  # more than two values
        bins = min(MAX_BINS, max(MIN_BINS, len(rows) // ROWS_PER_BIN), len(self.column) // max(1, len(several)))
        for place in several if bins else ():
            found = edges(ordered[:, place], bins)
            own = slice(used, used := used + len(found) - 1)
            self.column[own], self.lower[own], self.slope[own] = place, found[:-1], 1 / found.diff()
        self.centre.copy_(self._positions(rows).mean(0))
        if labels is not None:
            cuts = quantiles(ordered, count_groups(labels) + 1)[1:-1]
            self.factor.copy_(factors(rows, cuts, labels))

    def _positions(self, rows: Float[Tensor, "batch columns"]) -> Float[Tensor, "batch positions"]:
        return ((rows[:, self.column] - self.lower) * self.slope).clamp(0, 1)

    def forward(self, rows: Float[Tensor, "batch columns"]) -> Float[Tensor, "batch features"]:
        positions = (self._positions(rows) - self.centre) * self.factor[self.column]
        return torch.cat([rows * self.factor, positions], 1)


def edges(ordered: Float[Tensor, "n"], bins: int) -> Float[Tensor, "count"]:
    """Edges of a column's bins. The edges of up to `MIN_BINS` bins are quantiles of the rows. The others are quantiles
    of the distinct values: they divide the tails, and the rare values of a column with a frequent one."""
    of_rows = distinct(quantiles(ordered[:, None], min(bins, MIN_BINS) + 1).flatten())
    missing = bins + 1 - len(of_rows)
    of_values = quantiles(ordered.unique()[:, None], missing + 2).flatten()[1:-1]
    return distinct(torch.cat([of_rows, of_values]).sort().values)


def quantiles(ordered: Float[Tensor, "n columns"], count: int) -> Float[Tensor, "count columns"]:
    """Values at `count` evenly spaced places of sorted columns, the first and the last among them."""
    return ordered[torch.linspace(0, len(ordered) - 1, count).round().long()]


def distinct(edges: Float[Tensor, "count"]) -> Float[Tensor, "fewer"]:
    """Edges in ascending order without those closer than `NARROWEST` to the one before."""
    kept = [edges[0]]
    for edge in edges[1:]:
        if edge - kept[-1] > NARROWEST:
            kept.append(edge)
    return torch.stack(kept)


def count_groups(labels: Int64[Tensor, "n"]) -> int:
    """Number of groups of a column, so that on average each has `MIN_EXPECTED` rows of every class."""
    return min(MAX_GROUPS, max(MIN_GROUPS, len(labels) // (MIN_EXPECTED * len(labels.unique()))))


def factors(
    rows: Float[Tensor, "n columns"], cuts: Float[Tensor, "cuts columns"], labels: Int64[Tensor, "n"]
) -> Float[Tensor, "columns"]:
    """Factor of each column, from its association with the classes by the chi-squared test of its groups.

    A column shrinks by (1 − c/a)₊, where a is chi-squared over its degrees of freedom, 1 on average for noise, and c is
    what the largest of as many noise columns reaches (the universal threshold of Donoho and Johnstone 1994). A column
    may also matter only together with others. So no factor is below the square of the estimated share of columns that
    are not noise (Storey 2002), or of `FREE_COLUMNS` / number of columns if that is larger.
    """
    statistic, freedom = association(rows, cuts, labels)
    columns = len(statistic)
    noise = (torch.special.gammaincc(freedom / 2, statistic / 2) > 0.5).double().mean().mul(2).clamp(max=1)
    least = max(min(1.0, FREE_COLUMNS / columns), 1 - float(noise)) ** 2
    threshold = freedom + math.sqrt(2 * math.log(columns)) * (2 * freedom).sqrt()
    kept = (1 - threshold / statistic.clamp(min=1e-9)).clamp(min=0)
    return (least + (1 - least) * kept).to(rows.dtype)


def association(
    rows: Float[Tensor, "n columns"], cuts: Float[Tensor, "cuts columns"], labels: Integer[Tensor, "n"]
) -> tuple[Float[Tensor, "columns"], Float[Tensor, "columns"]]:
    """Pearson's chi-squared of classes and groups, and its degrees of freedom, at least 1, for each column."""
    classes, groups = int(labels.max()) + 1, len(cuts) + 1
    found = []
    for values, own in zip(rows.T, cuts.T, strict=True):
        places = torch.bucketize(values.contiguous(), own.contiguous()) * classes + labels
        counts = torch.bincount(places, minlength=groups * classes).double().view(groups, classes)
        of_group, of_class = counts.sum(1), counts.sum(0)
        expected = torch.outer(of_group, of_class) / len(rows)
        statistic = ((counts - expected).square() / expected.clamp(min=1e-9)).sum()
        freedom = ((of_group > 0).sum() - 1) * ((of_class > 0).sum() - 1)
        found.append(torch.stack([statistic, freedom.clamp(min=1).double()]))
    statistics, freedoms = torch.stack(found).T
    return statistics, freedoms
