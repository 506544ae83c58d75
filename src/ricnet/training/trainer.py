"""The training loop, for any method: a flat sequence of updates. It can stop after any of them and resume exactly."""

import copy
import math
import shlex
import time
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from typing import Any

import torch
from jaxtyping import Int64
from rich.console import Console
from torch import Tensor, nn

from ricnet.core.policies import drawing_from
from ricnet.data import Dataset
from ricnet.distributed import ALONE, Processes
from ricnet.evaluation.evaluate import Outcome, observe, summarize
from ricnet.models.config import Config
from ricnet.models.run import RunFolder
from ricnet.training.batches import Batches
from ricnet.training.callbacks import (
    Averaging,
    Callback,
    Collapse,
    Fall,
    Finite,
    Log,
    Measuring,
    Patience,
    Progress,
    Selection,
    State,
)
from ricnet.training.console import Interrupted, Narrator, StopRequest
from ricnet.training.finish import finalize, weighted
from ricnet.training.networks import initial_network, seeded_generator
from ricnet.training.optimization import (
    Gradient,
    make_optimizer,
    rate_factor,
    set_rate,
    tensor_cores,
)
from ricnet.training.recording import compile_update, record_update
from ricnet.training.state import state_of


class Trainer:
    """Trains one network. A callback may read all of it and set `stop`; it must change nothing else."""

    def __init__(
        self,
        config: Config,
        dataset: Dataset,
        folder: RunFolder | None,
        device: torch.device,
        encoder: nn.Module | None = None,
        checkpoint_seconds: float = 60.0,
        console: Console | None = None,
        processes: Processes = ALONE,
        faster: str | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        """Without a folder nothing is written. Of several processes only the first has one; they all hold the same
        state after every update. `faster` is a hint printed once for long runs."""
        self.generator = seeded_generator(config, encoder, device)
        dataset = weighted(config, dataset)
        self.config, self.dataset, self.folder, self.device = config, dataset, folder, device
        self.method, self.settings, self.processes = config.method, config.optimization, processes
        self.checkpoint_seconds, self.console = checkpoint_seconds, console or Narrator(stderr=True)
        self.keeps_state = False
        """Whether the last state stays in the folder, so that more epochs can follow."""
        self.batches = Batches(config, dataset, device, processes, self.generator)
        self.batch_size, self.updates_per_epoch = self.batches.size, self.batches.per_epoch
        self.total_updates = self.updates_per_epoch * self.settings.epochs

        self.model = initial_network(config, dataset, encoder, device, self.generator, processes)
        period = self.method.snapshot_period(self.updates_per_epoch)
        self.period = None if period == 1 else period  # every update: the network is its own snapshot
        self.snapshot = copy.deepcopy(self.model).requires_grad_(False) if self.period else self.model
        self.optimizer = make_optimizer(self.model, self.settings, device)

        self.update = 0
        self.stop = False
        """A callback sets it to end training after the present epoch."""
        self.seconds = self.epoch_seconds = self.clock = 0.0
        self.sums: dict[str, Tensor] = {}
        self.outcome: Outcome
        """Beliefs and labels of the validation data after the last epoch."""
        self.built_in, self.own_callbacks = self._built_in(faster), callbacks
        self.callbacks = [*self.built_in, *callbacks]
        compile_update(self)
        shard, parts = self.batches.shard, self.settings.accumulate
        self.gradient = Gradient(self.method, self.model, self.snapshot, shard, parts)
        self.learn = record_update(self)

    def _built_in(self, faster: str | None) -> list[Callback]:
        """In the order in which they are called: Selection after Finite, so that no NaN is selected, and before those
        that read its best epoch; Log after those that add to the line of an epoch."""
        self.averaging = Averaging(self.model, self.settings.average)
        self.finite, self.selection = Finite(), Selection()
        patience = Patience(self.settings.patience, self.selection)
        choosing = [self.finite, Measuring(patience), self.selection, Fall(self.selection), patience]
        return [self.averaging, *choosing, Progress(faster), Collapse(), Log()]

    def run(self) -> dict[str, Any]:
        """Train to the end and evaluate the selected weights; returns the content of evaluation.json."""
        self.train()
        return self._conclude()

    def train(self) -> None:
        """Train to the end, then load the selected weights."""
        with ExitStack() as ends:
            self._begin(ends)
            self._loop()
            if self.keeps_state:
                self.checkpoint()
            self.model.load_state_dict(self.best["weights"])

    def _begin(self, ends: ExitStack) -> None:
        """Call `on_train_begin`, and `on_train_end` of each callback that has begun, however training ends."""
        for callback in self.callbacks:
            callback.on_train_begin(self)
            ends.callback(callback.on_train_end, self)
        self.stop = self.processes.any(self.stop)

    def _loop(self) -> None:
        with StopRequest() as request:
            saved = self.clock = time.monotonic()
            while not self.over:
                self._step()
                self._count_seconds()
                for callback in self.callbacks:
                    callback.on_update_end(self)
                if self.epoch_ends:
                    self._finish_epoch()
                self.seconds += self._lap()
                asked = self.processes.any(request.asked)
                if asked or time.monotonic() - saved >= self.checkpoint_seconds:
                    self.checkpoint()
                    saved = self.clock = time.monotonic()
                if asked and not self.over:
                    self.processes.any(asked)  # wait for the first process to save: torchrun would end it too
                    self._interrupt()

    @property
    def epoch(self) -> int:
        """Completed epochs."""
        return self.update // self.updates_per_epoch

    @property
    def epoch_ends(self) -> bool:
        """Whether the last update completed an epoch."""
        return self.update % self.updates_per_epoch == 0

    @property
    def over(self) -> bool:
        """All updates are made, or a callback asked to stop and an epoch has been validated."""
        return self.update >= self.total_updates or (self.stop and self.epoch_ends and bool(self.best))

    @property
    def best(self) -> State:
        """The selected epoch and its weights."""
        return self.selection.best

    @property
    def average(self) -> nn.Module:
        """The network that is evaluated: the average of the weights, or the one that learns."""
        return self.averaging.network

    def _step(self) -> None:
        """One update, of a new minibatch at its own learning rate."""
        if self.period and self.update % self.period == 0:
            self.snapshot.load_state_dict(self.model.state_dict())
        set_rate(self.optimizer, self._rate())
        rows = self._next_rows()
        self.batches.stage(self.update)
        with drawing_from(self.generator):
            self.learn(rows)
        self.update += 1

    def _next_rows(self) -> Int64[Tensor, "batch"]:
        return self.batches.rows(self.update)

    def _rate(self) -> float:
        settings, warmup = self.settings, round(self.settings.warmup_epochs * self.updates_per_epoch)
        return settings.lr * rate_factor(self.update, self.total_updates, warmup, settings.schedule, settings.lr_end)

    def _learn(self, rows: Int64[Tensor, "batch"]) -> None:
        """One update of the weights; on a GPU it is recorded."""
        with tensor_cores() if self.device.type == "cuda" else nullcontext():
            self.optimizer.zero_grad()
            metrics = self.gradient(self.batches(rows))
        limit = self.settings.clip if self.settings.clip is not None else math.inf
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), limit)
        self.optimizer.step()
        self.averaging.follow()
        self._accumulate({**metrics, "gradient_norm": norm})

    def _accumulate(self, metrics: dict[str, Tensor]) -> None:
        """Sums stay on the device; nothing waits for it until the epoch ends."""
        if not self.sums:
            self.sums = {name: torch.zeros((), device=self.device) for name in metrics}
        torch._foreach_add_(list(self.sums.values()), [m.float() for m in metrics.values()])

    def _clear_sums(self) -> None:
        for total in self.sums.values():
            total.zero_()

    def _finish_epoch(self) -> None:
        """Validate, then call the callbacks with the metrics of the epoch."""
        with drawing_from(self.generator):
            self.outcome = observe(self.method, self.average, self.dataset.val, processes=self.processes)
        line = {
            "epoch": self.epoch,
            "update": self.update,
            "seconds": round(self.seconds, 3),
            "lr": float(self.optimizer.param_groups[0]["lr"]),
            "images_per_second": round(self.updates_per_epoch * self.batch_size / max(self.epoch_seconds, 1e-9), 1),
            "train": {name: float(total) / self.updates_per_epoch for name, total in self.sums.items()},
            "val": self.processes.broadcast(lambda: summarize(self.outcome)),
        }
        self._clear_sums()
        self.epoch_seconds = 0.0
        for callback in self.callbacks:
            callback.on_epoch_end(self, line)
        self.stop = self.processes.any(self.stop)

    def _lap(self) -> float:
        """Seconds since the last call."""
        before, self.clock = self.clock, time.monotonic()
        return self.clock - before

    def _count_seconds(self) -> None:
        if self.epoch_ends and self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        spent = self._lap()
        self.seconds, self.epoch_seconds = self.seconds + spent, self.epoch_seconds + spent

    def _interrupt(self) -> None:
        if self.folder is None:
            raise KeyboardInterrupt
        raise Interrupted(
            f"stopped after {self.update} of {self.total_updates} updates; nothing is lost. "
            f"Go on with: ric train --out {shlex.quote(str(self.folder.path))} --resume"
        )

    def _conclude(self) -> dict[str, Any]:
        """Save and evaluate the selected weights."""
        if self.folder is not None:
            self.folder.write_model(self.best["weights"])
        course = {"selected_epoch": self.best["epoch"], "seconds": round(self.seconds, 1)}
        with drawing_from(self.generator):
            evaluation = finalize(self.config, self.model, self.dataset, self.folder, course, self.processes)
        if self.folder is not None:
            self.folder.drop_states(keep_last=self.keeps_state)
        return evaluation

    def checkpoint(self) -> None:
        """Save the best weights and the state, if there is a folder."""
        if self.folder is None:
            return
        self.finite.check(self)
        if self.best:
            self.folder.write_model(self.best["weights"])
        self.folder.write_state(state_of(self))
