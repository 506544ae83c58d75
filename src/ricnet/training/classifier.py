"""A trained model with all it takes to use it: `ricnet.load(RUN)` returns one."""

import copy
import math
import os
import time
import warnings
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float64, Num
from safetensors.torch import load_file
from torch import Tensor, nn

from ricnet.core.randomness import building_with
from ricnet.core.trajectory import Temperature, Trajectory
from ricnet.data import Columns, columns_from_json
from ricnet.data.columns import Number
from ricnet.data.inputs import read_inputs
from ricnet.data.tables import frame_table, is_frame
from ricnet.data.texts import Text, as_texts
from ricnet.errors import RicnetError, setting, spelled_in_python, whole_number
from ricnet.evaluation.choices import OperatingPoint, point_within, require_affordable, shortfall
from ricnet.evaluation.evaluate import pool_size
from ricnet.io import is_finite, is_table, read_json, shown_name, without_folder
from ricnet.methods import Asked, Method, in_steps
from ricnet.methods.method import TimeLeft
from ricnet.nets.budget import SLACK, budget
from ricnet.nets.encoders import (
    Backbone,
    Known,
    build_encoder,
    choose_encoder,
    divide,
    embedding_size,
    is_pretrained,
    mlp_size,
    reads_tokens,
)
from ricnet.training.checkpoints import build_described, find_encoder, read_encoder
from ricnet.training.config import Config, fits, from_json
from ricnet.training.inference import Recordings
from ricnet.training.manifest import verify
from ricnet.training.run import RunFolder, locate, read_config

LARGEST_INPUT = 1 << 24
"""Numbers in one input of a model that comes from a file; a colour image of 2,300 pixels a side has as many."""
CONCLUSION = 1e-3
"""Seconds before a deadline reserved for the work after the last step, or three steps if that is less."""
LONGEST = 10_000
"""Steps that such a model may ask for."""


