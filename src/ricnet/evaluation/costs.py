"""Decisions under costs: the answer of least expected cost, and class weights tuned for balanced accuracy or F1."""

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Int

from ricnet.errors import RicnetError, listed, require, setting
from ricnet.evaluation.evaluate import UNSURE
from ricnet.io import LARGEST_TEXT, decode, opened

Beliefs = Float[np.ndarray, "n classes"]
Indices = Int[np.ndarray, "n"]
"""Index of a class or a decision for each example."""
ABSTAIN = "abstain"
"""Name of the optional column of the cost of giving no answer."""


@dataclass(frozen=True)
class Costs:
    """Cost of each decision for each true class."""

    matrix: Float[np.ndarray, "classes decisions"]
    """Decisions are the classes, in the order of the model, and perhaps to abstain, last."""
    class_names: tuple[str, ...]

    @property
    def decisions(self) -> tuple[str, ...]:
        return self.class_names if self.matrix.shape[1] == len(self.class_names) else (*self.class_names, UNSURE)

    def expected(self, beliefs: Beliefs) -> Float[np.ndarray, "n decisions"]:
        return np.asarray(beliefs.astype(np.float64) @ self.matrix)

    def decide(self, beliefs: Beliefs) -> Indices:
        """Index of the decision of least expected cost; the first of equal ones."""
        return np.asarray(self.expected(beliefs).argmin(1))

    def paid(self, labels: Indices, decisions: Indices) -> Float[np.ndarray, "n"]:
        return np.asarray(self.matrix[labels, decisions])


def costs_of(matrix: Any, class_names: Sequence[str], abstain: bool = True) -> Costs:
    """Costs from an array: a row per true class, a column per answer, in the order of the classes, and, if allowed,
    perhaps a last column for abstaining."""
    try:
        found = np.asarray(matrix, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise RicnetError(f"{setting('cost_matrix')} must hold numbers ({error}); give an array of numbers.") from error
    classes = len(class_names)
    if found.shape not in ((classes, classes), (classes, classes + 1))[: 1 + abstain]:
        more = f", or ({classes}, {classes + 1}) with a last column for abstaining" if abstain else ""
        raise RicnetError(
            f"{setting('cost_matrix')} has shape {found.shape}; for {classes} classes it must be ({classes}, {classes})"
            f"{more}."
        )
    if not np.isfinite(found).all():
        raise RicnetError(f"{setting('cost_matrix')} holds a number that is not finite; give finite costs.")
    return Costs(found, tuple(class_names))


def read_costs(path: str | Path, class_names: Sequence[str]) -> Costs:
    """Costs from a CSV file: the first line names the answers, the first cell of each other line the true class.

    ,cat,dog,abstain
    cat,0,5,1
    dog,1,0,1
    """
    rows = [[cell.strip() for cell in row] for row in csv.reader(io.StringIO(_text(Path(path))))]
    rows = [row for row in rows if any(row)]
    if len(rows) < 2:
        raise RicnetError(f"{path} holds no costs; its first line must name the answers, each other line a true class.")
    answers, truths = rows[0][1:], [row[0] for row in rows[1:]]
    may_abstain = ABSTAIN in answers and ABSTAIN not in class_names
    wanted = [*class_names, ABSTAIN] if may_abstain else list(class_names)
    _require_names(path, "column", answers, wanted)
    _require_names(path, "row", truths, list(class_names))
    cells = {(row[0], answer): cell for row in rows[1:] for answer, cell in zip(answers, row[1:], strict=False)}
    matrix = [[_cost(path, cells.get((truth, answer)), truth, answer) for answer in wanted] for truth in class_names]
    return Costs(np.array(matrix), tuple(class_names))


def _text(path: Path) -> str:
    with opened(path) as file:
        content = file.read(LARGEST_TEXT + 1)
    try:
        if len(content) > LARGEST_TEXT:
            raise ValueError("it is too large")
        return decode(content)
    except ValueError as error:
        raise RicnetError(f"{path} is not a CSV file of costs ({error}); give one.") from error


def _require_names(path: str | Path, kind: str, found: list[str], wanted: list[str]) -> None:
    unknown, missing = [one for one in found if one not in wanted], [one for one in wanted if one not in found]
    if unknown:
        raise RicnetError(
            f"{path} has a {kind} for {unknown[0]!r}, which is not a class of the model; give {listed(wanted)}."
        )
    if missing:
        raise RicnetError(f"{path} has no {kind} for {listed(missing)}; give one per class of the model.")
    if len(set(found)) < len(found):
        raise RicnetError(f"{path} has two {kind}s for {max(found, key=found.count)!r}; keep one.")


def _cost(path: str | Path, cell: str | None, truth: str, answer: str) -> float:
    try:
        cost = float(cell or "")
    except ValueError:
        cost = math.nan
    if not math.isfinite(cost):
        raise RicnetError(f"{path}: the cost of {answer} where {truth} is true is {cell!r}; give a finite number.")
    return cost


@dataclass(frozen=True)
class MeanCost:
    """Mean cost per example of the decisions of least expected cost, and of the most likely class."""

    decided: float
    most_likely: float
    saved: float
    saved_error: float | None
    """Standard error of the difference; None for one example."""
    abstained: float
    """Share of examples without an answer."""
    n: int


def mean_cost(costs: Costs, beliefs: Beliefs, labels: Indices) -> MeanCost:
    decided = costs.decide(beliefs)
    ours, plain = costs.paid(labels, decided), costs.paid(labels, beliefs.argmax(1))
    n, saved = len(labels), plain - ours
    error = float(saved.std(ddof=1)) / math.sqrt(n) if n > 1 else None
    abstained = float((decided == len(costs.class_names)).mean())
    return MeanCost(float(ours.mean()), float(plain.mean()), float(saved.mean()), error, abstained, n)


# Class weights: answer argmax_k w_k p_k. With two classes that is a threshold on the probability of one.

Target = Literal["balanced_accuracy", "macro_f1"]
FOLDS, ROUNDS, TRIALS, RESAMPLES = 5, 3, 500, 500


@dataclass(frozen=True)
class Weights:
    """Class weights and their cross-fitted gain on validation data."""

    weights: tuple[float, ...]
    """All 1 if no gain is shown."""
    before: float
    """The target score if the most likely class is the answer."""
    after: float
    """The target score with weights that were fitted without the example's fold."""
    error: float
    """Standard error of the gain, from resampled examples."""
    kept: bool
    target: Target

    def answers(self, beliefs: Beliefs) -> Indices:
        return np.asarray((beliefs * self.weights).argmax(1))


def target_score(counts: Float[np.ndarray, "*batch classes classes"], target: Target) -> Float[np.ndarray, "*batch"]:
    """Mean recall or mean F1 over the classes that occur, from counts of true class and answer."""
    right, true, said = np.diagonal(counts, axis1=-2, axis2=-1), counts.sum(-1), counts.sum(-2)
    of = true if target == "balanced_accuracy" else (true + said) / 2
    occurs = true > 0
    shares = np.where(occurs, right / np.where(of > 0, of, 1), 0.0)
    return np.asarray(shares.sum(-1) / np.maximum(1, occurs.sum(-1)))


def tune_weights(beliefs: Beliefs, labels: Indices, target: Target) -> Weights:
    """Weights with the highest target score, or all 1 unless the cross-fitted gain exceeds 1.64 standard errors."""
    require(target in ("balanced_accuracy", "macro_f1"), "target", target, "balanced_accuracy or macro_f1")
    n, classes = beliefs.shape
    fold, plain = np.arange(n) % FOLDS, beliefs.argmax(1)
    crossed = plain.copy()
    for held_out in (fold == k for k in range(FOLDS)):
        weights = _best_weights(beliefs[~held_out], labels[~held_out], target)
        crossed[held_out] = (weights * beliefs[held_out]).argmax(1)
    draws = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), RESAMPLES).astype(np.float64)
    gains = _scores(draws, labels, crossed, classes, target) - _scores(draws, labels, plain, classes, target)
    before, after = (float(_scores(np.ones((1, n)), labels, each, classes, target)[0]) for each in (plain, crossed))
    error = float(gains.std())
    kept = after - before > 1.64 * error
    chosen = _best_weights(beliefs, labels, target) if kept else np.ones(classes)
    return Weights(tuple(chosen.tolist()), before, after, error, kept, target)


