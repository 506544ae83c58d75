"""`Classifier`: a trained model and everything needed to use it; `ricnet.load` returns one.

Also here: the checks of its inputs, the deadline of an answer, and the network of a configuration.
"""

import copy
import os
import time
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float64, Num
from torch import Tensor, nn

from ricnet.core.policies import building_with
from ricnet.core.trajectory import Temperature, Trajectory
from ricnet.data import Columns, Split
from ricnet.data.columns import Number
from ricnet.data.inputs import read_inputs
from ricnet.data.tables import frame_table
from ricnet.data.texts import Text, as_texts
from ricnet.errors import InputWarning, RicnetError, listed, setting, spelled_in_python, whole_number
from ricnet.evaluation.choices import OperatingPoint, point_within, require_affordable, shortfall
from ricnet.evaluation.conformal import ScoreName
from ricnet.evaluation.evaluate import pool_size
from ricnet.io import is_frame, is_table, shown_name, without_folder
from ricnet.methods import Inference, Method, in_steps
from ricnet.methods.method import TimeLeft
from ricnet.models.config import Config
from ricnet.models.guarantees import Calibration, calibration_of, named_sets, score_named, set_rule
from ricnet.models.locate import named_encoder
from ricnet.models.recorded import Recordings
from ricnet.nets.backbone import Backbone, CachedFeatures, divide, embedding_size, reads_tokens
from ricnet.nets.encoders import build_encoder, choose_encoder, mlp_size

READ = "model.refine(model.read({!r}))"
"""How files become inputs, for messages."""
RAW = f"the inputs look like raw table cells, but the model reads standardised ones: {READ.format('rows.csv')}."
NEAR, FAR = 5, 30
"""Standard deviations from the mean: within NEAR lie most cells, beyond FAR almost none."""
CONCLUSION = 1e-3
"""Seconds reserved before a deadline for the work after the last step; at most the time of three steps."""


