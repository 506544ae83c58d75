"""Networks of timm, with the weights of a safetensors file."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn

from ricnet.errors import RicnetError, first_line, listed, require_extra, setting
from ricnet.nets.architecture import Architecture, count_weights
from ricnet.nets.memory_limit import OverLimit, limit_for

PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".pkl", ".ckpt", ".tar")
COUNTED = "num_batches_tracked"
"""A counter of batch norm that nothing reads; some files lack it."""


def read(name: str, file: Path) -> tuple[nn.Module, Architecture]:
    """The network of that name with the weights of a file, whose keys must match; those of the classifier on top are
    ignored."""
    if file.suffix.lower() in PICKLE_SUFFIXES:
        raise RicnetError(f"{file} may run code when it is read; save its weights as safetensors.")
    architecture = timm_architecture(name)
    try:
        with limit_for(count_weights(file)):
            network = build(architecture)
    except OverLimit as error:
        raise RicnetError(f"{file} holds fewer weights than {name} of timm has; it is of another network.") from error
    on_top: Any = network.pretrained_cfg["classifier"]  # type: ignore[index]
    heads = tuple(f"{head}." for head in ([on_top] if isinstance(on_top, str) else on_top or ()))
    weights = {key: tensor.float() for key, tensor in load_file(file).items() if not key.startswith(heads)}
    own = {key: tensor for key, tensor in network.state_dict().items() if not key.endswith(COUNTED)}
    odd = sorted(own.keys() ^ {key for key in weights if not key.endswith(COUNTED)})
    odd = odd or [key for key, tensor in own.items() if tensor.shape != weights[key].shape]
    if odd:
        raise RicnetError(f"{file} does not hold the weights of {name} of timm (see {listed(odd)}); give another file.")
    network.load_state_dict(weights, strict=False)
    return network, architecture


def timm_architecture(name: str) -> Architecture:
    found = _create(name).pretrained_cfg
    return Architecture("timm", {"name": name}, "images", found["input_size"][1:], found["mean"], found["std"])


def timm_source(name: str) -> str | None:
    """The repository on the Hub with the weights of a network."""
    source = _create(name).pretrained_cfg.get("hf_hub_id")
    return source if isinstance(source, str) else None


def build(architecture: Architecture) -> nn.Module:
    """The network with random weights."""
    return _create(str(architecture.network.get("name")))  # type: ignore[no-any-return]


def _create(name: str) -> Any:
    """A network of timm without a classifier on top."""
    timm = require_timm()
    if not timm.is_model(name):
        close = timm.list_models(f"*{name.split('.')[0]}*")
        known = f"it has {listed(close)}" if close else "timm.list_models() lists its networks"
        raise RicnetError(f"{setting('encoder', f'timm:{name[:80]}')} is unknown to timm {timm.__version__}; {known}.")
    return timm.create_model(name, pretrained=False, num_classes=0)


def require_timm() -> Any:
    require_extra(f"{setting('encoder')} timm:…", "timm", "timm", "torchvision")
    try:
        import timm
    except Exception as error:  # a torchvision built for another torch raises any kind of error
        raise RicnetError(
            f"timm cannot be imported ({first_line(error)}); install the torchvision that goes with torch "
            f"{torch.__version__}."
        ) from error
    return timm
