"""Lemma 1, geometric horizon, and Eq. 2, the telescoping return that follows from it."""

import math
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from ricnet.core import mdp
from ricnet.report.figures import BLUE, FAINT, GREEN, INK, ORANGE, VERMILLION, styled
from ricnet.studies.theory.finding import BOUND, Agreement, Finding, compare

CLAIM = (
    "The discounted return is the undiscounted return up to a geometric random step (Lemma 1), which telescopes to the "
    "log-score of the belief at that step (Eq. 2)."
)
DISCOUNTS = (0.5, 0.8, 0.9, 0.95)
CLASSES, STEPS, SEQUENCES = 5, 40, 8
EXACT = 1e-9
"""How far apart two sides of an identity may be in float64, nats."""


class Walks(NamedTuple):
    """Random sequences of beliefs that stay as they are from step T on, so that the infinite sum is known."""

    scores: Float[Tensor, "steps sequences"]
    """log a_{t,y}."""
    rewards: Float[Tensor, "steps sequences"]


def examine(draws: int = 20_000, seed: int = 0) -> Finding:
    generator = torch.Generator().manual_seed(seed)
    walks = _walk(generator)
    agreements = {gamma: _stop_at_random(walks, gamma, draws, generator) for gamma in DISCOUNTS}
    largest = max(found.largest for found in agreements.values())
    telescoped, mixed = _telescoping_gap(walks), max(_mixture_gap(walks, gamma) for gamma in DISCOUNTS)
    statement = (
        f"{len(DISCOUNTS)} discounts × {SEQUENCES} random reward sequences, {draws:,} geometric horizons each: sampled "
        f"and discounted return differ by at most {largest:.1f} standard errors (bound {BOUND:g}). Rewards telescope "
        f"to the log-score within {telescoped:.0e} nat and the discounted return is the geometric mixture of Eq. 2 "
        f"within {mixed:.0e} nat (bound {EXACT:g})."
    )
    passed = all(found.holds for found in agreements.values()) and max(telescoped, mixed) <= EXACT
    rows = [row for gamma, found in agreements.items() for row in _rows(gamma, found, draws)]
    return Finding("lemma1", CLAIM, passed, statement, rows, _draw(agreements, draws))


def _walk(generator: torch.Generator) -> Walks:
    """Logits take random steps, with a drift towards the true class so that returns are not all near 0."""
    steps = 0.5 * torch.randn(STEPS, SEQUENCES, CLASSES, generator=generator, dtype=torch.float64)
    steps[..., 0] += torch.linspace(-0.1, 0.4, SEQUENCES, dtype=torch.float64)
    truth = torch.zeros(SEQUENCES, dtype=torch.int64)
    scores = mdp.log_scores(steps.cumsum(0).log_softmax(-1), truth)
    return Walks(scores, mdp.rewards(scores, CLASSES))


def _stop_at_random(walks: Walks, gamma: float, draws: int, generator: torch.Generator) -> Agreement:
    """E[Σ_{t≤N} r_t] with N ~ Geom(1 − γ), sampled, against Σ γ^{t−1} r_t."""
    horizons = torch.empty(draws, SEQUENCES, dtype=torch.float64).geometric_(1 - gamma, generator=generator)
    last = horizons.long().clamp(max=STEPS) - 1
    returns = walks.rewards.cumsum(0).gather(0, last)
    return compare(returns, mdp.discounted_return(walks.rewards, gamma))


def _telescoping_gap(walks: Walks) -> float:
    """Σ_{t≤n} r_t against log a_{n,y} − log a_{0,y}, at every n."""
    return float((walks.rewards.cumsum(0) - (walks.scores + math.log(CLASSES))).abs().max())


def _mixture_gap(walks: Walks, gamma: float) -> float:
    """Eq. 2 without sampling; the horizons beyond the last step all end on its belief."""
    weights = mdp.geometric_weights(STEPS, gamma)
    mixture = weights @ walks.scores + (1 - weights.sum()) * walks.scores[-1] + math.log(CLASSES)
    return float((mixture - mdp.discounted_return(walks.rewards, gamma)).abs().max())


def _rows(gamma: float, found: Agreement, draws: int) -> list[dict[str, Any]]:
    columns = (found.expected, found.sampled, found.standard_error, found.deviation)
    names = ("discounted_return", "geometric_return", "standard_error", "deviation")
    return [
        {"gamma": gamma, "sequence": i, "draws": draws, **dict(zip(names, values, strict=True))}
        for i, values in enumerate(torch.stack(columns, 1).tolist())
    ]


@styled
def _draw(agreements: dict[float, Agreement], draws: int) -> Figure:
    figure = Figure(figsize=(6.6, 2.7), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.15))
    for place, (shade, marker, (gamma, found)) in enumerate(
        zip((BLUE, VERMILLION, GREEN, ORANGE), "os^D", agreements.items(), strict=True)
    ):
        points: dict[str, Any] = {"color": shade, "marker": marker, "markersize": 4, "linestyle": "none"}
        left.plot(found.expected, found.sampled, label=f"γ = {gamma}", **points)
        spread = place + torch.linspace(-0.25, 0.25, len(found.expected))
        right.plot(spread, found.deviation, **points)
    _finish(left, right)
    figure.suptitle(f"{SEQUENCES} reward sequences a discount, {draws:,} horizons each", fontsize=7.5)
    return figure


def _finish(left: Axes, right: Axes) -> None:
    low, high = left.get_xlim()
    left.plot([low, high], [low, high], color=FAINT, linewidth=0.8, zorder=0)
    left.set(xlabel="discounted return, nats", ylabel="mean return at N ~ Geom(1 − γ)")
    left.set_title("(a) two ways to the return", loc="left")
    left.legend(loc="upper left", handletextpad=0.2)
    for level in (-BOUND, BOUND):
        right.axhline(level, color=INK, linewidth=0.8, linestyle="--")
    right.axhline(0, color=FAINT, linewidth=0.8, zorder=0)
    right.set(xticks=range(len(DISCOUNTS)), xticklabels=[f"{gamma}" for gamma in DISCOUNTS], xlabel="γ")
    right.set(ylabel="difference, standard errors")
    right.margins(y=0.12)
    right.set_title("(b) what sampling leaves (dashed: bound)", loc="left")
