"""The architecture of a pretrained encoder, and checks of a checkpoint's files before a network is built.

Checkpoints are untrusted: their JSON is validated, and weights are read from safetensors files only.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import safe_open
from torch.overrides import TorchFunctionMode

from ricnet.errors import RicnetError, first_line
from ricnet.io import misfit, parse_json, read_text

LARGEST_SIDE = 4096
SLACK = 1 << 24
"""Numbers that a network may allocate beside its weights."""


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
        raise RicnetError(f"{file} is not a safetensors file, or is damaged ({first_line(error)}).") from error


# Limit of the memory of a network that is built from an untrusted file: a few bytes can ask for terabytes


class OverLimit(Exception):
    pass


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
