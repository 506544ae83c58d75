"""Messages of a run in the terminal: announcement, progress, remaining time, notes and hints at the end; and stopping
by Ctrl-C."""

import shlex
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from ricnet.data import Dataset
from ricnet.data.dataset import PHOTOGRAPH_SIDE
from ricnet.data.registry import is_resizable
from ricnet.errors import Interrupted as Interrupted
from ricnet.errors import counted, in_flags, setting
from ricnet.evaluation.baselines import better_baseline
from ricnet.methods import RIC
from ricnet.models.classifier import Classifier, encoder_name
from ricnet.models.config import Config, to_json
from ricnet.models.run import RunFolder
from ricnet.report.names import method_title
from ricnet.terminal import say, wrapped
from ricnet.training.recipes import ROWS_TO_JUDGE

NUMBERS = {"rows": "number", "texts": "token"}
TERMINAL = 80
"""Columns of a terminal for which the output of a run is planned."""


def limited(lines: Sequence[str], most: int, where: str) -> list[str]:
    """Shorten to `most` terminal lines, the last of which counts the rest. The first entry is always shown."""
    heights = [len(wrapped(in_flags(line), TERMINAL)) for line in lines]
    ends = range(1, len(lines) + 1)
    shown = max((n for n in ends if n == 1 or sum(heights[:n]) + (n < len(lines)) <= most), default=0)
    left = len(lines) - shown
    return [*lines[:shown], *([f"({left} more in {where})"] if left else [])]


def announcement(config: Config, dataset: Dataset, device: torch.device, processes: int = 1) -> str:
    rows = f"{len(dataset.train):,} {dataset.unit}"
    shape = " × ".join(str(side) for side in dataset.view_shape)
    if dataset.oversize > 1:
        shape += ", cut out of " + " × ".join(str(side) for side in dataset.input_shape[1:])
    if dataset.unit in NUMBERS:
        shape = counted(dataset.input_shape[0], NUMBERS[dataset.unit])
    where = f"{device}" if processes == 1 else f"{processes} processes on {device.type}"
    title = method_title(to_json(config)["method"])
    if config.method.name == RIC.name:
        title = title.replace("RIC", "RIC, Algorithm 1", 1)
    return (
        f"training {title} ({config.method.name}): {rows} of {shape}, {len(dataset.class_names)} classes, "
        f"encoder {encoder_name(config, dataset.input_shape)}, {counted(config.optimization.epochs, 'epoch')}, "
        f"on {where}"
    )


def augmentation_note(config: Config, dataset: Dataset) -> list[str]:
    """A note if training images are varied as photographs, which does not suit all images (letters, for example)."""
    varied = config.optimization.augment and (config.optimization.augmented_copies or not config.network.freeze)
    if not varied or dataset.augmentation.crop_area >= 1:
        return []
    note = (
        f"Colour images above {PHOTOGRAPH_SIDE} pixels are taken for photographs: training mirrors, crops and "
        f"recolours them; {setting('augment', False)} turns that off."
    )
    if dataset.oversize > 1:
        note += f" Predictions use the centre of a photograph; {setting('oversize', 1)} uses all of it."
    return [note]


def faster(config: Config, dataset: Dataset, device: torch.device) -> str | None:
    """Settings that shorten a run on a CPU; None on a GPU."""
    if device.type != "cpu":
        return None
    learned = config.network.pretrained  # such an encoder has a fixed size
    resizable = dataset.is_image and not learned and is_resizable(config.data)
    smaller = [f"{setting('resolution')} (now {dataset.view_shape[-1]})"] * resizable
    smaller += [setting("width")] * (config.network.encoder != "custom" and not learned)
    fewer = f"fewer {setting('epochs')} (now {config.optimization.epochs})"
    sooner = "" if config.optimization.patience is None else f", and {setting('patience')} may end it sooner"
    return (f"a smaller {', '.join(smaller)} or {fewer} is faster" if smaller else f"{fewer} are faster") + sooner


def unfinished(classifier: Classifier) -> list[str]:
    """A note if training did not finish: evaluation.json is missing, and there is a checkpoint or epochs are missing. A
    shared model may lack evaluation.json for other reasons."""
    if classifier.folder is None or (folder := RunFolder(classifier.folder)).finished:
        return []
    made = folder.last_epoch if folder.metrics.is_file() else None
    epochs = classifier.config.optimization.epochs
    resumable = folder.state.is_file() or folder.previous_state.is_file()
    if not resumable and (made is None or made >= epochs):
        return []
    return [
        f"note: {folder.path} is not finished (epoch {made or 0} of {epochs}); these are its best weights so far. "
        f"Go on with: ric train --out {shlex.quote(str(folder.path))} --resume"
    ]


SECONDS_BETWEEN_LINES = 15.0
LONG = 600.0
"""Seconds of training above which the hint is printed."""
SECONDS_TO_JUDGE, UPDATES_TO_JUDGE = 10.0, 3
"""Seconds and updates needed to estimate the remaining time."""


