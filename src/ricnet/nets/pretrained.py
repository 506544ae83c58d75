"""Encoders that others have trained: checkpoints of transformers and of timm, as modules from inputs as the data holds
them to embeddings. How images are scaled and normalised comes from the checkpoint and is part of the module.

A checkpoint may be a stranger's: weights are read from safetensors only, no code that comes with it is run, and what
its configuration asks for is held against the weights there are before memory is taken. transformers can fetch code
from the Hub by a name in a configuration (kernels for attention or experts, quantization); such names are dropped, and
no request is sent to the Hub while a network is built.
"""

import dataclasses
import inspect
import json
import logging
import math
import re
import sys
import threading
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64, Integer, Num
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from ricnet.errors import RicnetError, first_line, listed, require_extra, setting
from ricnet.io import misfit, parse_json, read_text
from ricnet.nets.encoders import Exits, as_embedding
from ricnet.nets.layers import ImageStage, Part, TextStage, divisions, lengths, longest, mean_of_tokens
from ricnet.nets.memory_limit import OverLimit, limit_for

PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "tf_model.h5", "flax_model.msgpack")
"""What checkpoints keep their weights in if not in safetensors."""
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".pkl", ".ckpt", ".tar")
LARGEST_SIDE = 4096
ROUNDING = 1e-4
"""By how much of the largest number the stages of a network may be off it."""
COUNTED = "num_batches_tracked"
"""What batch norm counts and nothing reads; some files leave it out."""
FORGOTTEN = ("id2label", "label2id", "_name_or_path", "architectures", "auto_map", "transformers_version", "dtype")
"""Of a configuration of transformers: what says nothing about the network."""
ALWAYS_ALLOWED = ("model_type", "rope_scaling", "rope_parameters")
"""Keys of a configuration that are read though not every class declares them."""
NAMES_CODE = re.compile("implementation|quantization|kernel_config|auto_map|remote_code")
"""Keys by which a configuration can name code on the Hub, at any depth."""
_BUILDING = threading.RLock()


@dataclass(frozen=True)
class Architecture:
    """All it takes to build such an encoder, but for its weights; part of the config.json of a run."""

    library: Literal["transformers", "timm"]
    network: dict[str, Any]
    """What the library builds it from."""
    reads: Literal["images", "tokens"]
    size: tuple[int, int] = (0, 0)
    """Height and width that images are resized to."""
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    """Of its pixels from 0 to 1, a number a channel."""
    pooler: bool = True
    """Whether the checkpoint has weights for the pooling layer that transformers puts on top."""
    pad: int = 0
    """The token that fills up a text."""

    def to_json(self) -> dict[str, Any]:
        entry: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return entry


def architecture_from_json(entry: object, source: str) -> Architecture:
    """It comes from a file, so nothing in it is trusted."""
    form = {
        "library": lambda value: value in ("transformers", "timm"),
        "network": lambda value: isinstance(value, dict),
        "reads": lambda value: value in ("images", "tokens"),
        "size": lambda value: _numbers(value, 2) and all(_is_side(side, least=0) for side in value),
        "mean": _numbers,
        "std": _numbers,
        "pooler": lambda value: isinstance(value, bool),
        "pad": lambda value: isinstance(value, int) and value >= 0,
    }
    wrong = misfit(entry, form)
    if wrong is not None or not isinstance(entry, dict) or set(entry) != set(form):
        raise RicnetError(f"{source} does not say what its encoder is ({wrong or 'unknown entries'}); restore it.")
    lists = {name: tuple(entry[name]) for name in ("size", "mean", "std")}
    return Architecture(**entry | lists)


def _numbers(value: object, count: int | None = None) -> bool:
    numbers = isinstance(value, list) and all(isinstance(n, int | float) and math.isfinite(n) for n in value)
    return numbers and (count is None or len(value) == count)  # type: ignore[arg-type]


def _is_side(side: object, least: int = 1) -> bool:
    return isinstance(side, int) and not isinstance(side, bool) and least <= side <= LARGEST_SIDE


