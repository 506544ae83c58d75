"""The training loop, for any method.

A run is a flat sequence of updates. Whatever decides the next one (weights, snapshot, optimizer, random numbers, the
metrics of the epoch so far) is part of `state()`, so a run can stop after any update and go on as if it never had.
"""

import copy
import math
import shlex
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Int64, Num
from rich.console import Console
from torch import Tensor, nn

from ricnet.core.mdp import log_scores
from ricnet.data import Augmentation, Dataset, Split, augment, epoch_order
from ricnet.data.dataset import balanced
from ricnet.data.tables import shown_name
from ricnet.distributed import ALONE, Processes
from ricnet.errors import RicnetError, setting
from ricnet.evaluation.evaluate import Outcome, observe, summarize
from ricnet.nets.encoders import TINY_IMAGE, Backbone
from ricnet.training.classifier import autocast_dtype, build_model, learned
from ricnet.training.config import Config
from ricnet.training.console import Interrupted, ProgressBar, StopRequest
from ricnet.training.finalize import finalize
from ricnet.training.optimization import (
    Gradient,
    make_optimizer,
    rate_factor,
    restore_optimizer,
    set_rate,
    tensor_cores,
)
from ricnet.training.run import RunFolder
from ricnet.training.speed import Feed, GraphedStep, compile_encoder, compile_method

COLLAPSED_EPOCHS = 5
"""Epochs in a row below half the best validation accuracy after which a run counts as diverged."""

STANDARD_ERRORS = 4
"""By how many standard errors accuracy must also have fallen: at chance, the best epoch is best by accident, and half
of its few right answers are soon lost."""

WORTH_COMPILING = 5_000
"""Updates from which on compiling the encoder saves more time than it takes."""

_order = lru_cache(maxsize=2)(epoch_order)


