"""Checks Lemma 2 (variance penalty of stochastic actions) and its decrease with the concentration c."""

import math
from typing import Any

import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from ricnet.core import mdp
from ricnet.core.policies import Dirichlet
from ricnet.report.figures import BLUE, FAINT, GREEN, INK, ORANGE, VERMILLION, letter, styled
from ricnet_paper.theory.finding import BOUND, Agreement, Finding, compare, use_log_scale

CLAIM = (
    "E[log a_y] = log μ_y − E[D_F(a_y ‖ μ_y)], and the penalty is about Var(a_y)/2μ_y², which falls like 1/c "
    "(Lemma 2 and its appendix)."
)
CLASSES = 4
MEANS = (0.05, 0.2, 0.5, 0.9)
CONCENTRATIONS = tuple(10.0 ** (k / 2) for k in range(9))
TOLERANCE = 0.01
"""Relative tolerance of the two approximations at the largest c."""


def examine(draws: int = 20_000, seed: int = 0) -> Finding:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        scores, penalties = _measure(draws)
    mean, c = torch.tensor(MEANS, dtype=torch.float64)[:, None], torch.tensor(CONCENTRATIONS, dtype=torch.float64)
    quadratic = mean * (1 - mean) / (c + 1) / (2 * mean.square())  # Var(a_y)/2μ_y²
    # Slope d log penalty / d log c and relative error of the quadratic, both at the largest c.
    rise = penalties.expected[:, -1].log() - penalties.expected[:, -2].log()
    slope = float((rise / math.log(CONCENTRATIONS[-1] / CONCENTRATIONS[-2]) + 1).abs().max())
    off = float((quadratic[:, -1] / penalties.expected[:, -1] - 1).abs().max())
    statement = (
        f"{quadratic.numel()} Dirichlet policies over {CLASSES} classes (μ_y from {MEANS[0]} to {MEANS[-1]}, c from 1 "
        f"to {CONCENTRATIONS[-1]:g}), {draws:,} actions each: sampled E[log a_y] and E[D_F] are within "
        f"{scores.largest:.1f} and {penalties.largest:.1f} standard errors of the digamma form (bound "
        f"{BOUND:g}). At the largest c the penalty's slope over c in log-log is −1 within {slope:.4f} and Var/2μ² is "
        f"off by {off:.2%} (bounds {TOLERANCE:g} and {TOLERANCE:.0%})."
    )
    passed = scores.holds and penalties.holds and slope <= TOLERANCE and off <= TOLERANCE
    columns = {
        "expected_log_score": scores.expected,
        "sampled_log_score": scores.sampled,
        "standard_error_log_score": scores.standard_error,
        "penalty": penalties.expected,
        "sampled_penalty": penalties.sampled,
        "standard_error_penalty": penalties.standard_error,
        "quadratic_penalty": quadratic,
    }
    rows: list[dict[str, Any]] = [
        {"mu_y": mean, "c": c, "draws": draws, **{name: float(column[i, j]) for name, column in columns.items()}}
        for i, mean in enumerate(MEANS)
        for j, c in enumerate(CONCENTRATIONS)
    ]
    return Finding("lemma2", CLAIM, passed, statement, rows, _draw(scores, penalties, quadratic, draws))


def _measure(draws: int) -> tuple[Agreement, Agreement]:
    """E[log a_y] and E[D_F], sampled and in closed form, for each mean and concentration."""
    mean = torch.tensor(MEANS, dtype=torch.float64)
    concentration = torch.tensor(CONCENTRATIONS, dtype=torch.float64)
    others = ((1 - mean) / (CLASSES - 1))[:, None].expand(-1, CLASSES - 1)
    mu = torch.cat([mean[:, None], others], 1)[:, None].expand(-1, len(concentration), -1)
    policy = Dirichlet.around(mu.log(), concentration.expand(mu.shape[:-1]), epsilon=0.0)  # so that E[a] is μ itself
    truth = torch.zeros(len(concentration), dtype=torch.int64)
    many = Dirichlet(policy.log_mu.expand(draws, *mu.shape), policy.alpha.expand(draws, *mu.shape))
    scores = mdp.log_scores(many.sample(), truth)
    return (
        compare(scores, policy.expected_log_score(truth)),
        compare(divergence(scores, mean.log()[:, None]), policy.variance_penalty(truth)),
    )


def divergence(log_action: Float[Tensor, "..."], log_mean: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """D_F(x ‖ y) = x/y − log(x/y) − 1, the Bregman divergence of −log."""
    log_ratio = log_action - log_mean
    return log_ratio.exp() - log_ratio - 1


@styled
def _draw(
    scores: Agreement, penalties: Agreement, quadratic: Float[Tensor, "means concentrations"], draws: int
) -> Figure:
    figure = Figure(figsize=(6.6, 2.9), layout="constrained")
    left, right = figure.subplots(1, 2)
    for i, (mean, colour, marker) in enumerate(zip(MEANS, (BLUE, VERMILLION, GREEN, ORANGE), "os^D", strict=True)):
        dots: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 3.5, "linestyle": "none"}
        left.plot(CONCENTRATIONS, -scores.expected[i], color=colour, linewidth=1)
        left.plot(CONCENTRATIONS, -scores.sampled[i], label=f"μ_y = {mean:g}", **dots)
        left.axhline(-math.log(mean), color=colour, linewidth=0.7, linestyle=":")
        right.plot(CONCENTRATIONS, penalties.expected[i], color=colour, linewidth=1)
        right.plot(CONCENTRATIONS, penalties.sampled[i], **dots)
        right.plot(CONCENTRATIONS, quadratic[i], color=colour, linewidth=0.9, linestyle="--")
    for ax in (left, right):
        use_log_scale(ax, "x")
        use_log_scale(ax, "y", ticks=8)
        ax.set_xlabel("concentration c")
    left.set_ylabel("−E[log a_y], nats")
    left.legend(loc="upper right", ncols=2, columnspacing=0.8, handletextpad=0.2)
    letter(left, 0, "cost of random beliefs (dotted: of μ)")
    right.set_ylabel("E[D_F], nats")
    right.plot([30, 3000], [6, 0.06], color=FAINT, linewidth=0.9)
    right.text(400, 0.6, "slope −1", color=INK, fontsize=7)
    letter(right, 1, "variance penalty (dashed: Var/2μ²)")
    figure.suptitle(f"lines: digamma form; marks: means of {draws:,} sampled beliefs", fontsize=7.5)
    return figure
