"""The training loop, for any method.

A run is a flat sequence of updates. Whatever decides the next one (weights, snapshot, optimizer, random numbers, the
metrics of the epoch so far) is part of `state()`, so a run can stop after any update and go on as if it never had.
"""

import copy
import math
import shlex
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Float, Int64, Num
from rich.console import Console
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ricnet.core.randomness import building_with, drawing_from
from ricnet.data import Augmentation, Dataset, Split, augment, epoch_order
from ricnet.distributed import ALONE, Processes, Shard
from ricnet.errors import RicnetError, setting
from ricnet.evaluation.baselines import base_rate, mean_and_error, selection_nll
from ricnet.evaluation.choices import FOLDS, calibrated_scores, is_as_good
from ricnet.evaluation.collapse import CollapseWatch, words
from ricnet.evaluation.evaluate import Outcome, observe, summarize
from ricnet.io import is_number, shown_name
from ricnet.methods import Method
from ricnet.methods.method import Batch, Metrics
from ricnet.models.build import autocast_dtype, backbone_of, build_model, learned
from ricnet.models.config import Config, Optimization
from ricnet.models.run import RunFolder
from ricnet.nets.encoders import TINY_IMAGE, Backbone, is_ours, is_registered_outside
from ricnet.nets.pretrained import Pretrained
from ricnet.training.console import Interrupted, ProgressBar, StopRequest, say
from ricnet.training.finish import finalize, weighted
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
        state after every update. `faster` is a hint printed once for long runs."""
        self.generator = _seeded_generator(config, encoder, device)
        dataset = weighted(config, dataset)
        self.config, self.dataset, self.folder, self.device = config, dataset, folder, device
        self.checkpoint_seconds, self.console, self.faster = checkpoint_seconds, console, faster
        self.watchers: Sequence[Callable[[dict[str, Any]], None]] = ()
        """Each is shown every line of metrics.jsonl."""
        self.keeps_state = False
        """Whether the last state stays in the folder, so that more epochs can follow."""
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
        self.watch = CollapseWatch(len(dataset.train))
        self._make_fast()

    def _build_networks(self, encoder: nn.Module | None) -> None:
        """The one that learns, the one that acts and the one that answers; often they are the same."""
        data = self.dataset
        with building_with(self.generator):
            model, backbone = build_model(self.config, data.input_shape, len(data.class_names), encoder)
        refuse_other_kind(backbone.reader, data, self.config)
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
                compile_encoder(backbone_of(network).encoder)
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
                    if self.watch.begins:
                        say([self._collapse_words(line)], progress.console)
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
        if self.keeps_state:
            self.checkpoint()
        self.model.load_state_dict(self.best["weights"])

    @property
    def over(self) -> bool:
        """All epochs are made, or as many as patience allows without a better one."""
        if self.update >= self.total_updates:
            return True
        patience, epoch = self.settings.patience, self.update // self.updates_per_epoch
        return patience is not None and bool(self.best) and epoch - self.best["best_epoch"] >= patience

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
        with drawing_from(self.generator):
            self.learn(rows)
        self.update += 1

    def _learn(self, rows: Int64[Tensor, "batch"]) -> None:
        """One update of the weights."""
        with tensor_cores() if self.device.type == "cuda" else nullcontext():
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
            inputs = augment(inputs, self.augmentation, self.shard, self.generator)
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
        with drawing_from(self.generator):
            outcome = observe(self.method, self.average, self.dataset.val, processes=self.processes)
        val = self.processes.broadcast(lambda: summarize(outcome))
        accuracy, nll, scores = self.processes.broadcast(lambda: self._scores(outcome, val))
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
        if found := self.watch.see(line):
            line["collapse"] = found
        if self.settings.measure_all and (epoch % self.settings.measure_every == 0 or self.over):
            line |= {"train_eval": self._measure(self._sample_of_train())}
            line |= {"test": self._measure(self.dataset.test)} if len(self.dataset.test) else {}
        self._refuse_nonfinite(val)
        self._select(epoch, accuracy, nll, scores)
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

    def _scores(self, outcome: Outcome, val: dict[str, Any]) -> tuple[float, float, Float[Tensor, "n"] | None]:
        """Accuracy and NLL on validation data, weighted if its rows have weights. With `select="calibrated"`, without
        weights, also the log-score of each row after a cross-fitted temperature."""
        train, weights = self.dataset.train, self.dataset.val.weights
        labels, log_beliefs, classes = outcome.labels, outcome.log_beliefs, len(self.dataset.class_names)
        if weights is None:
            by_row = self.settings.select == "calibrated" and len(labels) >= FOLDS
            return val["accuracy"], val["nll"], calibrated_scores(log_beliefs, labels) if by_row else None
        accuracy, _ = mean_and_error((log_beliefs.argmax(-1) == labels).double(), weights.cpu())
        shares = base_rate(replace(train, weights=None), classes) if self.config.class_weight else None
        return accuracy, selection_nll(log_beliefs, labels, weights.cpu(), shares), None

    def _select(self, epoch: int, accuracy: float, nll: float, scores: Float[Tensor, "n"] | None) -> None:
        """Keep the weights if they are the best so far or, by `scores`, within a standard error of the best."""
        nll = nll if scores is None else -float(scores.mean())
        score = {"accuracy": [accuracy, -nll], "last": [epoch]}.get(self.settings.select, [-nll, accuracy])
        better = not self.best or score > self.best["score"]
        if better or (scores is not None and is_as_good(scores, self.best["scores"])):
            weights = {name: tensor.detach().clone() for name, tensor in self.average.state_dict().items()}
            self.best |= {"epoch": epoch, "weights": weights}
        if better:
            self.best |= {"best_epoch": epoch, "score": score, "scores": scores, "accuracy": accuracy}
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
        """Leave state.pt as it was: the last good state. Keep the best weights so far, and mark the folder."""
        kept = "nothing is kept" if self.best else "no epoch was completed before"
        anew = "Start anew"
        epoch = -(-self.update // self.updates_per_epoch)
        if self.best and self.folder is not None:
            self.folder.write_model(self.best["weights"])
            kept = f"the best weights so far, of epoch {self.best['epoch']}, are in {self.folder.model}"
            anew = f"Start anew ({setting('overwrite', True)} replaces them)"
        if self.folder is not None:
            self.folder.write_json(self.folder.diverged, {"epoch": epoch, "reason": what})
        raise RicnetError(f"training diverged in epoch {epoch}: {what}; {kept}. {anew} {self._calmer()}.")

    def _calmer(self) -> str:
        """Settings that make divergence less likely."""
        clip = (
            f"with {setting('clip', 0.5)}"
            if self.settings.clip is None
            else f"a lower {setting('clip')} (now {self.settings.clip:g})"
        )
        return f"with a lower {setting('lr')} (now {self.settings.lr:g}) or {clip}"

    def _collapse_words(self, line: dict[str, Any]) -> str:
        kept = f"The best weights so far are of epoch {self.best['epoch']}."
        again = f"If it does not recover, train again {self._calmer()}."
        return f"note: training collapsed in epoch {line['epoch']}: {words(line['collapse'])}. {kept} {again}"

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
            "rng": (self.generator or torch.default_generator).get_state(),
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
        (self.generator or torch.default_generator).set_state(state["rng"])
        if self.device.type == "cuda" and state["cuda_rng"] is not None:
            torch.cuda.set_rng_state(state["cuda_rng"], self.device)
        if self.folder is not None:
            self.folder.keep_metrics_until(self.update // self.updates_per_epoch)
            self.watch = CollapseWatch(len(self.dataset.train))
            for line in self.folder.metrics_lines():
                self.watch.see(line)

    def impossible(self, state: dict[str, Any]) -> str | None:
        """Why this run cannot have reached a stored state; None if it can."""
        update, best = state["update"], state["best"]
        if type(update) is not int or not 0 <= update <= self.total_updates:
            return f"update {str(update)[:20]} of {self.total_updates}"
        sizes = [parameter.shape for group in self.optimizer.param_groups for parameter in group["params"]]
        moments = [(sizes[i], m) for i, entries in state["optimizer"]["state"].items() for m in entries.values()]
        if any(moment.numel() > 1 and moment.shape != size for size, moment in moments):
            return "an optimizer of another network"
        times = state["seconds"], state["epoch_seconds"], state["collapsed"]
        if not all(is_number(time) and time >= 0 for time in times):
            return f"times or counts {str(times)[:60]}"
        epochs = update // self.updates_per_epoch
        if not best:
            return "no best epoch" if epochs else None
        for epoch in (best["epoch"], best["best_epoch"]):
            if type(epoch) is not int or not 1 <= epoch <= epochs:
                return f"best epoch {str(epoch)[:20]} after {epochs} epochs"
        own = {name: tensor.shape for name, tensor in self.model.state_dict().items()}
        if {name: tensor.shape for name, tensor in best["weights"].items()} != own:
            return "best weights of another network"
        return None

    def _conclude(self) -> dict[str, Any]:
        """Let the selected weights be judged."""
        if self.folder is not None:
            self.folder.write_model(self.best["weights"])
        course = {"selected_epoch": self.best["epoch"], "seconds": round(self.seconds, 1)}
        with drawing_from(self.generator):
            evaluation = finalize(self.config, self.model, self.dataset, self.folder, course, self.processes)
        if self.folder is not None:
            self.folder.drop_states(keep_last=self.keeps_state)
        return evaluation


def _seeded_generator(config: Config, encoder: nn.Module | None, device: torch.device) -> torch.Generator | None:
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


def has_fallen(accuracy: float, best: float, rows: int) -> bool:
    """Whether an accuracy is less than half of the best one, by more than the noise of so many rows explains."""
    return accuracy < 0.5 * best and best - accuracy > STANDARD_ERRORS * math.sqrt(best * (1 - best) / rows)


def has_narrow_shortcut(model: nn.Module) -> bool:
    """Whether a strided 1×1 convolution reads fewer than 8 channels: in this layout torch 2.13 corrupts its memory on a
    CPU in the backward pass of one."""
    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    return any(c.kernel_size == (1, 1) and c.stride != (1, 1) and c.in_channels < 8 for c in convolutions)


# One update: the gradient of a minibatch, however many parts and processes it is spread over, and the optimizer with
# its learning rate over a run

Loss = tuple[Float[Tensor, ""], Metrics]


class Gradient:
    """Adds the gradient of a minibatch, of which this process has a shard, to `.grad` of the network.

    A loss asks more of the network than its own forward, so what DistributedDataParallel wraps is a module whose
    forward is the loss.
    """

    def __init__(self, method: Method[Any], model: nn.Module, snapshot: nn.Module, shard: Shard, parts: int) -> None:
        self.method, self.model, self.snapshot, self.shard, self.parts = method, model, snapshot, shard, parts
        self.several = shard.processes.count > 1
        refuse_thin_parts(shard, parts)
        self.next_loss: Any = NextLoss(model)
        if self.several:
            self.next_loss = DistributedDataParallel(self.next_loss)

    def __call__(self, batch: Batch) -> Metrics:
        """The loss and what else there is to log, of the whole minibatch."""
        if not self.several and self.parts == 1:
            loss, metrics = self.method.loss(self.model, self.snapshot, *batch)
            loss.backward()
            return {"loss": loss.detach(), **metrics}
        parts = list(zip(*(tensor.tensor_split(self.parts) for tensor in batch), strict=True))
        losses = self.method.losses(self.model, self.snapshot, parts, self.shard if self.several else None)
        logged: list[Tensor] = []
        for position, part in enumerate(parts, 1):
            weight = len(part[0]) / self.shard.rows
            with self._no_sync(position < len(parts)):
                loss, metrics = self.next_loss(losses)
                (loss * (weight * self.shard.processes.count)).backward()  # for gradients are averaged, not added up
            logged.append(weight * torch.stack([metric.float() for metric in (loss.detach(), *metrics.values())]))
        if self.several:
            _average_statistics(self.model, self.shard)
        means = self.shard.processes.all_reduce(torch.stack(logged).sum(0))
        return dict(zip(["loss", *metrics], means.unbind(), strict=True))

    def _no_sync(self, more: bool) -> AbstractContextManager[None]:
        """Gradients are sent once, with the last part."""
        silent: AbstractContextManager[None] = self.next_loss.no_sync() if self.several and more else nullcontext()
        return silent


class NextLoss(nn.Module):
    """The next of some losses, as the forward of a module that has all the parameters they depend on."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, losses: Iterator[Loss]) -> Loss:
        return next(losses)