class Pretrained(nn.Module):
    """A network of another library. It stays in eval mode, also while it is fine-tuned: batch norm keeps the averages
    it came with, and there is no dropout, which would show the network another input than its snapshot."""

    def __init__(self, network: nn.Module, architecture: Architecture) -> None:
        super().__init__()
        self.network, self.architecture = network, architecture
        self.eval()

    def train(self, mode: bool = True) -> "Pretrained":
        return super().train(False)

    @torch.no_grad()
    def stages(self, exits: Exits) -> list[nn.Module]:
        """Its layers in order, the last with the norm after them, up to the hidden states that it is pooled from: with
        `block` each layer or residual block, with `stage` each stage, of a transformer a quarter of its layers."""
        device = next(self.parameters()).device
        example = self._example().to(device)
        expected = self._hidden(example)
        for division in divisions(self.network, exits):
            stages, seen = [self._stage(parts, place == 0) for place, parts in enumerate(division)], example
            with suppress(Exception):  # parts of some other network by the same names
                for stage in stages:
                    seen = stage(seen)
                gap = (seen[..., : expected.shape[-1]] - expected).abs().max()
                if gap <= ROUNDING * expected.abs().max():
                    return stages
        raise RicnetError(
            f"{setting('exits', exits)}: it is not known where a {type(self.network).__name__} can be left; leave it "
            "out, or take another encoder."
        )

    @abstractmethod
    def _example(self) -> Tensor:
        """Inputs on which it can be tried."""

    @abstractmethod
    def _hidden(self, inputs: Tensor) -> Tensor:
        """What its network makes of inputs, before it is pooled."""

    @abstractmethod
    def _stage(self, parts: list[Part], first: bool) -> nn.Module: ...


class ImageEncoder(Pretrained):
    """Pixels from 0 to 255, of any size, grey or in colour, to embeddings."""

    mean: Tensor
    std: Tensor

    def __init__(self, network: nn.Module, architecture: Architecture) -> None:
        super().__init__(network, architecture)
        self.register_buffer("mean", 255 * torch.tensor(architecture.mean).view(-1, 1, 1))
        self.register_buffer("std", 255 * torch.tensor(architecture.std).view(-1, 1, 1))

    def pixels(self, images: Num[Tensor, "batch channels h w"]) -> Float[Tensor, "batch colours h2 w2"]:
        """As the network reads them."""
        pixels = (images.to(self.mean.dtype).expand(-1, len(self.mean), -1, -1) - self.mean) / self.std
        height, width = self.architecture.size
        if pixels.shape[2:] != (height, width):
            smaller = height < pixels.shape[2] or width < pixels.shape[3]
            pixels = F.interpolate(pixels, (height, width), mode="bicubic", antialias=smaller)
        return pixels

    def forward(self, images: Num[Tensor, "batch channels h w"]) -> Float[Tensor, "batch embedding"]:
        output = self.network(self.pixels(images))
        tokens = getattr(output, "last_hidden_state", None)
        if not self.architecture.pooler and tokens is not None and tokens.ndim == 3:
            return tokens[:, 0]  # type: ignore[no-any-return]  # the class token, which the classifier on top reads
        return as_embedding(output)

    def _example(self) -> Num[Tensor, "1 channels h w"]:
        height, width = self.architecture.size
        return torch.linspace(0, 255, len(self.mean) * height * width).view(1, -1, height, width)

    def _hidden(self, images: Num[Tensor, "batch channels h w"]) -> Float[Tensor, "batch ..."]:
        network: Any = self.network
        pixels = self.pixels(images)
        found = network(pixels).last_hidden_state if self.architecture.library == "transformers" else None
        return network.forward_features(pixels) if found is None else found  # type: ignore[no-any-return]

    def _stage(self, parts: list[Part], first: bool) -> ImageStage:
        tokens: Any = getattr(self.network, "embeddings", self.network)
        class_token = any(getattr(tokens, name, None) is not None for name in ("cls_token", "class_embedding"))
        return ImageStage([self.pixels, *parts] if first else parts, class_token)


