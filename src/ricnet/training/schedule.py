"""The learning rate over a run, and the optimizer it drives."""

import math
from typing import Any

import torch
from torch import nn

from ricnet.training.config import Optimization


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
    if settings.optimizer == "sgd":
        momentum = settings.momentum
        return torch.optim.SGD(model.parameters(), rate, momentum=momentum, weight_decay=decay, fused=on_gpu)
    if settings.optimizer == "adam":
        return torch.optim.Adam(model.parameters(), rate, weight_decay=decay, capturable=on_gpu, fused=on_gpu)
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, rate, capturable=on_gpu, fused=on_gpu)


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


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