@dataclass(frozen=True)
class Classifier:
    config: Config
    method: Method[Any]
    """The configuration's method, stopping as was chosen on validation data, or with another readout or threshold."""
    model: nn.Module
    input_shape: tuple[int, ...]
    class_names: tuple[str, ...]
    temperature: Temperature = 1.0
    """Fitted after training where the run was calibrated; softens or sharpens every belief. With exits one for each
    step."""
    recordings: Recordings | None = None
    """See `recorded`."""
    folder: Path | None = None
    """Where it was read from, and where what was measured of it stands."""
    columns: Columns | None = None
    """How the columns of the table it was trained on become its inputs; None for other data."""
    budgets: tuple[OperatingPoint, ...] = ()
    """With exits, the thresholds that validation data gave for all budgets."""
    budget: float | None = None
    """The one it keeps, if it was asked for afterwards: what its run measured is of another rule."""

    @torch.no_grad()
    def refine(
        self, inputs: Any, max_steps: int | None = None, halt: bool = True, max_ms: float | None = None
    ) -> Trajectory:
        """Beliefs for uint8 images (batch, channels, height, width) or float features (batch, columns), torch or numpy,
        for a list of texts, or for the rows of a data frame with the columns it was trained on; `read` makes inputs of
        files, and of a table it must: its cells are standardised and spread out first.

        It takes the steps that the run chose or was trained for, or at most `max_steps`. With `halt`, examples that
        have stopped cost nothing more. `max_ms` limits the milliseconds of the whole call, encoding included: the first
        step is always made, another only if it should end in time, and if time runs out the trajectory has as many
        steps as were made. The result is on the model's device.
        """
        device = next(self.model.parameters()).device
        max_steps = None if max_steps is None else whole_number(max_steps, "max_steps")
        _require_positive(max_steps=max_steps, max_ms=max_ms)
        time_left = None if max_ms is None else start_clock(max_ms, device, getattr(self.model, "costs", ()))
        inputs = self._as_inputs(inputs)
        if self.columns is not None and looks_raw(inputs, self.columns):
            warnings.warn(RAW, stacklevel=3)  # no_grad stands between
        refine = self.asked.refine if self.recordings is None else partial(self.recordings.refine, self.asked)
        model = self.model.eval() if self.model.training else self.model  # asked in vain, eval takes longer than a step
        path = refine(model, inputs.to(device), max_steps, halt, time_left)
        if self.temperature == 1:
            return path
        path = path.tempered(self.temperature)
        return path.frozen() if halt else path  # a belief that is held has the temperature of its own step

    @property
    def asked(self) -> Asked:
        """The method, or how it is asked step by step: one that leaves once it is sure reads its beliefs as they are
        reported, at their temperature."""
        return in_steps(self.method, self.model, self.temperature) or self.method

    def predict_proba(self, x: Any) -> Float64[np.ndarray, "n classes"]:
        """Each input's belief at its own halt, in the order of `class_names`; of files as `read` takes them, of arrays,
        texts or a data frame as `refine` does. To a model of texts a str is a text and a Path a file."""
        inputs = self._as_inputs(self.read(x) if _names_files(x) and not self._texts(x) else x)
        if not len(inputs):  # not every encoder takes that
            return np.zeros((0, len(self.class_names)))
        parts = inputs.split(pool_size(len(self.class_names)))  # beliefs at all steps must fit into memory
        beliefs = torch.cat([self.refine(part).final for part in parts]).double().softmax(-1)  # sums to 1 in float64
        found: np.ndarray = beliefs.cpu().numpy()
        return found

    def predict(self, x: Any) -> np.ndarray:
        """The name of the class that each input most likely is of."""
        names: np.ndarray = np.array(self.class_names)[self.predict_proba(x).argmax(1)]
        return names

    @property
    def kind(self) -> Literal["image", "features", "tokens"]:
        """What its inputs are."""
        backbone = next((module for module in self.model.modules() if isinstance(module, Backbone)), None)
        if backbone is not None and reads_tokens(backbone.reader):
            return "tokens"
        return "image" if len(self.input_shape) == 3 else "features"

    @property
    def input_dtype(self) -> torch.dtype:
        return {"image": torch.uint8, "features": torch.float32, "tokens": torch.int32}[self.kind]

    @property
    def text(self) -> Text | None:
        """How texts become its inputs; None where it reads none."""
        return None if self.columns is None else self.columns.text

    def _texts(self, given: Any) -> list[str] | None:
        if self.text is None:
            return None
        if isinstance(given, list | tuple) and any(isinstance(one, str) for one in given):
            for place, one in enumerate(given, start=1):
                if not isinstance(one, str | Path):
                    raise RicnetError(f"text {place} of {len(given)} is {one!r}, which is no text; an empty one is ''.")
        return as_texts(given)

    def _as_inputs(self, given: Any) -> Num[Tensor, "batch ..."]:
        texts = self._texts(given)
        if texts is not None and self.text is not None:
            if any(is_table(text) or text.endswith(".txt") for text in texts):
                warnings.warn(
                    f"{texts[0]!r} is taken for a text; for the file of that name: {READ.format(texts[0])}.",
                    stacklevel=4,
                )
            given = torch.from_numpy(self.text.rows(texts))
        elif is_frame(given):
            given = self._read_frame(given)
        inputs = as_inputs(given, self.input_shape, self.columns is not None)
        if self.kind == "tokens":
            self.require_ids(inputs)
        return inputs

    def require_ids(self, inputs: Num[Tensor, "batch tokens"]) -> None:
        """An id that the encoder has not would end a GPU's work, and with it the program."""
        if inputs.dtype not in (torch.int32, torch.int64):
            raise RicnetError(f"the model reads texts, or their token ids as whole numbers, not {inputs.dtype}.")
        known: Any = backbone_of(self.model).reader.vocabulary
        if len(inputs) and not 0 <= int(inputs.min()) <= int(inputs.max()) < int(known):
            raise RicnetError(f"a token id is not in 0 … {int(known) - 1}; give the texts themselves.")

    def _read_frame(self, frame: Any) -> Any:
        """Values that training had not are warned of, as `read` does."""
        if self.columns is None:
            return frame.to_numpy()
        table = frame_table(frame)
        inputs = self.columns.encode(table)
        for surprise in self.columns.surprises(table):
            warnings.warn(f"note: {surprise}", stacklevel=5)
        return inputs

    def read(self, paths: str | Path | Iterable[str | Path]) -> Num[Tensor, "n ..."]:
        """Inputs for `refine` from what `ric predict` takes: image files, folders of images, patterns, tables, .npz
        files. What is named must be readable; a file that a folder or a pattern brought in and that is not is left out,
        with a warning."""
        found = read_inputs(_as_paths(paths), self.input_shape, self.columns)
        if found.problems:
            raise found.problems[0]
        for note in found.notes:
            warnings.warn(note, stacklevel=2)
        return found.inputs

    def __repr__(self) -> str:
        encoder = encoder_name(self.config, self.input_shape)
        data, classes = shown_name(self.config.data), len(self.class_names)
        return f"<Classifier: {self.method.name} on {data}, {classes} classes, encoder {encoder}>"

    def with_budget(self, budget: float) -> "Classifier":
        """The same, stopping so that on validation data the mean share of compute stays within `budget`,
        from what the first exit costs to 1, the whole network. Only a model with exits can leave some of it out."""
        with spelled_in_python():
            frugal, told = self.within(budget)
        if told is not None:
            warnings.warn(told, stacklevel=2)
        return frugal

    def within(self, budget: float) -> tuple["Classifier", str | None]:
        """`with_budget` for the doors that are not Python; and what is to be said of a budget that is not spent."""
        if not self.budgets:
            raise RicnetError(f"{setting('budget', budget)} means nothing to this model: {self._no_budgets()}")
        point = point_within(self.budgets, budget)
        steps = len(getattr(self.model, "costs", ()))
        frugal = replace(self, method=self.method.stopping_by(point.halt_threshold, steps), budget=budget)
        return frugal, shortfall(point.mean_cost, budget)

    def _no_budgets(self) -> str:
        if self.config.network.exits == "none":
            return f"it has no exits to leave by; train one with {setting('exits', 'stage')}."
        if not self.config.method.takes_budget:
            return f"the method {self.config.method.name} has no value to leave by; leave it out."
        if self.folder is not None and (self.folder / "evaluation.json").is_file():
            return "it was trained before thresholds for budgets were kept; train it again."
        if self.folder is None:
            kept = setting("validation_fraction", 0.1)
            return f"no rows were kept aside to fit thresholds for budgets on; train it with {kept}, for example."
        return "its thresholds for budgets are fitted on validation data at the end of training; finish that first."

    def recorded(self) -> "Classifier":
        """The same, quicker at answering one batch after the other on a GPU: the first of a size takes longer, for its
        steps are recorded, and all others replay them. Only whoever asks for it gets it, since recordings hold memory
        and serve one thread at a time. On a CPU nothing changes."""
        return replace(self, recordings=Recordings())

    @classmethod
    def from_pretrained(cls, run: str | Path, device: str = "cpu", encoder: nn.Module | None = None) -> "Classifier":
        """`load` by the name it has elsewhere: from a folder, from the Hub (user/name), or as it comes with ricnet."""
        return load(run, device, encoder)

    def save_pretrained(self, folder: str | Path, name: str | None = None) -> Path:
        """Write a folder to share: config.json, model.safetensors and README.md, the model's card, which calls it by
        `name`. None of the data is in it."""
        from ricnet.training.hub import save_pretrained

        return save_pretrained(self, folder, name)

    def push_to_hub(self, repo: str, private: bool = False) -> str:
        """Put that folder on the Hub as user/name, made if it is not there; returns the address of its page."""
        from ricnet.training.hub import push_to_hub

        return push_to_hub(self, repo, private)