class TextEncoder(Pretrained):
    """Token ids, filled up with `pad`, to the mean over the tokens of each text."""

    def __init__(self, network: nn.Module, architecture: Architecture) -> None:
        super().__init__(network, architecture)
        self.vocabulary = int(architecture.network["vocab_size"])

    def forward(self, tokens: Integer[Tensor, "batch tokens"]) -> Float[Tensor, "batch embedding"]:
        tokens = self.cut(tokens)
        hidden = self._hidden(tokens)
        return mean_of_tokens(hidden, (tokens != self.architecture.pad).to(hidden.dtype))

    def lengths(self, tokens: Integer[Tensor, "batch tokens"]) -> Int64[Tensor, "batch"]:
        return lengths(tokens != self.architecture.pad)

    def cut(self, tokens: Integer[Tensor, "batch tokens"]) -> Integer[Tensor, "batch most"]:
        """As long as the longest of these texts."""
        return tokens[:, : longest(tokens != self.architecture.pad)]

    @property
    def word(self) -> int:
        """An id that is not there to fill up."""
        return int(self.architecture.pad == 0)

    def _example(self) -> Integer[Tensor, "2 tokens"]:
        """Two texts, of which one is shorter."""
        ids = [token for token in range(self.vocabulary) if token != self.architecture.pad][:6]
        short = [*ids[:-2], *[self.architecture.pad] * len(ids[-2:])]
        return torch.tensor([ids, short])

    def _hidden(self, tokens: Integer[Tensor, "batch tokens"]) -> Float[Tensor, "batch tokens size"]:
        ids = tokens.long()
        mask = (ids != self.architecture.pad).long()
        return self.network(input_ids=ids, attention_mask=mask).last_hidden_state  # type: ignore[no-any-return]

    def _stage(self, parts: list[Part], first: bool) -> TextStage:
        return TextStage(parts, self.architecture.pad if first else None)


def build(architecture: Architecture) -> Pretrained:
    """The encoder with random weights."""
    make = {"transformers": _hf_network, "timm": _timm_network}[architecture.library]
    kind = ImageEncoder if architecture.reads == "images" else TextEncoder
    return kind(make(architecture), architecture)


def rebuild(architecture: Architecture, weights: Mapping[str, Tensor], source: str) -> Pretrained:
    """The encoder with the weights that its `state_dict` once had."""
    try:
        with limit_for(sum(tensor.numel() for tensor in weights.values())):
            encoder = build(architecture)
        encoder.load_state_dict(weights)
    except RicnetError:
        raise
    except Exception as error:  # a network of any kind and of any version of its library
        raise RicnetError(f"{source} does not fit the encoder it belongs to ({first_line(error)}).") from error
    return encoder


# transformers


def read_hf(folder: Path) -> Pretrained:
    """The encoder in a folder as transformers saves it."""
    require_hf()
    _refuse_unknown_kind(folder)
    files = _weight_files(folder)
    numbers = sum(math.prod(shape) for file in files for shape in _shapes(file).values())
    from transformers import AutoModel

    try:
        with _quiet(), _offline(), limit_for(numbers):
            config = _hf_config(_read_json(folder / "config.json"))
            network, found = AutoModel.from_pretrained(
                folder,
                config=config,
                use_safetensors=True,
                dtype=torch.float32,
                output_loading_info=True,
                trust_remote_code=False,
                local_files_only=True,
            )
    except OverLimit as error:
        raise RicnetError(f"{folder}: config.json asks for a larger network than it has weights for.") from error
    except Exception as error:  # transformers raises a different kind for everything
        raise RicnetError(f"{folder} cannot be read by transformers ({first_line(error)}).") from error
    missing = sorted(name for name in found["missing_keys"] if not name.startswith("pooler."))
    if missing or found["mismatched_keys"]:
        names = listed(missing or sorted(str(key) for key in found["mismatched_keys"]))
        raise RicnetError(f"{folder} lacks weights of its own network ({names}); get a whole copy.")
    if found["missing_keys"]:
        network.pooler = None
    if hasattr(config, "vision_config"):
        network, config = _seeing(network, folder), config.vision_config
    _refuse_fetching(network)
    described = {name: value for name, value in config.to_dict().items() if name not in FORGOTTEN}
    architecture = Architecture(
        "transformers", json.loads(json.dumps(described)), "images", pooler=not found["missing_keys"]
    )
    if (folder / "preprocessor_config.json").is_file():
        return ImageEncoder(network, replace(architecture, **_image_settings(folder)))
    if getattr(config, "vocab_size", None) is None:
        raise RicnetError(
            f"{folder} has no preprocessor_config.json, which says how images are scaled and normalised; save it there "
            "with the image processor's save_pretrained."
        )
    return TextEncoder(network, replace(architecture, reads="tokens", pad=getattr(config, "pad_token_id", None) or 0))


