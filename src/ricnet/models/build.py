"""Build the network of a configuration, and find its parts."""

import copy
from dataclasses import replace

import torch
from torch import Tensor, nn

from ricnet.core.policies import building_with
from ricnet.errors import RicnetError, setting
from ricnet.evaluation.choices import require_affordable
from ricnet.io import without_folder
from ricnet.models.checkpoints import named_encoder
from ricnet.models.config import Config
from ricnet.nets.backbone import Backbone, embedding_size
from ricnet.nets.encoders import build_encoder, choose_encoder, mlp_size
from ricnet.nets.stages import divide


def encoder_name(config: Config, input_shape: tuple[int, ...]) -> str:
    """Name of the encoder for output; `auto` is resolved."""
    name = config.network.encoder
    named = "of your own" if name == "custom" else without_folder(choose_encoder(name, input_shape))
    return f"{named} (frozen)" if config.network.freeze else named


def build_model(
    config: Config, input_shape: tuple[int, ...], classes: int, encoder: nn.Module | None = None
) -> tuple[nn.Module, Backbone]:
    """The untrained network of a configuration; a copy of `encoder`, if given, replaces the configured one. A
    pretrained or frozen encoder is followed by the configured head; with exits the refiner reads its stages."""
    network, own = config.network, copy.deepcopy(encoder)
    features = own if network.pretrained else None
    size = None
    if features is not None and network.exits != "none":
        own, size = nn.Identity(), mlp_size(network)
    elif features is not None:
        own = build_encoder(network, (embedding_size(features, input_shape),))
    elif own is None:
        own = build_encoder(network, input_shape)
    backbone = Backbone(own, input_shape, network.exits, network.steps_per_exit, features, network.freeze, size)
    model = config.method.build(backbone, classes)
    if config.budget is not None:
        require_affordable(config.budget, model.costs[0])
    return model, backbone


def settle_horizon(config: Config, input_shape: tuple[int, ...], encoder: nn.Module | None = None) -> Config:
    """With exits, the horizon is the number of stages times the steps at each."""
    network = config.network
    if network.exits == "none" or not hasattr(config.method, "horizon"):
        return config
    own = named_encoder(network.encoder) if encoder is None else encoder
    with building_with(torch.Generator()):  # only its exits are counted
        own = own if own is not None else build_encoder(network, input_shape)
    steps = len(divide(own, network.exits)) * network.steps_per_exit
    return replace(config, method=replace(config.method, horizon=steps))  # type: ignore[call-arg]


def autocast_dtype(precision: str, device: torch.device) -> torch.dtype | None:
    if precision == "float32":
        return None
    supported = device.type == "cuda" and torch.cuda.is_bf16_supported()
    if precision == "bf16" and device.type == "cuda" and not supported:
        raise RicnetError(f"{setting('precision', 'bf16')} is not supported by this GPU; use float32.")
    return torch.bfloat16 if supported or precision == "bf16" else None


def encoder_weights(model: nn.Module) -> dict[str, Tensor]:
    """Entries of `model.state_dict()` that belong to a frozen encoder."""
    frozen = backbone_of(model).frozen_encoder
    if frozen is None:
        return {}
    inner = next(name for name, module in model.named_modules() if module is frozen)
    return {name: tensor for name, tensor in model.state_dict().items() if name.startswith(f"{inner}.")}


def own_weights(model: nn.Module) -> dict[str, Tensor]:
    """All entries except those of a frozen encoder, which has its own file."""
    frozen = encoder_weights(model)
    return {name: tensor for name, tensor in model.state_dict().items() if name not in frozen}


def backbone_of(model: nn.Module) -> Backbone:
    return next(module for module in model.modules() if isinstance(module, Backbone))


def learned(model: nn.Module) -> list[Tensor]:
    """Tensors that training changes: parameters and batch-norm averages. Other buffers may hold −∞, as masks do."""
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    averages = [mean for norm in norms for mean in (norm.running_mean, norm.running_var) if mean is not None]
    return [*model.parameters(), *averages]
