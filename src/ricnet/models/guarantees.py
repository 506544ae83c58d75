"""Calibration examples of a trained model, and the guarantees that follow from them: prediction sets, early exits of
limited loss, abstention. `guarantees.npz` of a run holds the results of each example after every step, no inputs."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ricnet.core.trajectory import Trajectory, halting_step
from ricnet.data import Split
from ricnet.errors import RicnetError, counted, setting
from ricnet.evaluation import conformal, risk
from ricnet.evaluation.choices import NEVER, rule_words
from ricnet.evaluation.conformal import Ranked, Score, ScoreName, SetRule, fit_sets
from ricnet.evaluation.costs import Target, Weights, tune_weights
from ricnet.evaluation.evaluate import pool_size, read_predictions
from ricnet.evaluation.shift import Summary
from ricnet.io import read_arrays, write_atomically
from ricnet.methods import Method
from ricnet.models.run import RunFolder

if TYPE_CHECKING:
    from ricnet.models.classifier import Classifier

THRESHOLDS = (-0.3, -0.1, -0.03, -0.01, 0.0, 0.01, 0.03, 0.1, 0.3, 1.0)
"""Candidate halting thresholds without exits, from late to early halting, in nats."""
RULE = ("halt_threshold", "confidence_threshold", "horizon")
"""Settings of the halting rule; calibration examples can be used with other values of them."""


@dataclass(frozen=True)
class Calibration:
    """Results of calibration examples after every step, without halting: labelled examples that were not used in
    training or in any choice."""

    labels: Int[np.ndarray, "n"]
    halt_step: Int[np.ndarray, "n"]
    """Halting step by the rule of the run."""
    probability: Float[np.ndarray, "steps n"]
    """Probability of the true class; `above` and `rank` are those of `Ranked`."""
    above: Float[np.ndarray, "steps n"]
    rank: Int[np.ndarray, "steps n"]
    answer: Int[np.ndarray, "steps n"]
    confidence: Float[np.ndarray, "steps n"]
    brier: Float[np.ndarray, "steps n"]
    continuation: Float[np.ndarray, "steps n"]
    """The quantity that is compared with the halting threshold (`Trajectory.continuation`)."""
    costs: Float[np.ndarray, "steps"]
    """With exits, the share of compute after each step; else 0."""

    def __len__(self) -> int:
        return len(self.labels)

    @classmethod
    def of(cls, path: Trajectory, halt_step: Tensor, labels: Tensor) -> "Calibration":
        truth, grids = labels.numpy(), []
        for log_beliefs in path.log_beliefs:
            beliefs = log_beliefs.double().softmax(-1).cpu().numpy()
            true = conformal.rank_classes(beliefs).of(truth)
            brier = (beliefs**2).sum(1) - 2 * true.probability + 1
            grids.append((*true, beliefs.argmax(1), beliefs.max(1), brier))
        stacked = [np.stack(grid) for grid in zip(*grids, strict=True)]
        stacked += [path.continuation.double().cpu().numpy(), np.array(path.costs or (0.0,) * path.steps)]
        return cls(truth, halt_step.cpu().numpy(), *stacked)

    @classmethod
    def join(cls, parts: "Sequence[Calibration]") -> "Calibration":
        joined = {
            field.name: np.concatenate([getattr(part, field.name) for part in parts], -1) for field in fields(cls)
        }
        return cls(**joined | {"costs": parts[0].costs})

    def stops(self, method: Method[Any], max_steps: int | None = None) -> Int[np.ndarray, "n"]:
        """The step after which each example halts by the rule of a method."""
        if max_steps is not None and max_steps > len(self.rank):
            named = setting("max_steps", max_steps)
            raise RicnetError(f"{named} is more than the {len(self.rank)} steps of the calibration data; lower it.")
        threshold, most = _rule(method)
        stops = self.halt_step if threshold is None else self.stops_at(threshold)
        return np.asarray(np.minimum(stops, min(most or len(self.rank), max_steps or len(self.rank))))

    def stops_at(self, threshold: float) -> Int[np.ndarray, "n"]:
        return halting_step(torch.from_numpy(self.continuation), threshold).numpy()

    def at(self, grid: Any, stops: Int[np.ndarray, "n"]) -> Any:
        return grid[stops - 1, np.arange(len(stops))]

    @property
    def true(self) -> Ranked:
        return Ranked(self.probability, self.above, self.rank)

    @property
    def answers(self) -> risk.Answers:
        return risk.Answers(self.answer, self.brier, self.labels)

    def summary(self, stops: Int[np.ndarray, "n"]) -> Summary:
        return Summary(self.at(self.confidence, stops), stops, self.at(self.answer, stops))

    def save(self, path: Path) -> None:
        def write(draft: Path) -> None:
            with draft.open("wb") as file:
                np.savez_compressed(file, **{field.name: getattr(self, field.name) for field in fields(self)})

        write_atomically(path, write)


def _rule(method: Method[Any]) -> tuple[float | None, int | None]:
    """Threshold and largest number of steps; None for a method that halts by another rule."""
    most = getattr(method, "horizon", None)
    if method.halts_by_value:
        return float(getattr(method, "halt_threshold", 0.0)), most
    sure = getattr(method, "confidence_threshold", None)
    if method.takes_budget:  # by confidence: halts at the threshold too, but `halting_step` only below it
        return (NEVER if sure is None else math.nextafter(1 - sure, math.inf)), most
    return None, most


def rule_in_words(classifier: "Classifier", max_steps: int | None = None) -> str:
    threshold, most = _rule(classifier.method)
    last = min(most or 1, max_steps or most or 1)
    words = f"after {counted(last, 'step')} at the latest"
    if threshold is not None:
        by_confidence = not classifier.method.halts_by_value
        words = rule_words({"max_steps": last, "halt_threshold": threshold, "by_confidence": by_confidence})
    return words if classifier.budget is None else f"{words} (budget {classifier.budget:g})"


# Calibration examples


def calibration_of(classifier: "Classifier", split: Split) -> Calibration:
    """Results of these labelled examples after all steps."""
    if not len(split):
        raise RicnetError("there are no labelled examples to calibrate with; give at least one.")
    made, most = (getattr(method, "horizon", None) for method in (classifier.config.method, classifier.method))
    rows, parts = pool_size(len(classifier.class_names)), []
    for inputs, labels in zip(split.inputs.split(rows), split.labels.split(rows), strict=True):
        path = classifier.refine(inputs, made, halt=False)
        parts.append(Calibration.of(path, path.halt_step.clamp(max=most or path.steps), labels))
    found = Calibration.join(parts)
    if not np.isfinite(found.probability).all():
        raise RicnetError("the model's beliefs for some examples are NaN; remove examples far from the training data.")
    return found


def calibrate(classifier: "Classifier", split: Split) -> Calibration:
    """Write the calibration examples of a finished run."""
    assert classifier.folder is not None
    folder, found = RunFolder(classifier.folder), calibration_of(classifier, split)
    if not folder.finished:
        raise RicnetError(f"{folder.path} is not finished; finish its training with ric train --resume.")
    with folder.held():
        folder.drop_manifest()
        found.save(folder.guarantees)
        folder.write_json(folder.promises, _promises(replace(classifier, calibration=found)))
        folder.write_manifest()
    return found


def _promises(classifier: "Classifier") -> dict[str, Any]:
    """For the report: guarantees, and what was measured on test data beside them."""
    found = require_calibration(classifier, "this")
    entry: dict[str, Any] = {"n": len(found), "classes": list(classifier.class_names), "sets": [], "exits": []}
    assert classifier.folder is not None
    try:
        test = read_predictions(classifier.folder, "test")
    except RicnetError:  # without test rows
        return entry
    beliefs, labels = test.log_beliefs.double().softmax(-1).numpy(), test.labels.numpy()
    for level in exported_rules(classifier):
        rule = set_rule(classifier, float(level))
        measured = asdict(conformal.measure_sets(rule.sets(beliefs, allow_empty=False), beliefs, labels))
        entry["sets"].append({"coverage": float(level), "measured": measured})
    if _rule(classifier.method)[0] is None or len(found.rank) == 1:
        return entry
    whole = test.step_correct[-1]
    for threshold in _candidates(classifier):
        lost = int(risk.losses(found.answers, found.stops_at(threshold), "lost").sum())
        stops = halting_step(test.continuation, threshold)
        early = test.step_correct[stops - 1, torch.arange(len(stops))]
        cost = None if test.costs is None else float(test.costs[stops - 1].mean())
        entry["exits"].append(
            {
                "threshold": threshold,
                "bound": risk.upper_bound(lost, len(found), 0.05),
                "measured": float((whole & ~early).double().mean()),
                "mean_steps": float(stops.double().mean()),
                "mean_cost": cost,
            }
        )
    return entry


def _candidates(classifier: "Classifier") -> list[float]:
    """Halting thresholds from late to early, fixed without the calibration data."""
    by_cost = sorted(classifier.budgets, key=lambda point: -point.mean_cost)
    return [point.halt_threshold for point in by_cost] or list(THRESHOLDS)


def read_calibration(folder: Path) -> Calibration | None:
    run = RunFolder(folder)
    path = run.guarantees
    if not path.is_file():
        return None
    run.verify((path.name,))
    try:
        arrays = read_arrays(path)
        steps, n = arrays["probability"].shape
        shapes = {"labels": (n,), "halt_step": (n,), "costs": (steps,)}
        for name, array in arrays.items():
            kind = "iu" if name in ("labels", "halt_step", "rank", "answer") else "f"
            if array.shape != shapes.get(name, (steps, n)) or array.dtype.kind not in kind:
                raise ValueError(f"{name} does not fit the others")
            if not np.isfinite(array).all() or (kind == "iu" and array.size and array.min() < 0):
                raise ValueError(f"{name} has a number out of range")
        if not n or not 1 <= arrays["halt_step"].min() <= arrays["halt_step"].max() <= steps:
            raise ValueError("a halting step is out of range")
        return Calibration(**{name: np.ascontiguousarray(array) for name, array in arrays.items()})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RicnetError(f"{path} is damaged ({error}): run ric calibrate again.") from error


def require_calibration(classifier: "Classifier", asked: str) -> Calibration:
    """The calibration examples of a model; `asked` is the setting that needs them."""
    found = classifier.calibration
    if found is None and classifier.folder is not None:
        found = read_calibration(classifier.folder)
    if found is None:
        raise RicnetError(
            f"{asked} needs calibration examples, which this model lacks: run ric calibrate RUN DATA with labelled "
            f"data that it has not seen, or train with {setting('calibration_fraction', 0.1)}."
        )
    if found.labels.max() >= len(classifier.class_names):
        raise RicnetError("the calibration examples have classes that the model lacks: run ric calibrate again.")
    own, now = classifier.config.method, classifier.method
    changed = [field.name for field in fields(own) if getattr(own, field.name) != getattr(now, field.name)]
    for name in changed:
        if name not in RULE:
            raise RicnetError(f"{asked} holds for the {setting(name)} of the run only; leave {setting(name)} out.")
    return found


# Guarantees


def score_named(classifier: "Classifier", name: ScoreName, coverage: float) -> Score:
    """The score of this name; the parameters of RAPS come from the validation data of the run."""
    if name != "raps":
        return Score(name)
    if classifier.folder is None:
        raise RicnetError(f"{setting('score', name)} needs the validation predictions of a run folder; choose aps.")
    held_out = read_predictions(classifier.folder, "val")
    return conformal.choose_raps(held_out.log_beliefs.double().exp().numpy(), held_out.labels.numpy(), coverage)


def tuned_weights(classifier: "Classifier", target: Target) -> Weights:
    """Class weights from the validation predictions of the run."""
    if classifier.folder is None:
        raise RicnetError(f"{setting('tune', target)} needs the validation predictions of a run folder.")
    if classifier.config.final_fit:
        raise RicnetError(
            f"{setting('tune', target)} needs validation rows, but the run trained on them "
            f"({setting('final_fit', True)}); give a run that did not."
        )
    held_out = read_predictions(classifier.folder, "val")
    return tune_weights(held_out.log_beliefs.double().exp().numpy(), held_out.labels.numpy(), target)


def named_sets(
    sets: Bool[np.ndarray, "n classes"], beliefs: Float[np.ndarray, "n classes"], names: Sequence[Any]
) -> list[list[Any]]:
    """The classes of each set, most likely first."""
    order = np.argsort(-beliefs, axis=1, kind="stable")
    return [[names[k] for k in ranked if chosen[k]] for ranked, chosen in zip(order, sets, strict=True)]


def set_rule(
    classifier: "Classifier",
    coverage: float,
    score: Score = conformal.LAC,
    per_class: bool = False,
    max_steps: int | None = None,
) -> SetRule:
    """The rule for prediction sets of this model, with its halting rule and budget."""
    found = require_calibration(classifier, setting("coverage", coverage))
    stops = found.stops(classifier.method, max_steps)
    at_halt = Ranked(*(found.at(part, stops) for part in found.true))
    words = rule_in_words(classifier, max_steps)
    return fit_sets(at_halt, found.true, found.labels, len(classifier.class_names), coverage, score, per_class, words)


LEVELS = (0.9, 0.95, 0.99)
"""Coverages whose rules are exported."""


def exported_rules(classifier: "Classifier", max_steps: int | None = None) -> dict[str, Any]:
    """Rules for prediction sets (score lac) by coverage, as far as there are calibration examples: a class is in the
    set if 1 − p is at most the quantile, and the most likely class always is."""
    try:
        n = len(require_calibration(classifier, "this"))
    except RicnetError:
        return {}
    levels = [level for level in LEVELS if n >= conformal.examples_needed(level)]
    return {f"{level:g}": set_rule(classifier, level, max_steps=max_steps).to_json() for level in levels}


@dataclass(frozen=True)
class Exits:
    """Early exits of limited loss: the tested thresholds, and what the chosen one saves on the calibration data."""

    tested: tuple[risk.Tested, ...]
    chosen: risk.Tested | None
    """None: no threshold is shown to keep the limit, so all steps are made."""
    mean_steps: float
    mean_cost: float | None
    """With exits, the mean share of compute."""
    n: int


def control_exits(
    classifier: "Classifier", max_loss: float, probability: float = 0.95, loss: risk.Loss = "lost"
) -> tuple["Classifier", Exits]:
    """The model with the cheapest halting threshold that loses at most `max_loss` against all steps, with this
    probability over draws of the calibration data."""
    asked = setting("max_loss", max_loss)
    found = require_calibration(classifier, asked)
    if _rule(classifier.method)[0] is None or len(found.rank) == 1:
        raise RicnetError(f"{asked} has no effect on this model, which has no threshold to halt by; leave it out.")
    limit = max_loss / risk.MOST_BRIER if loss == "brier" else max_loss
    risk.require_examples(len(found), "max_loss", limit, probability)
    thresholds = _candidates(classifier)
    stops = [found.stops_at(threshold) for threshold in thresholds]
    tested = risk.control_exits(found.answers, stops, thresholds, max_loss, probability, loss)
    chosen = risk.last_accepted(tested)
    threshold, steps = NEVER if chosen is None else chosen.threshold, len(found.rank)
    taken = found.stops_at(threshold)
    cost = float(found.costs[taken - 1].mean()) if found.costs.any() else None
    frugal = replace(classifier, method=classifier.method.stopping_by(threshold, steps), budget=None)
    return frugal, Exits(tested, chosen, float(taken.mean()), cost, len(found))


def control_abstention(
    classifier: "Classifier", max_error: float, probability: float = 0.95, max_steps: int | None = None
) -> risk.Tested:
    """The lowest confidence to answer at, so that at most `max_error` of the answers are wrong, with this probability
    over draws of the calibration data. Raises if none is shown to keep the limit."""
    asked = setting("max_error", max_error)
    found = require_calibration(classifier, asked)
    risk.require_examples(len(found), "max_error", max_error, probability)
    if classifier.folder is None:
        raise RicnetError(f"{asked} needs the validation predictions of a run folder to order its candidates by.")
    other = read_predictions(classifier.folder, "val").log_beliefs.double().exp().max(-1).values.numpy()
    thresholds = risk.abstention_thresholds(other, len(found), max_error, probability)
    stops = found.stops(classifier.method, max_steps)
    wrong = found.at(found.answer, stops) != found.labels
    tested = risk.control_abstention(found.at(found.confidence, stops), wrong, thresholds, max_error, probability)
    chosen = risk.last_accepted(tested)
    if chosen is None:
        raise RicnetError(
            f"{asked} is not shown to hold at any confidence on {len(found):,} calibration examples (of the most "
            f"confident {tested[0].n:,}, {tested[0].risk or 0:.1%} are wrong); raise it, or calibrate with more "
            "examples."
        )
    return chosen