def _names_files(x: Any) -> bool:
    several = x if isinstance(x, list | tuple) and x else [x]
    return all(isinstance(path, str | os.PathLike) for path in several)


def _as_paths(given: Any) -> list[str]:
    one = isinstance(given, str | bytes | os.PathLike)
    try:
        paths = [os.fspath(path) for path in ([given] if one else given)]
    except TypeError as error:
        raise RicnetError(f"read takes the paths of files or folders ({error}); arrays go to refine.") from error
    if any(isinstance(path, bytes) for path in paths):
        raise RicnetError("read takes the paths of files or folders as text, not as bytes; decode them.")
    return paths


def _require_positive(**limits: Any) -> None:
    for name, limit in limits.items():
        try:
            holds = limit is None or limit > 0
        except TypeError:
            raise RicnetError(f"{name} is {limit!r}; it must be a number above 0.") from None
        if not holds:
            raise RicnetError(f"{name} is {limit}; it must be above 0.")


def encoder_name(config: Config, input_shape: tuple[int, ...]) -> str:
    """What a person is told; `auto` has become the one it stands for."""
    name = config.network.encoder
    named = "of your own" if name == "custom" else without_folder(choose_encoder(name, input_shape))
    return f"{named} (frozen)" if config.network.freeze else named


def build_model(
    config: Config, input_shape: tuple[int, ...], classes: int, encoder: nn.Module | None = None
) -> tuple[nn.Module, Backbone]:
    """The untrained network of a configuration; a copy of `encoder` takes the place of the configured one. After one
    that has learned already comes what the configuration says; without it the network reads its features. With exits
    nothing does: a thought, as large as what would have come, reads the features of its stages."""
    network, own = config.network, copy.deepcopy(encoder)
    features = own if network.freeze or is_pretrained(network.encoder) else None
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
    """With exits there are as many steps as the encoder has stages, times the steps at each."""
    network = config.network
    if network.exits == "none" or not hasattr(config.method, "horizon"):
        return config
    own = find_encoder(network.encoder) if encoder is None and is_pretrained(network.encoder) else encoder
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


