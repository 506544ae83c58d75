"""The training loop, for any method: a flat sequence of updates. It can stop after any of them and resume exactly."""

import copy
import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Int64, Num
from rich.console import Console
from torch import Tensor, nn

from ricnet.core.policies import building_with, drawing_from
from ricnet.data import Dataset, augment, epoch_order
from ricnet.data.batches import first_mirrored, mix
from ricnet.distributed import ALONE, Processes
from ricnet.errors import RicnetError, setting
from ricnet.evaluation.evaluate import Outcome, observe, summarize
from ricnet.io import is_number
from ricnet.models.classifier import autocast_dtype, build_model
from ricnet.models.config import Config
from ricnet.models.run import RunFolder
from ricnet.nets.encoders import TINY_IMAGE, build_encoder, is_ours, is_registered_outside
from ricnet.nets.pretrained import Pretrained
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
from ricnet.training.optimization import (
    Gradient,
    clip_gradient,
    compile_update,
    make_optimizer,
    rate_factor,
    record_update,
    restore_optimizer,
    set_rate,
    tensor_cores,
)
from ricnet.training.speed import Feed, measure_rarely

MEASURE_EVERY = 10
"""On a CPU, updates per measurement of a method's diagnostics (`metrics` of RIC)."""


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
        built: "Built | None" = None,
    ) -> None:
        """Without a folder nothing is written. Of several processes only the first has a folder; all have the same
        state after every update. `faster` is a hint printed once for long runs; `built` replaces the encoder that the
        settings describe."""
        self.generator = seeded_generator(config, encoder, device)
        if built is not None:
            encoder = built.encoder
            (self.generator or torch.default_generator).set_state(built.rng)
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
        self.parameters = list(self.model.parameters())
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
        if device.type == "cpu":
            self.method = measure_rarely(self.method, self._stands_for)
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
        """Train to the end, save and evaluate the selected weights; returns the content of evaluation.json."""
        self.train()
        if self.folder is not None:
            self.folder.write_model(self.best["weights"])
        course = {"selected_epoch": self.best["epoch"], "seconds": round(self.seconds, 1)}
        with drawing_from(self.generator):
            evaluation = finalize(self.config, self.model, self.dataset, self.folder, course, self.processes)
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
                if self.epoch_ends and self.device.type == "cuda":
                    torch.cuda.synchronize(self.device)
                self.epoch_seconds += self._lap()
                for callback in self.callbacks:
                    callback.on_update_end(self)
                if self.epoch_ends:
                    self._finish_epoch()
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
    def epoch_ends(self) -> bool:
        """Whether the last update completed an epoch."""
        return self.update % self.updates_per_epoch == 0

    @property
    def over(self) -> bool:
        """All updates are made, or a callback has set `stop` and an epoch has been validated."""
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
        """Number of updates whose diagnostics are those of this one: of every tenth update of an epoch it and those up
        to the next, of the others none."""
        place = self.update % self.updates_per_epoch
        return 0 if place % MEASURE_EVERY else min(MEASURE_EVERY, self.updates_per_epoch - place)

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
            "model": self.model.state_dict(),
            "snapshot": self.snapshot.state_dict() if self.period else {},
            "optimizer": self.optimizer.state_dict(),
            "sums": self.sums,
            **{name: value for callback in self.built_in for name, value in callback.state_dict().items()},
            **_own_states(self.own_callbacks),
            "rng": (self.generator or torch.default_generator).get_state(),
            "cuda_rng": torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else None,
        }

    def load_state_dict(self, state: State) -> None:
        """Restore a saved state, except that of the user's callbacks."""
        self.update, self.seconds, self.epoch_seconds = state["update"], state["seconds"], state["epoch_seconds"]
        self.model.load_state_dict(state["model"])
        if self.period:
            self.snapshot.load_state_dict(state["snapshot"])
        restore_optimizer(self.optimizer, state["optimizer"])
        for name, total in state["sums"].items():
            self.sums.setdefault(name, torch.zeros((), device=self.device)).copy_(total)
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


# The network before training, and its random generator


def seeded_generator(config: Config, encoder: nn.Module | None, device: torch.device) -> torch.Generator | None:
    """The generator of a run; None, with torch's global generators seeded, if it draws from those."""
    if draws_globally(config, encoder, device):
        torch.manual_seed(config.seed)
        return None
    return torch.Generator().manual_seed(config.seed)


