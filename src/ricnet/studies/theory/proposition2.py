"""Proposition 2, a finite logit scale under shared weights, on fixed thoughts where all its conditions can be checked.

Thoughts begin where the classes overlap and end where a linear classifier tells them apart. One classifier W is trained
by gradient descent on the last thoughts alone, as supervised learning would, and one on the geometric mixture of all.
"""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int64
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.optimize import linprog, minimize

from ricnet.core import mdp
from ricnet.report.figures import BLUE, GREEN, INK, ORANGE, PURPLE, VERMILLION, styled
from ricnet.studies.theory.finding import Finding, use_log_scale

CLAIM = (
    "With non-separable early thoughts the geometric mixture has a finite minimiser W, while cross-entropy on "
    "separable last thoughts drives ‖W‖ to infinity (Proposition 2)."
)
CLASSES, ROWS, STEPS, GAMMA = 3, 20, 20, 0.8
"""Classes, rows a class, steps, discount."""
PROGRESS = 0.15
"""How far a thought moves from noise towards its class in a step, relative to what is left."""
RATE = 1.0
"""Of gradient descent; below 2/L, where L is at most max ‖τ‖²/2 ≤ 1/2."""
STEADY = 0.9
"""log t grows alike in every decade of updates: the last has to bring at least this share of the one before."""
CONVERGED = 1e-3
"""Bound on what the mixture's W still moves in the last decade, and on its distance to the minimiser; relative."""
SCALES = np.geomspace(0.1, 30, 61)
"""‖W‖ at which the losses are compared."""
OBJECTIVES = {
    "last step": ("last step alone (SL)", VERMILLION, "-"),
    "mixture": ("geometric mixture (RIC)", BLUE, "--"),
}


class Thoughts(NamedTuple):
    states: Float[np.ndarray, "steps rows 2"]
    labels: Int64[np.ndarray, "rows"]


class Mixture(NamedTuple):
    """A weighted cross-entropy over rows; each of the objectives is one."""

    inputs: Float[np.ndarray, "rows 2"]
    labels: Int64[np.ndarray, "rows"]
    weights: Float[np.ndarray, "rows"]

    def loss(self, w: Float[np.ndarray, "classes 2"]) -> float:
        logits = self.inputs @ w.T
        return float(self.weights @ (_logsumexp(logits) - logits[np.arange(len(logits)), self.labels]))

    def gradient(self, w: Float[np.ndarray, "classes 2"]) -> Float[np.ndarray, "classes 2"]:
        logits = self.inputs @ w.T
        error = np.exp(logits - _logsumexp(logits)[:, None])
        error[np.arange(len(logits)), self.labels] -= 1
        return np.asarray((error * self.weights[:, None]).T @ self.inputs)

    def minimiser(self) -> Float[np.ndarray, "classes 2"]:
        """By BFGS, which shares nothing with gradient descent but the gradient."""
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
    final: Float[np.ndarray, "classes 2"]

    def growth(self, decades_ago: int) -> float:
        """Of ‖W‖ over a whole decade of updates: the last one, the one before it, …"""
        end = self.updates[-1] // 10**decades_ago
        low, high = np.interp([end / 10, end], self.updates, self.norms)
        return float(high - low)


class Measures(NamedTuple):
    overlap: bool
    """Whether the first step's thoughts are non-separable in the strong sense of the appendix."""
    apart: bool
    """Whether the last step's are separable."""
    steady: float
    """Growth of the last step's ‖W‖ in the last decade of updates, relative to that in the decade before."""
    moved: float
    """What the mixture's ‖W‖ changed in the last decade, relative."""
    missed: float
    """Distance of the mixture's W from the minimiser, relative."""
    coercive: bool
    """Whether the lower bound of the proof holds."""

    @property
    def hold(self) -> bool:
        settled = max(abs(self.moved), self.missed) <= CONVERGED
        return self.overlap and self.apart and self.steady >= STEADY and settled and self.coercive


def examine(updates: int = 10_000, progress: float = PROGRESS, seed: int = 0) -> Finding:
    thoughts = _think(progress, seed)
    single, mixture = _objectives(thoughts)
    last, every = _descend(single, updates), _descend(mixture, updates)
    best = mixture.minimiser()
    measures = Measures(
        overlap=strongly_non_separable(thoughts.states[0], thoughts.labels),
        apart=separable(thoughts.states[-1], thoughts.labels),
        steady=last.growth(0) / last.growth(1),
        moved=every.growth(0) / float(every.norms[-1]),
        missed=float(np.linalg.norm(every.final - best) / np.linalg.norm(best)),
        coercive=_is_coercive(thoughts, last.final),
    )
    rows = _rows(last, every) + _scale_rows(single, mixture, last.final)
    figure = _draw(thoughts, last, every, best, rows)
    return Finding("proposition2", CLAIM, measures.hold, _statement(last, every, measures, updates), rows, figure)


