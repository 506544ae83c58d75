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

MAX_BINS, MAX_FEATURES = 4, 512
"""Maximum number of bins of a column, and of all columns together, which in wide tables leaves a column fewer."""
MIN_GROUPS, MAX_GROUPS = 2, 8
"""Minimum and maximum number of groups that a column is cut into for the chi-squared test."""
MIN_EXPECTED = 5
"""Minimum mean number of rows of a class in a group, as the chi-squared test requires."""
FREE_COLUMNS = 10
"""In tables of up to this many columns all factors are 1."""
NARROWEST = 1e-5
"""Narrowest bin, in standard deviations; narrower ones cannot be told apart in single precision."""


class ColumnFeatures(FittedLayer):
    """(batch, columns), standardised → (batch, columns · (1 + bins)): each column and its position within each of its
    bins, clipped to 0..1 and centred (piecewise linear encoding, Gorishniy et al. 2022), times the column's factor.

    Bins are quantiles of the training rows. Until `fit` is called there are none, and all factors are 1.
    """

    rows_to_fit = 10_000
    lower: Tensor
    slope: Tensor
    centre: Tensor
    factor: Tensor

    def __init__(self, columns: int) -> None:
        super().__init__()
        bins = min(MAX_BINS, MAX_FEATURES // columns)
        bins = bins if bins > 1 else 0  # one bin is the column itself
        self.size = columns * (1 + bins)
        for name in ("lower", "slope", "centre"):
            self.register_buffer(name, torch.zeros(columns, bins))
        self.register_buffer("factor", torch.ones(columns))

    @torch.no_grad()
    def fit(self, rows: Float[Tensor, "n columns"], labels: Int64[Tensor, "n"] | None) -> None:
        """Compute the bins and, if there are labels, the factors."""
        ordered = rows.sort(0).values
        bins = self.lower.shape[1]
        if bins:
            for column, values in enumerate(quantiles(ordered, bins + 1).T):
                edges = distinct(values)
                self.lower[column, : len(edges) - 1] = edges[:-1]
                self.slope[column, : len(edges) - 1] = 1 / edges.diff()
            self.centre.copy_(self._positions(rows).mean(0))
        if labels is not None:
            cuts = quantiles(ordered, count_groups(labels) + 1)[1:-1]
            self.factor.copy_(factors(rows, cuts, labels))

    def _positions(self, rows: Float[Tensor, "batch columns"]) -> Float[Tensor, "batch columns bins"]:
        return ((rows.unsqueeze(2) - self.lower) * self.slope).clamp(0, 1)

    def forward(self, rows: Float[Tensor, "batch columns"]) -> Float[Tensor, "batch features"]:
        features = torch.cat([rows.unsqueeze(2), self._positions(rows) - self.centre], 2)
        return (features * self.factor.unsqueeze(1)).flatten(1)


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
