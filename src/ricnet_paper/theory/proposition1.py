"""Checks Proposition 1: the optimal policy answers q at every step if c is free.

The proposition lets the policy become deterministic. A Dirichlet with bounded c maximises E_q[ψ(α_y)] − ψ(Σα) at
Σα = c + Kε instead; at its optimum q_k·ψ'(α_k) is the same for all k and the mean differs from q. The `implied`
readout recovers q.
"""

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from scipy.special import polygamma
from torch import Tensor

from ricnet.core import mdp
from ricnet.methods import RIC
from ricnet.report.figures import BLUE, FAINT, GREEN, INK, VERMILLION, letter, styled
from ricnet_paper.theory import known_truth
from ricnet_paper.theory.finding import Finding, use_log_scale
from ricnet_paper.theory.known_truth import CONDITIONALS, METHOD, Conditionals

CLAIM = (
    "The optimal policy answers q at every step and earns −H(q) + log K (Proposition 1); with c bounded its mean falls "
    "short of q as q_k·ψ'(α_k) = const says, and the implied readout recovers q."
)
FREE, BOUNDED = 1000.0, 10.0
"""Largest c: nearly deterministic, and as in the paper."""
NEAR_TRUTH = 0.005
"""Bound on KL(q ‖ belief) in nats with c up to 1000, at every step, mean over contexts. Seeds 0, 1, 2: .0028, .0044,
.0036."""
NEAR_CEILING = 0.015
"""Bound on the relative gap of the return to −H(q) + log K. Seeds 0, 1, 2: .7, 1.3, .7 %."""
NEAR_OPTIMUM = 0.001
"""Bound on KL(optimum ‖ mean) and KL(q ‖ implied) with c up to 10. Seeds 0, 1, 2: .0005, .0009, .0008."""
SEPARATION = 20.0
"""Least ratio of KL(q ‖ mean) to KL(optimum ‖ mean) with c up to 10. Seeds 0, 1, 2: 41, 27, 30."""
NEAR_TOTAL = 0.01
"""Largest relative distance of the mean Σα below c_max + Kε with c up to 10; the optimum has c at its bound. This
check detects a wrong ε, on which beliefs hardly depend."""
ROUNDING = 1e-5
"""Relative rounding error of Σα in float32."""
ROLLOUTS = 4000
"""Roll-outs per context to measure the return."""


class Agent(NamedTuple):
    """Beliefs and returns of a trained agent."""

    c_max: float
    mean: Float[Tensor, "steps contexts classes"]
    """Log-beliefs with readout α/Σα, as in the paper."""
    implied: Float[Tensor, "steps contexts classes"]
    optimum: Float[Tensor, "contexts classes"]
    """Optimal mean for this c."""
    totals: Float[Tensor, "steps rollouts contexts"]
    """Σα in the states of the roll-outs, relative to c_max + Kε."""
    returns: Float[Tensor, "contexts"]
    """E[J] with sampled actions."""