def _statement(last: Descent, every: Descent, found: Measures, updates: int) -> str:
    return (
        f"{CLASSES * ROWS} inputs, {STEPS} steps, γ = {GAMMA}; by linear programs, thoughts are strongly non-separable "
        f"at step 1: {_answer(found.overlap)}, and separable at step {STEPS}: {_answer(found.apart)}. In {updates:,} "
        f"updates on the last step ‖W‖ reached {last.norms[-1]:.1f} and grew by {last.growth(0):.2f} in the last "
        f"decade of updates, {found.steady:.2f} of its growth in the one before (log t: 1; bound {STEADY:g}). On the "
        f"mixture it stayed at {every.norms[-1]:.2f}, moved by {abs(found.moved):.0e} in the last decade and ended "
        f"{found.missed:.0e} from the minimiser that BFGS found, both relative (bound {CONVERGED:g}). The proof's "
        f"bound L_1(αU) ≥ α·c_U > 0 holds along the last step's W: {_answer(found.coercive)}."
    )


def _answer(it_is_so: bool) -> str:
    return "yes" if it_is_so else "no"


def separable(states: Float[np.ndarray, "rows 2"], labels: Int64[np.ndarray, "rows"]) -> bool:
    """Whether some W gives every row's own class the highest logit, by a margin (which scaling makes 1)."""
    rows = _margin_rows(states, labels)
    found = linprog(np.zeros(rows.shape[1]), A_ub=-rows, b_ub=-np.ones(len(rows)), bounds=(None, None))
    return bool(found.status == 0)


def strongly_non_separable(states: Float[np.ndarray, "rows 2"], labels: Int64[np.ndarray, "rows"]) -> bool:
    """Whether every W puts some row on the wrong side, unless its logits are all alike.

    That is E[max(0, m_U)] > 0 for all U ≠ 0 where, as here, the rows span the plane. If some W had no negative margin,
    the sum of its margins would be positive.
    """
    rows = _margin_rows(states, labels)
    found = linprog(-rows.sum(0), A_ub=-rows, b_ub=np.zeros(len(rows)), bounds=(-1, 1))
    return bool(-found.fun < 1e-9 and np.linalg.matrix_rank(states) == states.shape[1])


def _think(progress: float, seed: int) -> Thoughts:
    """τ_t goes from noise, the same for all classes, to the centre of its class: (1 − (1 − p)^t) of the way."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(CLASSES), ROWS)
    angle = 2 * np.pi * labels / CLASSES
    centres = 0.8 * np.stack([np.cos(angle), np.sin(angle)], 1)
    noise = rng.normal(size=centres.shape)
    noise /= np.maximum(1, np.linalg.norm(noise, axis=1, keepdims=True))  # ‖τ‖ ≤ 1, as the proposition asks
    left = ((1 - progress) ** np.arange(1, STEPS + 1))[:, None, None]
    return Thoughts((1 - left) * centres + left * noise, labels)


def _objectives(thoughts: Thoughts) -> tuple[Mixture, Mixture]:
    """Cross-entropy at the last step, and the mixture of Eq. 2; from the last step on, thoughts stay as they are."""
    steps, rows, size = thoughts.states.shape
    weights = mdp.geometric_weights(steps, GAMMA).numpy()
    weights[-1] += 1 - weights.sum()
    labels, per_row = np.tile(thoughts.labels, steps), np.repeat(weights, rows) / rows
    mixture = Mixture(thoughts.states.reshape(-1, size), labels, per_row)
    return _one_step(thoughts, -1), mixture


def _one_step(thoughts: Thoughts, step: int) -> Mixture:
    rows = len(thoughts.labels)
    return Mixture(thoughts.states[step], thoughts.labels, np.full(rows, 1 / rows))


def _descend(objective: Mixture, updates: int) -> Descent:
    w = np.zeros((CLASSES, objective.inputs.shape[1]))
    recorded = np.unique(np.geomspace(1, updates, 200).round().astype(np.int64))
    norms = np.zeros(updates)
    for update in range(updates):
        w = w - RATE * objective.gradient(w)
        norms[update] = np.linalg.norm(w)
    return Descent(recorded, norms[recorded - 1], w)


def _margin_rows(
    states: Float[np.ndarray, "rows 2"], labels: Int64[np.ndarray, "rows"]
) -> Float[np.ndarray, "pairs parameters"]:
    """A row for each input and wrong class k, whose product with W is (w_y − w_k)·τ."""
    others = np.stack([np.delete(np.arange(CLASSES), y) for y in labels])
    signs = np.eye(CLASSES)[labels][:, None] - np.eye(CLASSES)[others]
    return np.asarray((signs[..., None] * states[:, None, None]).reshape(-1, CLASSES * states.shape[1]))


def _is_coercive(thoughts: Thoughts, direction: Float[np.ndarray, "classes 2"]) -> bool:
    """Step 2 of the proof: along U the first step's loss is at least α·c_U with c_U = E[max(0, m_U)] > 0."""
    unit = direction / np.linalg.norm(direction)
    margins = _margin_rows(thoughts.states[0], thoughts.labels) @ unit.ravel()
    slope = np.maximum(0, -margins.reshape(len(thoughts.labels), -1).min(1)).mean()
    first = _one_step(thoughts, 0)
    return bool(slope > 0 and all(first.loss(scale * unit) >= scale * slope for scale in SCALES))


