"""Several processes that train one network together, started by torchrun: who this one is, which rows are its own, and
how they speak.

Alone, which is the rule, everything here is free: nothing is sent, and what is asked for comes back as it was.
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
"""How long processes wait for each other; the longest wait is for the first on a machine to read the data. One that has
died is noticed at once, by its connection or by torchrun."""


@dataclass(frozen=True)
class Processes:
    rank: int = 0
    count: int = 1

    @property
    def first(self) -> bool:
        """The one that writes and prints."""
        return self.rank == 0

    def slice(self, rows: int, rank: int | None = None) -> slice:
        """The rows of one process, this one if none is named: contiguous, and equally many but for one."""
        rank = self.rank if rank is None else rank
        return slice(rows * rank // self.count, rows * (rank + 1) // self.count)

    def broadcast(self, make: Callable[[], T]) -> T:
        """What `make` returns on the first process, on all of them."""
        if self.count == 1:
            return make()
        made: list[Any] = [make() if self.first else None]
        dist.broadcast_object_list(made, src=0)
        return made[0]  # type: ignore[no-any-return]

    def gather(self, own: T) -> list[T]:
        """On the first process what all of them have, by rank; on the others only their own."""
        if self.count == 1:
            return [own]
        made: list[Any] | None = [None] * self.count if self.first else None
        dist.gather_object(own, made, dst=0)
        return [own] if made is None else made

    def any(self, own: bool) -> bool:
        """Whether one of them says yes. On the host, so that a GPU's queue is not waited for."""
        if self.count == 1:
            return own
        said = torch.tensor(int(own))
        dist.all_reduce(said, dist.ReduceOp.MAX)
        return bool(said)

    def all_reduce(self, own: Num[Tensor, "*any"]) -> Num[Tensor, "*any"]:
        """The sum over all of them, in place."""
        if self.count > 1:
            dist.all_reduce(own)
        return own

    def broadcast_tensors(self, tensors: Iterable[Num[Tensor, "*any"]]) -> None:
        """Give all of them the tensors of the first, in place."""
        if self.count > 1:
            for tensor in tensors:
                dist.broadcast(tensor, src=0)

    def shard(self, rows: int) -> "Shard":
        return Shard(rows, self.slice(rows), self)


ALONE = Processes()


class Shard(NamedTuple):
    """This process's part of a minibatch of so many rows."""

    rows: int
    own: slice = slice(None)
    """Where its rows stand in the minibatch."""
    processes: Processes = ALONE

    def all_gather(self, own: Num[Tensor, "..."], dim: int) -> Num[Tensor, "..."]:
        """The rows of all processes, in the order in which one process would have them. No gradient comes back."""
        if self.processes.count == 1:
            return own
        front = own.detach().movedim(dim, 0)
        slices = [self.processes.slice(self.rows, rank) for rank in range(self.processes.count)]
        sizes = [rows.stop - rows.start for rows in slices]
        padded = front.new_zeros(max(sizes), *front.shape[1:])  # what is sent must be equally large everywhere
        padded[: len(front)] = front
        received = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(received, padded)
        every = torch.cat([part[:size] for part, size in zip(received, sizes, strict=True)])
        return every.movedim(0, dim).contiguous()  # random numbers are drawn in the order of memory


def launched() -> Processes:
    """What torchrun says of this process."""
    if "RANK" not in os.environ:  # other launchers set WORLD_SIZE alone
        return ALONE
    try:
        return Processes(int(os.environ["RANK"]), int(os.environ.get("WORLD_SIZE", 1)))
    except ValueError:
        raise RicnetError("RANK and WORLD_SIZE are set, but not to numbers; start with torchrun.") from None


@contextmanager
def together(device: torch.device) -> Iterator[Processes]:
    """Join the other processes of the job, if there are any, and leave them at the end."""
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
        raise RicnetError(f"RANK and WORLD_SIZE are set, but not all else ({error}); start with torchrun.") from error
    try:
        yield processes
    except RuntimeError as error:
        if "finished reduction" in str(error):
            raise RicnetError(
                "the encoder has parameters that its output does not depend on, which several processes cannot share; "
                "remove them, or freeze them with requires_grad_(False)."
            ) from error
        if not isinstance(error, dist.DistError) and "gloo" not in str(error).lower():
            raise
        raise RicnetError(
            f"process {processes.rank} of {processes.count} lost the others, so one of them has ended (what it said "
            f"stands above, if it could); mend that and go on with {setting('resume', True)}."
        ) from error
    else:  # after an error the others may wait for ever, and this one for them; it ends without a farewell
        dist.destroy_process_group()


@contextmanager
def first_on_each_machine(processes: Processes) -> Iterator[None]:
    """The first process of a machine goes in alone, the others follow: what it left on the disk they need not make."""
    ahead = processes.count == 1 or os.environ.get("LOCAL_RANK", "0") == "0"
    if not ahead:
        processes.any(False)
    yield
    if ahead:
        processes.any(False)


def own_gpu() -> torch.device:
    """The GPU of this process: torchrun numbers those of a machine."""
    if launched().count == 1:
        return torch.device("cuda")
    index = int(os.environ.get("LOCAL_RANK", 0))
    if index >= torch.cuda.device_count():
        raise RicnetError(
            f"this machine has {torch.cuda.device_count()} CUDA devices, too few for process {index} on it; "
            "lower --nproc-per-node."
        )
    return torch.device("cuda", index)