def examine(
    updates: int = 2000,
    method: RIC = METHOD,
    truth: Conditionals = CONDITIONALS,
    rollouts: int = ROLLOUTS,
    seed: int = 0,
) -> Finding:
    free, bounded = (_train(replace(method, c_max=c), truth, updates, rollouts, seed) for c in (FREE, BOUNDED))
    ceiling = math.log(truth.shape[1]) - known_truth.entropy(truth)  # −H(q) + log K
    earned, most = float(free.returns.mean()), float(ceiling.mean())
    gap = abs(earned / most - 1)
    # Means over contexts by step; the worst step is reported.
    divergence = known_truth.divergence
    distances = {
        "free to q": divergence(truth, free.mean).mean(-1),
        "bounded to q": divergence(truth, bounded.mean).mean(-1),
        "bounded to optimum": divergence(bounded.optimum, bounded.mean).mean(-1),
        "implied to q": divergence(truth, bounded.implied).mean(-1),
    }
    to_truth, short_of_truth, to_optimum, implied = (float(distance.max()) for distance in distances.values())
    ratio = float((distances["bounded to q"] / distances["bounded to optimum"]).min())
    largest, total = float(bounded.totals.max()), float(bounded.totals.mean())
    statement = (
        f"{len(truth)} contexts, {truth.shape[1]} classes, {updates} updates, {method.horizon} steps. "
        f"c up to {FREE:g}: KL(q ‖ belief) at most {to_truth:.4f} at any step (bound {NEAR_TRUTH:g}); return "
        f"{earned:.4f} against −H(q) + log K = {most:.4f}, off by {gap:.1%} (bound "
        f"{NEAR_CEILING:.1%}). c up to {BOUNDED:g}: KL to the closed-form optimum at most {to_optimum:.4f} "
        f"(bound {NEAR_OPTIMUM:g}), to q up to {short_of_truth:.4f} and at every step at least {ratio:.0f} "
        f"times as far (bound {SEPARATION:g}); KL(q ‖ implied) at most {implied:.4f} (bound {NEAR_OPTIMUM:g}); Σα "
        f"{total:.2%} of c_max + Kε (bound {1 - NEAR_TOTAL:.0%}), {largest:.2%} at most (bound 100%). "
        f"KL and return are means of the contexts."
    )
    passed = to_truth <= NEAR_TRUTH and gap <= NEAR_CEILING
    passed = passed and total >= 1 - NEAR_TOTAL and largest <= 1 + ROUNDING
    passed = passed and max(to_optimum, implied) <= NEAR_OPTIMUM and ratio >= SEPARATION
    rows = [row for agent in (free, bounded) for row in _rows(agent, truth, ceiling)]
    figure = _draw(free, bounded, truth, distances, updates)
    return Finding("proposition1", CLAIM, passed, statement, rows, figure)


def constrained_optimum(q: Float[np.ndarray, "classes"], total: float) -> Float[np.ndarray, "classes"]:
    """The α with q_k·ψ'(α_k) = const and Σα = total, by bisection (ψ' is decreasing)."""

    def alpha(log_constant: float) -> Float[np.ndarray, "classes"]:
        low, high = np.full(len(q), 1e-9), np.full(len(q), total)
        for _ in range(60):
            middle = (low + high) / 2
            above = np.log(q) + np.log(polygamma(1, middle)) > log_constant
            low, high = np.where(above, middle, low), np.where(above, high, middle)
        return np.asarray((low + high) / 2)

    low, high = -50.0, 50.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if alpha(middle).sum() > total else (low, middle)
    return alpha(low)


def _train(method: RIC, truth: Conditionals, updates: int, rollouts: int, seed: int) -> Agent:
    model = known_truth.train_agent(method, truth, updates, seed)
    inputs = known_truth.contexts(truth)
    mean, implied = (replace(method, readout=r).refine(model, inputs).log_beliefs.double() for r in ("mean", "implied"))
    total = _largest_total(method, truth.shape[1])
    optimum = np.stack([constrained_optimum(q, total) / total for q in truth.numpy()])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        rollout = replace(method, rollouts=rollouts).roll_out(model, model.context(inputs))
    returns = _expected_return(method, rollout.log_actions.double(), truth)
    totals = rollout.policy.total.double() / total  # type: ignore[attr-defined]  # a Dirichlet
    return Agent(method.c_max, mean, implied, torch.from_numpy(optimum), totals, returns)


def _largest_total(method: RIC, classes: int) -> float:
    """c_max + Kε."""
    return method.c_max + classes * method.alpha_floor


def _expected_return(
    method: RIC, actions: Float[Tensor, "steps rollouts contexts classes"], truth: Conditionals
) -> Float[Tensor, "contexts"]:
    """E_q E_π[Σ_{t≤T} γ^{t−1} r_t], with the expectation over labels exact. At the optimum later rewards are 0."""
    count, classes = truth.shape
    returns = [
        mdp.discounted_return(
            mdp.rewards(mdp.log_scores(actions, torch.full((count,), y)), -math.log(classes)), method.gamma
        )
        for y in range(classes)
    ]
    return (truth * torch.stack(returns, -1).mean(0)).sum(-1)