def draws_globally(config: Config, encoder: nn.Module | None, device: torch.device) -> bool:
    """Whether a run draws from torch's global generators: on a GPU, and with code from outside the package, which may
    draw from them (for example dropout in a user's encoder)."""
    frozen = config.network.freeze or isinstance(encoder, Pretrained)  # these are in eval mode
    outside = (
        (encoder is not None and not frozen)
        or is_registered_outside(config.network.encoder)
        or not is_ours(type(config.method))
    )
    return device.type != "cpu" or outside


class Built(NamedTuple):
    """An encoder built from the settings of a run, and the state of the run's generator after drawing its weights."""

    encoder: nn.Module
    rng: Tensor


def build_first(config: Config, input_shape: tuple[int, ...], device: torch.device) -> Built | None:
    """The encoder of a run, with the weights that training starts from; None if it is pretrained. It is built once,
    before the settings are final: batch size and horizon depend on it, and it depends on neither."""
    if config.network.pretrained:
        return None
    with isolated_rng(config, device, None):
        generator = seeded_generator(config, None, device)
        with building_with(generator):
            encoder = build_encoder(config.network, config.view_shape(input_shape))
        return Built(encoder, (generator or torch.default_generator).get_state())


@contextmanager
def isolated_rng(config: Config, device: torch.device, encoder: nn.Module | None) -> Iterator[None]:
    """Restore the caller's random state, current device and choice of kernels; turn out-of-memory into a RicnetError.

    A run with its own generator does not touch torch's. One that draws globally seeds the global generator while it
    runs; other threads that draw from it at the same time change the run's numbers, and the run theirs."""
    on_gpu = device.type == "cuda"
    shared = draws_globally(config, encoder, device)
    forked = torch.random.fork_rng([device] if on_gpu else []) if shared else nullcontext()
    with forked, torch.cuda.device(device if on_gpu else -1):
        before = torch.backends.cudnn.benchmark
        try:
            yield
        except torch.OutOfMemoryError:
            raise RicnetError(
                f"{device} has too little memory for a batch size of {config.optimization.batch_size}; "
                f"lower {setting('batch_size')}, {setting('resolution')} or {setting('width')}."
            ) from None
        finally:
            torch.backends.cudnn.benchmark = before


def initial_network(
    config: Config,
    dataset: Dataset,
    encoder: nn.Module | None,
    device: torch.device,
    generator: torch.Generator | None,
    processes: Processes,
) -> nn.Module:
    """The network before its first update, the same in all processes, on its device and in training mode."""
    with building_with(generator):
        model, backbone = build_model(config, dataset.input_shape, len(dataset.class_names), encoder)
    refuse_other_kind(backbone.reader, dataset, config)
    backbone.fit_normalization(dataset.train.inputs, dataset.train.labels)
    backbone.autocast = autocast_dtype(config.optimization.precision, device)
    model = model.to(device).train()
    processes.broadcast_tensors(model.state_dict().values())
    # channels last, in which convolutions are fastest; on a CPU only for images large enough to be worth it
    worth = max(dataset.view_shape[1:], default=0) > TINY_IMAGE and not has_narrow_shortcut(model)
    if dataset.is_image and (device.type == "cuda" or worth):
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        torch.backends.cudnn.benchmark = True
    return model


def has_narrow_shortcut(model: nn.Module) -> bool:
    """Whether a strided 1×1 convolution reads fewer than 8 channels. With channels last torch 2.13 corrupts memory in
    its backward pass on a CPU."""
    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    return any(c.kernel_size == (1, 1) and c.stride != (1, 1) and c.in_channels < 8 for c in convolutions)


def refuse_other_kind(reader: nn.Module, dataset: Dataset, config: Config) -> None:
    """Refuse an encoder of token ids on other data, one of other data on token ids, and ids beyond its vocabulary."""
    encoder, known = setting("encoder", config.network.encoder), getattr(reader, "vocabulary", None)
    if known is not None and dataset.is_text and int(dataset.train.inputs.max()) >= known:
        raise RicnetError(f"{dataset.name} has token ids beyond the {known:,} that {encoder} knows; use its tokenizer.")
    if (known is not None) == dataset.is_text:
        return
    if known is not None:
        raise RicnetError(f"{encoder} reads texts, but the inputs are {dataset.unit}; leave it out.")
    raise RicnetError(
        f"{encoder} cannot read texts, which {dataset.name} holds; use {setting('encoder', 'tfidf')} (a module of your "
        "own that reads token ids needs an attribute `vocabulary`, the number of ids)."
    )


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
    times = state["seconds"], state["epoch_seconds"], state["collapsed"]
    if not all(is_number(time) and time >= 0 for time in times):
        return f"times or counts {str(times)[:60]}"
    best, epochs = state["best"], update // trainer.updates_per_epoch
    if not best:
        return "no best epoch" if epochs else None
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
