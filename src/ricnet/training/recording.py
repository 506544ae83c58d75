"""The update of a trainer made faster, with the same results: compiled, and on a GPU recorded as a CUDA graph."""

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ricnet.models.classifier import backbone_of
from ricnet.training.optimization import reset_optimizer
from ricnet.training.speed import GraphedStep, compile_encoder, compile_method

if TYPE_CHECKING:
    from ricnet.training.trainer import Trainer

WORTH_COMPILING = 5_000
"""Updates from which on compiling the encoder saves more time than it takes."""


def records(trainer: "Trainer") -> bool:
    return trainer.device.type == "cuda" and trainer.settings.cuda_graph and trainer.processes.count == 1


def compiles(trainer: "Trainer", recorded: bool) -> bool:
    """By default only a recorded update is compiled: otherwise the host checks the guards of every block at each
    update, which takes longer than the compiled code saves (docs/performance.md)."""
    if trainer.settings.compile != "auto":
        return trainer.settings.compile == "on"
    return recorded and trainer.total_updates >= WORTH_COMPILING


def compile_update(trainer: "Trainer") -> None:
    """Compile the method and the encoders, if the settings ask for it or it is worth the time."""
    if not compiles(trainer, records(trainer)):
        return
    trainer.method = compile_method(trainer.method) if trainer.processes.count == 1 else trainer.method
    for network in {trainer.model, trainer.snapshot}:
        compile_encoder(backbone_of(network).encoder)


def record_update(trainer: "Trainer") -> Callable[[Tensor], None]:
    """The update as a CUDA graph, or as it is. Recording takes a few updates, which are undone, in place."""
    if not records(trainer):
        return trainer._learn
    weights = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
    rng, cuda_rng = torch.get_rng_state(), torch.cuda.get_rng_state(trainer.device)
    try:
        step: Callable[[Tensor], None] = GraphedStep(trainer._learn, trainer._next_rows())
    except RuntimeError as error:
        warnings.warn(f"this update cannot be recorded as a CUDA graph ({error}); training is slower.", stacklevel=2)
        step = trainer._learn
    trainer.model.load_state_dict(weights)
    trainer.averaging.restart()
    reset_optimizer(trainer.optimizer)
    trainer._clear_sums()
    torch.set_rng_state(rng)
    torch.cuda.set_rng_state(cuda_rng, trainer.device)
    return step