@dataclass(frozen=True)
class Classifier:
    config: Config
    method: Method[Any]
    """The configuration's method with its calibrated halting rule, or with another readout or threshold."""
    model: nn.Module
    input_shape: tuple[int, ...]
    class_names: tuple[str, ...]
    temperature: Temperature = 1.0
    """Calibrated on validation data; with exits one per step."""
    recordings: Recordings | None = None
    """See `recorded`."""
    folder: Path | None = None
    """The run folder it was loaded from."""
    columns: Columns | None = None
    """How the columns of a table become inputs; None for other data."""
    budgets: tuple[OperatingPoint, ...] = ()
    """With exits, calibrated thresholds for all budgets."""
    budget: float | None = None
    """The budget set by `with_budget`; the results of the run do not apply to it."""
    calibration: Calibration | None = None
    """Examples given to `calibrated`; None: those of the run folder, if it has any."""

    @torch.no_grad()
    def refine(
        self, inputs: Any, max_steps: int | None = None, halt: bool = True, max_ms: float | None = None
    ) -> Trajectory:
        """Beliefs for uint8 images (batch, channels, height, width) or float features (batch, columns), torch or numpy,
        for a list of texts, or for a data frame with the columns of the training data. Cells of a table in another form
        have to go through `read`, which standardises them.

        It makes at most `max_steps` steps; the default is what the run chose or was trained for. With `halt`, examples
        that have halted cost nothing more. `max_ms` limits the milliseconds of the whole call, encoding included: the
        first step is always made, another only if it should end in time, and the trajectory has the steps that were
        made. The result is on the model's device.
        """
        device = next(self.model.parameters()).device
        max_steps = None if max_steps is None else whole_number(max_steps, "max_steps")
        limits: dict[str, Any] = {"max_steps": max_steps, "max_ms": max_ms}
        for name, limit in limits.items():
            if limit is not None and not (isinstance(limit, int | float | np.number) and limit > 0):
                raise RicnetError(f"{name} is {limit!r}; it must be a number above 0.")
        time_left = None if max_ms is None else start_clock(max_ms, device, getattr(self.model, "costs", ()))
        inputs = self._as_inputs(inputs)
        if self.columns is not None and looks_raw(inputs, self.columns):
            warnings.warn(RAW, InputWarning, stacklevel=3)  # no_grad adds a frame
        refine = self.inference.refine if self.recordings is None else partial(self.recordings.refine, self.inference)
        model = self.model.eval() if self.model.training else self.model  # eval() takes longer than a step
        path = refine(model, inputs.to(device), max_steps, halt, time_left)
        if self.temperature == 1:
            return path
        path = path.tempered(self.temperature)
        return path.frozen() if halt else path  # a held belief keeps the temperature of its own step

    @property
    def inference(self) -> Inference:
        """The method, or its inference in steps; confidence is compared at the reported temperature."""
        return in_steps(self.method, self.model, self.temperature) or self.method

    def predict_proba(self, x: Any) -> Float64[np.ndarray, "n classes"]:
        """Belief of each input at its halt, in the order of `class_names`. Takes files as `read` does; arrays, texts
        and data frames as `refine` does. For a model of texts a str is a text and a Path is a file."""
        inputs = self._inputs_of(x)
        if not len(inputs):  # some encoders refuse an empty batch
            return np.zeros((0, len(self.class_names)))
        parts = inputs.split(pool_size(len(self.class_names)))  # beliefs at all steps must fit into memory
        beliefs = torch.cat([self.refine(part).final for part in parts]).double().softmax(-1)  # sums to 1 in float64
        found: np.ndarray = beliefs.cpu().numpy()
        return found

    def _inputs_of(self, x: Any) -> Num[Tensor, "n ..."]:
        several = x if isinstance(x, list | tuple) and x else [x]
        names_files = all(isinstance(path, str | os.PathLike) for path in several)
        return self._as_inputs(self.read(x) if names_files and not self._texts(x) else x)

    def predict(self, x: Any) -> np.ndarray:
        """Name of the most likely class of each input."""
        names: np.ndarray = np.array(self.class_names)[self.predict_proba(x).argmax(1)]
        return names

    def predict_set(
        self, x: Any, coverage: float = 0.95, score: ScoreName = "lac", per_class: bool = False
    ) -> list[list[str]]:
        """Classes of each input, most likely first, that contain the true one with probability `coverage`, on average
        over inputs like the calibration examples; with `per_class` over the inputs of each class. A set has at least
        one class. See `ricnet.evaluation.conformal.Score` for the scores."""
        with spelled_in_python():
            rule = set_rule(self, coverage, score_named(self, score, coverage), per_class)
        beliefs = self.predict_proba(x)
        return named_sets(rule.sets(beliefs, allow_empty=False), beliefs, self.class_names)

    def calibrated(self, x: Any, labels: Sequence[str]) -> "Classifier":
        """A copy whose guarantees use these labelled inputs, which must not have been used in training or in any
        choice, and must be exchangeable with later inputs. `x` is as for `predict_proba`."""
        inputs = self._inputs_of(x)
        place = {name: number for number, name in enumerate(self.class_names)}
        unknown = [str(label) for label in labels if str(label) not in place]
        if unknown:
            known = listed(self.class_names)
            raise RicnetError(f"{unknown[0]!r} is not a class of the model, whose classes are {known}.")
        if len(inputs) != len(labels):
            raise RicnetError(f"there are {len(inputs):,} inputs but {len(labels):,} labels; give one per input.")
        split = Split(inputs, torch.tensor([place[str(label)] for label in labels], dtype=torch.int64))
        return replace(self, calibration=calibration_of(self, split))

    @property
    def view_shape(self) -> tuple[int, ...]:
        """Shape that the network reads; of images that are stored larger, the shape of their centre."""
        return self.config.view_shape(self.input_shape)

    @property
    def kind(self) -> Literal["image", "features", "tokens"]:
        """Kind of inputs."""
        if reads_tokens(backbone_of(self.model).reader):
            return "tokens"
        return "image" if len(self.input_shape) == 3 else "features"

    @property
    def input_dtype(self) -> torch.dtype:
        return {"image": torch.uint8, "features": torch.float32, "tokens": torch.int32}[self.kind]

    @property
    def text(self) -> Text | None:
        """How texts become inputs; None if the model reads none."""
        return None if self.columns is None else self.columns.text

    def _texts(self, given: Any) -> list[str] | None:
        if self.text is None:
            return None
        if isinstance(given, list | tuple) and any(isinstance(one, str) for one in given):
            for place, one in enumerate(given, start=1):
                if not isinstance(one, str | Path):
                    raise RicnetError(f"text {place} of {len(given)} is {one!r}, not a str; give '' for an empty text.")
        return as_texts(given)

    def _as_inputs(self, given: Any) -> Num[Tensor, "batch ..."]:
        texts = self._texts(given)
        if texts is not None and self.text is not None:
            if any(is_table(text) or text.endswith(".txt") for text in texts):
                told = f"{texts[0]!r} is classified as a text; to read the file of that name: {READ.format(texts[0])}."
                warnings.warn(told, InputWarning, stacklevel=4)
            ids = self.text.rows(texts)
            for note in self.text.notes(texts, ids):
                warnings.warn(note, InputWarning, stacklevel=4)
            given = torch.from_numpy(ids)
        elif is_frame(given) and self.columns is not None:
            table = frame_table(given)
            given = self.columns.encode(table)
            for surprise in self.columns.surprises(table):  # values unseen in training
                warnings.warn(f"note: {surprise}", InputWarning, stacklevel=4)
        elif is_frame(given):
            given = given.to_numpy()
        inputs = as_inputs(given, self.input_shape, self.columns is not None)
        if self.kind == "tokens":
            self.require_ids(inputs)
        return inputs

    def require_ids(self, inputs: Num[Tensor, "batch tokens"]) -> None:
        """Raise on token ids outside the vocabulary: on a GPU they would end the process."""
        if inputs.dtype not in (torch.int32, torch.int64):
            raise RicnetError(f"the model reads texts, or their token ids as whole numbers, not {inputs.dtype}.")
        known: Any = backbone_of(self.model).reader.vocabulary
        if len(inputs) and not 0 <= int(inputs.min()) <= int(inputs.max()) < int(known):
            raise RicnetError(f"a token id is not in 0 … {int(known) - 1}; give the texts themselves.")

    def read(self, paths: str | Path | Iterable[str | Path]) -> Num[Tensor, "n ..."]:
        """Inputs for `refine` from what `ric predict` takes: image files, folders of images, patterns, tables, .npz
        files. A named file must be readable; an unreadable one in a folder or pattern is left out with a warning."""
        try:
            named = [os.fspath(path) for path in ([paths] if isinstance(paths, str | bytes | os.PathLike) else paths)]
        except TypeError as error:
            raise RicnetError(f"read takes the paths of files or folders ({error}); arrays go to refine.") from error
        if any(isinstance(path, bytes) for path in named):
            raise RicnetError("read takes the paths of files or folders as text, not as bytes; decode them.")
        found = read_inputs(named, self.input_shape, self.columns)
        if found.problems:
            raise found.problems[0]
        for note in found.notes:
            warnings.warn(note, InputWarning, stacklevel=2)
        return found.inputs

    def __repr__(self) -> str:
        encoder = encoder_name(self.config, self.input_shape)
        data, classes = shown_name(self.config.data), len(self.class_names)
        return f"<Classifier: {self.method.name} on {data}, {classes} classes, encoder {encoder}>"

    def with_budget(self, budget: float) -> "Classifier":
        """A copy whose mean share of compute on validation data is within `budget`, from the cost of the first exit to
        1, the whole network. Only for models with exits."""
        with spelled_in_python():
            frugal, told = self.within(budget)
        if told is not None:
            warnings.warn(told, stacklevel=2)
        return frugal

    def within(self, budget: float) -> tuple["Classifier", str | None]:
        """`with_budget` for the CLI and the server; and a note if the budget is not fully used."""
        if not self.budgets:
            raise RicnetError(f"{setting('budget', budget)} has no effect on this model: {self._no_budgets()}")
        point = point_within(self.budgets, budget)
        steps = len(getattr(self.model, "costs", ()))
        frugal = replace(self, method=self.method.stopping_by(point.halt_threshold, steps), budget=budget)
        return frugal, shortfall(point.mean_cost, budget)

    def _no_budgets(self) -> str:
        if self.config.network.exits == "none":
            return f"it has no exits; train one with {setting('exits', 'stage')}."
        if not self.config.method.takes_budget:
            return f"the method {self.config.method.name} has no value that decides when to exit; remove the budget."
        if self.folder is not None and (self.folder / "evaluation.json").is_file():
            return "it was trained with a version that did not store thresholds for budgets; train it again."
        if self.folder is None:
            kept = setting("validation_fraction", 0.1)
            return f"no validation rows were held out to fit thresholds on; train it with {kept}, for example."
        return "thresholds for budgets are fitted at the end of training; finish its training."

    def recorded(self) -> "Classifier":
        """A copy that answers batches faster on a GPU: the first batch of a size is slow, because its steps are
        recorded; later ones replay them. Recordings hold memory and serve one thread. No effect on a CPU."""
        return replace(self, recordings=Recordings())

    @classmethod
    def from_pretrained(cls, run: str | Path, device: str = "cpu", encoder: nn.Module | None = None) -> "Classifier":
        """`ricnet.load`, under the name it has in other libraries."""
        from ricnet.models.loading import load

        return load(run, device, encoder)

    def save_pretrained(self, folder: str | Path, name: str | None = None) -> Path:
        """Write a folder to share: config.json, model.safetensors and README.md, the model card, with `name` as its
        title. It holds no data."""
        from ricnet.models.hub import save_pretrained

        return save_pretrained(self, folder, name)

    def push_to_hub(self, repo: str, private: bool = False) -> str:
        """Upload that folder to the Hub as user/name, created if missing; returns the address of its page."""
        from ricnet.models.hub import push_to_hub

        return push_to_hub(self, repo, private)


