"""Answers of a model as JSON, for predict and the server, and how they are decided: by another halting rule or readout,
prediction sets, costs, class weights, exits of limited loss, answers of limited error."""

import dataclasses
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from ricnet.apps.commands.options import Deciding
from ricnet.core.trajectory import Trajectory
from ricnet.distributed import pick_device
from ricnet.errors import RicnetError, setting
from ricnet.evaluation.conformal import SetRule, measure_sets, share_of
from ricnet.evaluation.costs import Costs, Weights, answer_score, mean_cost, read_costs
from ricnet.evaluation.evaluate import UNSURE
from ricnet.evaluation.risk import Tested
from ricnet.models.classifier import Classifier
from ricnet.models.guarantees import (
    Exits,
    control_abstention,
    control_exits,
    named_sets,
    score_named,
    set_rule,
    tuned_weights,
)
from ricnet.models.loading import load
from ricnet.terminal import say
from ricnet.training.console import unfinished


def open_model(
    run: str,
    device: str = "cpu",
    budget: float | None = None,
    halt_threshold: float | None = None,
    readout: str | None = None,
) -> Classifier:
    """Load a run, with another halting rule and readout if given. Prints a note if its training is not finished."""
    classifier = load(run, str(pick_device(device)))
    if budget is not None:
        classifier, note = classifier.within(budget)
        say([] if note is None else [f"note: {note}."])
    classifier = adjust(classifier, halt_threshold, readout)
    say(unfinished(classifier))
    return classifier


def adjust(classifier: Classifier, halt_threshold: float | None, readout: str | None) -> Classifier:
    """The same weights with another threshold or readout. A threshold replaces the whole rule that was chosen on
    validation data, also its largest number of steps."""
    horizon = None if halt_threshold is None else getattr(classifier.config.method, "horizon", None)
    changes = {"halt_threshold": halt_threshold, "readout": readout, "horizon": horizon}
    given = {name: value for name, value in changes.items() if value is not None}
    known = {field.name for field in dataclasses.fields(classifier.method)}
    for name in given:
        if name not in known:
            raise RicnetError(f"{setting(name)} has no effect with the method {classifier.method.name}; remove it.")
    return dataclasses.replace(classifier, method=dataclasses.replace(classifier.method, **given))


@dataclass(frozen=True)
class Decisions:
    """How answers are given; without flags, by the most likely class."""

    sets: SetRule | None = None
    costs: Costs | None = None
    exits: Exits | None = None
    answered: Tested | None = None
    weights: Weights | None = None

    def notes(self, options: Deciding) -> list[str]:
        """Guarantees and their assumptions."""
        like, said = "inputs drawn like the calibration examples", []
        if self.sets is not None:
            within = "within each class, " if self.sets.per_class else ""
            said = [
                f"note: sets contain the true class with probability {self.sets.coverage:g} {within}on average over "
                f"{like} ({self.sets.n:,}), halting {self.sets.halting}."
            ]
        if self.weights is not None:
            score = self.weights.target.replace("_", " ")
            gain = f"{self.weights.before:.3f} → {self.weights.after:.3f} on validation data, cross-fitted"
            said += [
                f"note: class weights {', '.join(f'{w:.3g}' for w in self.weights.weights)} raise {score} ({gain})."
                if self.weights.kept
                else f"note: no class weights are shown to raise {score} ({gain}); answers are the most likely classes."
            ]
        limit = f"with probability {options.probability:g}, for {like}"
        if self.answered is not None:
            said += [
                f"note: at most {options.max_error:g} of the answers are wrong, {limit}; unsure below a confidence of "
                f"{self.answered.threshold:.3g}."
            ]
        if self.exits is not None:
            work = f"{self.exits.mean_steps:.2f} steps"
            work += "" if self.exits.mean_cost is None else f", {self.exits.mean_cost:.0%} of compute"
            lost = {"lost": "answers lost", "changed": "answers changed", "brier": "increase of the Brier score"}
            said += [
                f"note: stopping early costs at most {options.max_loss:g} ({lost[options.loss]}), {limit}; {work} on "
                f"average over {self.exits.n:,} of them."
                if self.exits.chosen is not None
                else f"note: no early stop is shown to cost at most {options.max_loss:g}; all steps are made."
            ]
        return said

    def answers(
        self,
        path: Trajectory,
        names: Sequence[str],
        class_names: Sequence[str],
        top: int = 1,
        abstain_below: float | None = None,
        trace: bool = False,
    ) -> list[dict[str, Any]]:
        """An entry for each input: the `top` classes at the halt, and with `trace` the beliefs after every step."""

        if path.final.isnan().any():
            raise RicnetError("the model's belief is NaN: the input is too far from the training data; check it.")
        best = path.final.exp().topk(min(top, len(class_names)))
        found = zip(names, best.values.tolist(), best.indices.tolist(), path.halt_step.tolist(), strict=True)
        costs = None if path.cost is None else path.cost.tolist()
        entries: list[dict[str, Any]] = []
        for row, (name, probabilities, classes, steps) in enumerate(found):
            ranked = [{"class": class_names[k], "probability": p} for p, k in zip(probabilities, classes, strict=True)]
            unsure = abstain_below is not None and probabilities[0] < abstain_below
            answer = UNSURE if unsure else class_names[classes[0]]
            entry = {"input": name, "answer": answer, "confidence": probabilities[0], "steps": steps, "top": ranked}
            entry |= {} if costs is None else {"cost": costs[row]}
            entries.append(entry | (_trace(path, row) if trace else {}))
        if self == Decisions():
            return entries
        return [entry | more for entry, more in zip(entries, self._entries(path, class_names, trace), strict=True)]

    def _entries(self, path: Trajectory, class_names: Sequence[str], trace: bool) -> list[dict[str, Any]]:
        """Decisions for each input, besides its most likely class; with `trace` also the set after each step."""
        beliefs = path.final.double().softmax(-1).cpu().numpy()
        entries: list[dict[str, Any]] = [{} for _ in beliefs]
        if self.sets is not None:
            chosen = named_sets(self.sets.sets(beliefs, allow_empty=False), beliefs, class_names)
            entries = [{"set": one} for one in chosen]
        if self.sets is not None and trace:  # each step has its own quantile
            by_step = path.log_beliefs[: len(self.sets.step_quantiles)].double().softmax(-1).cpu().numpy()
            for step, one in enumerate(by_step, 1):
                named = named_sets(self.sets.sets(one, step, allow_empty=False), one, class_names)
                for entry, chosen_then in zip(entries, named, strict=True):
                    entry.setdefault("sets", []).append(chosen_then)
        if self.costs is not None:
            expected = self.costs.expected(beliefs)
            for entry, belief, row, k in zip(entries, beliefs, expected, expected.argmin(1), strict=True):
                entry |= {"answer": self.costs.decisions[k], "expected_cost": float(row[k])}
                entry["confidence"] = float(belief[k] if k < len(belief) else belief.max())
        if self.weights is not None:
            for entry, belief, k in zip(entries, beliefs, self.weights.answers(beliefs), strict=True):
                entry |= {"answer": class_names[k], "confidence": float(belief[k])}
        return entries

    def measured(self, beliefs: Float[np.ndarray, "n classes"], labels: Int[np.ndarray, "n"]) -> dict[str, Any]:
        """Results on labelled data, which are measured and not guaranteed."""
        found: dict[str, Any] = {}
        if self.sets is not None:
            report = measure_sets(self.sets.sets(beliefs, allow_empty=False), beliefs, labels)
            found["sets"] = {"rule": self.sets.to_json(), "measured": asdict(report)}
        if self.costs is not None:
            found["costs"] = asdict(mean_cost(self.costs, beliefs, labels))
        if self.weights is not None:
            both = {"weighted": self.weights.answers(beliefs), "most_likely": beliefs.argmax(1)}
            scores = {name: answer_score(k, labels, beliefs.shape[1], self.weights.target) for name, k in both.items()}
            found["weights"] = {"rule": asdict(self.weights), "measured": scores}
        if self.answered is not None:
            sure = beliefs.max(1) >= self.answered.threshold
            wrong = asdict(share_of(beliefs.argmax(1)[sure] != labels[sure]))
            found["abstention"] = {"rule": asdict(self.answered), "answered": asdict(share_of(sure)), "measured": wrong}
        if self.exits is not None:
            found["exits"] = asdict(self.exits)
        return found