def _rows(last: Descent, every: Descent) -> list[dict[str, Any]]:
    return [
        {"quantity": "norm", "objective": name, "update": int(update), "norm": float(norm)}
        for name, descent in (("last step", last), ("mixture", every))
        for update, norm in zip(descent.updates, descent.norms, strict=True)
    ]


def _scale_rows(single: Mixture, mixture: Mixture, direction: Float[np.ndarray, "classes 2"]) -> list[dict[str, Any]]:
    """The loss of both along W = αU, where U is the direction that the last step asks for."""
    unit = direction / np.linalg.norm(direction)
    return [
        {"quantity": "loss", "objective": name, "norm": float(scale), "loss": objective.loss(scale * unit)}
        for name, objective in (("last step", single), ("mixture", mixture))
        for scale in SCALES
    ]


@styled
def _draw(
    thoughts: Thoughts,
    last: Descent,
    every: Descent,
    best: Float[np.ndarray, "classes 2"],
    rows: list[dict[str, Any]],
) -> Figure:
    figure = Figure(figsize=(7.0, 2.7), layout="constrained")
    states, norms, losses = figure.subplots(1, 3)
    _draw_states(states, thoughts)
    for (name, (label, shade, dash)), descent in zip(OBJECTIVES.items(), (last, every), strict=True):
        norms.plot(descent.updates, descent.norms, dash, color=shade, label=label)
        curve = [row for row in rows if row["quantity"] == "loss" and row["objective"] == name]
        losses.plot([row["norm"] for row in curve], [row["loss"] for row in curve], dash, color=shade)
    norms.axhline(float(np.linalg.norm(best)), color=INK, linewidth=0.8, linestyle=":", label="minimiser (BFGS)")
    use_log_scale(norms, "x", ticks=5)
    norms.set(xlabel="update", ylabel="‖W‖")
    norms.set_title("(b) gradient descent", loc="left")
    use_log_scale(losses, "x")
    losses.set(xlabel="‖W‖", ylabel="loss, nats")
    losses.set_title("(c) loss along the last step's W", loc="left")
    figure.legend(*norms.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def _draw_states(ax: Axes, thoughts: Thoughts) -> None:
    for y, (shade, marker) in enumerate(zip((GREEN, ORANGE, PURPLE), "o^s", strict=True)):
        own = thoughts.states[:, thoughts.labels == y]
        ax.plot(*own[0].T, marker, color=shade, markersize=3.5, markerfacecolor="none", markeredgewidth=0.8)
        ax.plot(*own[-1].T, marker, color=shade, markersize=3.5)
    ax.set(xticks=[], yticks=[], aspect="equal")
    ax.set_xlabel(f"open: step 1; filled: step {STEPS}")
    ax.set_title(f"(a) thoughts of {len(thoughts.labels)} inputs", loc="left")


def _logsumexp(logits: Float[np.ndarray, "rows classes"]) -> Float[np.ndarray, "rows"]:
    peak = logits.max(1)
    return np.asarray(peak + np.log(np.exp(logits - peak[:, None]).sum(1)))