def after_encoder(classifier: Classifier) -> Classifier:
    """A copy that reads the features of its frozen encoder."""
    backbone, exits = backbone_of(classifier.model), classifier.config.network.exits
    features, stages = backbone.features, backbone.stages
    assert features is not None
    # leaves the encoder untouched: another thread may be using it
    model = copy.deepcopy(classifier.model, {id(features): nn.Identity(), id(stages): ()})
    after = backbone_of(model)
    sizes = backbone.feature_sizes
    after.features = CachedFeatures(sizes, [0] * len(sizes)) if stages else None  # costs were counted when it was built
    after.stages = divide(after.features, exits) if after.features is not None else ()
    return replace(classifier, model=model, input_shape=(len(backbone.mean),))


# Inputs


def as_inputs(given: Any, input_shape: tuple[int, ...], is_table: bool) -> Num[Tensor, "batch ..."]:
    """A tensor of inputs, checked; `is_table` says that the model was trained on a table."""
    hint = f"; for rows of a table: {READ.format('rows.csv')}" if is_table else ""
    hint = f"; for image files: {READ.format('photo.png')}" if len(input_shape) == 3 else hint
    if isinstance(given, np.ndarray) and not given.flags.writeable:  # torch warns of read-only arrays
        given = given.copy()
    try:
        inputs = torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        kind = type(given).__name__
        if isinstance(given, list | tuple) and given:
            kind += f" of {type(given[0]).__name__}"
        shape = f"(n, {', '.join(map(str, input_shape))})"
        raise RicnetError(f"the model reads an array of shape {shape}, not something of type {kind}{hint}.") from error
    if tuple(inputs.shape) == input_shape:
        hint = "; for a single input give a batch of one: x[None]"
    elif is_table:
        hint = f"; a column becomes one or more numbers, so read the table with {READ.format('rows.csv')}"
    if tuple(inputs.shape[1:]) != input_shape:
        raise RicnetError(f"the model reads inputs of shape {input_shape}, not {tuple(inputs.shape[1:])}{hint}.")
    if len(input_shape) == 3 and inputs.dtype != torch.uint8:
        raise RicnetError(f"the model reads images as uint8 from 0 to 255, not {inputs.dtype}; convert them.")
    if inputs.dtype.is_complex:
        raise RicnetError(f"the model reads real numbers, not {inputs.dtype}; convert them.")
    if inputs.dtype.is_floating_point and not (finite := inputs.float().isfinite()).all():  # as the network computes
        row = int(finite.flatten(1).all(1).logical_not().nonzero()[0])
        how = f"{READ.format('rows.csv')} fills gaps of a table" if is_table else "fill it or drop the row"
        raise RicnetError(f"row {row} of the inputs has a number that is missing (NaN), infinite or too large; {how}.")
    return inputs


