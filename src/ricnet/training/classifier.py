"""A trained model with all it takes to use it: `ricnet.load(RUN)` returns one."""

import copy
import math
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from ricnet.core.trajectory import Trajectory
from ricnet.errors import RicnetError, require
from ricnet.methods import Method
from ricnet.nets.backbone import Backbone
from ricnet.nets.encoders import build_encoder
from ricnet.training.config import Config, from_json
from ricnet.training.deadline import start_clock
from ricnet.training.files import read_json
from ricnet.training.inference import Recordings
from ricnet.training.pretrained import locate


@dataclass(frozen=True)
class Classifier:
    config: Config
    method: Method[Any]
    """The configuration's method, perhaps with another readout or halting threshold."""
    model: nn.Module
    input_shape: tuple[int, ...]
    class_names: tuple[str, ...]
    temperature: float = 1.0
    """Fitted after training where the run was calibrated; softens or sharpens every belief."""
    recordings: Recordings | None = None
    """See `recorded`."""

    @torch.no_grad()
    def refine(
        self, inputs: Any, max_steps: int | None = None, halt: bool = True, max_ms: float | None = None
    ) -> Trajectory:
        """Beliefs for uint8 images (batch, channels, height, width) or float features (batch, columns), torch or numpy.

        With `halt`, examples that have stopped cost nothing more. `max_ms` limits the milliseconds of the whole call,
        encoding included: the first step is always made, another only if it should end in time, and if time runs out
        the trajectory has as many steps as were made. The result is on the model's device.
        """
        device = next(self.model.parameters()).device
        require(max_ms is None or max_ms > 0, "max_ms", max_ms, "above 0")
        time_left = None if max_ms is None else start_clock(max_ms, device)
        inputs = torch.as_tensor(inputs)
        if len(self.input_shape) == 3 and inputs.dtype != torch.uint8:
            raise RicnetError(f"the model reads images as uint8 from 0 to 255, not {inputs.dtype}; convert them.")
        if tuple(inputs.shape[1:]) != self.input_shape:
            raise RicnetError(f"the model reads inputs of shape {self.input_shape}, not {tuple(inputs.shape[1:])}.")
        refine = self.method.refine if self.recordings is None else partial(self.recordings.refine, self.method)
        model = self.model.eval() if self.model.training else self.model  # asked in vain, eval takes longer than a step
        path = refine(model, inputs.to(device), max_steps, halt, time_left)
        return path if self.temperature == 1 else path.tempered(self.temperature)

    def recorded(self) -> "Classifier":
        """The same, quicker at answering many batches of a few inputs on a GPU: the first of a size takes longer, for
        its steps are recorded, the others replay them."""
        return replace(self, recordings=Recordings())


def build_model(
    config: Config, input_shape: tuple[int, ...], classes: int, encoder: nn.Module | None = None
) -> tuple[nn.Module, Backbone]:
    """The untrained network of a configuration; a copy of `encoder` takes the place of the configured one."""
    own = copy.deepcopy(encoder) if encoder is not None else build_encoder(config.network, input_shape)
    backbone = Backbone(own, input_shape)
    return config.method.build(backbone, classes), backbone


def autocast_dtype(precision: str, device: torch.device) -> torch.dtype | None:
    if precision == "float32":
        return None
    supported = device.type == "cuda" and torch.cuda.is_bf16_supported()
    if precision == "bf16" and device.type == "cuda" and not supported:
        raise RicnetError("--precision bf16 is not supported by this GPU; use float32.")
    return torch.bfloat16 if supported or precision == "bf16" else None


def load(run: str | Path, device: str = "cpu", encoder: nn.Module | None = None) -> Classifier:
    """Read a run folder, or a model that comes with ricnet (pretrained:cifar10).

    A model that was trained with your own encoder needs that module again.
    """
    folder = locate(run)
    entry = read_config(folder)
    config = from_json(entry.get("config"), str(folder / "config.json"))
    try:
        input_shape, class_names = tuple(entry["data"]["input_shape"]), tuple(entry["data"]["class_names"])
    except (KeyError, TypeError) as error:
        raise RicnetError(f"{folder / 'config.json'} does not say what the data was; train the model again.") from error
    if config.network.encoder == "custom" and encoder is None:
        raise RicnetError(f"{folder} was trained with your own encoder; pass the module: load(run, encoder=...).")
    model, backbone = build_model(config, input_shape, len(class_names), encoder)
    backbone.autocast = autocast_dtype(config.optimization.precision, torch.device(device))
    _load_weights(model, folder / "model.safetensors")
    temperature = _read_temperature(folder / "calibration.json") if config.calibration == "temperature" else 1.0
    return Classifier(config, config.method, model.to(device).eval(), input_shape, class_names, temperature)


def read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not folder.exists():
        raise RicnetError(f"there is no run at {folder}; give the folder that ric train wrote.")
    if not path.is_file():
        raise RicnetError(f"{folder} is not a run folder: it has no config.json; give the folder that ric train wrote.")
    return read_json(path)


def _read_temperature(path: Path) -> float:
    temperature = read_json(path).get("temperature")
    if not isinstance(temperature, int | float) or not 0 < temperature < math.inf:
        raise RicnetError(f"{path} holds no temperature above 0; restore it or train again.")
    return float(temperature)


def _load_weights(model: nn.Module, path: Path) -> None:
    if not path.is_file():
        raise RicnetError(
            f"{path.parent} holds no trained model yet (model.safetensors is missing); finish its training."
        )
    try:
        model.load_state_dict(load_file(path))
    except (SafetensorError, OSError) as error:
        raise RicnetError(f"{path} is damaged ({error}); resume or repeat the training.") from error
    except RuntimeError as error:
        raise RicnetError(
            f"{path} does not fit the network in config.json beside it; they are of different runs."
        ) from error
