"""Checks Lemma 1 (geometric horizon) and Eq. 2 (telescoping return) on random reward sequences."""

import math
from typing import Any

import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from ricnet.core import mdp
from ricnet.report.figures import BLUE, FAINT, GREEN, INK, ORANGE, VERMILLION, letter, styled
from ricnet_paper.theory.finding import BOUND, Agreement, Finding, compare

CLAIM = (
    "The discounted return is the undiscounted return up to a geometric random step (Lemma 1), which telescopes to the "
    "log-score of the belief at that step (Eq. 2)."
)
DISCOUNTS = (0.5, 0.8, 0.9, 0.95)
CLASSES, STEPS, SEQUENCES = 5, 40, 8
EXACT = 1e-9
"""Tolerance of an identity in float64, nats."""
Sequences = Float[Tensor, "steps sequences"]


def examine(draws: int = 20_000, seed: int = 0) -> Finding:
    generator = torch.Generator().manual_seed(seed)
    scores = _log_scores(generator)
    rewards = mdp.rewards(scores, -math.log(CLASSES))
    agreements = {gamma: _stop_at_random(rewards, gamma, draws, generator) for gamma in DISCOUNTS}
    largest = max(found.largest for found in agreements.values())
    # Σ_{t≤n} r_t against log a_{n,y} − log a_{0,y}, at every n.
    telescoped = float((rewards.cumsum(0) - (scores + math.log(CLASSES))).abs().max())
    mixed = max(_mixture_gap(scores, rewards, gamma) for gamma in DISCOUNTS)
    statement = (
        f"{len(DISCOUNTS)} discounts × {SEQUENCES} random reward sequences, {draws:,} geometric horizons each: sampled "
        f"and discounted return differ by at most {largest:.1f} standard errors (bound {BOUND:g}). Rewards telescope "
        f"to the log-score within {telescoped:.0e} nat and the discounted return is the geometric mixture of Eq. 2 "
        f"within {mixed:.0e} nat (bound {EXACT:g})."
    )
    passed = all(found.holds for found in agreements.values()) and max(telescoped, mixed) <= EXACT
    rows = [row for gamma, found in agreements.items() for row in _rows(gamma, found, draws)]
    return Finding("lemma1", CLAIM, passed, statement, rows, _draw(agreements, draws))


def _log_scores(generator: torch.Generator) -> Sequences:
    """log a_{t,y} of random beliefs, constant from step T on, so that the infinite sum is known.

    Logits are random walks with a drift towards the true class, so that not all returns are near 0.
    """
    steps = 0.5 * torch.randn(STEPS, SEQUENCES, CLASSES, generator=generator, dtype=torch.float64)
    steps[..., 0] += torch.linspace(-0.1, 0.4, SEQUENCES, dtype=torch.float64)
    return mdp.log_scores(steps.cumsum(0).log_softmax(-1), torch.zeros(SEQUENCES, dtype=torch.int64))


def _stop_at_random(rewards: Sequences, gamma: float, draws: int, generator: torch.Generator) -> Agreement:
    """E[Σ_{t≤N} r_t] with N ~ Geom(1 − γ), sampled, against Σ γ^{t−1} r_t."""
    horizons = torch.empty(draws, SEQUENCES, dtype=torch.float64).geometric_(1 - gamma, generator=generator)
    returns = rewards.cumsum(0).gather(0, horizons.long().clamp(max=STEPS) - 1)
    return compare(returns, mdp.discounted_return(rewards, gamma))


def _mixture_gap(scores: Sequences, rewards: Sequences, gamma: float) -> float:
    """Error of Eq. 2 without sampling; horizons beyond the last step end on its belief."""
    weights = mdp.geometric_weights(STEPS, gamma)
    mixture = weights @ scores + (1 - weights.sum()) * scores[-1] + math.log(CLASSES)
    return float((mixture - mdp.discounted_return(rewards, gamma)).abs().max())


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
    looks = zip((BLUE, VERMILLION, GREEN, ORANGE), "os^D", agreements.items(), strict=True)
    for place, (colour, marker, (gamma, found)) in enumerate(looks):
        points: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 4, "linestyle": "none"}
        left.plot(found.expected, found.sampled, label=f"γ = {gamma}", **points)
        right.plot(place + torch.linspace(-0.25, 0.25, len(found.expected)), found.deviation, **points)
    left.plot(left.get_xlim(), left.get_xlim(), color=FAINT, linewidth=0.8, zorder=0)
    left.set(xlabel="discounted return, nats", ylabel="mean return at N ~ Geom(1 − γ)")
    left.legend(loc="upper left", handletextpad=0.2)
    letter(left, 0, "two ways to the return")
    for level in (-BOUND, BOUND):
        right.axhline(level, color=INK, linewidth=0.8, linestyle="--")
    right.axhline(0, color=FAINT, linewidth=0.8, zorder=0)
    right.set(xticks=range(len(DISCOUNTS)), xticklabels=[f"{gamma}" for gamma in DISCOUNTS], xlabel="γ")
    right.set_ylabel("difference, standard errors")
    right.margins(y=0.12)
    letter(right, 1, "what sampling leaves (dashed: bound)")
    figure.suptitle(f"{SEQUENCES} reward sequences per discount, {draws:,} horizons each", fontsize=7.5)
    return figure
