"""Checks Proposition 2 (finite logit scale under shared weights) on fixed thoughts that satisfy its conditions.

Classes overlap in the first thoughts and are linearly separable in the last. One classifier W is trained by gradient
descent on the last thoughts, as in supervised learning, and one on the geometric mixture of all thoughts.
"""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int64
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.optimize import linprog, minimize

from ricnet.core import mdp
from ricnet.report.figures import BLUE, GREEN, INK, ORANGE, PURPLE, VERMILLION, letter, styled
from ricnet_paper.theory.finding import Finding, use_log_scale

CLAIM = (
    "With non-separable early thoughts the geometric mixture has a finite minimiser W, while cross-entropy on "
    "separable last thoughts drives ‖W‖ to infinity (Proposition 2)."
)
CLASSES, ROWS, STEPS, GAMMA = 3, 20, 20, 0.8
"""Classes, rows per class, steps, discount."""
PROGRESS = 0.15
"""Share of the remaining distance to the class centre that a thought moves in a step."""
RATE = 1.0
"""Learning rate, below 2/L, where L ≤ max ‖τ‖²/2 ≤ 1/2."""
STEADY = 0.9
"""Least ratio of the growth of ‖W‖ in the last decade of updates to that in the one before; 1 for log t."""
CONVERGED = 1e-3
"""Bound on the relative change of the mixture's W in the last decade and on its relative distance to the minimiser."""
SCALES = np.geomspace(0.1, 30, 61)
"""Norms ‖W‖ at which losses are compared."""
Weights = Float[np.ndarray, "classes 2"]


class Mixture(NamedTuple):
    """A weighted cross-entropy over rows."""

    inputs: Float[np.ndarray, "rows 2"]
    labels: Int64[np.ndarray, "rows"]
    weights: Float[np.ndarray, "rows"]

    def loss(self, w: Weights) -> float:
        logits = self.inputs @ w.T
        return float(self.weights @ (_logsumexp(logits) - logits[np.arange(len(logits)), self.labels]))

    def gradient(self, w: Weights) -> Weights:
        logits = self.inputs @ w.T
        error = np.exp(logits - _logsumexp(logits)[:, None])
        error[np.arange(len(logits)), self.labels] -= 1
        return np.asarray((error * self.weights[:, None]).T @ self.inputs)

    def minimiser(self) -> Weights:
        """By BFGS, as an independent check of gradient descent."""
        found = minimize(
            lambda flat: self.loss(flat.reshape(CLASSES, -1)),
            np.zeros(CLASSES * self.inputs.shape[1]),
            jac=lambda flat: self.gradient(flat.reshape(CLASSES, -1)).ravel(),
            method="BFGS",
            options={"gtol": 1e-9},
        )
        return np.asarray(found.x.reshape(CLASSES, -1))


class Descent(NamedTuple):
    updates: Int64[np.ndarray, "records"]
    norms: Float[np.ndarray, "records"]
    """‖W‖."""
    final: Weights

    def growth(self, decades_ago: int) -> float:
        """Growth of ‖W‖ over a decade of updates, counted from the last one."""
        end = self.updates[-1] // 10**decades_ago
        low, high = np.interp([end / 10, end], self.updates, self.norms)
        return float(high - low)


