"""The network of a run: its random generator, its weights before training, and whether it can read the data."""

import torch
from torch import nn

from ricnet.core.policies import building_with
from ricnet.data import Dataset
from ricnet.distributed import Processes
from ricnet.errors import RicnetError, setting
from ricnet.models.classifier import autocast_dtype, build_model
from ricnet.models.config import Config
from ricnet.nets.encoders import TINY_IMAGE, is_ours, is_registered_outside
from ricnet.nets.pretrained import Pretrained


def seeded_generator(config: Config, encoder: nn.Module | None, device: torch.device) -> torch.Generator | None:
    """The generator of a run; None, with torch's global generators seeded, if it draws from those."""
    if draws_globally(config, encoder, device):
        torch.manual_seed(config.seed)
        return None
    return torch.Generator().manual_seed(config.seed)


def draws_globally(config: Config, encoder: nn.Module | None, device: torch.device) -> bool:
    """Whether a run draws from torch's global generators: on a GPU, and with code from outside the package, which may
    draw from them (for example dropout in a user's encoder)."""
    frozen = config.network.freeze or isinstance(encoder, Pretrained)  # these are in eval mode
    outside = (
        (encoder is not None and not frozen)
        or is_registered_outside(config.network.encoder)
        or not is_ours(type(config.method))
    )
    return device.type != "cpu" or outside


def initial_network(
    config: Config,
    dataset: Dataset,
    encoder: nn.Module | None,
    device: torch.device,
    generator: torch.Generator | None,
    processes: Processes,
) -> nn.Module:
    """The network before its first update, the same in all processes, on its device and in training mode."""
    with building_with(generator):
        model, backbone = build_model(config, dataset.input_shape, len(dataset.class_names), encoder)
    refuse_other_kind(backbone.reader, dataset, config)
    backbone.fit_normalization(dataset.train.inputs)
    backbone.autocast = autocast_dtype(config.optimization.precision, device)
    model = model.to(device).train()
    processes.broadcast_tensors(model.state_dict().values())
    _choose_layout(model, dataset, device)
    return model


def _choose_layout(model: nn.Module, dataset: Dataset, device: torch.device) -> None:
    """Channels last, in which convolutions are fastest; on a CPU only for images large enough to be worth it."""
    on_cpu = max(dataset.input_shape[1:], default=0) > TINY_IMAGE and not has_narrow_shortcut(model)
    if dataset.is_image and (device.type == "cuda" or on_cpu):
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        torch.backends.cudnn.benchmark = True


def has_narrow_shortcut(model: nn.Module) -> bool:
    """Whether a strided 1×1 convolution reads fewer than 8 channels. With channels last torch 2.13 corrupts memory in
    its backward pass on a CPU."""
    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    return any(c.kernel_size == (1, 1) and c.stride != (1, 1) and c.in_channels < 8 for c in convolutions)


def refuse_other_kind(reader: nn.Module, dataset: Dataset, config: Config) -> None:
    """Refuse an encoder of token ids on other data, one of other data on token ids, and ids beyond its vocabulary."""
    encoder, known = setting("encoder", config.network.encoder), getattr(reader, "vocabulary", None)
    if known is not None and dataset.is_text and int(dataset.train.inputs.max()) >= known:
        raise RicnetError(f"{dataset.name} has token ids beyond the {known:,} that {encoder} knows; use its tokenizer.")
    if (known is not None) == dataset.is_text:
        return
    if known is not None:
        raise RicnetError(f"{encoder} reads texts, but {dataset.name} holds {dataset.unit}; leave it out.")
    raise RicnetError(
        f"{encoder} reads no texts, which {dataset.name} holds; use {setting('encoder', 'words')} (a module of your "
        "own that reads token ids says so by an attribute `vocabulary`, how many there are)."
    )