@contextmanager
def tensor_cores() -> Iterator[None]:
    """Let products of float32 matrices round their factors to TF32, which makes the refiner's many times faster on a
    GPU. The setting is global to the process, so it is not used on a CPU, where several threads may train.

    The rounding of a factor does not depend on how a product is split up, so roll-out and replay still agree.
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def refuse_thin_parts(shard: Shard, parts: int) -> None:
    """Batch norm needs two rows, and statistics of two mean little; fewer are surely a mistake."""
    pieces = shard.processes.count * parts
    if pieces > 1 and shard.rows < 2 * pieces:
        raise RicnetError(
            f"a minibatch of {shard.rows} cannot be shared by {shard.processes.count} processes in {parts} parts each: "
            f"every part needs two rows; raise {setting('batch_size')}, or lower {setting('accumulate')} or the "
            "number of processes."
        )


@torch.no_grad()
def _average_statistics(model: nn.Module, shard: Shard) -> None:
    """Batch norm normalises with each process's own rows; its running averages, which evaluation reads, are of all."""
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    seen = [mean for norm in norms for mean in (norm.running_mean, norm.running_var) if mean is not None]
    if not seen:
        return
    flat = torch.cat([mean.flatten() for mean in seen]) / shard.processes.count
    parts = shard.processes.all_reduce(flat).split([mean.numel() for mean in seen])
    torch._foreach_copy_(seen, [part.view_as(mean) for part, mean in zip(parts, seen, strict=True)])