def load(run: str | Path, device: str = "cpu", encoder: nn.Module | None = None) -> Classifier:
    """Read a run folder, a model that comes with ricnet (pretrained:cifar10), or one on the Hub (user/name).

    A model that was trained with your own encoder needs that module again. Files that differ from manifest.json are
    refused.
    """
    folder = locate(run)
    entry = read_config(folder)
    verify(folder)
    config = _check_horizon(from_json(entry.get("config"), str(folder / "config.json")), folder / "config.json")
    input_shape, class_names = _read_kind(entry.get("data"), folder / "config.json")
    columns = _read_columns(entry["data"], input_shape, folder / "config.json")
    if config.network.encoder == "custom" and encoder is None:
        raise RicnetError(f"{folder} was trained with your own encoder; pass the module: load(run, encoder=...).")
    with building_with(torch.Generator()):  # the drawn weights are replaced by those of the file
        model, backbone = _build_loaded(config, input_shape, len(class_names), encoder, entry.get("encoder"), folder)
    backbone.autocast = autocast_dtype(config.optimization.precision, torch.device(device))
    exits = len(getattr(model, "costs", ()))
    temperature = _read_temperature(folder / "calibration.json", exits) if config.fits_temperature else 1.0
    method = _read_halt(folder / "halting.json", config.method) if config.chooses_halt else config.method
    budgets = _read_budgets(folder / "halting.json") if config.has_budgets else ()
    model = model.to(device).eval()
    if torch.device(device).type == "cuda":
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return Classifier(
        config, method, model, input_shape, class_names, temperature, folder=folder, columns=columns, budgets=budgets
    )