def examine(updates: int = 10_000, progress: float = PROGRESS, seed: int = 0) -> Finding:
    thoughts, labels = _think(progress, seed)
    first, last = (Mixture(thoughts[step], labels, np.full(len(labels), 1 / len(labels))) for step in (0, -1))
    mixture = _mixture(thoughts, labels)
    objectives = {"last step": last, "mixture": mixture}
    alone, every = (_descend(objective, updates) for objective in objectives.values())
    best, direction = mixture.minimiser(), alone.final / np.linalg.norm(alone.final)
    overlap, apart = strongly_non_separable(thoughts[0], labels), separable(thoughts[-1], labels)
    steady, moved = alone.growth(0) / alone.growth(1), abs(every.growth(0) / float(every.norms[-1]))
    missed = float(np.linalg.norm(every.final - best) / np.linalg.norm(best))
    coercive = _is_coercive(first, direction)
    statement = (
        f"{CLASSES * ROWS} inputs, {STEPS} steps, γ = {GAMMA}; by linear programs, thoughts are strongly non-separable "
        f"at step 1: {_answer(overlap)}, and separable at step {STEPS}: {_answer(apart)}. In {updates:,} "
        f"updates on the last step ‖W‖ reached {alone.norms[-1]:.1f} and grew by {alone.growth(0):.2f} in the last "
        f"decade of updates, {steady:.2f} of its growth in the one before (log t: 1; bound {STEADY:g}). On the "
        f"mixture it stayed at {every.norms[-1]:.2f}, moved by {moved:.0e} in the last decade and ended "
        f"{missed:.0e} from the minimiser that BFGS found, both relative (bound {CONVERGED:g}). The proof's "
        f"bound L_1(αU) ≥ α·c_U > 0 holds along the last step's W: {_answer(coercive)}."
    )
    passed = overlap and apart and steady >= STEADY and max(moved, missed) <= CONVERGED and coercive
    descents = dict(zip(objectives, (alone, every), strict=True))
    rows: list[dict[str, Any]] = [
        {"quantity": "norm", "objective": name, "update": int(update), "norm": float(norm)}
        for name, descent in descents.items()
        for update, norm in zip(descent.updates, descent.norms, strict=True)
    ]
    rows += [  # along W = αU, where U is the direction learned on the last step
        {"quantity": "loss", "objective": name, "norm": float(scale), "loss": objective.loss(scale * direction)}
        for name, objective in objectives.items()
        for scale in SCALES
    ]
    figure = _draw(thoughts, labels, descents, float(np.linalg.norm(best)), rows)
    return Finding("proposition2", CLAIM, bool(passed), statement, rows, figure)


def _answer(it_is_so: bool) -> str:
    return "yes" if it_is_so else "no"


def separable(states: Float[np.ndarray, "rows 2"], labels: Int64[np.ndarray, "rows"]) -> bool:
    """Whether some W gives the true class of every row the highest logit, with margin 1 (by scaling)."""
    rows = _margin_rows(states, labels)
    found = linprog(np.zeros(rows.shape[1]), A_ub=-rows, b_ub=-np.ones(len(rows)), bounds=(None, None))
    return bool(found.status == 0)


def strongly_non_separable(states: Float[np.ndarray, "rows 2"], labels: Int64[np.ndarray, "rows"]) -> bool:
    """Whether every W with unequal logits misclassifies a row, that is E[max(0, m_U)] > 0 for all U ≠ 0.

    The rows must span the plane. A W without negative margins would have a positive sum of margins.
    """
    rows = _margin_rows(states, labels)
    found = linprog(-rows.sum(0), A_ub=-rows, b_ub=np.zeros(len(rows)), bounds=(-1, 1))
    return bool(-found.fun < 1e-9 and np.linalg.matrix_rank(states) == states.shape[1])


def _margin_rows(
    states: Float[np.ndarray, "rows 2"], labels: Int64[np.ndarray, "rows"]
) -> Float[np.ndarray, "pairs parameters"]:
    """One row per input and wrong class k; its product with W is (w_y − w_k)·τ."""
    others = np.stack([np.delete(np.arange(CLASSES), y) for y in labels])
    signs = np.eye(CLASSES)[labels][:, None] - np.eye(CLASSES)[others]
    return np.asarray((signs[..., None] * states[:, None, None]).reshape(-1, CLASSES * states.shape[1]))


