"""The processes that train one network together: who this one is, whose rows are whose, and how they speak.

Alone, which is the rule, everything here is free: nothing is sent, and what is asked for is handed back as it came.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from jaxtyping import Num
from torch import Tensor

T = TypeVar("T")


@dataclass(frozen=True)
class Processes:
    rank: int = 0
    count: int = 1

    @property
    def first(self) -> bool:
        """The one that writes and prints."""
        return self.rank == 0

    def slice(self, rows: int, rank: int | None = None) -> slice:
        """A process's own among so many rows, this one's if none is named: neighbours, and equally many but for one."""
        rank = self.rank if rank is None else rank
        return slice(rows * rank // self.count, rows * (rank + 1) // self.count)

    def agree(self, make: Callable[[], T]) -> T:
        """What the first process makes of it, on all of them."""
        if self.count == 1:
            return make()
        made: list[Any] = [make() if self.first else None]
        dist.broadcast_object_list(made, src=0)
        return made[0]  # type: ignore[no-any-return]

    def collect(self, mine: T) -> list[T]:
        """On the first process what all of them have, by rank; on the others only their own."""
        if self.count == 1:
            return [mine]
        made: list[Any] | None = [None] * self.count if self.first else None
        dist.gather_object(mine, made, dst=0)
        return [mine] if made is None else made

    def any(self, mine: bool) -> bool:
        """Whether one of them says yes. On the host, so that a GPU's queue is not waited for."""
        if self.count == 1:
            return mine
        said = torch.tensor(int(mine))
        dist.all_reduce(said, dist.ReduceOp.MAX)
        return bool(said)

    def add(self, mine: Num[Tensor, "*any"]) -> Num[Tensor, "*any"]:
        """The sum over all of them, in place."""
        if self.count > 1:
            dist.all_reduce(mine)
        return mine

    def make_alike(self, mine: Iterable[Num[Tensor, "*any"]]) -> None:
        """Give all of them the tensors of the first, in place."""
        if self.count > 1:
            for tensor in mine:
                dist.broadcast(tensor, src=0)

    def share(self, rows: int) -> "Share":
        return Share(rows, self)


ALONE = Processes()


@dataclass(frozen=True)
class Share:
    """This process's rows of a minibatch that has so many."""

    rows: int
    processes: Processes = ALONE

    def mine(self, whole: Num[Tensor, "..."], dim: int) -> Num[Tensor, "..."]:
        """Of something that has an entry a row, along `dim`, those of this process."""
        own = self.processes.slice(self.rows)
        return whole if self.processes.count == 1 else whole.narrow(dim, own.start, own.stop - own.start)

    def whole(self, mine: Num[Tensor, "..."], dim: int) -> Num[Tensor, "..."]:
        """The rows of all processes, in the order in which one process would have them. No gradient comes back."""
        if self.processes.count == 1:
            return mine
        front = mine.detach().movedim(dim, 0)
        sizes = [own.stop - own.start for own in map(self._slice, range(self.processes.count))]
        padded = front.new_zeros(max(sizes), *front.shape[1:])  # what is sent must be equally large everywhere
        padded[: len(front)] = front
        received = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(received, padded)
        every = torch.cat([part[:size] for part, size in zip(received, sizes, strict=True)])
        return every.movedim(0, dim).contiguous()  # random numbers are drawn in the order of memory

    def _slice(self, rank: int) -> slice:
        return self.processes.slice(self.rows, rank)
