"""All settings of a run, and their JSON form; `config.json` repeats a run exactly."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial, reduce
from operator import getitem
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from ricnet.errors import RicnetError, require, require_finite, setting, wanted
from ricnet.io import Absent, is_text, misfit
from ricnet.methods import METHODS, RIC, Method
from ricnet.methods.archive import RETIRED_PRESETS, modern_method
from ricnet.nets.encoders import EncoderOptions

PARTS = ("method", "network", "optimization")
"""The fields of a configuration that hold settings of their own."""
DATA_SETTINGS = ("resolution", "val_fraction", "train_fraction", "label_noise", "text", "test", "test_fraction")
"""Settings that decide what the data is, before anything is learned."""
AFTER_TRAINING = ("readout", "feedback", "halt_threshold", "confidence_threshold", "calibration", "halt_rule", "budget")
"""Settings that change what trained weights answer. A derived run keeps the epoch that was selected without them."""


@dataclass(frozen=True)
class Optimization:
    epochs: int = 120
    """Passes through the training data. Raise it as long as validation improves to the end."""
    batch_size: int = 512
    """Examples an update, of all processes together. Larger batches use a GPU better, smaller ones make more updates an
    epoch."""
    accumulate: int = 1
    """Parts of a batch that are learned from one after the other, for one update: the same update with less memory,
    but for batch norm, which sees only a part. Raise it if a batch does not fit into memory."""
    optimizer: Literal["adamw", "adam", "sgd"] = "adamw"
    """adamw decays weights directly; adam (the paper) through the gradient; sgd has Nesterov-free momentum."""
    lr: float = 1e-3
    """Learning rate at its highest. Lower it when training diverges."""
    encoder_lr: float = 0.1
    """Learning rate of an encoder that others have trained and that is not frozen, as a share of --lr. Raise it where
    the data is unlike what it knows, lower it to keep what it knows."""
    weight_decay: float = 0.05
    """Pull of the weights towards zero. Raise it against over-fitting."""
    momentum: float = 0.9
    """For sgd only. Raise it for smoother updates that turn more slowly."""
    schedule: Literal["cosine", "constant"] = "cosine"
    """How the learning rate goes: down to 0 along a cosine, or level (the paper)."""
    lr_end: float = 0.0
    """What is left of the learning rate at the end of the cosine, as a share of --lr. Raise it to go on learning to the
    end, lower it to settle."""
    warmup_epochs: float = 0.0
    """Epochs over which the learning rate rises from 0, at most half of them all. Raise it if the first epochs
    diverge."""
    average: float = 0.0
    """Answer with a running average of the weights: the share of it that is kept at each update, such as 0.999; 0 for
    the weights themselves. Raise it for a longer average."""
    clip: float | None = 0.5
    """Largest norm of the gradient; None for no limit. Lower it if single batches throw training off."""
    select: Literal["accuracy", "nll", "calibrated", "last"] = "accuracy"
    """Which epoch is kept, by validation data: accuracy (the highest; ties go to the lower NLL), nll (the lowest),
    calibrated (the latest whose NLL after a cross-fitted temperature is within a standard error of the lowest; with
    weighted rows as nll), or last."""
    patience: int | None = None
    """Stop after this many epochs without a better one; None for all epochs. Raise it if training ends too soon. With
    --select last no epoch is better than another, and all are made."""
    augment: bool = True
    """Crop, mirror and recolour training images as the data set allows, and cut out as --cutout says."""
    cutout: int = 0
    """Grey out a square of this many pixels at a random place of each training image. Raise it against over-fitting."""
    augmented_copies: int = 0
    """With --freeze: so many varied copies of every training image are learned from beside it, as --augment would vary
    them; each is encoded and kept once. Raise it against over-fitting."""
    measure_all: bool = False
    """After each epoch measure the test data and as many training rows too, for curves; they select nothing."""
    measure_every: int = 1
    """Epochs from one --measure-all to the next; the last epoch is always measured. Raise it in long runs, where
    measuring takes a good part of the time."""
    precision: Literal["auto", "float32", "bf16"] = "auto"
    """Arithmetic of the encoder; auto is bf16 on a GPU that has it. The refiner always works in float32."""
    cuda_graph: bool = True
    """On a GPU, record the update once and replay it: the same numbers, several times faster."""
    compile: Literal["auto", "on", "off"] = "auto"
    """Compile the encoder with torch.compile; auto does where updates are recorded, if that wins the time back."""

    def __post_init__(self) -> None:
        require_finite(self)
        require(self.epochs >= 1, "epochs", self.epochs, "at least 1")
        require(self.batch_size >= 2, "batch_size", self.batch_size, "at least 2")
        require(self.accumulate >= 1, "accumulate", self.accumulate, "at least 1")
        require(self.lr > 0, "lr", self.lr, "above 0")
        require(self.encoder_lr > 0, "encoder_lr", self.encoder_lr, "above 0")
        require(self.augmented_copies >= 0, "augmented_copies", self.augmented_copies, "0 or more")
        require(0 <= self.momentum < 1, "momentum", self.momentum, "from 0 to below 1")
        require(self.weight_decay >= 0, "weight_decay", self.weight_decay, "0 or more")
        require(self.warmup_epochs >= 0, "warmup_epochs", self.warmup_epochs, "0 or more")
        require(0 <= self.lr_end <= 1, "lr_end", self.lr_end, "from 0 to 1")
        require(0 <= self.average < 1, "average", self.average, "from 0 to below 1")
        require(self.measure_every >= 1, "measure_every", self.measure_every, "at least 1")
        patient = self.patience
        require(patient is None or patient >= 1, "patience", patient, "at least 1, or None")
        require(self.cutout >= 0, "cutout", self.cutout, "0 or more")
        require(self.clip is None or self.clip > 0, "clip", self.clip, "above 0, or None")

    @property
    def extendable(self) -> bool:
        """Whether more epochs would leave those before as they are. (A longer warm-up is cut to half of the run.)"""
        return self.schedule == "constant" and 2 * self.warmup_epochs < self.epochs


@dataclass(frozen=True, kw_only=True)
class Choices:
    """What is chosen about the data and about the end of a run, whatever is trained."""

    text: str | None = None
    """Column of a table that holds texts: only their words are then learned from. A folder of .txt files needs no
    such name."""
    resolution: int | None = None
    """Side in pixels that images are resized to; None for the data set's own. Raise it for detail, lower it for
    speed."""
    val_fraction: float = 0.1
    """Share of the training data kept aside to choose the best epoch. Raise it for a surer choice, lower it to learn
    from more."""
    test: str | None = None
    """Table of test rows, with the columns and classes of the data. Nothing is learned from them. None takes the test
    rows from the data."""
    test_fraction: float | None = None
    """Share of the rows held out for testing if the data has no test part; None for a quarter. With 0 there are no test
    rows, and nothing measures the model on rows that had no part in training it."""
    train_fraction: float = 1.0
    """Share of the training rows to learn from, drawn by class with a fixed seed: a smaller share is part of every
    larger one, and validation and test rows stay the same. Lower it to see what fewer rows do."""
    label_noise: float = 0.0
    """Share of training and validation labels that are replaced by a wrong one; the test labels stay clean. Raise it to
    see what wrong labels do."""
    class_weight: Literal["balanced"] | None = None
    """balanced gives all classes the same total weight in training, however rare; None gives all rows the same weight.
    Balanced beliefs assume equally frequent classes; to choose the epoch they are converted to the class shares of the
    training rows."""
    calibration: Literal["auto", "none", "temperature"] = "none"
    """Temperature fitted on validation data after training: none, temperature (one for all beliefs, with exits one per
    exit; with RIC it does more for --readout mu, which has no floor), or auto: a temperature only if it is shown to
    help there."""
    halt_rule: Literal["auto", "value"] = "value"
    """When RIC stops: value (once its value falls below --halt-threshold, as in the paper), or auto: the same unless
    another threshold, one step or all steps are shown to be better on validation data. With exits auto takes the whole
    network, or the cheapest rule that is shown to lose less than .01 NLL. A --halt-threshold or --compute-price of your
    own wins over auto."""
    budget: float | None = None
    """With exits, the mean share of compute that an answer may take, from what the first exit costs to 1, the whole
    network: the threshold that keeps it on validation data is when it stops. Raise it for better answers; None leaves
    it to --halt-rule. Any other can be asked of the trained model."""

    baselines: bool = True
    """After training, fit simpler models on the same rows and show them beside the result: logistic regression and
    gradient boosting for tables, logistic regression on tf-idf for texts, nothing for images. Beyond 20 million rows ×
    columns × classes they are trained on a sample, so that each takes about a minute."""

    def __post_init__(self) -> None:
        require(0 < self.val_fraction < 1, "val_fraction", self.val_fraction, "between 0 and 1")
        fraction = self.test_fraction
        require(fraction is None or 0 <= fraction < 1, "test_fraction", fraction, "from 0 to below 1")
        share = self.train_fraction
        require(0 < share <= 1, "train_fraction", share, "above 0 and at most 1")
        require(0 <= self.label_noise < 1, "label_noise", self.label_noise, "from 0 to below 1")
        require(self.resolution is None or self.resolution >= 1, "resolution", self.resolution, "at least 1")
        budget = self.budget
        require(budget is None or 0 < budget <= 1, "budget", budget, "above 0 and at most 1")


@dataclass(frozen=True)
class Config(Choices):
    data: str = "digits"
    """What to learn: a name (ric data list), a folder of images, or an .npz file."""
    preset: str = "fast"
    """Where the settings came from."""
    seed: int = 0
    """Fixes initial weights, order of the data, augmentation and exploration. Splits do not depend on it."""
    method: Method[Any] = field(default_factory=RIC)
    network: EncoderOptions = field(default_factory=EncoderOptions)
    optimization: Optimization = field(default_factory=Optimization)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.seed < 2**63, "seed", self.seed, "from 0 to 2^63 − 1")
        if self.budget is None:
            return
        if self.network.exits == "none":
            raise RicnetError(
                f"{setting('budget', self.budget)} needs exits to leave by; add {setting('exits', 'stage')}."
            )
        if not self.method.takes_budget:
            raise RicnetError(
                f"{setting('budget', self.budget)} means nothing to the method {self.method.name}, which has no value "
                "to leave by; leave it out."
            )
        for name in ("halt_threshold", "confidence_threshold"):
            threshold, default = (getattr(owner, name, None) for owner in (self.method, type(self.method)))
            if threshold != default:
                raise RicnetError(
                    f"{setting(name, threshold)} and {setting('budget', self.budget)} are two rules when to "
                    "stop; leave one out."
                )

    @property
    def fits_temperature(self) -> bool:
        """Whether validation data is asked for a temperature. Its rows count alike, so that where classes are balanced
        only one that was asked for is fitted."""
        return self.calibration == "temperature" or (self.calibration == "auto" and self.class_weight is None)

    @property
    def chooses_halt(self) -> bool:
        """Whether validation data decides when to stop: only for a method that stops by a value, at a threshold that
        nobody has set, and without a price of compute, which sets it too. Its rows count alike, so that balanced
        classes are left alone, but for a budget that was asked for."""
        set_by_hand = getattr(self.method, "halt_threshold", None) != 0 or getattr(self.method, "compute_price", 0) > 0
        auto = self.halt_rule == "auto" and self.method.halts_by_value and not set_by_hand and self.class_weight is None
        return auto or self.budget is not None

    @property
    def has_budgets(self) -> bool:
        """Whether thresholds are kept for all budgets."""
        return self.network.exits != "none" and self.method.takes_budget


def stripped(config: Config) -> Config:
    """The configuration as far as the weights depend on it."""
    defaults = type(config.method)()
    known = {name: getattr(defaults, name) for name in AFTER_TRAINING if hasattr(defaults, name)}
    return dataclasses.replace(
        config, calibration="none", halt_rule="value", budget=None, method=dataclasses.replace(config.method, **known)
    )


def extends(config: Config, began: Config) -> bool:
    """Whether a configuration is that of a run with more epochs, and nothing else changed."""
    settings, before = config.optimization, began.optimization
    if settings.epochs <= before.epochs or not before.extendable:
        return False
    return dataclasses.replace(config, optimization=dataclasses.replace(settings, epochs=before.epochs)) == began


def to_json(config: Config) -> dict[str, Any]:
    """The configuration as JSON holds it; the method says its name."""
    return dataclasses.asdict(config) | {"method": {"name": config.method.name, **dataclasses.asdict(config.method)}}


def from_json(entry: Any, source: str) -> Config:
    """The configuration that `to_json` wrote. It comes from a file, so nothing in it is trusted."""
    if misfit(entry, {"method": {"name": is_text}}) is not None:
        raise RicnetError(
            f"{source}: this is not a ricnet configuration (it has no method); was it written by ric train?"
        )
    entry = entry | {"method": modern_method(entry["method"])}
    if entry.get("preset") in RETIRED_PRESETS:
        entry["preset"] = "fast"
    name = entry["method"]["name"]
    if name not in METHODS:
        raise RicnetError(
            f"{source}: the method {name[:80]!r} is unknown; this ricnet has: {', '.join(sorted(METHODS))}."
        )
    kinds = {"method": METHODS[name], "network": EncoderOptions, "optimization": Optimization}
    if (
        place := misfit(entry, _form(Config) | {part: Absent(_form(kind)) for part, kind in kinds.items()})
    ) is not None:
        raise RicnetError(f"{source}: {place} cannot be {_shown(reduce(getitem, place.split('.'), entry))}.")
    own = {part: {key: value for key, value in entry.get(part, {}).items() if key != "name"} for part in kinds}
    parts = {part: kind(**_typed(kind, own[part], source)) for part, kind in kinds.items()}
    return Config(**_typed(Config, {k: v for k, v in entry.items() if k not in kinds}, source), **parts)


def field_types(kind: type) -> dict[str, Any]:
    """The type of every setting of a dataclass."""
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _form(kind: type) -> dict[str, Any]:
    """What its settings must look like in JSON; those of older versions may be missing."""
    return {name: Absent(partial(fits, hint=hint)) for name, hint in field_types(kind).items()}


def _typed(kind: type, settings: Mapping[str, Any], source: str) -> dict[str, Any]:
    hints = field_types(kind)
    for name in settings:
        if name not in hints:
            raise RicnetError(f"{source}: the setting {_shown(name)} is unknown to this version of ricnet.")
    return {name: as_typed(value, hints[name]) for name, value in settings.items()}


def given_settings(kind: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as Python code gives them, each of its field's type; a search hands over numpy's numbers."""
    hints = field_types(kind)
    plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in given.items()}
    for name, value in plain.items():
        if not fits(value, hints[name]):
            raise RicnetError(f"{setting(name)} cannot be {_shown(value)}; give {wanted(hints[name])}.")
    return {name: as_typed(value, hints[name]) for name, value in plain.items()}


def as_typed(value: Any, hint: Any) -> Any:
    """JSON does not tell 2 from 2.0."""
    options = (hint, *get_args(hint))
    return float(value) if type(value) is int and float in options and int not in options else value


def _shown(value: object) -> str:
    """Enough of it to be recognised."""
    if isinstance(value, dict | list):
        return f"a {type(value).__name__}"
    return repr(value[:80] if isinstance(value, str) else value) if not _is_vast(value) else "so large a number"


def _is_vast(value: object) -> bool:
    """A whole number of JSON has any number of digits; what it is used for has 64 bits."""
    return isinstance(value, int) and abs(value) >= 2**63


def fits(value: object, hint: Any) -> bool:
    """Whether a JSON value is of a field's type; the few types that settings have."""
    if get_origin(hint) in (Union, UnionType):
        return any(fits(value, option) for option in get_args(hint))
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and not _is_vast(value)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool) and not _is_vast(value)
    return isinstance(value, hint) if hint in (str, bool, NoneType) else False
