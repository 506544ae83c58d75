"""The training loop, for any method: a flat sequence of updates. It can stop after any of them and resume exactly."""

import copy
import math
import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from functools import lru_cache, partial
from typing import Any

import torch
from jaxtyping import Int64, Num
from rich.console import Console
from torch import Tensor, nn

from ricnet.core.policies import drawing_from
from ricnet.data import Dataset, augment, epoch_order
from ricnet.data.batches import first_mirrored, mix
from ricnet.distributed import ALONE, Processes
from ricnet.errors import Interrupted, RicnetError, setting
from ricnet.evaluation.evaluate import Outcome, observe, summarize
from ricnet.evaluation.metrics import MEASURE_EVERY
from ricnet.io import is_number
from ricnet.machine import SHARE, free_bytes
from ricnet.models.config import Config
from ricnet.models.run import RunFolder
from ricnet.terminal import Narrator
from ricnet.training.callbacks import (
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
from ricnet.training.console import StopRequest
from ricnet.training.finish import finalize, weighted
from ricnet.training.network import Encoder, initial_network, seeded_generator
from ricnet.training.optimization import (
    Averaging,
    Gradient,
    clip_gradient,
    compile_update,
    make_optimizer,
    measure_rarely,
    rate_factor,
    record_update,
    restore_optimizer,
    set_rate,
    tensor_cores,
)


class Trainer:
    """Trains one network. A callback may read all of it and set `stop`; it must change nothing else."""

    def __init__(
        self,
        config: Config,
        dataset: Dataset,
        folder: RunFolder | None,
        device: torch.device,
        encoder: Encoder | None = None,
        checkpoint_seconds: float = 60.0,
        console: Console | None = None,
        processes: Processes = ALONE,
        faster: str | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        """Without a folder nothing is written. Of several processes only the first has a folder; all have the same
        state after every update. Without `encoder` it is built from the settings. `faster` is a hint printed once for
        long runs."""
        dataset = weighted(config, dataset)
        self.config, self.dataset, self.folder, self.device = config, dataset, folder, device
        self.method, self.settings, self.processes = config.method, config.optimization, processes
        self.checkpoint_seconds, self.console = checkpoint_seconds, console or Narrator(stderr=True)
        self.keeps_state = False
        """Whether the last state stays in the folder, so that more epochs can follow."""
        self.update = 0
        self.stop = False
        """A callback sets it to end training after the present epoch."""
        self.seconds = self.epoch_seconds = self.clock = 0.0
        self.sums: dict[str, Tensor] = {}
        self.summed = 0
        """Updates since the last validation, whose metrics are in `sums`."""
        self.outcome: Outcome
        """Beliefs and labels of the last validation."""
        self._prepare(encoder)
        self.built_in, self.own_callbacks = self._built_in(faster), callbacks
        self.callbacks = [*self.built_in, *callbacks]
        self.learn = record_update(self)

    def _prepare(self, encoder: Encoder | None) -> None:
        """The batches, the network with its copies, and what an update of its weights needs."""
        config, device = self.config, self.device
        self.generator = seeded_generator(config, encoder, device)
        self.batches = Batches(config, self.dataset, device, self.processes, self.generator)
        self.batch_size, self.updates_per_epoch = self.batches.size, self.batches.per_epoch
        self.total_updates = self.updates_per_epoch * self.settings.epochs

        module = None if encoder is None else encoder.module
        self.model = initial_network(config, self.dataset, module, device, self.generator, self.processes)
        period = self.method.snapshot_period(self.updates_per_epoch)
        self.period = None if period == 1 else period  # every update: the network is its own snapshot
        self.snapshot = copy.deepcopy(self.model).requires_grad_(False) if self.period else self.model
        self.averaging = Averaging(self.model, self.settings.average)
        self.parameters = list(self.model.parameters())
        self.optimizer = make_optimizer(self.model, self.settings, device)
        compile_update(self)
        self.measured = self.updates_per_epoch
        """Number of updates per epoch that measure training accuracy."""
        if device.type == "cpu" and hasattr(self.method, "metrics"):
            self.method = measure_rarely(self.method, self._stands_for)
            self.measured = math.ceil(self.updates_per_epoch / MEASURE_EVERY)
        parts = self.settings.accumulate
        self.gradient = Gradient(self.method, self.model, self.snapshot, self.batches.shard, parts)

    def _built_in(self, faster: str | None) -> list[Callback]:
        """In the order in which they are called: Selection after Finite, so that no NaN is selected, and before those
        that read its best epoch; Log after those that add to the line of an epoch."""
        self.finite, self.selection = Finite(), Selection()
        patience = Patience(self.settings.patience, self.selection)
        choosing = [self.finite, Measuring(patience), self.selection, Fall(self.selection), patience]
        return [*choosing, Progress(faster), Collapse(), Log()]

    def run(self) -> dict[str, Any]:
        """Train to the end, save and evaluate the selected weights; returns the content of evaluation.json."""
        self.train()
        if self.folder is not None:
            self.folder.write_model(self.best["weights"])
        facts = {"selected_epoch": self.best["epoch"], "seconds": round(self.seconds, 1)}
        with drawing_from(self.generator):
            evaluation = finalize(self.config, self.model, self.dataset, self.folder, facts, self.processes)
        if self.folder is not None:
            self.folder.drop_states(keep_last=self.keeps_state)
            if not (self.config.network.freeze or self.keeps_state):
                self.folder.encoder.unlink(missing_ok=True)  # only resuming needs it
        return evaluation

    def train(self) -> None:
        """Train to the end, then load the selected weights. Each callback that has begun ends too, also after an
        error."""
        with ExitStack() as ends:
            for callback in self.callbacks:
                callback.on_train_begin(self)
                ends.callback(callback.on_train_end, self)
            self.stop = self.processes.any(self.stop)
            self._loop()
            if self.keeps_state:
                self.checkpoint()
            self.model.load_state_dict(self.best["weights"])

    def _loop(self) -> None:
        with StopRequest() as request:
            saved = self.clock = time.monotonic()
            while not self.over:
                self._step()
                if self.validates and self.device.type == "cuda":
                    torch.cuda.synchronize(self.device)
                self.epoch_seconds += self._lap()
                for callback in self.callbacks:
                    callback.on_update_end(self)
                if self.validates:
                    self._validate()
                self._lap()
                stop_requested = self.processes.any(request.received)
                if stop_requested or time.monotonic() - saved >= self.checkpoint_seconds:
                    self.checkpoint()
                    saved = self.clock = time.monotonic()
                if stop_requested and not self.over:
                    self.processes.any(stop_requested)  # wait for the first process to save: torchrun would end it too
                    self._interrupt()

    @property
    def epoch(self) -> int:
        """Completed epochs."""
        return self.update // self.updates_per_epoch

    @property
    def validates(self) -> bool:
        """Whether the last update completed an epoch that is validated."""
        due = self.epoch % self.settings.validate_every == 0 or self.update >= self.total_updates
        return due and self.update % self.updates_per_epoch == 0

    @property
    def over(self) -> bool:
        """All updates are made, or a callback has set `stop` and an epoch has been validated."""
        return self.update >= self.total_updates or (self.stop and self.validates and bool(self.best))

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
        self.summed += 1

    def _next_rows(self) -> Int64[Tensor, "batch"]:
        return self.batches.rows(self.update)

    def _rate(self) -> float:
        settings = self.settings
        warmup = round(settings.warmup_epochs * self.updates_per_epoch)
        return settings.lr * rate_factor(self.update, self.total_updates, warmup, settings.schedule, settings.lr_end)

    def _learn(self, rows: Int64[Tensor, "batch"]) -> None:
        """One update of the weights; on a GPU it is recorded."""
        with tensor_cores() if self.device.type == "cuda" else nullcontext():
            self.optimizer.zero_grad()
            metrics = self.gradient(self.batches(rows))
        norm = clip_gradient(self.parameters, self.settings.clip)
        self.optimizer.step()
        self.averaging.follow()
        self._accumulate({**metrics, "gradient_norm": norm})

    def _accumulate(self, metrics: dict[str, Tensor]) -> None:
        """Sums stay on the device; nothing waits for it until the epoch ends."""
        sums = [self.sums.setdefault(name, torch.zeros((), device=self.device)) for name in metrics]
        torch._foreach_add_(sums, [m.float() for m in metrics.values()])

    def _stands_for(self) -> int:
        """Number of updates that the diagnostics of this one represent: for every tenth update of an epoch those up to
        the next measurement, for all others 0."""
        place = self.update % self.updates_per_epoch
        return 0 if place % MEASURE_EVERY else min(MEASURE_EVERY, self.updates_per_epoch - place)

    def _clear_sums(self) -> None:
        for total in self.sums.values():
            total.zero_()

    def _validate(self) -> None:
        """Validate, then call the callbacks with the metrics of the epochs since the last validation."""
        epochs = self.summed / self.updates_per_epoch
        with drawing_from(self.generator):
            self.outcome = observe(self.method, self.average, self.dataset.val, processes=self.processes)
        line = {
            "epoch": self.epoch,
            "update": self.update,
            "seconds": round(self.seconds, 3),
            "lr": float(self.optimizer.param_groups[0]["lr"]),
            "images_per_second": round(self.summed * self.batch_size / max(self.epoch_seconds, 1e-9), 1),
            "measured_rows": round(epochs * self.measured * self.batch_size),
            "train": {name: float(total) / self.summed for name, total in self.sums.items()},
            "val": self.processes.broadcast(lambda: summarize(self.outcome)),
        }
        self._clear_sums()
        self.epoch_seconds, self.summed = 0.0, 0
        for callback in self.callbacks:
            callback.on_epoch_end(self, line)
        self.stop = self.processes.any(self.stop)

    def _lap(self) -> float:
        """Seconds since the last call, which are added to those of the run."""
        before, self.clock = self.clock, time.monotonic()
        self.seconds += self.clock - before
        return self.clock - before

    def _interrupt(self) -> None:
        if self.folder is None:
            raise KeyboardInterrupt
        raise Interrupted(
            f"stopped after {self.update} of {self.total_updates} updates; nothing is lost. "
            f"Go on with: ric train --out {shlex.quote(str(self.folder.path))} --resume"
        )

    def checkpoint(self) -> None:
        """Save the best weights and the state, if there is a folder."""
        if self.folder is None:
            return
        self.finite.check(self)
        if self.best:
            self.folder.write_model(self.best["weights"])
        self.folder.write_state(self.state_dict())

    def state_dict(self) -> State:
        """All that determines the next update, as in state.pt."""
        return {
            "update": self.update,
            "seconds": self.seconds,
            "epoch_seconds": self.epoch_seconds,
            "summed": self.summed,
            "model": self.model.state_dict(),
            "snapshot": self.snapshot.state_dict() if self.period else {},
            "optimizer": self.optimizer.state_dict(),
            "sums": self.sums,
            **self.averaging.state_dict(),
            **{name: value for callback in self.built_in for name, value in callback.state_dict().items()},
            **_own_states(self.own_callbacks),
            "rng": (self.generator or torch.default_generator).get_state(),
            "cuda_rng": torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else None,
        }

    def load_state_dict(self, state: State) -> None:
        """Restore a saved state, except that of the user's callbacks."""
        self.update, self.seconds, self.epoch_seconds = state["update"], state["seconds"], state["epoch_seconds"]
        self.summed = state.get("summed", self.update % self.updates_per_epoch)  # earlier states lack it
        self.model.load_state_dict(state["model"])
        if self.period:
            self.snapshot.load_state_dict(state["snapshot"])
        restore_optimizer(self.optimizer, state["optimizer"])
        for name, total in state["sums"].items():
            self.sums.setdefault(name, torch.zeros((), device=self.device)).copy_(total)
        self.averaging.load_state_dict(state)
        for callback in self.built_in:
            callback.load_state_dict(state)
        (self.generator or torch.default_generator).set_state(state["rng"])
        if self.device.type == "cuda" and state["cuda_rng"] is not None:
            torch.cuda.set_rng_state(state["cuda_rng"], self.device)
        if self.folder is not None:
            self.folder.keep_metrics_until(self.epoch)

    def resume(self, folder: RunFolder, tell: Callable[[str], None]) -> None:
        """Restore the last checkpoint in a folder, which the first process reads and checks."""
        state = self.processes.broadcast(partial(folder.read_state, tell))
        if state is None:
            if self.processes.first:
                tell(f"{folder.path} was stopped before its first checkpoint, so it starts from the beginning.")
                folder.keep_metrics_until(0)
            return
        anew = setting("overwrite", True)
        try:
            if (wrong := impossible(self, state)) is not None:
                raise RicnetError(f"{folder.state} does not belong to this run ({wrong}); start anew with {anew}.")
            self.load_state_dict(state)
        except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise RicnetError(
                f"{folder.state} is of another network or another version of ricnet; "
                f"resume with the version and settings of the run, or start anew with {anew}."
            ) from error
        stored = state.get("callbacks", {})
        for name, callback in _named(self.own_callbacks):
            if name in stored:  # one that is new to the run has no state
                callback.load_state_dict(stored[name])


# Minibatches

_order = lru_cache(maxsize=2)(epoch_order)
THREADS = 8
"""Threads that read rows of a mapped file: a disk serves several readers better than one."""


def fits(inputs: Num[Tensor, "n ..."], device: torch.device) -> bool:
    """Whether the inputs fit on the device. On a CPU they do, even in a mapped file."""
    return device.type == "cpu" or is_same(inputs.device, device) or inputs.nbytes <= SHARE * free_bytes(device)


def is_same(place: torch.device, device: torch.device) -> bool:
    """Whether a tensor at `place` is on `device`; "cuda" is the GPU in use, and a tensor has its index."""
    if place.type != device.type:
        return False
    index = torch.cuda.current_device() if device.type == "cuda" and device.index is None else device.index
    return index in (None, place.index)


class Feed:
    """Inputs on the device. If they do not fit there, threads gather the next batch during an update; each batch is
    copied into the same place on the device, where a recorded update expects it."""

    def __init__(self, inputs: Num[Tensor, "n ..."], device: torch.device, batch: int) -> None:
        self.streams = not fits(inputs, device)
        self.inputs = inputs if self.streams else inputs.to(device)
        if not self.streams:
            return
        on_gpu = device.type == "cuda"
        shape, dtype = (batch, *inputs.shape[1:]), inputs.dtype
        self.staged = torch.zeros(shape, dtype=dtype, device=device)
        self.buffers = [torch.zeros(shape, dtype=dtype, pin_memory=on_gpu) for _ in range(2)]
        self.copied = [torch.cuda.Event() if on_gpu else None for _ in range(2)]
        self.pool = ThreadPoolExecutor(THREADS)
        self.coming: tuple[Tensor, list[Future[None]]] | None = None
        self.turn = 0

    def stage(self, rows: Int64[Tensor, "batch"], following: Int64[Tensor, "batch"]) -> None:
        """Copy rows to `staged`, and begin to gather the following ones."""
        if self.coming is None or not torch.equal(self.coming[0], rows):
            self._gather(rows)
        assert self.coming is not None
        for done in self.coming[1]:
            done.result()
        self.staged.copy_(self.buffers[self.turn], non_blocking=True)
        if (copied := self.copied[self.turn]) is not None:
            copied.record()
        self.turn = 1 - self.turn
        self._gather(following)

    def _gather(self, rows: Int64[Tensor, "batch"]) -> None:
        if self.coming is not None:
            for done in self.coming[1]:
                done.result()
        if (copied := self.copied[self.turn]) is not None:
            copied.synchronize()  # else the buffer would be overwritten while it is still being copied
        pieces = zip(rows.tensor_split(THREADS), self.buffers[self.turn].tensor_split(THREADS), strict=True)
        self.coming = rows, [self.pool.submit(self._read, own, place) for own, place in pieces]

    def _read(self, rows: Int64[Tensor, "some"], place: Num[Tensor, "some ..."]) -> None:
        torch.index_select(self.inputs, 0, rows, out=place)


class Batches:
    """Each epoch has its own order of the rows; those that do not fill a last batch are left out."""

    def __init__(
        self,
        config: Config,
        dataset: Dataset,
        device: torch.device,
        processes: Processes,
        generator: torch.Generator | None,
    ) -> None:
        train, settings = dataset.train, config.optimization
        self.seed, self.device, self.generator = config.seed, device, generator
        self.labels = train.labels.to(device)
        self.weights = None if train.weights is None else (train.weights / train.weights.mean()).to(device)
        varied = dataset.is_image and settings.augment
        self.augmentation = settings.augmentation(dataset.augmentation) if varied else None
        self.crop_size = dataset.view_shape[1:]
        alternates = self.augmentation is not None and self.augmentation.flip and settings.flip == "alternating"
        self.mirrored = first_mirrored(len(train), config.seed).to(device) if alternates else None
        """Whether each image is mirrored in the present epoch."""
        self.mixup, self.classes = settings.mixup, len(dataset.class_names)
        if self.mixup and (dataset.is_text or self.weights is not None):
            what = "token ids" if dataset.is_text else "weighted rows"
            raise RicnetError(f"{setting('mixup', self.mixup)} cannot average {what}; leave it out.")
        self.size = min(settings.batch_size, len(train))
        self.per_epoch = len(train) // self.size
        self.shard = processes.shard(self.size)
        self.feed = Feed(train.inputs, device, len(self.labels[: self.size][self.shard.own]))
        self.ordered_epoch = -1

    def rows(self, update: int) -> Int64[Tensor, "batch"]:
        """This process's rows of an update's batch, on the device."""
        epoch = update // self.per_epoch
        if epoch != self.ordered_epoch:
            self.order = _order(len(self.labels), self.seed, epoch).to(self.device)
            if self.mirrored is not None and (epoch - max(self.ordered_epoch, 0)) % 2:
                self.mirrored.logical_not_()
            self.ordered_epoch = epoch
        return self._own(self.order, update)

    def _host_rows(self, update: int) -> Int64[Tensor, "batch"]:
        return self._own(_order(len(self.labels), self.seed, update // self.per_epoch), update)

    def _own(self, order: Int64[Tensor, "n"], update: int) -> Int64[Tensor, "batch"]:
        start = update % self.per_epoch * self.size
        return order[start : start + self.size][self.shard.own]

    def stage(self, update: int) -> None:
        """Bring inputs that do not fit on the device there for an update, and begin to gather those of the next."""
        if self.feed.streams:
            self.feed.stage(self._host_rows(update), self._host_rows(update + 1))

    def __call__(self, rows: Int64[Tensor, "batch"]) -> tuple[Num[Tensor, "batch ..."], ...]:
        """Inputs and labels, and weights where there are any."""
        inputs = self.feed.staged if self.feed.streams else self.feed.inputs[rows]
        if self.augmentation is not None:
            mirrored = None if self.mirrored is None else self.mirrored[rows]
            inputs = augment(inputs, self.augmentation, self.shard, self.generator, self.crop_size, mirrored)
        if self.mixup:
            return mix(inputs, self.labels[rows], self.classes, self.mixup, self.shard, self.generator)
        return (inputs, self.labels[rows]) if self.weights is None else (inputs, self.labels[rows], self.weights[rows])


# state.pt: all that determines the next update


def impossible(trainer: Trainer, state: State) -> str | None:
    """Why this run cannot have reached a stored state; None if it can."""
    update = state["update"]
    if type(update) is not int or not 0 <= update <= trainer.total_updates:
        return f"update {str(update)[:20]} of {trainer.total_updates}"
    sizes = [parameter.shape for group in trainer.optimizer.param_groups for parameter in group["params"]]
    moments = [(sizes[i], m) for i, entries in state["optimizer"]["state"].items() for m in entries.values()]
    if any(moment.numel() > 1 and moment.shape != size for size, moment in moments):
        return "an optimizer of another network"
    times = state["seconds"], state["epoch_seconds"], state["collapsed"], state.get("summed", 0)
    if not all(is_number(time) and time >= 0 for time in times):
        return f"times or counts {str(times)[:60]}"
    best, epochs = state["best"], update // trainer.updates_per_epoch
    if not best:
        return "no best epoch" if epochs >= trainer.settings.validate_every else None
    for epoch in (best["epoch"], best["best_epoch"]):
        if type(epoch) is not int or not 1 <= epoch <= epochs:
            return f"best epoch {str(epoch)[:20]} after {epochs} epochs"
    own = {name: tensor.shape for name, tensor in trainer.model.state_dict().items()}
    if {name: tensor.shape for name, tensor in best["weights"].items()} != own:
        return "best weights of another network"
    return None


def _own_states(callbacks: Sequence[Callback]) -> State:
    """The states of a user's callbacks, by their names; no entry if none has a state."""
    states = {name: state for name, callback in _named(callbacks) if (state := callback.state_dict())}
    for name, state in states.items():
        if (kind := _unstorable(state)) is not None:
            raise RicnetError(
                f"state_dict() of the callback {name} holds a {kind.__name__}, which state.pt cannot; "
                "return numbers, strings, tensors, lists, tuples and dicts only."
            )
    return {"callbacks": states} if states else {}


def _named(callbacks: Sequence[Callback]) -> Iterator[tuple[str, Callback]]:
    """By class; the second of a class is called `Name 2`."""
    seen: Counter[str] = Counter()
    for callback in callbacks:
        name = type(callback).__name__
        seen[name] += 1
        yield (name if seen[name] == 1 else f"{name} {seen[name]}"), callback


def _unstorable(value: Any) -> type | None:
    """The type of the first part that `torch.load(weights_only=True)` would refuse."""
    if type(value) in (dict, list, tuple):
        parts = [*value.keys(), *value.values()] if isinstance(value, Mapping) else value
        return next((kind for part in parts if (kind := _unstorable(part)) is not None), None)
    plain = value is None or type(value) in (bool, int, float, str) or type(value) is Tensor
    return None if plain else type(value)
