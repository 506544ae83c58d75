"""The minibatches of a run: which rows an update sees, and their inputs, augmented, with labels and weights."""

from dataclasses import replace
from functools import lru_cache

import torch
from jaxtyping import Int64, Num
from torch import Tensor

from ricnet.data import Augmentation, Dataset, augment, epoch_order
from ricnet.distributed import Processes
from ricnet.models.config import Config, Optimization
from ricnet.training.speed import Feed

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
        self.augmentation = _augmentation(dataset, settings)
        self.size = min(settings.batch_size, len(train))
        self.per_epoch = len(train) // self.size
        self.shard = processes.shard(self.size)
        self.feed = Feed(train.inputs, device, len(self.labels[: self.size][self.shard.own]))
        self.ordered_epoch = -1

    def rows(self, update: int) -> Int64[Tensor, "batch"]:
        """This process's rows of an update's batch, on the device."""
        epoch, position = divmod(update, self.per_epoch)
        if epoch != self.ordered_epoch:
            self.order = _order(len(self.labels), self.seed, epoch).to(self.device)
            self.ordered_epoch = epoch
        return self._own(self.order, position)

    def _host_rows(self, update: int) -> Int64[Tensor, "batch"]:
        """The same on the host."""
        epoch, position = divmod(update, self.per_epoch)
        return self._own(_order(len(self.labels), self.seed, epoch), position)

    def _own(self, order: Int64[Tensor, "n"], position: int) -> Int64[Tensor, "batch"]:
        return order[position * self.size : (position + 1) * self.size][self.shard.own]

    def stage(self, update: int) -> None:
        """Bring inputs that do not fit on the device there for an update, and begin to gather those of the next."""
        if self.feed.streams:
            self.feed.stage(self._host_rows(update), self._host_rows(update + 1))

    def __call__(self, rows: Int64[Tensor, "batch"]) -> tuple[Num[Tensor, "batch ..."], ...]:
        """Inputs and labels, and weights where there are any."""
        inputs = self.feed.staged if self.feed.streams else self.feed.inputs[rows]
        if self.augmentation is not None:
            inputs = augment(inputs, self.augmentation, self.shard, self.generator)
        return (inputs, self.labels[rows]) if self.weights is None else (inputs, self.labels[rows], self.weights[rows])


def _augmentation(dataset: Dataset, settings: Optimization) -> Augmentation | None:
    if not (dataset.is_image and settings.augment):
        return None
    return replace(dataset.augmentation, cutout=settings.cutout)