def _seeing(network: nn.Module, folder: Path) -> nn.Module:
    """Of a network that reads images and texts, such as CLIP, the part that reads images."""
    from transformers import MODEL_MAPPING

    part = getattr(network, "vision_model", None)
    if part is None or type(part) is not MODEL_MAPPING.get(type(part.config), None):
        raise RicnetError(
            f"{folder} holds a {type(network).__name__}, which reads more than images; save the part that reads them "
            "in a folder of its own (save_pretrained)."
        )
    return part  # type: ignore[no-any-return]


def require_hf() -> None:
    require_extra(f"{setting('encoder')} hf:…", "hf", "transformers")


def _hf_network(architecture: Architecture) -> nn.Module:
    require_hf()
    from transformers import CONFIG_MAPPING, AutoModel

    kind = str(architecture.network.get("model_type"))
    if kind not in CONFIG_MAPPING:
        raise RicnetError(f"transformers knows no network of the kind {kind[:80]!r}; install a newer version.")
    with _quiet(), _offline():
        network: Any = AutoModel.from_config(_hf_config(architecture.network), trust_remote_code=False)
    _refuse_fetching(network)
    if not architecture.pooler:
        network.pooler = None
    return network  # type: ignore[no-any-return]


def _hf_config(entry: Mapping[str, Any]) -> Any:
    """A configuration of transformers with the allowed keys of `entry`. It names no implementation of attention, so
    transformers takes its own `sdpa`, or `eager` for networks without `sdpa`."""
    from transformers import CONFIG_MAPPING

    kind = CONFIG_MAPPING[entry["model_type"]]
    return kind.from_dict(allowed_settings(entry, kind))


def allowed_settings(entry: Mapping[str, Any], kind: Any) -> dict[str, Any]:
    """The keys that the class of a configuration declares, and numbers under any key: older files have undeclared keys
    that are still read, and a number cannot name code."""
    named = {*_declared(kind), *ALWAYS_ALLOWED} - set(FORGOTTEN)
    parts = getattr(kind, "sub_configs", None) or {}
    return {
        name: _harmless(value, parts.get(name))
        for name, value in entry.items()
        if not NAMES_CODE.search(name) and name not in FORGOTTEN and (name in named or _only_numbers(value))
    }