class ProgressBar:
    """Progress in examples, with epoch and validation accuracy; without a terminal a line every 15 seconds."""

    def __init__(
        self, title: str, total: int, done: int, console: Console, unit: str = "images", faster: str | None = None
    ) -> None:
        """`faster` is a hint that is printed once if training will take long."""
        self.total, self.done, self.console = total, done, console
        self.unit, self.faster, self.done_before, self.updates = unit, faster, done, 0
        self.began = self.last_line = time.monotonic()
        self.last_drawn, self.standing = 0.0, ""
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=12),
            TextColumn("{task.fields[text]}", markup=False),
            TimeRemainingColumn(compact=True),
        )
        # rich estimates speed over 30 seconds by default; an update may take longer
        self.bar = Progress(*columns, console=self.console, transient=True, speed_estimate_period=LONG)
        self.task = self.bar.add_task(title, total=total, completed=done, text="")

    def start(self) -> None:
        if self.console.is_terminal:
            self.bar.start()

    def stop(self) -> None:
        self.bar.stop()

    def advance(self, done: int) -> None:
        """Called after each update; draws at most ten times a second."""
        now = time.monotonic()
        self.done, self.updates = done, self.updates + 1
        self._judge(now)
        if not self.console.is_terminal or (now - self.last_drawn < 0.1 and done < self.total):
            return
        self.last_drawn = now
        rate = (done - self.done_before) / max(now - self.began, 1e-9)
        self.bar.update(self.task, completed=done, text=f"{self.standing}{rate:,.0f} {self.unit}/s")

    def epoch(self, line: dict[str, Any], epochs: int, rows: str = "val") -> None:
        """Called with each line of metrics.jsonl. `rows` names its validation rows, which a final fit trains on."""
        val, place = line["val"], f"epoch {line['epoch']}/{epochs}"
        self.standing = f"{place}  {rows} {val['accuracy']:.1%}  "
        last = line["epoch"] == epochs
        if not self.console.is_terminal and (last or time.monotonic() - self.last_line > SECONDS_BETWEEN_LINES):
            self.last_line = time.monotonic()
            rate = f"{line['images_per_second']:,.0f} {self.unit}/s"
            work = f"compute {val['mean_cost']:.2f}" if "mean_cost" in val else f"{val['mean_steps']:.1f} steps"
            left = "" if last else f"  {duration(self._left(self.last_line))} left"
            say([f"{place}  {rate}  {rows} acc {val['accuracy']:.2%}  {work}{left}"], self.console, wrap=False)

    def _left(self, now: float) -> float:
        """Remaining seconds at the mean speed so far."""
        return (self.total - self.done) * (now - self.began) / max(self.done - self.done_before, 1)

    def _judge(self, now: float) -> None:
        waited = now - self.began
        if self.faster is None or waited < SECONDS_TO_JUDGE or self.updates < UPDATES_TO_JUDGE:
            return
        if (whole := waited + self._left(now)) > LONG:
            say([f"hint: this will take about {duration(whole)} on this CPU; {self.faster}."], self.console)
        self.faster = None


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"


GO_ON = "stopped; nothing is lost. The same command continues."


class StopRequest:
    """Context in which the first SIGINT or SIGTERM sets `received`; a second one ends the program at once."""

    def __init__(self) -> None:
        self.received = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():  # signals reach no other
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = True
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}


# Notes and hints at the end of a run. A hint needs evidence: a difference beyond its standard error, on enough rows.

STILL_FALLING = 0.05
"""Training was too short if the mean validation NLL of the last tenth of the epochs is lower by this share than that of
the tenth before. In finished runs on CIFAR-10 (results/) the share was 0.002 to 0.018."""
SHORT = 8
"""Epochs below which there are no hints about training: such a run is the user's own choice."""
SURE = 0.05
"""Over-confident: mean confidence minus accuracy exceeds this on held-out data."""
ERRORS = 2
"""Standard errors that a difference must exceed."""
ANEW = f"(with {setting('overwrite', True)}, or another {setting('out')})"

Evaluation = Mapping[str, Any]


def advice(evaluation: Evaluation, val_nll: Mapping[int, float], config: Config, dataset: Dataset) -> list[str]:
    """Lines for the terminal, hints first: only the first lines may be shown. `val_nll` is the validation NLL of each
    validated epoch."""
    notes = [*ended_early(val_nll, config), *filter(None, [evaluation.get("baselines_note")])]
    found = hints(evaluation, val_nll, config, dataset)
    return [*(f"hint: {hint}" for hint in found), *(f"note: {note}" for note in notes)]


def ended_early(val_nll: Mapping[int, float], config: Config) -> list[str]:
    epochs, patience = config.optimization.epochs, config.optimization.patience
    done = max(val_nll, default=0)
    if patience is None or done >= epochs:
        return []
    why = f"no improvement in the last {patience} epochs ({setting('patience')})"
    return [f"Ended after {done} of {epochs} epochs: {why}."]


