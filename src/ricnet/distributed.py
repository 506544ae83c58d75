"""Data-parallel training with torchrun: rank, rows of this process, and communication.

With a single process nothing is communicated.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from jaxtyping import Num
from torch import Tensor

from ricnet.errors import RicnetError, setting

T = TypeVar("T")

TIMEOUT = timedelta(hours=6)
"""Timeout of collective operations; the longest wait is for the first process of a machine to read the data. A process
that died is noticed at once, by its connection or by torchrun."""


@dataclass(frozen=True)
class Processes:
    rank: int = 0
    count: int = 1

    @property
    def first(self) -> bool:
        """Whether this process writes files and prints."""
        return self.rank == 0

    def slice(self, rows: int, rank: int | None = None) -> slice:
        """Rows of a process (default: this one): contiguous, and the numbers of rows differ by at most 1."""
        rank = self.rank if rank is None else rank
        return slice(rows * rank // self.count, rows * (rank + 1) // self.count)

    def broadcast(self, make: Callable[[], T]) -> T:
        """Call `make` on the first process and return its result on all processes."""
        if self.count == 1:
            return make()
        made: list[Any] = [make() if self.first else None]
        dist.broadcast_object_list(made, src=0)
        return made[0]  # type: ignore[no-any-return]

    def gather(self, own: T) -> list[T]:
        """On the first process the objects of all processes by rank; on the others only their own."""
        if self.count == 1:
            return [own]
        made: list[Any] | None = [None] * self.count if self.first else None
        dist.gather_object(own, made, dst=0)
        return [own] if made is None else made

    def any(self, own: bool) -> bool:
        """Whether `own` is true on any process. Computed on the CPU, so that it does not wait for the GPU."""
        if self.count == 1:
            return own
        said = torch.tensor(int(own))
        dist.all_reduce(said, dist.ReduceOp.MAX)
        return bool(said)

    def all_reduce(self, own: Num[Tensor, "*any"]) -> Num[Tensor, "*any"]:
        """Sum over all processes, in place."""
        if self.count > 1:
            dist.all_reduce(own)
        return own

    def broadcast_tensors(self, tensors: Iterable[Num[Tensor, "*any"]]) -> None:
        """Copy the tensors of the first process to all others, in place."""
        if self.count > 1:
            for tensor in tensors:
                dist.broadcast(tensor, src=0)

    def shard(self, rows: int) -> "Shard":
        return Shard(rows, self.slice(rows), self)


ALONE = Processes()


class Shard(NamedTuple):
    """The rows of a minibatch that belong to this process."""

    rows: int
    """Rows of the whole minibatch."""
    own: slice = slice(None)
    """Rows of this process."""
    processes: Processes = ALONE

    def all_gather(self, own: Num[Tensor, "..."], dim: int) -> Num[Tensor, "..."]:
        """The rows of all processes, in the order of the minibatch; without gradient."""
        if self.processes.count == 1:
            return own
        front = own.detach().movedim(dim, 0)
        slices = [self.processes.slice(self.rows, rank) for rank in range(self.processes.count)]
        sizes = [rows.stop - rows.start for rows in slices]
        padded = front.new_zeros(max(sizes), *front.shape[1:])  # all_gather needs equal sizes
        padded[: len(front)] = front
        received = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(received, padded)
        every = torch.cat([part[:size] for part, size in zip(received, sizes, strict=True)])
        return every.movedim(0, dim).contiguous()  # random numbers are drawn in memory order


def launched() -> Processes:
    """Rank and number of processes, from the variables of torchrun."""
    if "RANK" not in os.environ:  # other launchers set WORLD_SIZE alone
        return ALONE
    try:
        return Processes(int(os.environ["RANK"]), int(os.environ.get("WORLD_SIZE", 1)))
    except ValueError:
        raise RicnetError("RANK and WORLD_SIZE are set, but not to whole numbers; start with torchrun.") from None


@contextmanager
def together(device: torch.device) -> Iterator[Processes]:
    """Initialise the process group, if torchrun started several processes, and destroy it at the end."""
    if dist.is_available() and dist.is_initialized():
        yield Processes(dist.get_rank(), dist.get_world_size())
        return
    processes = launched()
    if processes.count == 1:
        yield ALONE
        return
    try:
        dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo", timeout=TIMEOUT)
    except ValueError as error:
        raise RicnetError(
            f"RANK and WORLD_SIZE are set, but other variables of torchrun are not ({error}); start with torchrun."
        ) from error
    try:
        yield processes
    except RuntimeError as error:
        if "finished reduction" in str(error):
            raise RicnetError(
                "the encoder has parameters that do not affect its output, which training in several processes does "
                "not support; remove them, or freeze them with requires_grad_(False)."
            ) from error
        if not isinstance(error, dist.DistError) and "gloo" not in str(error).lower():
            raise
        raise RicnetError(
            f"process {processes.rank} of {processes.count} lost its connection, because another process ended (see "
            f"its message above, if any); fix the cause and continue with {setting('resume', True)}."
        ) from error
    else:  # skipped after an error: it could wait for the other processes for ever
        dist.destroy_process_group()


@contextmanager
def first_on_each_machine(processes: Processes) -> Iterator[None]:
    """The first process of each machine runs the block before the others, which can use the files it has written."""
    ahead = processes.count == 1 or os.environ.get("LOCAL_RANK", "0") == "0"
    if not ahead:
        processes.any(False)
    yield
    if ahead:
        processes.any(False)


def own_gpu() -> torch.device:
    """The GPU of this process, by its LOCAL_RANK."""
    if launched().count == 1:
        return torch.device("cuda")
    index = int(os.environ.get("LOCAL_RANK", 0))
    if index >= torch.cuda.device_count():
        raise RicnetError(
            f"process {index} has no GPU: this machine has {torch.cuda.device_count()} CUDA devices; "
            "lower --nproc-per-node."
        )
    return torch.device("cuda", index)


def pick_device(name: str) -> torch.device:
    if torch.cuda.is_available() and name in ("auto", "cuda"):
        return own_gpu()
    if name == "auto":
        return torch.device("cpu")
    asked = setting("device", name)
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise RicnetError(f"{asked} is unknown; use auto, cpu, cuda or cuda:0.") from error
    if device.type not in ("cpu", "cuda"):
        raise RicnetError(f"{asked} is not supported; use auto, cpu or cuda.")
    if device.type == "cuda" and launched().count > 1:
        cuda = setting("device", "cuda")
        raise RicnetError(f"{asked}: with torchrun each process takes a GPU of its own; use {cuda}.")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise RicnetError(f"{asked}: this machine has {count} CUDA devices; use auto, or a lower number.")
    return device