def looks_raw(inputs: Num[Tensor, "batch width"], columns: Columns) -> bool:
    """Whether inputs look like raw cells: some column is beyond FAR in all rows, where standardised cells would be
    outliers, and all columns are near the mean of their training cells. Only if each column is one number."""
    cells = inputs.float()
    if not len(cells) or not (cells.abs() > FAR).all(0).any():
        return False
    numbers = [column for column in columns.inputs if isinstance(column, Number)]
    if len(numbers) < columns.width:
        return False
    mean, std = torch.tensor([(column.mean, column.std) for column in numbers], device=cells.device).T
    return bool(((cells - mean).abs().mean(0) <= NEAR * std).all())


# The deadline of an answer


def start_clock(milliseconds: float, device: torch.device, costs: Sequence[float]) -> TimeLeft:
    """Start measuring. The returned function is called before each step, the first included, and says whether there is
    time for a step as long as the last, and for the work after it. With exits the next step is expected to take longer
    in proportion to its `costs`. A GPU works asynchronously, so each call waits for the work queued so far."""
    end = time.perf_counter() + milliseconds / 1000
    shares = [after - before for before, after in pairwise([0.0, *costs])]
    asked: list[float] = []

    def time_left() -> bool:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        now, steps = time.perf_counter(), len(asked)
        step = now - asked[-1] if asked else 0.0
        asked.append(now)
        conclusion = min(3 * step, CONCLUSION)
        if 0 < steps < len(shares):
            step *= shares[steps] / shares[steps - 1]
        return now + step + conclusion < end

    return time_left


# The network of a configuration


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
    input_shape = config.view_shape(input_shape)
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
        own = own if own is not None else build_encoder(network, config.view_shape(input_shape))
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