def hints(evaluation: Evaluation, val_nll: Mapping[int, float], config: Config, dataset: Dataset) -> list[str]:
    if not _held_out(evaluation, config):
        return []
    found = []
    if config.optimization.epochs >= SHORT:
        found = [
            _nothing_learned(evaluation, config, dataset) or _too_short(val_nll, config),
            _too_sure(evaluation, config),
        ]
    found += [_simpler_is_better(evaluation, dataset), _too_few(evaluation, config, dataset.unit)]
    return [sentence for sentence in found if sentence]


def _held_out(evaluation: Evaluation, config: Config) -> list[tuple[str, dict[str, Any]]]:
    """The validation and test splits that have rows. A final fit trains on its validation rows."""
    names = ("test",) if config.final_fit else ("val", "test")
    return [(name, evaluation[name]) for name in names if (evaluation.get(name) or {}).get("n")]


def _nothing_learned(evaluation: Evaluation, config: Config, dataset: Dataset) -> str | None:
    """Hint if the NLL on held-out rows is not below that of the base rate, which ignores the inputs."""
    split, entry = _held_out(evaluation, config)[-1]
    names = [name for name in ("nll_gain", "nll_gain_weighted") if entry.get(f"{name}_error") is not None]
    learned = any(entry[name] > ERRORS * entry[f"{name}_error"] for name in names)
    if learned or not names or entry["n"] < ROWS_TO_JUDGE:
        return None
    rows = f"{entry['n']:,} {'validation' if split == 'val' else split} {dataset.unit}"
    return (
        f"the model has learned nothing yet: on {rows} its NLL is not below that of the base rate (gain "
        f"{entry[names[-1]]:.3f} ± {entry[f'{names[-1]}_error']:.3f}); train longer, for instance with "
        f"{setting('epochs', 2 * config.optimization.epochs)} {ANEW}, and check that the inputs tell the classes apart."
    )


def _too_short(val_nll: Mapping[int, float], config: Config) -> str | None:
    """Hint if validation NLL was still falling at the end; none if patience ended the run."""
    epochs, values = config.optimization.epochs, [*val_nll.values()]
    part = max(1, len(values) // 10)
    if len(values) < 2 or max(val_nll) < epochs or config.final_fit:
        return None
    before, after = (sum(values[-end * part :][:part]) / part for end in (2, 1))
    if after > (1 - STILL_FALLING) * before:
        return None
    every = part * config.optimization.validate_every
    last = f"the last {every} epochs" if every > 1 else "the last epoch"
    return (
        f"validation NLL was still falling in {last} ({before:.3f} to {after:.3f}); "
        f"train longer, for instance with {setting('epochs', 2 * epochs)} {ANEW}."
    )


def _too_sure(evaluation: Evaluation, config: Config) -> str | None:
    """Hint if mean confidence exceeds accuracy on both validation and test rows: one of them alone may be chance."""
    splits = _held_out(evaluation, config)
    for _, entry in splits:
        error = entry["ece_signed_error"]
        if error is None or entry["ece_signed"] < max(SURE, ERRORS * error):
            return None
    name, entry = splits[-1]
    remedies = [f"fit a temperature with {setting('calibration', 'temperature')}"] * (config.calibration == "none")
    remedies += [f"choose the epoch by its NLL with {setting('select', 'nll')}"] * (config.optimization.select != "nll")
    advice = f"; {', or '.join(remedies)} {ANEW}" if remedies and not config.final_fit else ""
    return (
        f"it is over-confident ({'validation' if name == 'val' else name} accuracy {entry['accuracy']:.1%}, "
        f"mean confidence {entry['mean_confidence']:.1%}){advice}."
    )


def _simpler_is_better(evaluation: Evaluation, dataset: Dataset) -> str | None:
    """Hint if a baseline has a lower NLL on the test rows, by more than the standard error of the difference."""
    baselines = evaluation.get("baselines") or {}
    name = better_baseline(baselines)
    if name is None:
        return None
    entry, own = baselines[name], evaluation["test"]
    rival = name if name[:2].isupper() else f"{name[0].lower()}{name[1:]}"
    return (
        f"a simpler model is better: on the {entry['n']:,} test {dataset.unit}, {rival} has an NLL "
        f"of {entry['nll']:.3f}, this network {own['nll']:.3f} (difference {entry['advantage']:.3f} ± "
        f"{entry['advantage_error']:.3f}), and accuracies of {entry['accuracy']:.1%} and {own['accuracy']:.1%}."
    )


def _too_few(evaluation: Evaluation, config: Config, unit: str) -> str | None:
    counts = {name: entry["n"] for name, entry in _held_out(evaluation, config)}
    val, test = (counts.get(name, ROWS_TO_JUDGE) for name in ("val", "test"))
    if min(val, test) >= ROWS_TO_JUDGE:
        return None
    doubts = [f"{val} validation {unit} selected the epoch"] * (val < ROWS_TO_JUDGE)
    doubts += [f"{test} test {unit} were evaluated"] * (test < ROWS_TO_JUDGE)
    share = f", or raise {setting('val_fraction')} (now {config.val_fraction:g})" if test >= ROWS_TO_JUDGE else ""
    return f"only {' and '.join(doubts)}, so the result is noisy; collect more{share}."
