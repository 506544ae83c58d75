"""Training inputs on the training device: all of them at once where they fit, else batch after batch from the host."""

from concurrent.futures import Future, ThreadPoolExecutor

import torch
from jaxtyping import Int64, Num
from torch import Tensor

from ricnet.data.memory import SHARE, free_bytes

THREADS = 8
"""Rows of a mapped file may have to come from the disk, which serves several readers better than one."""


def fits(inputs: Num[Tensor, "n ..."], device: torch.device) -> bool:
    """On a CPU they are where they are needed already, even in a mapped file."""
    return device.type == "cpu" or is_same(inputs.device, device) or inputs.nbytes <= SHARE * free_bytes(device)


def is_same(place: torch.device, device: torch.device) -> bool:
    """Whether a tensor's place is what `device` stands for: "cuda" is the GPU in use, and a tensor says which it is."""
    if place.type != device.type:
        return False
    index = torch.cuda.current_device() if device.type == "cuda" and device.index is None else device.index
    return index in (None, place.index)


class Feed:
    """While an update is computed from one batch, threads gather the next.

    A batch that comes from the host is put into the same place on the device every time, where a recorded update
    expects it.
    """

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

    def take(self, rows: Int64[Tensor, "batch"]) -> Num[Tensor, "batch ..."]:
        """The inputs of these rows; where they come from the host, those that were staged last."""
        return self.staged if self.streams else self.inputs[rows]

    def stage(self, rows: Int64[Tensor, "batch"], following: Int64[Tensor, "batch"]) -> None:
        """Bring rows to the device, and begin to gather those that will be asked for next."""
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
            copied.synchronize()  # else it would be overwritten while it is still being sent
        pieces = zip(rows.tensor_split(THREADS), self.buffers[self.turn].tensor_split(THREADS), strict=True)
        self.coming = rows, [self.pool.submit(self._read, own, place) for own, place in pieces]

    def _read(self, rows: Int64[Tensor, "some"], place: Num[Tensor, "some ..."]) -> None:
        torch.index_select(self.inputs, 0, rows, out=place)
