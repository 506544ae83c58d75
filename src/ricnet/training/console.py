"""What a person is told of a run: what it sets out to do, how far it is, and at its end what it chose and lacks."""

import os
import shlex
import signal
import threading
import time
from collections.abc import Iterable
from dataclasses import replace
from types import FrameType, TracebackType
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from ricnet.data import Dataset
from ricnet.data.dataset import PHOTOGRAPH_SIDE
from ricnet.data.registry import is_resizable
from ricnet.errors import Interrupted as Interrupted
from ricnet.errors import counted, in_flags, setting
from ricnet.io import printable
from ricnet.methods import ClosedForm
from ricnet.models.build import encoder_name
from ricnet.models.classifier import Classifier
from ricnet.models.config import Config, to_json
from ricnet.models.run import RunFolder
from ricnet.nets.encoders import choose_encoder
from ricnet.report.names import method_title
from ricnet.training.recipes import Facts, preset

NUMBERS = {"rows": "number", "texts": "token"}


class Narrator(Console):
    """Tells of work that goes on when its reader has left, as with `ric train 2>&1 | head`."""

    def on_broken_pipe(self) -> None:
        """What is written there from now on leads nowhere, and so does what Python still has to write at its end."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())


def say(lines: Iterable[str], console: Console | None = None) -> None:
    console = console or Narrator(stderr=True)
    for line in lines:
        console.print(printable(in_flags(line)), highlight=False, markup=False, soft_wrap=True)


def announcement(config: Config, dataset: Dataset, device: torch.device, processes: int = 1) -> str:
    rows = f"{len(dataset.train):,} {dataset.unit}"
    shape = " × ".join(str(side) for side in dataset.input_shape)
    if dataset.unit in NUMBERS:
        shape = counted(dataset.input_shape[0], NUMBERS[dataset.unit])
    where = f"{device}" if processes == 1 else f"{processes} processes on {device.type}"
    title = method_title(to_json(config)["method"])
    return (
        f"training {title} ({config.method.name}): {rows} of {shape}, {len(dataset.class_names)} classes, "
        f"encoder {encoder_name(config, dataset.input_shape)}, {counted(config.optimization.epochs, 'epoch')}, "
        f"on {where}"
    )


def preface(config: Config, dataset: Dataset, known: Facts) -> list[str]:
    """Notes on defaults the user may want to change: augmentation, closed-form rewards, the network for a CPU."""
    said = []
    varied = config.optimization.augment and not (config.network.freeze and not config.optimization.augmented_copies)
    if varied and dataset.augmentation.crop_area < 1:
        said.append(
            f"note: images in colour above {PHOTOGRAPH_SIDE} pixels are taken for photographs: in training they are "
            f"mirrored, cropped and varied in colour; {setting('augment', False)} leaves them as they are."
        )
    exits = config.network.exits != "none"
    if config.preset == "fast" and exits and isinstance(config.method, ClosedForm):
        said.append(
            "note: with exits RIC is trained in closed form; docs/concepts.md says why (Three algorithms), and "
            f"{setting('method', 'ric-on-policy')} draws its rewards instead."
        )
    spared = preset("fast", config.method.name, known)
    larger = preset("fast", config.method.name, replace(known, device="cuda"))
    undivided = replace(config.network, exits="none", steps_per_exit=1)
    if config.preset == "fast" and undivided == spared.network != larger.network:
        network, paper = larger.network, preset("paper", config.method.name, known)
        said.append(
            "hint: the network was chosen for a CPU; for a GPU `fast` would have "
            f"{setting('encoder', choose_encoder(network.encoder, dataset.input_shape))} "
            f"{setting('width', network.width)} {setting('epochs', larger.optimization.epochs)}, and "
            f"{setting('preset', 'paper')} has a {paper.network.encoder} for {paper.optimization.epochs} epochs."
        )
    return said


def faster(config: Config, dataset: Dataset, device: torch.device) -> str | None:
    """What would make a run on a CPU shorter; None elsewhere."""
    if device.type != "cpu":
        return None
    learned = config.network.pretrained  # an encoder has a size of its own then
    resizable = dataset.is_image and not learned and is_resizable(config.data)
    smaller = [f"{setting('resolution')} (now {dataset.input_shape[-1]})"] * resizable
    smaller += [setting("width")] * (config.network.encoder != "custom" and not learned)
    fewer = f"fewer {setting('epochs')} (now {config.optimization.epochs})"
    sooner = "" if config.optimization.patience is None else f", and {setting('patience')} may end it sooner"
    return (f"a smaller {', '.join(smaller)} or {fewer} is faster" if smaller else f"{fewer} are faster") + sooner


def unfinished(classifier: Classifier) -> list[str]:
    """A note if training did not come to its end. A model that others share may lack evaluation.json for other reasons,
    so that it takes a checkpoint, or too few epochs, to tell."""
    if classifier.folder is None or (folder := RunFolder(classifier.folder)).finished:
        return []
    made = folder.metrics.read_bytes().count(b"\n") if folder.metrics.is_file() else None
    epochs = classifier.config.optimization.epochs
    resumable = folder.state.is_file() or folder.previous_state.is_file()
    if not resumable and (made is None or made >= epochs):
        return []
    return [
        f"note: {folder.path} is not finished (epoch {made or 0} of {epochs}); this is the best so far. "
        f"Go on with: ric train --out {shlex.quote(str(folder.path))} --resume"
    ]


SECONDS_BETWEEN_LINES = 15.0
LONG = 600.0
"""Seconds of training from which on the hint is given."""
SECONDS_TO_JUDGE, UPDATES_TO_JUDGE = 10.0, 3
"""After both of these the time that is left can be estimated."""


class ProgressBar:
    """Counts examples, be they images or rows; where training stands is written beside the bar."""

    def __init__(
        self,
        title: str,
        total: int,
        done: int,
        console: Console | None = None,
        unit: str = "images",
        faster: str | None = None,
    ) -> None:
        """`faster` is a hint that is printed once if training will take long."""
        self.console = console or Narrator(stderr=True)
        self.title, self.total, self.start, self.unit, self.faster = title, total, done, unit, faster
        self.done, self.updates = done, 0
        self.began = self.last_line = time.monotonic()
        self.last_drawn = 0.0
        self.standing = ""
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=12),
            TextColumn("{task.fields[text]}", markup=False),
            TimeRemainingColumn(compact=True),
        )
        # An update may take longer than the half minute by which rich would judge the speed.
        self.bar = Progress(*columns, console=self.console, transient=True, speed_estimate_period=LONG)
        self.task = self.bar.add_task(title, total=total, completed=done, text="")

    def __enter__(self) -> "ProgressBar":
        if self.console.is_terminal:
            self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()

    def advance(self, done: int) -> None:
        """Called after each update; draws at most ten times a second."""
        now = time.monotonic()
        self.done, self.updates = done, self.updates + 1
        self._judge(now)
        if not self.console.is_terminal or (now - self.last_drawn < 0.1 and done < self.total):
            return
        self.last_drawn = now
        rate = (done - self.start) / max(now - self.began, 1e-9)
        self.bar.update(self.task, completed=done, text=f"{self.standing}{rate:,.0f} {self.unit}/s")

    def epoch(self, line: dict[str, Any], epochs: int) -> None:
        """Called with each line of metrics.jsonl."""
        val, place = line["val"], f"epoch {line['epoch']}/{epochs}"
        self.standing = f"{place}  val {val['accuracy']:.1%}  "
        last = line["epoch"] == epochs
        if not self.console.is_terminal and (last or time.monotonic() - self.last_line > SECONDS_BETWEEN_LINES):
            self.last_line = time.monotonic()
            rate = f"{line['images_per_second']:,.0f} {self.unit}/s"
            work = f"{val['mean_cost']:.2f} of compute" if "mean_cost" in val else f"{val['mean_steps']:.1f} steps"
            quality = f"val acc {val['accuracy']:.2%}  ECE {val['ece']:.3f}  {work}"
            left = "" if last else f"  {duration(self._left(self.last_line))} left"
            self._print(f"{self.title}: {place}  {rate}  {quality}{left}")

    def _left(self, now: float) -> float:
        """Seconds, if it goes on as it has gone so far."""
        return (self.total - self.done) * (now - self.began) / max(self.done - self.start, 1)

    def _judge(self, now: float) -> None:
        waited = now - self.began
        if self.faster is None or waited < SECONDS_TO_JUDGE or self.updates < UPDATES_TO_JUDGE:
            return
        if (whole := waited + self._left(now)) > LONG:
            self._print(f"hint: this will take about {duration(whole)} on this CPU; {self.faster}.")
        self.faster = None

    def _print(self, text: str) -> None:
        say([text], self.console)


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"


GO_ON = "stopped; nothing is lost. The same command goes on where it stopped."


class StopRequest:
    """While entered, the first SIGINT or SIGTERM sets `asked`; a second one ends the program at once."""

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():  # signals reach no other
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