class Trainer:
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
    ) -> None:
        """Without a folder nothing is written. Of several processes only the first has one; they all hold the same
        state after every update. `faster` is what a person who would wait long is told, once."""
        torch.manual_seed(config.seed)
        if config.class_weight == "balanced":
            dataset = replace(dataset, train=balanced(dataset.train), val=balanced(dataset.val))
        self.config, self.dataset, self.folder, self.device = config, dataset, folder, device
        self.checkpoint_seconds, self.console, self.faster = checkpoint_seconds, console, faster
        self.watchers: Sequence[Callable[[dict[str, Any]], None]] = ()
        """Each is shown every line of metrics.jsonl."""
        self.method, self.settings = config.method, config.optimization
        self.labels = dataset.train.labels.to(device)
        weights = dataset.train.weights
        self.weights = None if weights is None else (weights / weights.mean()).to(device)
        self.augmentation = self._augmentation()

        self.batch_size = min(self.settings.batch_size, len(dataset.train))
        self.updates_per_epoch = len(dataset.train) // self.batch_size
        self.total_updates = self.updates_per_epoch * self.settings.epochs
        self.processes, self.shard = processes, processes.shard(self.batch_size)
        self.feed = Feed(dataset.train.inputs, device, len(self.labels[: self.batch_size][self.shard.own]))
        self._build_networks(encoder)
        self.optimizer = make_optimizer(self.model, self.settings, device)

        self.update = 0
        self.averaged = torch.zeros((), device=device)
        self.ordered_epoch = -1
        self.seconds = 0.0
        self.epoch_seconds = 0.0
        self.sums: dict[str, Tensor] = {}
        self.best: dict[str, Any] = {}
        self.collapsed = 0
        self._make_fast()

    def _build_networks(self, encoder: nn.Module | None) -> None:
        """The one that learns, the one that acts and the one that answers; often they are the same."""
        data = self.dataset
        model, backbone = build_model(self.config, data.input_shape, len(data.class_names), encoder)
        backbone.fit_normalization(data.train.inputs)
        backbone.autocast = autocast_dtype(self.settings.precision, self.device)
        self.model = model.to(self.device).train()
        self.processes.broadcast_tensors(self.model.state_dict().values())
        on_cpu = max(data.input_shape[1:], default=0) > TINY_IMAGE and not has_narrow_shortcut(self.model)
        if data.is_image and (self.device.type == "cuda" or on_cpu):
            # the layout and kernels with which convolutions are fastest; on a CPU they have to be worth the conversion
            self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            torch.backends.cudnn.benchmark = True
        self.period = self.method.snapshot_period(self.updates_per_epoch)
        if self.period == 1:  # then the network is its own snapshot
            self.period = None
        self.snapshot = copy.deepcopy(self.model).requires_grad_(False) if self.period else self.model
        self.average = copy.deepcopy(self.model).requires_grad_(False) if self.settings.average else self.model

    def _make_fast(self) -> None:
        """Compile and record the update, as far as the device and the settings allow."""
        alone = self.processes.count == 1
        records = self.device.type == "cuda" and self.settings.cuda_graph and alone
        if self._compiles(records):
            self.method = compile_method(self.method) if alone else self.method
            for network in {self.model, self.snapshot}:
                compile_encoder(next(m for m in network.modules() if isinstance(m, Backbone)).encoder)
        self.gradient = Gradient(self.method, self.model, self.snapshot, self.shard, self.settings.accumulate)
        self.learn = self._record() if records else self._learn

    def run(self) -> dict[str, Any]:
        """Train to the end, choose the best epoch, evaluate it; returns what evaluation.json holds."""
        self.train()
        return self._conclude()

    def train(self) -> None:
        """Train to the end, and go back to the weights of the best epoch."""
        saved = clock = time.monotonic()
        total = self.total_updates * self.batch_size
        title = f"{self.method.name} on {shown_name(self.dataset.name)}"
        bar = ProgressBar(title, total, self.update * self.batch_size, self.console, self.dataset.unit, self.faster)
        with StopRequest() as stop, bar as progress:
            while not self.over:
                self._step()
                epoch_ends = self.update % self.updates_per_epoch == 0
                if epoch_ends and self.device.type == "cuda":
                    torch.cuda.synchronize(self.device)
                spent, clock = time.monotonic() - clock, time.monotonic()
                self.seconds, self.epoch_seconds = self.seconds + spent, self.epoch_seconds + spent
                progress.advance(self.update * self.batch_size)
                if epoch_ends:
                    line = self._finish_epoch()
                    progress.epoch(line, self.settings.epochs)
                    for watch in self.watchers:
                        watch(line)
                self.seconds, clock = self.seconds + time.monotonic() - clock, time.monotonic()
                asked = self.processes.any(stop.asked)
                if asked or time.monotonic() - saved >= self.checkpoint_seconds:
                    self.checkpoint()
                    saved = clock = time.monotonic()
                if asked and not self.over:
                    self.processes.any(asked)  # none leaves before the first has saved: torchrun would end that too
                    self._interrupt()
        self.model.load_state_dict(self.best["weights"])

    @property
    def over(self) -> bool:
        """All epochs are made, or as many as patience allows without a better one."""
        if self.update == self.total_updates:
            return True
        patience, epoch = self.settings.patience, self.update // self.updates_per_epoch
        return patience is not None and bool(self.best) and epoch - self.best["epoch"] >= patience

    def _interrupt(self) -> None:
        if self.folder is None:
            raise KeyboardInterrupt
        raise Interrupted(
            f"stopped after {self.update} of {self.total_updates} updates; nothing is lost. "
            f"Go on with: ric train --out {shlex.quote(str(self.folder.path))} --resume"
        )

    def _step(self) -> None:
        if self.period and self.update % self.period == 0:
            self.snapshot.load_state_dict(self.model.state_dict())
        set_rate(self.optimizer, self._rate())
        rows = self._next_rows()
        if self.feed.streams:
            self.feed.stage(self._rows(self.update), self._rows(self.update + 1))
        self.learn(rows)
        self.update += 1

    def _learn(self, rows: Int64[Tensor, "batch"]) -> None:
        """One update of the weights."""
        with tensor_cores():
            self.optimizer.zero_grad()
            metrics = self.gradient(self._batch(rows))
        limit = self.settings.clip if self.settings.clip is not None else math.inf
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), limit)
        self.optimizer.step()
        if self.settings.average:
            self._follow()
        self._accumulate({**metrics, "gradient_norm": norm})

    @torch.no_grad()
    def _follow(self) -> None:
        """Move the average towards the weights; faster at first, when it still holds the initial ones."""
        self.averaged.add_(1)
        share = (9 / (9 + self.averaged)).clamp(min=1 - self.settings.average)
        average = learned(self.average)
        way = torch._foreach_sub(learned(self.model), average)
        torch._foreach_mul_(way, share)
        torch._foreach_add_(average, way)

    def _record(self) -> Callable[[Tensor], None]:
        """`_learn` as a CUDA graph. Recording takes a few updates, which are undone, in place."""
        weights = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
        rng, cuda_rng = torch.get_rng_state(), torch.cuda.get_rng_state(self.device)
        try:
            step: Callable[[Tensor], None] = GraphedStep(self._learn, self._next_rows())
        except RuntimeError as error:
            warnings.warn(
                f"this update cannot be recorded as a CUDA graph ({error}); training is slower.", stacklevel=2
            )
            step = self._learn
        self.model.load_state_dict(weights)
        self.average.load_state_dict(weights)
        self.averaged.zero_()
        for entries in self.optimizer.state.values():
            for tensor in entries.values():
                tensor.zero_()
        self._clear_sums()
        torch.set_rng_state(rng)
        torch.cuda.set_rng_state(cuda_rng, self.device)
        return step

    def _next_rows(self) -> Int64[Tensor, "batch"]:
        """This process's part of the next batch. The rows that do not fill one are left out, other ones each epoch."""
        epoch, position = divmod(self.update, self.updates_per_epoch)
        if epoch != self.ordered_epoch:
            self.order = _order(len(self.labels), self.config.seed, epoch).to(self.device)
            self.ordered_epoch = epoch
        return self._own(self.order, position)

    def _rows(self, update: int) -> Int64[Tensor, "batch"]:
        """The same on the host, for any update."""
        epoch, position = divmod(update, self.updates_per_epoch)
        return self._own(_order(len(self.labels), self.config.seed, epoch), position)

    def _own(self, order: Int64[Tensor, "n"], position: int) -> Int64[Tensor, "batch"]:
        return order[position * self.batch_size : (position + 1) * self.batch_size][self.shard.own]

    def _batch(self, rows: Int64[Tensor, "batch"]) -> tuple[Num[Tensor, "batch ..."], ...]:
        """Inputs and labels, and weights where there are any."""
        inputs = self.feed.staged if self.feed.streams else self.feed.inputs[rows]
        if self.augmentation is not None:
            inputs = augment(inputs, self.augmentation, self.shard)
        return (inputs, self.labels[rows]) if self.weights is None else (inputs, self.labels[rows], self.weights[rows])

    def _compiles(self, recorded: bool) -> bool:
        """Compiled and not recorded, the host asks of every block whether its code still fits, which takes longer than
        the code saves (docs/performance.md)."""
        if self.settings.compile != "auto":
            return self.settings.compile == "on"
        return recorded and self.total_updates >= WORTH_COMPILING

    def _augmentation(self) -> Augmentation | None:
        if not (self.dataset.is_image and self.settings.augment):
            return None
        return replace(self.dataset.augmentation, cutout=self.settings.cutout)

    def _rate(self) -> float:
        warmup = round(self.settings.warmup_epochs * self.updates_per_epoch)
        return self.settings.lr * rate_factor(
            self.update, self.total_updates, warmup, self.settings.schedule, self.settings.lr_end
        )

    def _accumulate(self, metrics: dict[str, Tensor]) -> None:
        """Sums stay on the device; nothing waits for it until the epoch ends."""
        if not self.sums:
            self.sums = {name: torch.zeros((), device=self.device) for name in metrics}
        torch._foreach_add_(list(self.sums.values()), [m.float() for m in metrics.values()])

    def _clear_sums(self) -> None:
        for total in self.sums.values():
            total.zero_()

    def _finish_epoch(self) -> dict[str, Any]:
        """Validate, log, and keep the weights if they are the best so far."""
        means = {name: float(total) / self.updates_per_epoch for name, total in self.sums.items()}
        self._refuse_nonfinite(means)
        self._refuse_nonfinite_weights()
        outcome = observe(self.method, self.average, self.dataset.val, processes=self.processes)
        val = self.processes.broadcast(lambda: summarize(outcome))
        score = self.processes.broadcast(lambda: self._weighted_score(outcome, val))
        epoch = self.update // self.updates_per_epoch
        line = {
            "epoch": epoch,
            "update": self.update,
            "seconds": round(self.seconds, 3),
            "lr": float(self.optimizer.param_groups[0]["lr"]),
            "images_per_second": round(self.updates_per_epoch * self.batch_size / max(self.epoch_seconds, 1e-9), 1),
            "train": means,
            "val": val,
        }
        if self.settings.measure_all and (epoch % self.settings.measure_every == 0 or self.over):
            line |= {"train_eval": self._measure(self._sample_of_train()), "test": self._measure(self.dataset.test)}
        self._refuse_nonfinite(val)
        self._select(epoch, *score)
        if self.folder is not None:
            self.folder.append_metrics(line)
        self._clear_sums()
        self.epoch_seconds = 0.0
        return line

    def _measure(self, split: Split) -> dict[str, float]:
        outcome = observe(self.method, self.average, split, processes=self.processes)
        return self.processes.broadcast(lambda: summarize(outcome))

    def _sample_of_train(self) -> Split:
        """As many training rows as there are validation rows, evenly spread."""
        count = min(len(self.dataset.val), len(self.dataset.train))
        return self.dataset.train.take(torch.linspace(0, len(self.dataset.train) - 1, count).long())

    def _weighted_score(self, outcome: Outcome, val: dict[str, Any]) -> tuple[float, float]:
        """Accuracy and NLL on validation data, where its rows differ in weight by that."""
        weights = self.dataset.val.weights
        if weights is None:
            return val["accuracy"], val["nll"]
        shares = (weights / weights.sum()).cpu().double()
        correct = outcome.log_beliefs.argmax(-1) == outcome.labels
        score = log_scores(outcome.log_beliefs.double(), outcome.labels)
        return float(shares @ correct.double()), -float(shares @ score)

    def _select(self, epoch: int, accuracy: float, nll: float) -> None:
        score = {"accuracy": [accuracy, -nll], "nll": [-nll, accuracy], "last": [epoch]}[self.settings.select]
        if not self.best or score > self.best["score"]:
            weights = {name: tensor.detach().clone() for name, tensor in self.average.state_dict().items()}
            self.best = {"epoch": epoch, "score": score, "accuracy": accuracy, "weights": weights}
        self.collapsed = self.collapsed + 1 if has_fallen(accuracy, self.best["accuracy"], len(self.dataset.val)) else 0
        if self.collapsed >= COLLAPSED_EPOCHS:
            self._diverged(f"validation accuracy has fallen to {accuracy:.1%} from {self.best['accuracy']:.1%}")

    def _refuse_nonfinite(self, numbers: dict[str, float]) -> None:
        broken = [name for name, value in numbers.items() if not math.isfinite(value)]
        if broken:
            self._diverged(f"{' and '.join(broken[:3])} became infinite or NaN")

    def _refuse_nonfinite_weights(self) -> None:
        """Metrics are taken before an update, so those of the last one say nothing of what it left, and validation does
        not ask every head. Like the metrics, asked so seldom that waiting for the device costs nothing."""
        if not torch.stack([tensor.isfinite().all() for tensor in learned(self.model)]).all():
            self._diverged("the weights became infinite or NaN")

    def _diverged(self, what: str) -> None:
        """Leave state.pt as it was: the last good state. The best weights so far are kept too."""
        kept = "nothing is kept" if self.best else "no epoch was completed before"
        if self.best and self.folder is not None:
            self.folder.write_model(self.best["weights"])
            kept = f"the best weights so far, of epoch {self.best['epoch']}, are in {self.folder.model}"
        clip = (
            f"with {setting('clip', 0.5)}"
            if self.settings.clip is None
            else f"a lower {setting('clip')} (now {self.settings.clip:g})"
        )
        raise RicnetError(
            f"training diverged in epoch {-(-self.update // self.updates_per_epoch)}: {what}; {kept}. "
            f"Start anew with a lower {setting('lr')} (now {self.settings.lr:g}) or {clip}."
        )

    def checkpoint(self) -> None:
        """Save the best weights and all it takes to go on, if there is a place for it."""
        if self.folder is None:
            return
        self._refuse_nonfinite({name: float(total) for name, total in self.sums.items()})
        self._refuse_nonfinite_weights()
        if self.best:
            self.folder.write_model(self.best["weights"])
        self.folder.write_state(self.state())

    def state(self) -> dict[str, Any]:
        return {
            "update": self.update,
            "seconds": self.seconds,
            "epoch_seconds": self.epoch_seconds,
            "model": self.model.state_dict(),
            "snapshot": self.snapshot.state_dict() if self.period else {},
            "average": self.average.state_dict() if self.settings.average else {},
            "averaged": self.averaged,
            "optimizer": self.optimizer.state_dict(),
            "sums": self.sums,
            "best": self.best,
            "collapsed": self.collapsed,
            "rng": torch.get_rng_state(),
            "cuda_rng": torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else None,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go back to a saved state; the next update is the one that would have followed."""
        self.update, self.seconds, self.epoch_seconds = state["update"], state["seconds"], state["epoch_seconds"]
        self.model.load_state_dict(state["model"])
        if self.period:
            self.snapshot.load_state_dict(state["snapshot"])
        if self.settings.average:
            self.average.load_state_dict(state["average"])
        self.averaged.copy_(state["averaged"])
        restore_optimizer(self.optimizer, state["optimizer"])
        for name, total in state["sums"].items():
            self.sums.setdefault(name, torch.zeros((), device=self.device)).copy_(total)
        self.best, self.collapsed = state["best"], state["collapsed"]
        torch.set_rng_state(state["rng"])
        if self.device.type == "cuda" and state["cuda_rng"] is not None:
            torch.cuda.set_rng_state(state["cuda_rng"], self.device)
        if self.folder is not None:
            self.folder.keep_metrics_until(self.update // self.updates_per_epoch)

    def _conclude(self) -> dict[str, Any]:
        """Let the selected weights be judged."""
        if self.folder is not None:
            self.folder.write_model(self.best["weights"])
        course = {"selected_epoch": self.best["epoch"], "seconds": round(self.seconds, 1)}
        evaluation = finalize(self.config, self.model, self.dataset, self.folder, course, self.processes)
        if self.folder is not None:
            self.folder.drop_states()
        return evaluation


def has_fallen(accuracy: float, best: float, rows: int) -> bool:
    """Whether an accuracy is less than half of the best one, by more than the noise of so many rows explains."""
    return accuracy < 0.5 * best and best - accuracy > STANDARD_ERRORS * math.sqrt(best * (1 - best) / rows)


def has_narrow_shortcut(model: nn.Module) -> bool:
    """Whether a strided 1×1 convolution reads fewer than 8 channels: in this layout torch 2.13 corrupts its memory on a
    CPU in the backward pass of one."""
    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    return any(c.kernel_size == (1, 1) and c.stride != (1, 1) and c.in_channels < 8 for c in convolutions)