def _scores(
    draws: Float[np.ndarray, "draws n"], labels: Indices, answers: Indices, classes: int, target: Target
) -> Float[np.ndarray, "draws"]:
    """The target score for each weighting of the examples."""
    cell = np.eye(classes**2)[labels * classes + answers]
    return target_score((draws @ cell).reshape(-1, classes, classes), target)


def _best_weights(beliefs: Beliefs, labels: Indices, target: Target) -> Float[np.ndarray, "classes"]:
    """Coordinate ascent over one class at a time, from the inverse class frequencies or from 1, whichever is better."""
    classes = beliefs.shape[1]

    def score_of(weights: Float[np.ndarray, "classes"]) -> float:
        return answer_score((weights * beliefs).argmax(1), labels, classes, target)

    frequency = np.bincount(labels, minlength=classes) / len(labels)
    starts = [np.ones(classes), np.where(frequency > 0, 1 / np.maximum(frequency, 1e-12), 1.0)]
    weights = max(starts, key=score_of)
    score = score_of(weights)
    for _ in range(ROUNDS):
        before = score
        for k in range(classes):
            for trial in _trials(beliefs, weights, k):
                changed = weights.copy()
                changed[k] = trial
                if (found := score_of(changed)) > score:
                    score, weights = found, changed
        if score == before:
            break
    return np.asarray(weights / weights.mean())


def answer_score(answers: Indices, labels: Indices, classes: int, target: Target) -> float:
    counts = np.bincount(labels * classes + answers, minlength=classes**2).reshape(classes, classes)
    return float(target_score(counts.astype(np.float64), target))


def _trials(beliefs: Beliefs, weights: Float[np.ndarray, "classes"], k: int) -> Float[np.ndarray, "trials"]:
    """Weights of class k between which an example changes its answer; a few of them, spread over the examples."""
    rivals = np.delete(weights * beliefs, k, axis=1).max(1)
    changes = np.unique(rivals[beliefs[:, k] > 0] / beliefs[beliefs[:, k] > 0, k])
    between = np.sqrt(changes[:-1] * changes[1:]) if len(changes) > 1 else changes
    between = between[between > 0]
    most = max(5, TRIALS // beliefs.shape[1])
    return np.asarray(between[np.linspace(0, len(between) - 1, min(most, len(between))).astype(int)])
