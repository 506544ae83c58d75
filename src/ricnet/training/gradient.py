"""The gradient of a minibatch, however many parts and processes it is spread over."""

import copy
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ricnet.errors import RicnetError, setting
from ricnet.methods import Method
from ricnet.methods.method import Batch, Metrics
from ricnet.processes import Share

Loss = tuple[Float[Tensor, ""], Metrics]
AnyMethod = TypeVar("AnyMethod", bound=Method[Any])


class Gradient:
    """Adds to `.grad` of the network what a minibatch says, of which this process has a share.

    The network's own forward is not all that a loss asks of it, so what DistributedDataParallel wraps is a module
    whose forward is the loss.
    """

    def __init__(self, method: Method[Any], model: nn.Module, snapshot: nn.Module, share: Share, parts: int) -> None:
        self.method, self.model, self.snapshot, self.share, self.parts = method, model, snapshot, share, parts
        self.several = share.processes.count > 1
        refuse_thin_parts(share, parts)
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
        losses = self.method.losses(self.model, self.snapshot, parts)
        seen: list[Tensor] = []
        for position, part in enumerate(parts, 1):
            weight = len(part[0]) / self.share.rows
            with self._silence(position < len(parts)):
                loss, metrics = self.next_loss(losses)
                (loss * (weight * self.share.processes.count)).backward()  # for gradients are averaged, not added up
            seen.append(weight * torch.stack([metric.float() for metric in (loss.detach(), *metrics.values())]))
        if self.several:
            _average_statistics(self.model, self.share)
        means = self.share.processes.add(torch.stack(seen).sum(0))
        return dict(zip(["loss", *metrics], means.unbind(), strict=True))

    def _silence(self, more: bool) -> AbstractContextManager[None]:
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


def shared_method(method: AnyMethod, share: Share) -> AnyMethod:
    """The same method, for rows that are a share of a minibatch."""
    mine = copy.copy(method)
    object.__setattr__(mine, "share", share)
    return mine


def refuse_thin_parts(share: Share, parts: int) -> None:
    """Batch norm needs two rows, and statistics of two mean little; fewer are surely a mistake."""
    pieces = share.processes.count * parts
    if pieces > 1 and share.rows < 2 * pieces:
        raise RicnetError(
            f"a minibatch of {share.rows} cannot be shared by {share.processes.count} processes in {parts} parts each: "
            f"every part needs two rows; raise {setting('batch_size')}, or lower {setting('accumulate')} or the "
            "number of processes."
        )


@torch.no_grad()
def _average_statistics(model: nn.Module, share: Share) -> None:
    """Batch norm normalises with each process's own rows; its running averages, which evaluation reads, are of all."""
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    seen = [mean for norm in norms for mean in (norm.running_mean, norm.running_var) if mean is not None]
    if not seen:
        return
    flat = torch.cat([mean.flatten() for mean in seen]) / share.processes.count
    parts = share.processes.add(flat).split([mean.numel() for mean in seen])
    torch._foreach_copy_(seen, [part.view_as(mean) for part, mean in zip(parts, seen, strict=True)])
