"""The learning rate over a run, and the optimizer it drives."""

import math

import torch
from torch import nn

from ricnet.training.config import Optimization


def rate_factor(update: int, total: int, warmup: int, schedule: str) -> float:
    """What the learning rate is multiplied by at an update counted from 0: up in a line, then level or a cosine."""
    if update < warmup:
        return (update + 1) / warmup
    if schedule == "constant":
        return 1.0
    return 0.5 * (1 + math.cos(math.pi * (update - warmup) / max(1, total - warmup)))


def make_optimizer(model: nn.Module, settings: Optimization) -> torch.optim.Optimizer:
    """AdamW spares biases and normalisation its decay; Adam and SGD decay everything, as in the paper's plain use."""
    lr, decay = settings.lr, settings.weight_decay
    if settings.optimizer == "adam":
        return torch.optim.Adam(model.parameters(), lr, weight_decay=decay)
    if settings.optimizer == "sgd":
        return torch.optim.SGD(model.parameters(), lr, momentum=settings.momentum, weight_decay=decay)
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr)
