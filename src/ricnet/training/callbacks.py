"""Callbacks of the trainer: selection, patience, divergence, collapses, measuring, progress and TensorBoard.
A user's callbacks are called in the same way."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from ricnet.errors import RicnetError, listing, require_extra, setting
from ricnet.evaluation.baselines import base_rate, mean_and_error, selection_nll
from ricnet.evaluation.choices import FOLDS, calibrated_scores, is_as_good
from ricnet.evaluation.evaluate import observe, summarize
from ricnet.evaluation.metrics import Collapse as Found
from ricnet.evaluation.metrics import CollapseWatch, measured_rows
from ricnet.io import shown_name
from ricnet.models.classifier import learned
from ricnet.report.collapses import alarm_words, validation_nll
from ricnet.terminal import say
from ricnet.training.console import ProgressBar

if TYPE_CHECKING:
    from ricnet.training.trainer import Trainer

FALLEN_EPOCHS, STANDARD_ERRORS = 5, 4
"""A run has diverged after this many epochs in a row with less than half the best validation accuracy. The difference
must exceed this many standard errors, because at chance level the best epoch is best by accident."""

Line = dict[str, Any]
"""The metrics of an epoch, as in metrics.jsonl."""
State = dict[str, Any]
Track = Literal["none", "tensorboard"]


class Callback:
    """Base class: override the hooks you need.

    Hooks are called in the order of the list, the trainer's own callbacks first. An exception in a hook ends training.
    """

    def on_train_begin(self, trainer: "Trainer") -> None:
        """Before the first update, or the first after resuming."""

    def on_update_end(self, trainer: "Trainer") -> None:
        """After each update; `trainer.update` counts them. Reading a tensor here waits for the GPU."""

    def on_epoch_end(self, trainer: "Trainer", line: Line) -> None:
        """After each validation, by default of each epoch, with its line of metrics.jsonl."""

    def on_train_end(self, trainer: "Trainer") -> None:
        """After the last update, with the selected weights in `trainer.model`, and after an interruption or an error.
        Called in reverse order."""

    def state_dict(self) -> State:
        """State that a resumed run needs: numbers, strings, tensors, lists and dicts."""
        return {}

    def load_state_dict(self, state: State) -> None:
        """Restore the state that `state_dict` returned."""


def check_callbacks(callbacks: Sequence[Any]) -> None:
    for callback in callbacks:
        if not isinstance(callback, Callback):
            kind = f"the class {callback.__name__}" if isinstance(callback, type) else f"a {type(callback).__name__}"
            raise RicnetError(f"{setting('callbacks')} holds {kind}; give instances of subclasses of ricnet.Callback.")


class Selection(Callback):
    """Keeps the weights of the best epoch by `select`. With `select="calibrated"`, these are of the latest epoch within
    a standard error of the best."""

    def __init__(self) -> None:
        self.best: State = {}
        """`epoch` and `weights` are selected; `best_epoch`, `score`, `scores` and `accuracy` are of the best one."""
        self.accuracy = 0.0
        """Results of the last epoch on validation data."""

    def on_epoch_end(self, trainer: "Trainer", line: Line) -> None:
        epoch, select = line["epoch"], trainer.settings.select
        self.accuracy, nll, scores = trainer.processes.broadcast(lambda: self.scores(trainer, line["val"]))
        nll = nll if scores is None else -float(scores.mean())
        score = {"accuracy": [self.accuracy, -nll], "last": [epoch]}.get(select, [-nll, self.accuracy])
        better = not self.best or score > self.best["score"]
        if better or (scores is not None and is_as_good(scores, self.best["scores"])):
            weights = {name: tensor.detach().clone() for name, tensor in trainer.average.state_dict().items()}
            self.best |= {"epoch": epoch, "weights": weights}
        if better:
            self.best |= {"best_epoch": epoch, "score": score, "scores": scores, "accuracy": self.accuracy}

    def scores(self, trainer: "Trainer", val: Line) -> tuple[float, float, Float[Tensor, "n"] | None]:
        """Accuracy and NLL on validation data, weighted if its rows have weights. With `select="calibrated"`, without
        weights, also the log-score of each row after a cross-fitted temperature."""
        data, outcome, weights = trainer.dataset, trainer.outcome, trainer.dataset.val.weights
        labels, log_beliefs = outcome.labels, outcome.log_beliefs
        if weights is None:
            by_row = trainer.settings.select == "calibrated" and len(labels) >= FOLDS
            return val["accuracy"], val["nll"], calibrated_scores(log_beliefs, labels) if by_row else None
        accuracy, _ = mean_and_error((log_beliefs.argmax(-1) == labels).double(), weights.cpu())
        balanced = trainer.config.class_weight
        shares = base_rate(replace(data.train, weights=None), len(data.class_names)) if balanced else None
        return accuracy, selection_nll(log_beliefs, labels, weights.cpu(), shares), None

    def state_dict(self) -> State:
        return {"best": self.best}

    def load_state_dict(self, state: State) -> None:
        self.best = state["best"]


class Patience(Callback):
    """Ends training after this many epochs without a better one; never if None."""

    def __init__(self, epochs: int | None, selection: Selection) -> None:
        self.epochs, self.selection = epochs, selection

    def used_up(self, epoch: int) -> bool:
        best = self.selection.best
        return self.epochs is not None and bool(best) and epoch - best["best_epoch"] >= self.epochs

    def on_train_begin(self, trainer: "Trainer") -> None:
        trainer.stop |= self.used_up(trainer.epoch)

    def on_epoch_end(self, trainer: "Trainer", line: Line) -> None:
        trainer.stop |= self.used_up(line["epoch"])


class Measuring(Callback):
    """With `measure_all`, measures the test data and as many training rows as validation rows. They select nothing."""

    def __init__(self, patience: Patience) -> None:
        self.patience = patience

    def on_epoch_end(self, trainer: "Trainer", line: Line) -> None:
        epoch, settings, data = line["epoch"], trainer.settings, trainer.dataset
        last = trainer.update >= trainer.total_updates or self.patience.used_up(epoch)
        if not (settings.measure_all and (epoch % settings.measure_every == 0 or last)):
            return
        count = min(len(data.val), len(data.train))
        sample = data.train.take(torch.linspace(0, len(data.train) - 1, count).long())
        for name, split in (("train_eval", sample), ("test", data.test)):
            if len(split):
                outcome = observe(trainer.method, trainer.average, split, processes=trainer.processes)
                line[name] = trainer.processes.broadcast(partial(summarize, outcome))


class Finite(Callback):
    """Ends training when metrics or weights become infinite or NaN, before they are evaluated or saved."""

    def on_update_end(self, trainer: "Trainer") -> None:
        if trainer.validates:
            self.check(trainer)

    def check(self, trainer: "Trainer") -> None:
        """Check all weights: metrics are computed before an update, so those of the last update do not show its effect,
        and validation does not use every head. This waits for the device, so it is done before each validation."""
        refuse_nonfinite(trainer, {name: float(total) for name, total in trainer.sums.items()})
        if not torch.stack([tensor.isfinite().all() for tensor in learned(trainer.model)]).all():
            diverged(trainer, "the weights became infinite or NaN")

    def on_epoch_end(self, trainer: "Trainer", line: Line) -> None:
        refuse_nonfinite(trainer, line["val"])


class Fall(Callback):
    """Ends training when validation accuracy has fallen to less than half of the best for `FALLEN_EPOCHS` epochs."""

    def __init__(self, selection: Selection) -> None:
        self.selection, self.epochs = selection, 0

    def on_epoch_end(self, trainer: "Trainer", line: Line) -> None:
        accuracy, best = self.selection.accuracy, self.selection.best["accuracy"]
        self.epochs = self.epochs + 1 if has_fallen(accuracy, best, len(trainer.dataset.val)) else 0
        if self.epochs >= FALLEN_EPOCHS:
            diverged(trainer, f"validation accuracy has fallen to {accuracy:.1%} from {best:.1%}")

    def state_dict(self) -> State:
        return {"collapsed": self.epochs}

    def load_state_dict(self, state: State) -> None:
        self.epochs = state["collapsed"]


def has_fallen(accuracy: float, best: float, rows: int) -> bool:
    """Whether an accuracy is less than half of the best one, and the difference exceeds the noise of `rows` rows."""
    return accuracy < 0.5 * best and best - accuracy > STANDARD_ERRORS * math.sqrt(best * (1 - best) / rows)


def refuse_nonfinite(trainer: "Trainer", numbers: dict[str, float]) -> None:
    broken = [name for name, value in numbers.items() if not math.isfinite(value)]
    if broken:
        diverged(trainer, f"{listing(broken[:3])} became infinite or NaN")


def diverged(trainer: "Trainer", what: str) -> None:
    """Save the best weights so far, mark the folder, and raise. state.pt keeps the last good state."""
    best, folder = trainer.best, trainer.folder
    kept, anew = "nothing is kept" if best else "no epoch was completed before", "Start anew"
    epoch = -(-trainer.update // trainer.updates_per_epoch)
    if best and folder is not None:
        folder.write_model(best["weights"])
        kept = f"the best weights so far, of epoch {best['epoch']}, are in {folder.model}"
        anew = f"Start anew ({setting('overwrite', True)} replaces them)"
    if folder is not None:
        folder.write_json(folder.diverged, {"epoch": epoch, "reason": what})
    raise RicnetError(f"training diverged in epoch {epoch}: {what}; {kept}. {anew} {_calmer(trainer)}.")


def _calmer(trainer: "Trainer") -> str:
    """Settings that make divergence less likely."""
    lr, now = trainer.settings.lr, trainer.settings.clip
    clip = f"with {setting('clip', 0.5)}" if now is None else f"a lower {setting('clip')} (now {now:g})"
    return f"with a lower {setting('lr')} (now {lr:g}) or {clip}"


class Progress(Callback):
    """Shows the progress bar."""

    def __init__(self, faster: str | None) -> None:
        self.faster = faster

    def on_train_begin(self, trainer: "Trainer") -> None:
        title = f"{trainer.method.name} on {shown_name(trainer.dataset.name)}"
        total, done = (updates * trainer.batch_size for updates in (trainer.total_updates, trainer.update))
        self.bar = ProgressBar(title, total, done, trainer.console, trainer.dataset.unit, self.faster)
        self.bar.start()

    def on_update_end(self, trainer: "Trainer") -> None:
        self.bar.advance(trainer.update * trainer.batch_size)

    def on_epoch_end(self, trainer: "Trainer", line: Line) -> None:
        self.bar.epoch(line, trainer.settings.epochs, "train" if trainer.config.final_fit else "val")

    def on_train_end(self, trainer: "Trainer") -> None:
        self.bar.stop()


class Collapse(Callback):
    """Adds `collapse` to the line of each epoch in which training collapsed or the value loss jumped. Says so the first
    time, and once more if a collapse follows a jump."""

    def on_train_begin(self, trainer: "Trainer") -> None:
        self.watch = CollapseWatch(measured_rows(len(trainer.dataset.train), trainer.device.type))
        self.lowest = math.inf
        earlier = trainer.folder.metrics_lines() if trainer.folder is not None else ()
        self.told = set[str]().union(*(self.see(line) for line in earlier))
        """Keys of the collapses that the user has been told of."""

    def see(self, line: Line) -> Found:
        """The collapse in this epoch; empty if its validation NLL is the lowest so far."""
        found, nll = self.watch.see(line), validation_nll(line)
        best, self.lowest = nll <= self.lowest, min(self.lowest, nll)
        return {} if best else found

    def on_epoch_end(self, trainer: "Trainer", line: Line) -> None:
        if not (found := self.see(line)):
            return
        line["collapse"] = found
        if not self.told or ("accuracy" in found and "accuracy" not in self.told):
            kept = "" if trainer.config.final_fit else f" The best weights so far are of epoch {trainer.best['epoch']}."
            again = f"If it does not recover, train again {_calmer(trainer)}."
            words = alarm_words([{"epoch": line["epoch"], **found}])
            say([f"note: {words}.{kept} {again}"], trainer.console)
        self.told |= found.keys()


class Log(Callback):
    """Writes metrics.jsonl. Callbacks before it may add to the line of an epoch; those after it see what is written."""

    def on_epoch_end(self, trainer: "Trainer", line: Line) -> None:
        if trainer.folder is not None:
            trainer.folder.append_metrics(line)


class Tracking(Callback):
    """Writes the metrics of each epoch as curves for TensorBoard. A resumed run writes the epochs so far again, in
    place of its old curves, so that each point is there once."""

    def __init__(self) -> None:
        require_extra(setting("track", "tensorboard"), "track", "tensorboard")

    def on_train_begin(self, trainer: "Trainer") -> None:
        from torch.utils.tensorboard import SummaryWriter  # takes seconds

        assert trainer.folder is not None
        trainer.folder.drop_curves()
        self.writer = SummaryWriter(str(trainer.folder.curves))
        for line in trainer.folder.metrics_lines():
            self.on_epoch_end(trainer, line)

    def on_epoch_end(self, trainer: "Trainer", line: Line) -> None:
        for name, value in scalars(line):
            self.writer.add_scalar(name, value, line["epoch"])
        self.writer.flush()

    def on_train_end(self, trainer: "Trainer") -> None:
        self.writer.close()


def scalars(line: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """The numbers of a line under names such as val/accuracy."""
    for name, value in line.items():
        if isinstance(value, dict):
            yield from ((f"{name}/{part}", number) for part, number in scalars(value))
        elif isinstance(value, int | float) and name != "epoch":
            yield name, value
