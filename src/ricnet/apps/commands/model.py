"""Loads a trained model for predict, evaluate, export and serve, and has the flags of its halting rule and readout."""

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ricnet.errors import RicnetError, require
from ricnet.io import PREFIX, is_hub_id, run_config, user_path

if TYPE_CHECKING:
    from ricnet.models.classifier import Classifier

MOST_STEPS = 10_000
"""Largest --max-steps; the beliefs of all steps are kept."""


@dataclass(frozen=True, kw_only=True)
class Answering:
    max_steps: int | None = None
    """Maximum number of steps; by default that of the run's halting rule, or its horizon."""
    halt_threshold: float | None = None
    """Stop when the value falls below this threshold, instead of by the rule that the run chose (0 is the paper's).
    Raise it to stop earlier."""
    budget: float | None = None
    """For a model with exits: stop so that the mean share of compute is at most this, by the threshold that was fitted
    to it on validation data. Raise it for better answers, up to 1, the whole network."""
    readout: Literal["mean", "mu", "implied"] | None = None
    """Reported belief: mean (the paper), mu (softmax), implied (what the Dirichlet's optimum implies)."""

    def __post_init__(self) -> None:
        steps = self.max_steps
        require(steps is None or 1 <= steps <= MOST_STEPS, "max_steps", steps, f"from 1 to {MOST_STEPS:,}")
        if self.budget is not None and self.halt_threshold is not None:
            raise RicnetError("--halt-threshold and --budget are two halting rules; remove one.")


def open_model(run: str, device: str = "cpu", how: Answering | None = None) -> "Classifier":
    """Load a run, with another halting rule and readout if given. Prints a note if its training is not finished."""
    if not run.startswith(PREFIX) and not is_hub_id(run):
        run_config(user_path(run))  # before torch is imported, which takes seconds
    from ricnet.distributed import pick_device
    from ricnet.models.loading import load
    from ricnet.training.console import say, unfinished

    classifier = load(run, str(pick_device(device)))
    if how is not None:
        if how.budget is not None:
            classifier, note = classifier.within(how.budget)
            say([] if note is None else [f"note: {note}."])
        classifier = adjust(classifier, how.halt_threshold, how.readout)
    say(unfinished(classifier))
    return classifier


def adjust(classifier: "Classifier", halt_threshold: float | None, readout: str | None) -> "Classifier":
    """The same weights with another threshold or readout. A threshold replaces the whole rule that was chosen on
    validation data, also its largest number of steps."""
    horizon = None if halt_threshold is None else getattr(classifier.config.method, "horizon", None)
    changes = {"halt_threshold": halt_threshold, "readout": readout, "horizon": horizon}
    given = {name: value for name, value in changes.items() if value is not None}
    known = {field.name for field in dataclasses.fields(classifier.method)}
    for name in given:
        if name not in known:
            flag = f"--{name.replace('_', '-')}"
            raise RicnetError(f"{flag} has no effect with the method {classifier.method.name}; remove it.")
    return dataclasses.replace(classifier, method=dataclasses.replace(classifier.method, **given))
