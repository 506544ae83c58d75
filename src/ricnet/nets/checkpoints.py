"""Checkpoints of pretrained encoders: the architecture that config.json of a run stores, checks of the files of a
checkpoint, and networks of transformers from a folder as `save_pretrained` writes it.

Checkpoints are untrusted: their JSON is validated, weights are read from safetensors files only, code that comes with
them is never run, and a configuration may not ask for more memory than its weights need. transformers can fetch code
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

import torch
from safetensors import safe_open
from torch import nn
from torch.overrides import TorchFunctionMode

from ricnet.errors import RicnetError, first_line, listed, require_extra, setting
from ricnet.io import misfit, parse_json, read_text

LARGEST_SIDE = 4096
SLACK = 1 << 24
"""Numbers that a network may allocate beside its weights."""
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "tf_model.h5", "flax_model.msgpack")
"""Files of weights that are not safetensors."""
IGNORED_KEYS = ("id2label", "label2id", "_name_or_path", "architectures", "auto_map", "transformers_version", "dtype")
"""Keys of a configuration that do not describe the network."""
ALWAYS_ALLOWED = ("model_type", "rope_scaling", "rope_parameters")
"""Keys of a configuration that are read though not every class declares them."""
NAMES_CODE = re.compile("implementation|quantization|kernel_config|auto_map|remote_code")
"""Keys by which a configuration can name code on the Hub, at any depth."""
_BUILDING = threading.RLock()


@dataclass(frozen=True)
class Architecture:
    """Everything that builds a pretrained encoder except its weights; part of the config.json of a run."""

    library: Literal["transformers", "timm"]
    network: dict[str, Any]
    """Arguments with which the library builds the network."""
    reads: Literal["images", "tokens"]
    size: tuple[int, int] = (0, 0)
    """Height and width that images are resized to."""
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    """Mean and standard deviation of pixels from 0 to 1, one number per channel."""
    pooler: bool = True
    """Whether the checkpoint has weights for the pooling layer that transformers adds."""
    pad: int = 0
    """Id of the padding token."""

    def to_json(self) -> dict[str, Any]:
        entry: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return entry


def architecture_from_json(entry: object, source: str) -> Architecture:
    """Reads untrusted JSON; `source` names its file in errors."""
    form = {
        "library": lambda value: value in ("transformers", "timm"),
        "network": lambda value: isinstance(value, dict),
        "reads": lambda value: value in ("images", "tokens"),
        "size": lambda value: are_numbers(value, 2) and all(is_side(side, least=0) for side in value),
        "mean": are_numbers,
        "std": are_numbers,
        "pooler": lambda value: isinstance(value, bool),
        "pad": lambda value: isinstance(value, int) and value >= 0,
    }
    wrong = misfit(entry, form)
    if wrong is not None or not isinstance(entry, dict) or set(entry) != set(form):
        raise RicnetError(f"{source} does not describe its encoder ({wrong or 'unknown entries'}); restore it.")
    return Architecture(**entry | {name: tuple(entry[name]) for name in ("size", "mean", "std")})


def are_numbers(value: object, count: int | None = None) -> bool:
    numbers = isinstance(value, list) and all(isinstance(n, int | float) and math.isfinite(n) for n in value)
    return numbers and (count is None or len(value) == count)  # type: ignore[arg-type]


def is_side(side: object, least: int = 1) -> bool:
    return isinstance(side, int) and not isinstance(side, bool) and least <= side <= LARGEST_SIDE


def read_json(path: Path) -> dict[str, Any]:
    try:
        entry = parse_json(read_text(path))
    except FileNotFoundError as error:
        raise RicnetError(f"{path.parent} holds no {path.name}; give the folder of a whole checkpoint.") from error
    except (ValueError, OSError) as error:
        raise RicnetError(f"{path} cannot be read ({error}); get a whole copy of the checkpoint.") from error
    if not isinstance(entry, dict):
        raise RicnetError(f"{path} is not a JSON object; get a whole copy of the checkpoint.")
    return entry


def count_weights(file: Path) -> int:
    """Numbers in a safetensors file, from its header."""
    try:
        with safe_open(file, framework="pt") as tensors:
            return sum(math.prod(tensors.get_slice(name).get_shape()) for name in tensors.keys())  # noqa: SIM118
    except FileNotFoundError as error:
        raise RicnetError(f"{file} does not exist; give the path of a safetensors file.") from error
    except Exception as error:  # its header is untrusted JSON
        raise RicnetError(
            f"{file} is not a safetensors file, or is damaged ({first_line(error)}); get it again."
        ) from error


# Limit of the memory of a network that is built from an untrusted file: a few bytes can ask for terabytes


class OverLimit(Exception):
    """A network would need more memory than its `MemoryLimit`."""


class MemoryLimit(TorchFunctionMode):
    """Context that raises `OverLimit` before the tensors created in it exceed this many numbers in total."""

    def __init__(self, numbers: int) -> None:
        super().__init__()
        self.left = numbers

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if function in (torch.empty, torch.zeros, torch.ones):
            size = args[0] if args and isinstance(args[0], Sequence) else args
            self.left -= math.prod(size)
            if self.left < 0:
                raise OverLimit
        return function(*args, **(kwargs or {}))


def limit_for(weights: int) -> MemoryLimit:
    """The limit for a network with this many weights, and for its position tables, masks and activations."""
    return MemoryLimit(4 * weights + SLACK)


# Networks of transformers


def require_hf() -> None:
    require_extra(f"{setting('encoder')} hf:…", "hf", "transformers")


def read(folder: Path) -> tuple[nn.Module, Architecture]:
    """The network in a folder, and how its inputs are prepared."""
    require_hf()
    _refuse_unknown_kind(folder)
    network, found = _load(folder)
    config: Any = network.config
    if hasattr(config, "vision_config"):
        network, config = _vision_part(network, folder), config.vision_config
    _refuse_fetching(network)
    described = {name: value for name, value in config.to_dict().items() if name not in IGNORED_KEYS}
    described, pooler = json.loads(json.dumps(described)), not found["missing_keys"]
    if (folder / "preprocessor_config.json").is_file():
        size, mean, std = _image_settings(folder / "preprocessor_config.json")
        return network, Architecture("transformers", described, "images", size, mean, std, pooler)
    if getattr(config, "vocab_size", None) is None:
        raise RicnetError(
            f"{folder} has no preprocessor_config.json, which says how images are scaled and normalised; save it there "
            "with the image processor's save_pretrained."
        )
    pad = getattr(config, "pad_token_id", None) or 0
    return network, Architecture("transformers", described, "tokens", pooler=pooler, pad=pad)


def _load(folder: Path) -> tuple[Any, Mapping[str, Any]]:
    """The network, and the report of transformers about missing weights."""
    from transformers import AutoModel

    weights = sum(map(count_weights, _weight_files(folder)))
    try:
        with _isolated(), limit_for(weights):
            network, found = AutoModel.from_pretrained(
                folder,
                config=_config(read_json(folder / "config.json")),
                use_safetensors=True,
                dtype=torch.float32,
                output_loading_info=True,
                trust_remote_code=False,
                local_files_only=True,
            )
    except OverLimit as error:
        raise RicnetError(
            f"{folder}: config.json asks for a larger network than it has weights for; get a whole copy."
        ) from error
    except Exception as error:  # transformers raises many kinds of errors
        raise RicnetError(
            f"{folder} cannot be read by transformers ({first_line(error)}); get a whole copy or another checkpoint."
        ) from error
    missing = sorted(name for name in found["missing_keys"] if not name.startswith("pooler."))
    if missing or found["mismatched_keys"]:
        names = listed(missing or sorted(str(key) for key in found["mismatched_keys"]))
        raise RicnetError(f"{folder} lacks weights of its network ({names}); get a whole copy.")
    if found["missing_keys"]:
        network.pooler = None
    return network, found


def _vision_part(network: nn.Module, folder: Path) -> nn.Module:
    """The part that reads images, of a network that also reads texts, such as CLIP."""
    from transformers import MODEL_MAPPING

    part = getattr(network, "vision_model", None)
    if part is None or type(part) is not MODEL_MAPPING.get(type(part.config), None):
        raise RicnetError(
            f"{folder} holds a {type(network).__name__}, which reads more than images; save the part that reads them "
            "in a folder of its own (save_pretrained)."
        )
    return part  # type: ignore[no-any-return]


def build(architecture: Architecture) -> nn.Module:
    """The network with random weights."""
    require_hf()
    from transformers import CONFIG_MAPPING, AutoModel

    kind = str(architecture.network.get("model_type"))
    if kind not in CONFIG_MAPPING:
        raise RicnetError(f"transformers has no network of type {kind[:80]!r}; install a newer version.")
    with _isolated():
        network: Any = AutoModel.from_config(_config(architecture.network), trust_remote_code=False)
    _refuse_fetching(network)
    if not architecture.pooler:
        network.pooler = None
    return network  # type: ignore[no-any-return]


# Allowed settings of a configuration


def _config(entry: Mapping[str, Any]) -> Any:
    """A configuration of transformers with the allowed keys of `entry`. It names no implementation of attention, so
    transformers takes its own `sdpa`, or `eager` for networks without `sdpa`."""
    from transformers import CONFIG_MAPPING

    kind = CONFIG_MAPPING[entry["model_type"]]
    return kind.from_dict(allowed_settings(entry, kind))


def allowed_settings(entry: Mapping[str, Any], kind: Any) -> dict[str, Any]:
    """The keys that the class of a configuration declares. Undeclared keys, which older files have, are kept if their
    values are numbers: these cannot name code."""
    named = {*_declared(kind), *ALWAYS_ALLOWED} - set(IGNORED_KEYS)
    parts = getattr(kind, "sub_configs", None) or {}
    return {
        name: _harmless(value, parts.get(name))
        for name, value in entry.items()
        if not NAMES_CODE.search(name) and name not in IGNORED_KEYS and (name in named or _only_numbers(value))
    }


def _declared(kind: Any) -> set[str]:
    fields = {field.name for field in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else set()
    return fields | set(inspect.signature(kind.__init__).parameters) | set(getattr(kind, "attribute_map", ()))


def _harmless(value: Any, kind: Any = None) -> Any:
    """A value without keys that name code, at any depth; if it configures a part of the network, its
    `allowed_settings`."""
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


def _refuse_unknown_kind(folder: Path) -> None:
    from transformers import CONFIG_MAPPING

    entry = read_json(folder / "config.json")
    kind = entry.get("model_type")
    if isinstance(kind, str) and kind in CONFIG_MAPPING and kind != "timm_wrapper":
        return
    if isinstance(name := entry.get("architecture"), str):
        raise RicnetError(f"{folder} is a checkpoint of timm; use {setting('encoder', f'timm:{name}')}.")
    if "auto_map" in entry:
        raise RicnetError(
            f"{folder} contains its own code for its network, which is never run; use a checkpoint of a network that "
            "transformers has."
        )
    raise RicnetError(
        f"{folder}: transformers has no network of type {str(kind)[:80]!r} (model_type in config.json); install "
        "a newer version, or use another checkpoint."
    )


# No requests to the Hub, no output


def _refuse_fetching(network: nn.Module) -> None:
    """Refuse networks of transformers that fetch a kernel from the Hub, some only when they run (rwkv, yoso, mra)."""
    for home in {type(module).__module__ for module in network.modules()}:
        if home.startswith("transformers.models.") and "get_kernel(" in inspect.getsource(sys.modules[home]):
            kind = home.split(".")[2]
            raise RicnetError(f"networks of the kind {kind} fetch code from the Hub; use a checkpoint of another kind.")


@contextmanager
def _isolated() -> Iterator[None]:
    """Context in which transformers sends no request to the Hub, not even for kernels, which are code, and prints no
    progress bars or reports. One thread at a time: the switches are global to the process."""
    from huggingface_hub import constants
    from transformers.integrations import hub_kernels
    from transformers.utils import logging as reports

    def refuse(*_: object, **__: object) -> None:
        raise ImportError("it asks the Hub for a kernel, which is code")

    switches: list[tuple[Any, str, Any]] = [(constants, "HF_HUB_OFFLINE", True)]
    switches += [(hub_kernels, name, refuse) for name in ("get_kernel", "get_kernel_hub")]
    with _BUILDING, ExitStack() as switched:
        switched.callback(reports.set_verbosity, reports.get_verbosity())
        if reports.is_progress_bar_enabled():
            switched.callback(reports.enable_progress_bar)
        reports.set_verbosity(logging.CRITICAL)
        reports.disable_progress_bar()
        for place, name, value in switches:
            if hasattr(place, name):
                switched.enter_context(patch.object(place, name, value))
        yield


# Files of a checkpoint


def _weight_files(folder: Path) -> list[Path]:
    """The safetensors files with the weights, all in the folder itself."""
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
    shards = read_json(index).get("weight_map")
    names = sorted(set(shards.values()), key=str) if isinstance(shards, dict) else []
    for name in names or [None]:
        if not isinstance(name, str) or Path(name).name != name or not (folder / name).is_file():
            raise RicnetError(f"{index} names {str(name)[:80]!r}, which is not a file in its folder; get a whole copy.")
    return [folder / name for name in names]


def _image_settings(path: Path) -> tuple[tuple[int, int], tuple[float, ...], tuple[float, ...]]:
    """Size, mean and standard deviation, from any form that image processors write."""
    entry = read_json(path)
    cropped = entry.get("crop_size") if entry.get("do_center_crop", "crop_size" in entry) else None
    size: Any = cropped or entry.get("size")
    if isinstance(size, dict):
        side = size.get("shortest_edge")
        size = [size.get("height", side), size.get("width", side)]
    size = [size, size] if isinstance(size, int) else size
    normalizes = entry.get("do_normalize", True)
    mean: Any = entry.get("image_mean") if normalizes else [0.0] * 3
    std: Any = entry.get("image_std") if normalizes else [1.0] * 3
    factor = entry.get("rescale_factor", 1 / 255) if entry.get("do_rescale", True) else 1.0
    coloured = any(are_numbers(mean, channels) and are_numbers(std, channels) for channels in (1, 3))
    sound = coloured and are_numbers(size, 2) and are_numbers([factor]) and factor > 0
    if not sound or not all(map(is_side, size)) or not all(std):
        raise RicnetError(
            f"{path} does not say to what size images are scaled and how they are normalised; save it with the image "
            "processor's save_pretrained."
        )
    scale = 255 * factor
    return tuple(size), tuple(each / scale for each in mean), tuple(each / scale for each in std)