def _rows(agent: Agent, truth: Conditionals, ceiling: Float[Tensor, "contexts"]) -> list[dict[str, Any]]:
    steps, count, classes = agent.mean.shape
    return [
        {"c_max": agent.c_max, "step": t + 1, "context": x, "class": k, "q": float(truth[x, k])}
        | {"mean": float(agent.mean[t, x, k].exp()), "implied": float(agent.implied[t, x, k].exp())}
        | {"optimum": float(agent.optimum[x, k]), "return": float(agent.returns[x]), "ceiling": float(ceiling[x])}
        for t in range(steps)
        for x in range(count)
        for k in range(classes)
    ]


CURVES: dict[str, tuple[str, str, str, str]] = {
    "bounded to q": (f"c ≤ {BOUNDED:g}, mean, to q", VERMILLION, "s", "-"),
    "bounded to optimum": (f"c ≤ {BOUNDED:g}, mean, to its optimum", VERMILLION, "s", ":"),
    "implied to q": (f"c ≤ {BOUNDED:g}, implied, to q", GREEN, "^", "-"),
    "free to q": (f"c ≤ {FREE:g}, mean, to q", BLUE, "o", "-"),
}


@styled
def _draw(
    free: Agent, bounded: Agent, truth: Conditionals, distances: dict[str, Float[Tensor, "steps"]], updates: int
) -> Figure:
    figure = Figure(figsize=(6.8, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    for name, (label, shade, marker, dash) in CURVES.items():
        filled = "white" if dash == ":" else shade
        style: dict[str, Any] = {"color": shade, "marker": marker, "linestyle": dash, "markerfacecolor": filled}
        left.plot(range(1, len(free.mean) + 1), distances[name], label=label, markersize=4, **style)
    left.axhline(NEAR_TRUTH, color=INK, linewidth=0.8, linestyle="--", label=f"bound for c ≤ {FREE:g}")
    use_log_scale(left, "y")
    left.xaxis.set_major_locator(MaxNLocator(integer=True))
    left.set(xlabel="step", ylabel="KL, nats")
    letter(left, 0, f"distance, mean of {len(truth)} contexts")
    _draw_beliefs(right, free, bounded, truth)
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    figure.suptitle(f"{updates:,} updates of {known_truth.LABELS} labels per context", fontsize=7.5)
    return figure


def _draw_beliefs(ax: Axes, free: Agent, bounded: Agent, truth: Conditionals) -> None:
    ax.plot([0, 1], [0, 1], color=FAINT, linewidth=0.8, zorder=0)
    shown = (
        (bounded.optimum, f"optimum at c = {BOUNDED:g}", INK, "o", 7.5),
        (bounded.mean[-1].exp(), f"c ≤ {BOUNDED:g}, mean", VERMILLION, "s", 3.5),
        (bounded.implied[-1].exp(), f"c ≤ {BOUNDED:g}, implied", GREEN, "^", 4),
        (free.mean[-1].exp(), f"c ≤ {FREE:g}, mean", BLUE, "o", 3),
    )
    for beliefs, label, shade, marker, size in shown:
        fill = "none" if label.startswith("optimum") else shade
        style: dict[str, Any] = {"color": shade, "markerfacecolor": fill, "markersize": size, "linestyle": "none"}
        ax.plot(truth.flatten(), beliefs.flatten(), marker, label=label, markeredgewidth=0.8, **style)
    ax.set(xlabel="true probability q_k", ylabel=f"believed after {len(free.mean)} steps")
    letter(ax, 1, "all contexts and classes")
    ax.legend(loc="upper left", handletextpad=0.2)
