"""The network before training: its encoder, found or built once, its random generator, and the batch size that fits
into memory.

`resolve` is the one place that finds a pretrained encoder; all later code reads the `Encoder` that it returns.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace

import torch
from jaxtyping import Num
from rich.console import Console
from torch import Tensor, nn

from ricnet.core.policies import building_with
from ricnet.data import Dataset
from ricnet.distributed import Processes
from ricnet.errors import RicnetError, setting
from ricnet.machine import SHARE, free_bytes
from ricnet.models.classifier import autocast_dtype, build_model, settle_horizon
from ricnet.models.config import Config
from ricnet.models.locate import find_encoder, read_encoder
from ricnet.models.run import RunFolder, read_config
from ricnet.nets.backbone import cached_features, example_input, in_eval_mode
from ricnet.nets.encoders import TINY_IMAGE, build_encoder, is_ours, is_registered_outside
from ricnet.nets.pretrained import Pretrained
from ricnet.training.features import featured

FEWEST_ROWS = 8
"""Smallest batch size that memory may enforce; statistics of fewer rows are too noisy for batch norm."""
BYTES_PER_OUTPUT_BYTE = 2
"""Bytes in use for each byte of the encoder's outputs. Measured on a CPU: 0.8 to 1.3 for ResNets; 3.5 for the smallest
encoder, whose batches are small beside any memory."""


@dataclass(frozen=True)
class Encoder:
    """The encoder of a run, found or built once, before batch size and horizon, which depend on it."""

    module: nn.Module
    pretrained: bool = False
    """Trained before this run: an MLP follows it, and the run folder keeps its weights."""
    frozen: bool = False
    """Not trained: the network learns from its features."""
    rng: Tensor | None = None
    """State of the run's generator after drawing its weights; None if it is given, not built from the settings."""

    @property
    def given(self) -> nn.Module | None:
        """The user's module or a pretrained one; None if the settings describe it."""
        return self.module if self.rng is None else None


def resolve(
    config: Config,
    dataset: Dataset,
    device: torch.device,
    given: nn.Module | None = None,
    resumed: RunFolder | None = None,
) -> tuple[Config, Encoder]:
    """The configuration with the horizon of its exits, and the encoder: the user's, a pretrained one, which is read
    from the folder of a resumed run, or one that is built from the settings."""
    if config.oversize != dataset.oversize:
        raise RicnetError(
            f"{setting('oversize', config.oversize)} does not fit {dataset.name}, whose images are stored at "
            f"{dataset.oversize:g} times the resolution; leave it out."
        )
    if given is None and config.network.pretrained:
        described = None if resumed is None else read_config(resumed.path).get("encoder")
        given = find_encoder(config.network.encoder) if resumed is None else read_encoder(described, resumed)
    if given is None:
        encoder = build_first(config, dataset.input_shape, device)
    else:
        encoder = Encoder(given, config.network.pretrained, config.network.freeze)
    return settle_horizon(config, dataset.input_shape, encoder.module), encoder


def build_first(config: Config, input_shape: tuple[int, ...], device: torch.device) -> Encoder:
    """The encoder that the settings describe, with the weights that training starts from."""
    with isolated_rng(config, device, None):
        generator = seeded_generator(config, None, device)
        with building_with(generator):
            encoder = build_encoder(config.network, config.view_shape(input_shape))
        return Encoder(encoder, rng=(generator or torch.default_generator).get_state())


def behind_frozen(
    config: Config, dataset: Dataset, encoder: Encoder, device: torch.device, console: Console | None
) -> tuple[Dataset, Encoder | None]:
    """Data and encoder of the network that is trained. With a frozen encoder the data are its features, and there is no
    encoder, or with exits a stand-in with the shapes of its stages."""
    if not encoder.frozen:
        return dataset, encoder
    refuse_other_kind(encoder.module, dataset, config)
    settings, exits = config.optimization, config.network.exits
    varied = settings.augmentation(dataset.augmentation)
    copies = settings.augmented_copies if settings.augment and dataset.is_image else 0
    features = featured(dataset, encoder.module, device, copies, varied, console, exits)
    if exits == "none":
        return features, None
    return features, replace(encoder, module=cached_features(encoder.module, dataset.input_shape, exits))


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
    backbone.fit_normalization(dataset.train.inputs, dataset.train.labels)
    backbone.autocast = autocast_dtype(config.optimization.precision, device)
    model = model.to(device).train()
    processes.broadcast_tensors(model.state_dict().values())
    # channels last, in which convolutions are fastest; on a CPU only for images large enough to be worth it
    worth = max(dataset.view_shape[1:], default=0) > TINY_IMAGE and not has_narrow_shortcut(model)
    if dataset.is_image and (device.type == "cuda" or worth):
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        torch.backends.cudnn.benchmark = True
    return model


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
        raise RicnetError(f"{encoder} reads texts, but the inputs are {dataset.unit}; leave it out.")
    raise RicnetError(
        f"{encoder} cannot read texts, which {dataset.name} holds; use {setting('encoder', 'tfidf')} (a module of your "
        "own that reads token ids needs an attribute `vocabulary`, the number of ids)."
    )


