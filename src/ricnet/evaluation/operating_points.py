"""Operating points of a network with exits: halting thresholds for budgets, mean shares of compute, from validation
data."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from ricnet.core.trajectory import halting_step
from ricnet.errors import RicnetError, setting
from ricnet.evaluation.outcome import Outcome

GRID = 40
"""Thresholds are stored for budgets of k/40 of compute that pay for the first exit."""
ROUNDING = 1e-9


@dataclass(frozen=True)
class OperatingPoint:
    """A threshold and its results on validation data."""

    halt_threshold: float
    mean_cost: float
    """The mean share of compute."""
    accuracy: float
    nll: float


def operating_points(outcome: Outcome) -> tuple[OperatingPoint, ...]:
    """For each budget of the grid, the threshold that spends as much of it as possible; from all examples leaving at
    the first exit to all going through the whole network.

    Example i continues after step n if the lowest of its values so far, m_{n,i}, is not below the threshold, and that
    costs c_{n+1} − c_n. So the mean share is c_1 + Σ_{n,i} (c_{n+1} − c_n) 1[m_{n,i} ≥ threshold] / N: it falls at each
    m_{n,i} and nowhere else.
    """
    assert outcome.costs is not None
    lowest = outcome.continuation[1:].cummin(0).values
    levels, place = lowest.unique(return_inverse=True)  # from low to high
    prices = outcome.costs.diff()[:, None].expand_as(lowest).flatten() / lowest.shape[1]
    spent = outcome.costs[0] + torch.bincount(place.flatten(), prices, len(levels)).flip(0).cumsum(0).flip(0)
    between = levels[:-1] / 2 + levels[1:] / 2
    between = torch.where(between > levels[:-1], between, levels[1:])  # adjacent floats have no midpoint
    thresholds = [below(levels), *between.tolist(), math.floor(float(levels[-1])) + 1.0]
    spent = torch.cat([spent, outcome.costs[:1]])  # mean share of compute per threshold, falling
    budgets = [float(outcome.costs[0]), *(share / GRID for share in range(1, GRID + 1))]
    within = [int((spent > budget + ROUNDING).sum()) for budget in budgets if budget >= budgets[0]]
    return tuple(_point(outcome, thresholds[first]) for first in dict.fromkeys(within))


def _point(outcome: Outcome, threshold: float) -> OperatingPoint:
    assert outcome.costs is not None
    stops = halting_step(outcome.continuation, threshold)
    right, score = at_step(outcome.step_correct, stops).double(), at_step(outcome.step_scores, stops).double()
    return OperatingPoint(threshold, float(outcome.costs[stops - 1].mean()), float(right.mean()), -float(score.mean()))


def point_within(points: Sequence[OperatingPoint], budget: float) -> OperatingPoint:
    """The most expensive operating point within a budget."""
    require_affordable(budget, min(point.mean_cost for point in points))
    return max((point for point in points if point.mean_cost <= budget + ROUNDING), key=lambda point: point.mean_cost)


def require_affordable(budget: float, first_exit: float) -> None:
    if not first_exit <= budget + ROUNDING <= 1 + 2 * ROUNDING:
        least = math.ceil(1000 * first_exit) / 1000
        raise RicnetError(
            f"{setting('budget', budget)} is out of range: it must be from {least:g} (the first exit) to 1 (the whole "
            "network)."
        )


def shortfall(mean_cost: float, budget: float) -> str | None:
    """A clause for the user if no threshold comes near the budget."""
    if budget - mean_cost <= 2 / GRID:
        return None
    return (
        f"only {mean_cost:.3f} of the budget of {budget:g} is spent, because many validation examples have equal "
        "values and no threshold separates them"
    )


def at_step(grid: Tensor, stops: Int64[Tensor, "n"]) -> Tensor:
    """The entry of each example at its own step."""
    return grid[stops - 1, torch.arange(grid.shape[1])]


def below(values: Float[Tensor, "*any"]) -> float:
    """A threshold below all values: no example stops early."""
    return math.floor(float(values.min())) - 1.0