def _think(progress: float, seed: int) -> tuple[Float[np.ndarray, "steps rows 2"], Int64[np.ndarray, "rows"]]:
    """τ_t moves from noise, equal for all classes, to the centre of its class, by the share 1 − (1 − p)^t."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(CLASSES), ROWS)
    angle = 2 * np.pi * labels / CLASSES
    centres = 0.8 * np.stack([np.cos(angle), np.sin(angle)], 1)
    noise = rng.normal(size=centres.shape)
    noise /= np.maximum(1, np.linalg.norm(noise, axis=1, keepdims=True))  # ‖τ‖ ≤ 1, a condition of the proposition
    left = ((1 - progress) ** np.arange(1, STEPS + 1))[:, None, None]
    return (1 - left) * centres + left * noise, labels


def _mixture(thoughts: Float[np.ndarray, "steps rows 2"], labels: Int64[np.ndarray, "rows"]) -> Mixture:
    """Mixture of cross-entropies of Eq. 2; thoughts are constant after the last step."""
    steps, rows, size = thoughts.shape
    weights = mdp.geometric_weights(steps, GAMMA).numpy()
    weights[-1] += 1 - weights.sum()
    return Mixture(thoughts.reshape(-1, size), np.tile(labels, steps), np.repeat(weights, rows) / rows)


def _descend(objective: Mixture, updates: int) -> Descent:
    w = np.zeros((CLASSES, objective.inputs.shape[1]))
    recorded = np.unique(np.geomspace(1, updates, 200).round().astype(np.int64))
    norms = np.zeros(updates)
    for update in range(updates):
        w = w - RATE * objective.gradient(w)
        norms[update] = np.linalg.norm(w)
    return Descent(recorded, norms[recorded - 1], w)


def _is_coercive(first: Mixture, direction: Weights) -> bool:
    """Step 2 of the proof: along U the first step's loss is at least α·c_U with c_U = E[max(0, m_U)] > 0."""
    margins = _margin_rows(first.inputs, first.labels) @ direction.ravel()
    slope = np.maximum(0, -margins.reshape(len(first.labels), -1).min(1)).mean()
    return bool(slope > 0 and all(first.loss(scale * direction) >= scale * slope for scale in SCALES))


@styled
def _draw(
    thoughts: Float[np.ndarray, "steps rows 2"],
    labels: Int64[np.ndarray, "rows"],
    descents: dict[str, Descent],
    best: float,
    rows: list[dict[str, Any]],
) -> Figure:
    figure = Figure(figsize=(7.0, 2.7), layout="constrained")
    states, norms, losses = figure.subplots(1, 3)
    _draw_thoughts(states, thoughts, labels)
    looks = (("last step alone (SL)", VERMILLION, "-"), ("geometric mixture (RIC)", BLUE, "--"))
    for (name, descent), (label, colour, dash) in zip(descents.items(), looks, strict=True):
        norms.plot(descent.updates, descent.norms, dash, color=colour, label=label)
        curve = [row for row in rows if row["quantity"] == "loss" and row["objective"] == name]
        losses.plot([row["norm"] for row in curve], [row["loss"] for row in curve], dash, color=colour)
    norms.axhline(best, color=INK, linewidth=0.8, linestyle=":", label="minimiser (BFGS)")
    use_log_scale(norms, "x", ticks=5)
    norms.set(xlabel="update", ylabel="‖W‖")
    letter(norms, 1, "gradient descent")
    use_log_scale(losses, "x")
    losses.set(xlabel="‖W‖", ylabel="loss, nats")
    letter(losses, 2, "loss along the last step's W")
    figure.legend(*norms.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def _draw_thoughts(ax: Axes, thoughts: Float[np.ndarray, "steps rows 2"], labels: Int64[np.ndarray, "rows"]) -> None:
    for y, (colour, marker) in enumerate(zip((GREEN, ORANGE, PURPLE), "o^s", strict=True)):
        own = thoughts[:, labels == y]
        ax.plot(*own[0].T, marker, color=colour, markersize=3.5, markerfacecolor="none", markeredgewidth=0.8)
        ax.plot(*own[-1].T, marker, color=colour, markersize=3.5)
    ax.set(xticks=[], yticks=[], aspect="equal")
    ax.set_xlabel(f"open: step 1; filled: step {STEPS}")
    letter(ax, 0, f"thoughts of {len(labels)} inputs")


def _logsumexp(logits: Float[np.ndarray, "rows classes"]) -> Float[np.ndarray, "rows"]:
    peak = logits.max(1)
    return np.asarray(peak + np.log(np.exp(logits - peak[:, None]).sum(1)))
