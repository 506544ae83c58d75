"""What fits into memory: all images on the host, a batch and what the network makes of it on the device."""

import os
from pathlib import Path

import torch
from jaxtyping import Num
from torch import Tensor, nn

SHARE = 0.5
"""Of the memory that is free, that data or a batch may take; the rest is for weights, copies and other programs."""
FEWEST = 8
KEPT = 2
"""Bytes in use at once for each byte of the encoder's outputs. Measured on a CPU: 0.8 to 1.3 for ResNets;
3.5 for the smallest encoder, whose batches are small beside any memory."""


def free_bytes(device: torch.device) -> int:
    """An estimate; where the system does not say what is free, half of all there is, or of 8 GiB."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 2**33
        return total // 2


def fitting_batch(encoder: nn.Module, example: Num[Tensor, "1 ..."], batch_size: int, free: int) -> int:
    """`batch_size`, halved until an update fits; but never so small that its statistics mean nothing."""
    needed = KEPT * activation_bytes(encoder, example)
    while batch_size >= 2 * FEWEST and batch_size * needed > SHARE * free:
        batch_size //= 2
    return batch_size


@torch.no_grad()
def activation_bytes(encoder: nn.Module, example: Num[Tensor, "1 ..."]) -> int:
    """What all layers of a network make of one input."""
    total = 0

    def count(_module: nn.Module, _inputs: object, output: object) -> None:
        nonlocal total
        if isinstance(output, Tensor):
            total += output.numel() * output.element_size()

    leaves = [module for module in encoder.modules() if not any(module.children())]
    hooks = [module.register_forward_hook(count) for module in leaves]
    was_training = encoder.training
    try:
        encoder.eval()(example)
    finally:
        encoder.train(was_training)
        for hook in hooks:
            hook.remove()
    return total