def rate_factor(update: int, total: int, warmup: int, schedule: str, end: float = 0.0) -> float:
    """What the learning rate is multiplied by at an update counted from 0: up in a line, for half of all updates at
    most, then level or down a cosine from 1 to `end`."""
    warmup = min(warmup, total // 2)
    if update < warmup:
        return (update + 1) / warmup
    if schedule == "constant":
        return 1.0
    return end + (1 - end) * 0.5 * (1 + math.cos(math.pi * (update - warmup) / max(1, total - warmup)))


def make_optimizer(model: nn.Module, settings: Optimization, device: torch.device) -> torch.optim.Optimizer:
    """AdamW spares biases and normalisation its decay; Adam and SGD decay everything, as in the paper's plain use.

    On a GPU the rate is a tensor there, so that a recorded update can be replayed at another rate.
    """
    on_gpu = device.type == "cuda"
    decay = settings.weight_decay
    rate = torch.tensor(settings.lr, dtype=torch.float32, device=device) if on_gpu else settings.lr
    groups = [{**group, "lr": rate.clone() if isinstance(rate, Tensor) else rate} for group in _groups(model, settings)]
    if settings.optimizer == "sgd":
        return torch.optim.SGD(groups, rate, momentum=settings.momentum, weight_decay=decay, fused=on_gpu)
    if settings.optimizer == "adam":
        return torch.optim.Adam(groups, rate, weight_decay=decay, capturable=on_gpu, fused=on_gpu)
    return torch.optim.AdamW(groups, rate, weight_decay=decay, capturable=on_gpu, fused=on_gpu)


def _groups(model: nn.Module, settings: Optimization) -> list[dict[str, Any]]:
    """Parameters by the share of the rate that they learn at, and for AdamW by whether they decay."""
    came = [m.features for m in model.modules() if isinstance(m, Backbone) and m.features is not None]
    trained = {parameter for module in came for parameter in module.parameters()}
    new = [p for p in model.parameters() if p not in trained]
    old = [p for p in model.parameters() if p in trained and p.requires_grad]
    groups: list[dict[str, Any]] = []
    for parameters, share in ((new, 1.0), (old, settings.encoder_lr)):
        if not parameters:
            continue
        if settings.optimizer != "adamw":
            groups.append({"params": parameters, "share": share})
            continue
        matrices, vectors = [p for p in parameters if p.ndim > 1], [p for p in parameters if p.ndim <= 1]
        groups += [{"params": matrices, "share": share}, {"params": vectors, "weight_decay": 0.0, "share": share}]
    return groups


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """The rate of each group is its share of it; on a GPU each has a tensor of its own."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(rate * group["share"])
        else:
            group["lr"] = rate * group["share"]


def restore_optimizer(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    """Load a state without replacing its tensors where there are some: a recorded update writes into those."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if not optimizer.state:
        own = [{name: value for name, value in g.items() if name != "params"} for g in optimizer.param_groups]
        groups = [{**theirs, **ours} for theirs, ours in zip(saved["param_groups"], own, strict=True)]
        optimizer.load_state_dict({**saved, "param_groups": groups})  # a state of a GPU would ask a CPU for its kernels
        return
    for index, entries in saved["state"].items():
        for name, value in entries.items():
            optimizer.state[parameters[index]][name].copy_(value)


def refuse_other_kind(reader: nn.Module, dataset: Dataset, config: Config) -> None:
    """An encoder that reads token ids can make nothing of numbers, nor the other way round, nor of ids it has not."""
    encoder, known = setting("encoder", config.network.encoder), getattr(reader, "vocabulary", None)
    if known is not None and dataset.is_text and int(dataset.train.inputs.max()) >= known:
        raise RicnetError(f"{dataset.name} has token ids beyond the {known:,} that {encoder} knows; use its tokenizer.")
    if (known is not None) == dataset.is_text:
        return
    if known is not None:
        raise RicnetError(f"{encoder} reads texts, but {dataset.name} holds {dataset.unit}; leave it out.")
    raise RicnetError(
        f"{encoder} reads no texts, which {dataset.name} holds; use {setting('encoder', 'words')} (a module of your "
        "own that reads token ids says so by an attribute `vocabulary`, how many there are)."
    )