def _read_kind(data: object, path: Path) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """What goes in and what comes out. It comes from a file, so nothing in it is trusted."""
    entry: dict[str, Any] = data if isinstance(data, dict) else {}
    shape, names = entry.get("input_shape", ()), entry.get("class_names", ())
    lists = isinstance(shape, list) and len(shape) in (1, 3) and isinstance(names, list) and len(names) >= 2
    if not lists or not all(fits(n, int) and n > 0 for n in shape) or not all(isinstance(name, str) for name in names):
        raise RicnetError(f"{path} does not say what the data was; restore it or train the model again.")
    if math.prod(shape) > LARGEST_INPUT:
        raise RicnetError(f"{path}: inputs of shape {tuple(shape)} are more than a model can read; restore it.")
    return tuple(shape), tuple(names)


def _check_horizon(config: Config, path: Path) -> Config:
    horizon = getattr(config.method, "horizon", 1)
    if horizon > LONGEST:
        raise RicnetError(f"{path}: a horizon of {horizon:,} steps would take forever; restore it.")
    return config


def _read_columns(data: dict[str, Any], input_shape: tuple[int, ...], path: Path) -> Columns | None:
    columns = columns_from_json(data["columns"], str(path)) if "columns" in data else None
    if columns is not None and (columns.width,) != input_shape:
        raise RicnetError(f"{path}: its columns do not fit the model beside it; restore it or train again.")
    return columns


def _read_temperature(path: Path, steps: int) -> Temperature:
    """One, or with exits one for each of the steps."""
    if _not_fitted_yet(path):
        return 1.0
    found: Any = read_json(path).get("temperature")
    each = found if isinstance(found, list) and len(found) == steps else [found]
    if not all(isinstance(one, int | float) and 0 < one < math.inf for one in each):
        raise RicnetError(f"{path} holds no temperature above 0; restore it or train again.")
    return tuple(map(float, each)) if found is each else float(found)


def _read_budgets(path: Path) -> tuple[OperatingPoint, ...]:
    """None where training is not over, or where an answer to the validation data is NaN."""
    entries = read_json(path).get("budgets", []) if path.is_file() else []
    names = {field.name for field in fields(OperatingPoint)}
    if not isinstance(entries, list) or not all(
        isinstance(entry, dict) and entry.keys() == names and all(map(is_finite, entry.values())) for entry in entries
    ):
        raise RicnetError(f"{path} holds budgets that cannot be read; restore it or train again.")
    return tuple(OperatingPoint(**entry) for entry in entries)


def _read_halt(path: Path, method: Method[Any]) -> Method[Any]:
    if _not_fitted_yet(path):
        return method
    entry = read_json(path)
    threshold, most = entry.get("halt_threshold"), entry.get("max_steps")
    if not (isinstance(threshold, int | float) and isinstance(most, int)):
        raise RicnetError(f"{path} holds no rule when to stop; restore it or train again.")
    if not math.isfinite(threshold) or not 1 <= most <= LONGEST:
        raise RicnetError(f"{path} holds a rule that cannot be ({threshold}, {most}); restore it or train again.")
    return method.stopping_by(float(threshold), most)


def _not_fitted_yet(path: Path) -> bool:
    """A run that is still being trained can be asked too; what it will fit at its end is not there."""
    return not path.is_file() and not (path.parent / "evaluation.json").is_file()