# Random generator


def seeded_generator(config: Config, encoder: Encoder | None, device: torch.device) -> torch.Generator | None:
    """The generator of a run; None, with torch's global generators seeded, if it draws from those."""
    if draws_globally(config, encoder, device):
        torch.manual_seed(config.seed)
        generator = None
    else:
        generator = torch.Generator().manual_seed(config.seed)
    if encoder is not None and encoder.rng is not None:
        (generator or torch.default_generator).set_state(encoder.rng)
    return generator


def draws_globally(config: Config, encoder: Encoder | None, device: torch.device) -> bool:
    """Whether a run draws from torch's global generators: on a GPU, and with code from outside the package, which may
    draw from them (for example dropout in a user's encoder). Frozen and pretrained encoders are in eval mode."""
    given = None if encoder is None or config.network.freeze else encoder.given
    outside = (
        (given is not None and not isinstance(given, Pretrained))
        or is_registered_outside(config.network.encoder)
        or not is_ours(type(config.method))
    )
    return device.type != "cpu" or outside


@contextmanager
def isolated_rng(config: Config, device: torch.device, encoder: Encoder | None) -> Iterator[None]:
    """Restore the caller's random state, current device and choice of kernels; turn out-of-memory into a RicnetError.

    A run with its own generator does not touch torch's. One that draws globally seeds the global generator while it
    runs; other threads that draw at the same time share it, so that neither is reproducible."""
    on_gpu = device.type == "cuda"
    shared = draws_globally(config, encoder, device)
    forked = torch.random.fork_rng([device] if on_gpu else []) if shared else nullcontext()
    with forked, torch.cuda.device(device if on_gpu else -1):
        before = torch.backends.cudnn.benchmark
        try:
            yield
        except torch.OutOfMemoryError:
            raise RicnetError(
                f"{device} has too little memory for a batch size of {config.optimization.batch_size}; "
                f"lower {setting('batch_size')}, {setting('resolution')} or {setting('width')}."
            ) from None
        finally:
            torch.backends.cudnn.benchmark = before


# Memory


def fit_batch(
    config: Config, encoder: nn.Module, input_shape: tuple[int, ...], device: torch.device, processes: int = 1
) -> tuple[Config, list[str]]:
    """The configuration with a batch size that fits into memory, and a note if it is smaller."""
    wanted, free = config.optimization.batch_size, free_bytes(device)
    pieces = processes * config.optimization.accumulate
    example = example_input(encoder, input_shape)
    fitting = min(wanted, pieces * fitting_batch(encoder, example, math.ceil(wanted / pieces), free))
    if fitting == wanted:
        return config, []
    note = f"Batches of {fitting} instead of {wanted}, to fit into {free / 1e9:.1f} GB of free memory."
    return replace(config, optimization=replace(config.optimization, batch_size=fitting)), [note]


def fitting_batch(encoder: nn.Module, example: Num[Tensor, "1 ..."], batch_size: int, free: int) -> int:
    """`batch_size`, halved until an update fits into memory, but at least FEWEST_ROWS."""
    needed = BYTES_PER_OUTPUT_BYTE * activation_bytes(encoder, example)
    while batch_size >= 2 * FEWEST_ROWS and batch_size * needed > SHARE * free:
        batch_size //= 2
    return batch_size


@torch.no_grad()
def activation_bytes(encoder: nn.Module, example: Num[Tensor, "1 ..."]) -> int:
    """Size of the outputs of all layers for one input."""
    total = 0

    def count(_module: nn.Module, _inputs: object, output: object) -> None:
        nonlocal total
        if isinstance(output, Tensor):
            total += output.numel() * output.element_size()

    leaves = [module for module in encoder.modules() if not any(module.children())]
    hooks = [module.register_forward_hook(count) for module in leaves]
    try:
        with in_eval_mode(encoder):
            encoder(example)
    finally:
        for hook in hooks:
            hook.remove()
    return total
