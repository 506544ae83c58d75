"""Training that leaves nothing behind but the classifier: no folder, no checkpoint, no evaluation."""

import torch
from rich.console import Console
from torch import nn

from ricnet.data import Dataset
from ricnet.training.classifier import Classifier, autocast_dtype, build_model, stopping_by
from ricnet.training.config import Config
from ricnet.training.fitting import fit
from ricnet.training.surroundings import apart
from ricnet.training.trainer import Trainer


def train_in_memory(
    config: Config,
    dataset: Dataset,
    device: torch.device,
    *,
    encoder: nn.Module | None = None,
    console: Console | None = None,
) -> tuple[Classifier, int]:
    """The classifier, and how many epochs it took. Stopped by Ctrl-C, nothing is left. The caller's random state is
    kept."""
    with apart(config, device):
        trainer = Trainer(config, dataset, None, device, encoder, console=console)
        trainer.train()
        # A new network: the trained one may hold compiled code, which cannot be copied or pickled.
        model, backbone = build_model(config, dataset.input_shape, len(dataset.class_names), encoder)
        model.load_state_dict(trainer.best["weights"])
        backbone.autocast = autocast_dtype(config.optimization.precision, device)
        model = model.to(device).eval()
        fitted = fit(config, model, dataset.val)
    rule = fitted.halting
    method = stopping_by(config.method, rule.halt_threshold, rule.max_steps) if rule else config.method
    shape, names = dataset.input_shape, dataset.class_names
    classifier = Classifier(config, method, model, shape, names, fitted.reading.temperature)
    return classifier, trainer.update // trainer.updates_per_epoch