def _declared(kind: Any) -> set[str]:
    fields = {field.name for field in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else set()
    return fields | set(inspect.signature(kind.__init__).parameters) | set(getattr(kind, "attribute_map", ()))


def _harmless(value: Any, kind: Any = None) -> Any:
    """A value without keys that name code, at any depth; of the configuration of a part, its `allowed_settings`."""
    from transformers import CONFIG_MAPPING

    if isinstance(value, list):
        return [_harmless(each) for each in value]
    if not isinstance(value, dict):
        return value
    if isinstance(own := value.get("model_type"), str) and own in CONFIG_MAPPING:
        kind = CONFIG_MAPPING[own]
    if kind is not None and hasattr(kind, "model_type"):
        return allowed_settings(value, kind)
    return {name: _harmless(each) for name, each in value.items() if not NAMES_CODE.search(name)}


def _only_numbers(value: object) -> bool:
    if isinstance(value, list):
        return all(map(_only_numbers, value))
    return value is None or isinstance(value, int | float)


def _refuse_fetching(network: nn.Module) -> None:
    """Refuse networks of transformers that fetch a kernel from the Hub by themselves, some only when they run (rwkv,
    yoso, mra)."""
    for home in {type(module).__module__ for module in network.modules()}:
        if home.startswith("transformers.models.") and "get_kernel(" in inspect.getsource(sys.modules[home]):
            kind = home.split(".")[2]
            raise RicnetError(f"networks of the kind {kind} fetch code from the Hub; use a checkpoint of another kind.")


@contextmanager
def _offline() -> Iterator[None]:
    """Keep transformers and what it calls from asking the Hub, also for kernels, which are code. One thread at a time:
    the switches are global to the process."""
    from huggingface_hub import constants
    from transformers.integrations import hub_kernels

    def refuse(*_: object, **__: object) -> None:
        raise ImportError("it asks the Hub for a kernel, which is code")

    switches: list[tuple[Any, str, Any]] = [(constants, "HF_HUB_OFFLINE", True)]
    switches += [(hub_kernels, name, refuse) for name in ("get_kernel", "get_kernel_hub")]
    with _BUILDING:
        switches = [(place, name, value) for place, name, value in switches if hasattr(place, name)]
        before = [(place, name, getattr(place, name)) for place, name, _ in switches]
        try:
            for place, name, value in switches:
                setattr(place, name, value)
            yield
        finally:
            for place, name, value in before:
                setattr(place, name, value)


def _refuse_unknown_kind(folder: Path) -> None:
    from transformers import CONFIG_MAPPING

    entry = _read_json(folder / "config.json")
    kind = entry.get("model_type")
    if isinstance(kind, str) and kind in CONFIG_MAPPING and kind != "timm_wrapper":
        return
    if isinstance(entry.get("architecture"), str):
        raise RicnetError(
            f"{folder} is a checkpoint of timm; use {setting('encoder', 'timm:' + entry['architecture'])}."
        )
    if "auto_map" in entry:
        raise RicnetError(
            f"{folder} brings code of its own for its network, which is never run; use a checkpoint whose network "
            "transformers has."
        )
    raise RicnetError(
        f"{folder}: transformers knows no network of the kind {str(kind)[:80]!r} (model_type in config.json); install "
        "a newer version, or use another checkpoint."
    )


def _weight_files(folder: Path) -> list[Path]:
    """Those that hold the weights, all of them in the folder itself."""
    whole, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if whole.is_file():
        return [whole]
    if not index.is_file():
        pickles = [name for name in PICKLES if (folder / name).is_file()]
        if pickles:
            raise RicnetError(
                f"{folder} keeps its weights in {pickles[0]}, which may run code when it is read; save them as "
                "safetensors (model.save_pretrained of transformers does)."
            )
        raise RicnetError(f"{folder} holds no model.safetensors; give the folder of a whole checkpoint.")
    shards = _read_json(index).get("weight_map")
    names = sorted(set(shards.values()), key=str) if isinstance(shards, dict) else []
    for name in names or [None]:
        if not isinstance(name, str) or Path(name).name != name or not (folder / name).is_file():
            raise RicnetError(f"{index} names {str(name)[:80]!r}, which is no file in its folder; get a whole copy.")
    return [folder / name for name in names]


def _image_settings(folder: Path) -> dict[str, Any]:
    """Size, mean and deviation, in the several forms that image processors write them."""
    path = folder / "preprocessor_config.json"
    entry = _read_json(path)
    cropped = entry.get("crop_size") if entry.get("do_center_crop", "crop_size" in entry) else None
    size = cropped or entry.get("size")
    if isinstance(size, dict):
        side = size.get("shortest_edge")
        size = [size.get("height", side), size.get("width", side)]
    size = [size, size] if isinstance(size, int) else size
    normalizes = entry.get("do_normalize", True)
    mean = entry.get("image_mean") if normalizes else [0.0] * 3
    std = entry.get("image_std") if normalizes else [1.0] * 3
    factor = entry.get("rescale_factor", 1 / 255) if entry.get("do_rescale", True) else 1.0
    coloured = any(_numbers(mean, channels) and _numbers(std, channels) for channels in (1, 3))
    sound = coloured and _numbers(size, 2) and _numbers([factor]) and factor > 0
    if not sound or not all(map(_is_side, size)) or not all(std):  # type: ignore[arg-type]
        raise RicnetError(f"{path} does not say to what size images are scaled and how they are normalised.")
    scale = 255 * factor
    return {
        "size": tuple(size),  # type: ignore[arg-type]
        "mean": tuple(each / scale for each in mean),  # type: ignore[union-attr]
        "std": tuple(each / scale for each in std),  # type: ignore[union-attr]
    }


# timm


def read_timm(name: str, file: Path) -> Pretrained:
    """The network of timm's of that name with the weights of a safetensors file, whose names must be its own; those of
    the classifier on top are left out."""
    if file.suffix.lower() in PICKLE_SUFFIXES:
        raise RicnetError(f"{file} may run code when it is read; save its weights as safetensors.")
    architecture = timm_architecture(name)
    shapes = _shapes(file)
    try:
        with limit_for(sum(math.prod(shape) for shape in shapes.values())):
            encoder = build(architecture)
    except OverLimit as error:
        raise RicnetError(f"{file} holds fewer weights than {name} of timm has; it is of another network.") from error
    on_top = _timm_settings(encoder.network)["classifier"]
    heads = tuple(f"{head}." for head in ([on_top] if isinstance(on_top, str) else on_top or ()))
    weights = {key: tensor.float() for key, tensor in load_file(file).items() if not key.startswith(heads)}
    own = {key: tensor for key, tensor in encoder.network.state_dict().items() if not key.endswith(COUNTED)}
    odd = sorted(own.keys() ^ {key for key in weights if not key.endswith(COUNTED)})
    odd = odd or [key for key, tensor in own.items() if tensor.shape != weights[key].shape]
    if odd:
        raise RicnetError(f"{file} does not hold the weights of {name} of timm (see {listed(odd)}); give another file.")
    encoder.network.load_state_dict(weights, strict=False)
    return encoder


def timm_architecture(name: str) -> Architecture:
    read = _timm_settings(_empty_timm(name))
    return Architecture("timm", {"name": name}, "images", read["input_size"][1:], read["mean"], read["std"])


def timm_source(name: str) -> str | None:
    """The repository on the Hub with the weights of a network of timm's."""
    source = _timm_settings(_empty_timm(name)).get("hf_hub_id")
    return source if isinstance(source, str) else None


def _empty_timm(name: str) -> nn.Module:
    """With random weights, and no classifier on top."""
    timm = require_timm()
    if not timm.is_model(name):
        close = timm.list_models(f"*{name.split('.')[0]}*")
        meant = f"; timm has {listed(close)}" if close else "; timm.list_models() lists them"
        raise RicnetError(f"{setting('encoder', 'timm:' + name)} is unknown{meant}.")
    network: nn.Module = timm.create_model(name, pretrained=False, num_classes=0)
    return network


def require_timm() -> Any:
    require_extra(f"{setting('encoder')} timm:…", "timm", "timm", "torchvision")
    try:
        import timm
    except Exception as error:  # a torchvision of another torch ends in any kind of it
        raise RicnetError(
            f"timm cannot be imported ({first_line(error)}); install the torchvision that goes with torch "
            f"{torch.__version__}."
        ) from error
    return timm


def _timm_settings(network: nn.Module) -> dict[str, Any]:
    settings: dict[str, Any] = dict(network.pretrained_cfg)  # type: ignore[arg-type]
    return settings


def _timm_network(architecture: Architecture) -> nn.Module:
    timm, name = require_timm(), str(architecture.network.get("name"))
    if not timm.is_model(name):
        raise RicnetError(f"timm knows no network called {name[:80]!r}; install a newer version.")
    network: nn.Module = timm.create_model(name, pretrained=False, num_classes=0)
    return network


# What both read


def _read_json(path: Path) -> dict[str, Any]:
    try:
        entry = parse_json(read_text(path))
    except FileNotFoundError as error:
        raise RicnetError(f"{path.parent} holds no {path.name}; give the folder of a whole checkpoint.") from error
    except (ValueError, OSError) as error:
        raise RicnetError(f"{path} cannot be read ({error}); get a whole copy of the checkpoint.") from error
    if not isinstance(entry, dict):
        raise RicnetError(f"{path} holds no JSON object; get a whole copy of the checkpoint.")
    return entry


def _shapes(file: Path) -> dict[str, list[int]]:
    """Of its tensors, by name; only the header is read, and its length is held against that of the file."""
    try:
        with safe_open(file, framework="pt") as tensors:
            return {name: tensors.get_slice(name).get_shape() for name in tensors.keys()}  # noqa: SIM118
    except FileNotFoundError as error:
        raise RicnetError(f"{file} does not exist; give the path of a safetensors file.") from error
    except Exception as error:  # its header is JSON that anyone may have written
        raise RicnetError(f"{file} is no safetensors file, or a damaged one ({first_line(error)}).") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """transformers reports weights it does not use, and draws bars."""
    from transformers.utils import logging as reports

    level, bars = reports.get_verbosity(), reports.is_progress_bar_enabled()
    reports.set_verbosity(logging.CRITICAL)
    reports.disable_progress_bar()
    try:
        yield
    finally:
        reports.set_verbosity(level)
        if bars:
            reports.enable_progress_bar()
