"""`ricnet.load`: read a run folder, check each of its files, and build the classifier."""

import math
from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn

from ricnet.core.policies import building_with
from ricnet.core.trajectory import Temperature
from ricnet.data import columns_from_json
from ricnet.errors import RicnetError
from ricnet.evaluation.choices import OperatingPoint
from ricnet.io import is_finite, read_json
from ricnet.methods import Method
from ricnet.models.classifier import Classifier, autocast_dtype, build_model, encoder_weights, learned
from ricnet.models.config import Config, fits, from_json
from ricnet.models.locate import locate, read_encoder
from ricnet.models.run import RunFolder, read_config
from ricnet.nets.backbone import Backbone
from ricnet.nets.checkpoints import architecture_from_json, limit_for
from ricnet.nets.fitted import FittedLayer
from ricnet.nets.pretrained import build
from ricnet.nets.words import known_words

LARGEST_INPUT = 1 << 24
"""Maximum numbers in one input of a loaded model, as in a colour image of 2,300 × 2,300 pixels."""
LONGEST = 10_000
"""Maximum steps of a loaded model."""


def load(run: str | Path, device: str = "cpu", encoder: nn.Module | None = None) -> Classifier:
    """Load a run folder, a model that comes with ricnet (pretrained:cifar10), or one on the Hub (user/name).

    A model that was trained with your own encoder needs that module again. Files that differ from manifest.json are
    refused.
    """
    folder = RunFolder(locate(run))
    entry, path = read_config(folder.path), folder.config
    folder.verify()
    config = from_json(entry.get("config"), str(path))
    if (horizon := getattr(config.method, "horizon", 1)) > LONGEST:
        raise RicnetError(f"{path}: a horizon of {horizon:,} steps is above the limit of {LONGEST:,}; restore it.")
    input_shape, class_names = _read_kind(entry.get("data"), path)
    columns = columns_from_json(entry["data"]["columns"], str(path)) if "columns" in entry["data"] else None
    if columns is not None and (columns.width,) != input_shape:
        raise RicnetError(f"{path}: its columns do not fit its input shape; restore the file or train again.")
    if config.network.encoder == "custom" and encoder is None:
        raise RicnetError(f"{folder.path} was trained with your own encoder; pass the module: load(run, encoder=...).")
    with building_with(torch.Generator()):  # the initial weights are replaced
        model, backbone = _build_loaded(config, input_shape, len(class_names), encoder, entry.get("encoder"), folder)
    backbone.autocast = autocast_dtype(config.optimization.precision, torch.device(device))
    exits = len(getattr(model, "costs", ()))
    temperature = _read_temperature(folder, exits) if config.fits_temperature else 1.0
    method = _read_halt(folder, config.method) if config.chooses_halt else config.method
    budgets = _read_budgets(folder.halting) if config.has_budgets else ()
    model = model.to(device).eval()
    if torch.device(device).type == "cuda":
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    columns = columns and columns.with_known_words(known_words(model))
    return Classifier(config, method, model, input_shape, class_names, temperature, None, folder.path, columns, budgets)


def _read_kind(data: object, path: Path) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Input shape and class names, from an untrusted file."""
    entry: dict[str, Any] = data if isinstance(data, dict) else {}
    shape, names = entry.get("input_shape", ()), entry.get("class_names", ())
    lists = isinstance(shape, list) and len(shape) in (1, 3) and isinstance(names, list) and len(names) >= 2
    if not lists or not all(fits(n, int) and n > 0 for n in shape) or not all(isinstance(name, str) for name in names):
        raise RicnetError(f"{path} has no valid input shape and class names; restore it or train again.")
    if math.prod(shape) > LARGEST_INPUT:
        raise RicnetError(
            f"{path}: inputs of shape {tuple(shape)} have more than {LARGEST_INPUT:,} numbers; restore it."
        )
    return tuple(shape), tuple(names)


def _build_loaded(
    config: Config,
    input_shape: tuple[int, ...],
    classes: int,
    encoder: nn.Module | None,
    described: Any,
    folder: RunFolder,
) -> tuple[nn.Module, Backbone]:
    """The network with the weights of the run. Its memory is limited, because the files are untrusted and one example
    passes through it while it is built; the caller's own encoder is trusted. `described` is the run's entry about a
    pretrained encoder."""
    path, again = folder.model, "get a whole copy, or repeat its training"
    if not path.is_file():
        raise RicnetError(f"{folder.path} holds no trained model yet ({path.name} is missing); finish its training.")
    try:
        weights = load_file(path)
    except Exception as error:  # the file is untrusted, and the errors are of any type
        raise RicnetError(f"{path} is damaged ({error}); {again}.") from error
    numbers = sum(tensor.numel() for tensor in weights.values()) + math.prod(input_shape)
    try:
        if config.network.freeze:
            encoder = read_encoder(described, folder, encoder)
        elif config.network.pretrained:
            architecture = described.get("architecture") if isinstance(described, dict) else None
            with limit_for(numbers):
                encoder = build(architecture_from_json(architecture, str(folder.config)))
        with nullcontext() if encoder is not None else limit_for(numbers):
            model, backbone = build_model(config, input_shape, classes, encoder)
        model.load_state_dict(weights | encoder_weights(model))
    except RicnetError:
        raise
    except Exception as error:  # any network can fail in any way
        raise RicnetError(
            f"{path} does not fit the network in config.json beside it, which is of another run or of an earlier "
            f"version; {again}."
        ) from error
    fitted = [tensor for layer in model.modules() if isinstance(layer, FittedLayer) for tensor in layer.buffers()]
    if not all(tensor.isfinite().all() for tensor in (*learned(model), *fitted)):
        raise RicnetError(f"{path} is damaged (it holds numbers that are not finite); {again}.")
    return model, backbone


# What was fitted on validation data; missing until the end of training.


def _read_temperature(folder: RunFolder, steps: int) -> Temperature:
    """One temperature, or with exits one per step."""
    path = folder.calibration
    if not (path.is_file() or folder.finished):
        return 1.0
    found: Any = read_json(path).get("temperature")
    each = found if isinstance(found, list) and len(found) == steps else [found]
    if not all(isinstance(one, int | float) and 0 < one < math.inf for one in each):
        raise RicnetError(f"{path} holds no temperature above 0; restore it or train again.")
    return tuple(map(float, each)) if found is each else float(found)


def _read_halt(folder: RunFolder, method: Method[Any]) -> Method[Any]:
    path = folder.halting
    if not (path.is_file() or folder.finished):
        return method
    entry = read_json(path)
    threshold, most = entry.get("halt_threshold"), entry.get("max_steps")
    if not (isinstance(threshold, int | float) and isinstance(most, int)):
        raise RicnetError(f"{path} holds no halting rule; restore it or train again.")
    if not math.isfinite(threshold) or not 1 <= most <= LONGEST:
        raise RicnetError(
            f"{path}: the halting rule is invalid (threshold {threshold}, {most} steps); restore it or train again."
        )
    return method.stopping_by(float(threshold), most)


def _read_budgets(path: Path) -> tuple[OperatingPoint, ...]:
    """Empty also if beliefs on validation data are NaN."""
    entries = read_json(path).get("budgets", []) if path.is_file() else []
    names = {field.name for field in fields(OperatingPoint)}
    if not isinstance(entries, list) or not all(
        isinstance(entry, dict) and entry.keys() == names and all(map(is_finite, entry.values())) for entry in entries
    ):
        raise RicnetError(f"{path} holds budgets that cannot be read; restore it or train again.")
    return tuple(OperatingPoint(**entry) for entry in entries)