def decide(classifier: Classifier, options: Deciding) -> tuple[Classifier, Decisions]:
    """The model, with exits of limited loss if wanted, and how its answers are given."""
    sets = exits = answered = None
    if options.coverage is not None:
        score = score_named(classifier, options.set_score, options.coverage)
        sets = set_rule(classifier, options.coverage, score, options.per_class, options.max_steps)
    if options.max_loss is not None:
        classifier, exits = control_exits(classifier, options.max_loss, options.probability, options.loss)
    if options.max_error is not None:
        answered = control_abstention(classifier, options.max_error, options.probability, options.max_steps)
    costs = None if options.costs is None else read_costs(options.costs, classifier.class_names)
    weights = None if options.tune is None else tuned_weights(classifier, options.tune)
    decisions = Decisions(sets, costs, exits, answered, weights)
    say(decisions.notes(options))
    return classifier, decisions


def _trace(path: Trajectory, row: int) -> dict[str, Any]:
    optional = {"values": path.values, "halt_probability": path.halt_probability}
    traced = {name: None if steps is None else steps[:, row].tolist() for name, steps in optional.items()}
    costs = {"costs": list(path.costs)} if path.costs else {}
    return {**costs, "beliefs": path.log_beliefs[:, row].exp().tolist(), **traced}


def sentences(found: dict[str, Any]) -> list[str]:
    """The results of `Decisions.measured` for the terminal."""
    said = []
    if "sets" in found:
        wanted, got = found["sets"]["rule"]["coverage"], found["sets"]["measured"]
        said.append(
            f"prediction sets for a coverage of {wanted:g}: {_share(got['coverage'])} contain the true class, "
            f"{got['mean_size']:.2f} classes on average, {got['single']:.1%} have one class (measured)"
        )
    if "abstention" in found:
        got = found["abstention"]
        said.append(f"answered {_share(got['answered'])}; wrong {_share(got['measured'])} of these (measured)")
    if "weights" in found:
        got, score = found["weights"]["measured"], found["weights"]["rule"]["target"].replace("_", " ")
        said.append(f"{score} {got['weighted']:.4f} with class weights, {got['most_likely']:.4f} without (measured)")
    if "costs" in found:
        got = found["costs"]
        error = "" if got["saved_error"] is None else f" ± {got['saved_error']:.2g}"
        said.append(
            f"mean cost {got['decided']:.4g}, with the most likely class {got['most_likely']:.4g}; saved "
            f"{got['saved']:.3g}{error} per example; {got['abstained']:.1%} without an answer"
        )
    return said


def _share(share: dict[str, Any]) -> str:
    if share["share"] is None:
        return "none"
    return f"{share['share']:.1%} of {share['n']:,} (95 % interval {share['low']:.1%} to {share['high']:.1%})"