def _read_weights(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise RicnetError(
            f"{path.parent} holds no trained model yet (model.safetensors is missing); finish its training."
        )
    try:
        weights: dict[str, Tensor] = load_file(path)
    except Exception as error:  # its header is JSON that anyone may have written, its types are any
        raise RicnetError(f"{path} is damaged ({error}); get a whole copy, or repeat its training.") from error
    return weights


def _build_loaded(
    config: Config,
    input_shape: tuple[int, ...],
    classes: int,
    encoder: nn.Module | None,
    described: object,
    folder: Path,
) -> tuple[nn.Module, Backbone]:
    """The network with the weights of a file; an example passes through it while it is built. An encoder of the
    caller's own may take the memory it likes. One that others have trained is `described`; frozen, it has a file of its
    own."""
    path = folder / "model.safetensors"
    weights = _read_weights(path)
    numbers = sum(tensor.numel() for tensor in weights.values()) + math.prod(input_shape)
    try:
        if config.network.freeze:
            encoder = read_encoder(described, RunFolder(folder), encoder)
        elif is_pretrained(config.network.encoder):
            encoder = build_described(described, RunFolder(folder), numbers)
        with nullcontext() if encoder is not None else budget(4 * numbers + SLACK):
            model, backbone = build_model(config, input_shape, classes, encoder)
        model.load_state_dict(weights | encoder_weights(model))
    except RicnetError:
        raise
    except Exception as error:  # a network of any kind, built as a file says
        raise RicnetError(
            f"{path} does not fit the network in config.json beside it; they are of different runs."
        ) from error
    if not all(tensor.isfinite().all() for tensor in learned(model)):
        raise RicnetError(
            f"{path} is damaged (it holds numbers that are not finite); get a whole copy, or repeat its training."
        )
    return model, backbone


def encoder_weights(model: nn.Module) -> dict[str, Tensor]:
    """Those of `model.state_dict()` that a frozen encoder came with; none where there is none."""
    backbone = backbone_of(model)
    if backbone.features is None or not backbone.frozen:
        return {}
    inner = next(name for name, module in model.named_modules() if module is backbone.features)
    return {name: tensor for name, tensor in model.state_dict().items() if name.startswith(f"{inner}.")}


def own_weights(model: nn.Module) -> dict[str, Tensor]:
    """All but those of a frozen encoder, which have a file of their own."""
    frozen = encoder_weights(model)
    return {name: tensor for name, tensor in model.state_dict().items() if name not in frozen}


def backbone_of(model: nn.Module) -> Backbone:
    return next(module for module in model.modules() if isinstance(module, Backbone))


def after_encoder(classifier: Classifier) -> Classifier:
    """A copy that reads the features of its frozen encoder."""
    backbone, exits = backbone_of(classifier.model), classifier.config.network.exits
    features, stages = backbone.features, backbone.stages
    assert features is not None
    # the encoder stays where it is, and as it is: another thread may be asking it
    model = copy.deepcopy(classifier.model, {id(features): nn.Identity(), id(stages): ()})
    after = backbone_of(model)
    sizes = [part.stop - part.start for part in backbone.parts]
    after.features = Known(sizes, [0] * len(sizes)) if stages else None  # what they cost was counted when it was built
    after.stages = divide(after.features, exits) if after.features is not None else ()
    return replace(classifier, model=model, input_shape=(len(backbone.mean),))


def learned(model: nn.Module) -> list[Tensor]:
    """What training changes: the weights, and the averages of batch norm. Any other buffer may hold what it likes, such
    as the −∞ of a mask."""
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    averages = [mean for norm in norms for mean in (norm.running_mean, norm.running_var) if mean is not None]
    return [*model.parameters(), *averages]


READ = "model.refine(model.read({!r}))"
"""How files become inputs, for the end of a sentence."""
RAW = f"these look like cells of a table, but the model reads them standardised: {READ.format('rows.csv')}."
NEAR, FAR = 5, 30
"""Standard deviations from the mean within which cells usually lie, and beyond which hardly any does."""


def as_inputs(given: Any, input_shape: tuple[int, ...], is_table: bool) -> Num[Tensor, "batch ..."]:
    """`is_table` tells a model whose inputs are made of the columns of a table from one that reads plain numbers."""
    inputs = _as_tensor(given, input_shape, is_table)
    if tuple(inputs.shape[1:]) != input_shape:
        raise RicnetError(
            f"the model reads inputs of shape {input_shape}, not {tuple(inputs.shape[1:])}"
            f"{_other_shape(inputs, input_shape, is_table)}."
        )
    if len(input_shape) == 3 and inputs.dtype != torch.uint8:
        raise RicnetError(f"the model reads images as uint8 from 0 to 255, not {inputs.dtype}; convert them.")
    if inputs.dtype.is_complex:
        raise RicnetError(f"the model reads real numbers, not {inputs.dtype}; convert them.")
    if inputs.dtype.is_floating_point:
        _require_finite(inputs, is_table)
    return inputs


def looks_raw(inputs: Num[Tensor, "batch width"], columns: Columns) -> bool:
    """Whether these seem to be the cells of a table, which pass for inputs where each column is one number.

    They do if each column lies, on average, where its training cells did, and some column in all rows so far from 0
    that standardised cells would be outliers: a batch may have some of these, but hardly in each row.
    """
    cells = inputs.float()
    if not len(cells) or not (cells.abs() > FAR).all(0).any():
        return False
    numbers = [column for column in columns.inputs if isinstance(column, Number)]
    if len(numbers) < columns.width:
        return False
    mean, std = torch.tensor([(column.mean, column.std) for column in numbers], device=cells.device).T
    return bool(((cells - mean).abs().mean(0) <= NEAR * std).all())


def _as_tensor(given: Any, input_shape: tuple[int, ...], is_table: bool) -> Tensor:
    if isinstance(given, np.ndarray) and not given.flags.writeable:  # torch would warn of it, though nothing is written
        given = given.copy()
    try:
        inputs = torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        numbers = f"an array of shape (n, {', '.join(map(str, input_shape))})"
        how = _from_files(input_shape, is_table)
        raise RicnetError(f"the model reads {numbers}, not {_kind(given)}{how}.") from error
    return inputs


def _kind(given: Any) -> str:
    several = isinstance(given, list | tuple) and len(given) > 0
    name = f"{type(given).__name__} of {type(given[0]).__name__}" if several else type(given).__name__
    return f"something of type {name}"


def _from_files(input_shape: tuple[int, ...], is_table: bool) -> str:
    if len(input_shape) == 3:
        return f"; for image files: {READ.format('photo.png')}"
    return f"; for rows of a table: {READ.format('rows.csv')}" if is_table else ""


def _other_shape(inputs: Tensor, input_shape: tuple[int, ...], is_table: bool) -> str:
    if tuple(inputs.shape) == input_shape:
        return "; one input alone is a batch of one: x[None]"
    if is_table:
        return f", for columns become one number or more each: {READ.format('rows.csv')}"
    return _from_files(input_shape, is_table)


def _require_finite(inputs: Num[Tensor, "batch ..."], is_table: bool) -> None:
    """In single precision, which the network has: a larger number is infinite there."""
    finite = inputs.float().isfinite()
    if finite.all():
        return
    row = int(finite.flatten(1).all(1).logical_not().nonzero()[0])
    gaps = f"; the gaps of a table are filled by {READ.format('rows.csv')}" if is_table else "; fill it or drop the row"
    raise RicnetError(f"row {row} of the inputs has a number that is missing (NaN), infinite or too large{gaps}.")


def start_clock(milliseconds: float, device: torch.device, costs: Sequence[float]) -> TimeLeft:
    """Start measuring time. The returned function says whether there is time for another step, as long as the last, and
    for the work after it. It is called before each step, including the first, which encoding precedes. With exits, the
    next step is assumed to take longer in proportion to its `costs`.

    A GPU works asynchronously, so each call waits for the work queued so far.
    """
    end = time.perf_counter() + milliseconds / 1000
    asked: float | None = None
    shares = [after - before for before, after in pairwise([0.0, *costs])]
    steps = -1

    def time_left() -> bool:
        nonlocal asked, steps
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        now = time.perf_counter()
        step = 0.0 if asked is None else now - asked
        asked, steps = now, steps + 1
        conclusion = min(3 * step, CONCLUSION)
        if 0 < steps < len(shares):
            step *= shares[steps] / shares[steps - 1]
        return now + step + conclusion < end

    return time_left
