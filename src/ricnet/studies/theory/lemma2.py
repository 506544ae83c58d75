"""Lemma 2, the variance penalty of stochastic actions, and how it shrinks with the concentration."""

import math
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from ricnet.core import mdp
from ricnet.core.policies import Dirichlet
from ricnet.report.figures import BLUE, FAINT, GREEN, INK, ORANGE, VERMILLION, styled
from ricnet.studies.theory.finding import BOUND, Agreement, Finding, compare, use_log_scale

CLAIM = (
    "E[log a_y] = log μ_y − E[D_F(a_y ‖ μ_y)], and the penalty is about Var(a_y)/2μ_y², which falls like 1/c "
    "(Lemma 2 and its appendix)."
)
CLASSES = 4
MEANS = (0.05, 0.2, 0.5, 0.9)
CONCENTRATIONS = tuple(10.0 ** (k / 2) for k in range(9))
TOLERANCE = 0.01
"""Of the two approximations, which hold for large c, at the largest c."""


class Penalties(NamedTuple):
    scores: Agreement
    """E[log a_y], sampled and in closed form."""
    divergences: Agreement
    """E[D_F], sampled and in closed form."""
    quadratic: Float[Tensor, "means concentrations"]
    """Var(a_y)/2μ_y²."""

    @property
    def slopes(self) -> Float[Tensor, "means"]:
        """d log penalty / d log c at the largest c."""
        last = self.divergences.expected[:, -2:].log()
        return (last[:, 1] - last[:, 0]) / math.log(CONCENTRATIONS[-1] / CONCENTRATIONS[-2])

    @property
    def shortfall(self) -> Float[Tensor, "means"]:
        """How far the quadratic approximation is off at the largest c, relative to the penalty."""
        return (self.quadratic[:, -1] / self.divergences.expected[:, -1] - 1).abs()


def examine(draws: int = 20_000, seed: int = 0) -> Finding:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        found = _measure(draws)
    slope, off = float((found.slopes + 1).abs().max()), float(found.shortfall.max())
    cells = len(MEANS) * len(CONCENTRATIONS)
    statement = (
        f"{cells} Dirichlet policies over {CLASSES} classes (μ_y from {MEANS[0]} to {MEANS[-1]}, c from 1 to "
        f"{CONCENTRATIONS[-1]:g}), {draws:,} actions each: sampled E[log a_y] and E[D_F] are within "
        f"{found.scores.largest:.1f} and {found.divergences.largest:.1f} standard errors of the digamma form (bound "
        f"{BOUND:g}). At the largest c the penalty's slope over c in log-log is −1 within {slope:.4f} and Var/2μ² is "
        f"off by {off:.2%} (bounds {TOLERANCE:g} and {TOLERANCE:.0%})."
    )
    passed = found.scores.holds and found.divergences.holds and slope <= TOLERANCE and off <= TOLERANCE
    return Finding("lemma2", CLAIM, passed, statement, _rows(found, draws), _draw(found, draws))


def _measure(draws: int) -> Penalties:
    mean = torch.tensor(MEANS, dtype=torch.float64)
    concentration = torch.tensor(CONCENTRATIONS, dtype=torch.float64)
    others = ((1 - mean) / (CLASSES - 1))[:, None].expand(-1, CLASSES - 1)
    mu = torch.cat([mean[:, None], others], 1)[:, None].expand(-1, len(concentration), -1)
    policy = Dirichlet.around(mu.log(), concentration.expand(mu.shape[:-1]), epsilon=0.0)  # so that E[a] is μ itself
    truth = torch.zeros(len(concentration), dtype=torch.int64)
    many = Dirichlet(policy.log_mu.expand(draws, *mu.shape), policy.alpha.expand(draws, *mu.shape))
    scores = mdp.log_scores(many.sample(), truth)
    variance = mean[:, None] * (1 - mean[:, None]) / (concentration + 1)
    return Penalties(
        compare(scores, policy.expected_log_score(truth)),
        compare(divergence(scores, mean.log()[:, None]), policy.variance_penalty(truth)),
        variance / (2 * mean[:, None].square()),
    )


def divergence(log_action: Float[Tensor, "..."], log_mean: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """D_F(x ‖ y) = x/y − log(x/y) − 1, the Bregman divergence of −log."""
    log_ratio = log_action - log_mean
    return log_ratio.exp() - log_ratio - 1


def _rows(found: Penalties, draws: int) -> list[dict[str, Any]]:
    columns = {
        "expected_log_score": found.scores.expected,
        "sampled_log_score": found.scores.sampled,
        "standard_error_log_score": found.scores.standard_error,
        "penalty": found.divergences.expected,
        "sampled_penalty": found.divergences.sampled,
        "standard_error_penalty": found.divergences.standard_error,
        "quadratic_penalty": found.quadratic,
    }
    return [
        {"mu_y": mean, "c": c, "draws": draws, **{name: float(column[i, j]) for name, column in columns.items()}}
        for i, mean in enumerate(MEANS)
        for j, c in enumerate(CONCENTRATIONS)
    ]


@styled
def _draw(found: Penalties, draws: int) -> Figure:
    figure = Figure(figsize=(6.6, 2.9), layout="constrained")
    scores, penalties = figure.subplots(1, 2)
    for i, (mean, shade, marker) in enumerate(zip(MEANS, (BLUE, VERMILLION, GREEN, ORANGE), "os^D", strict=True)):
        dots: dict[str, Any] = {"color": shade, "marker": marker, "markersize": 3.5, "linestyle": "none"}
        scores.plot(CONCENTRATIONS, -found.scores.expected[i], color=shade, linewidth=1)
        scores.plot(CONCENTRATIONS, -found.scores.sampled[i], label=f"μ_y = {mean:g}", **dots)
        scores.axhline(-math.log(mean), color=shade, linewidth=0.7, linestyle=":")
        penalties.plot(CONCENTRATIONS, found.divergences.expected[i], color=shade, linewidth=1)
        penalties.plot(CONCENTRATIONS, found.divergences.sampled[i], **dots)
        penalties.plot(CONCENTRATIONS, found.quadratic[i], color=shade, linewidth=0.9, linestyle="--")
    scores.set_title("(a) cost of random beliefs (dotted: of μ)", loc="left")
    penalties.set_title("(b) variance penalty (dashed: Var/2μ²)", loc="left")
    _finish(scores, penalties)
    figure.suptitle(f"lines: digamma form; marks: means of {draws:,} sampled beliefs", fontsize=7.5)
    return figure


def _finish(scores: Axes, penalties: Axes) -> None:
    for ax in (scores, penalties):
        use_log_scale(ax, "x")
        use_log_scale(ax, "y", ticks=8)
        ax.set_xlabel("concentration c")
    scores.set_ylabel("−E[log a_y], nats")
    scores.legend(loc="upper right", ncols=2, columnspacing=0.8, handletextpad=0.2)
    penalties.set_ylabel("E[D_F], nats")
    penalties.plot([30, 3000], [6, 0.06], color=FAINT, linewidth=0.9)
    penalties.text(400, 0.6, "slope −1", color=INK, fontsize=7)
