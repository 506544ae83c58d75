"""`Config`, all settings of a run, and its JSON form in config.json."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from ricnet.data.dataset import Augmentation, view_shape
from ricnet.data.registry import MOST_OVERSIZE
from ricnet.errors import RicnetError, require, require_finite, setting, wanted
from ricnet.io import is_text, misfit
from ricnet.methods import METHODS, RETIRED_PRESETS, RIC, Method, modern_method
from ricnet.nets.encoders import EncoderOptions

PARTS = ("method", "network", "optimization")
"""Fields of `Config` that are dataclasses of settings."""
DATA_SETTINGS = (
    *("resolution", "val_fraction", "train_fraction", "label_noise", "text", "test", "test_fraction"),
    *("calibration_fraction", "oversize", "final_fit"),
)
"""Settings that determine the splits."""
AFTER_TRAINING = ("readout", "feedback", "halt_threshold", "confidence_threshold", "calibration", "halt_rule", "budget")
"""Settings of inference, which do not change the weights. A derived run keeps the selected epoch of its source."""


@dataclass(frozen=True)
class Optimization:
    epochs: int = 120
    """Passes through the training data. Raise it if validation still improves in the last epochs."""
    batch_size: int = 512
    """Examples per update, over all processes. Larger batches use a GPU better, smaller ones make more updates per
    epoch."""
    accumulate: int = 1
    """Parts of a batch whose gradients are accumulated for one update. The update is the same and takes less memory,
    except that batch norm sees one part at a time. Raise it if a batch does not fit into memory."""
    optimizer: Literal["adamw", "adam", "sgd", "nesterov", "muon"] = "adamw"
    """Optimizer: adamw has decoupled weight decay, adam (the paper) adds it to the gradient, sgd has momentum,
    nesterov Nesterov's momentum. muon orthogonalises the updates of the encoder's matrices and updates all other
    parameters like adamw."""
    lr: float = 1e-3
    """Peak learning rate. Lower it if training diverges."""
    encoder_lr: float = 0.1
    """Learning rate of a pretrained encoder that is not frozen, as a share of --lr. Raise it if the data is unlike that
    of the pretraining, lower it to keep the pretrained weights."""
    weight_decay: float = 0.05
    """Weight decay. adam and sgd decay all parameters, the others leave out biases and normalisation.
    Raise it against over-fitting."""
    momentum: float = 0.9
    """Momentum of sgd, nesterov and muon. Raise it for smoother updates."""
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    """Schedule of the learning rate: cosine or linear, down to --lr-end, or constant (the paper)."""
    lr_end: float = 0.0
    """Learning rate at the end of a cosine or linear schedule, as a share of --lr. Raise it for larger updates in the
    last epochs."""
    warmup_epochs: float = 0.0
    """Epochs over which the learning rate rises from 0, at most half of all epochs. Raise it if training diverges in
    the first epochs."""
    average: float = 0.0
    """Decay of an exponential moving average of the weights, such as 0.999, which the model then uses; 0 for no
    average. Raise it for a longer average."""
    clip: float | None = 0.5
    """Largest norm of the gradient; None for no limit. Lower it if single batches destabilise training."""
    select: Literal["accuracy", "nll", "calibrated", "last"] = "accuracy"
    """Which epoch is kept, by validation data: accuracy (the highest; ties go to the lower NLL), nll (the lowest),
    calibrated (the latest whose NLL after a cross-fitted temperature is within a standard error of the lowest; with
    weighted rows as nll), or last."""
    patience: int | None = None
    """Stop after this many epochs without a better one; None for no early stopping. Raise it if training ends too soon.
    No effect with --select last."""
    augment: bool = True
    """Augment training images: crops, flips and colours as the data set allows, and --cutout."""
    flip: Literal["random", "alternating"] = "random"
    """How images are mirrored, where the data set allows it: half of them at random, or each in every second epoch,
    which shows both sides equally often."""
    shift: int | None = None
    """Largest shift of a training image in pixels; None for that of the data set (4 for CIFAR-10, none for
    photographs). Lower it if objects lie at fixed places."""
    padding: Literal["black", "reflect"] = "black"
    """What fills the border of a shifted image: black pixels, or the image mirrored at its border."""
    crop_area: float | None = None
    """Smallest share of an image that a random crop covers; each crop is resized to the whole size. None for that of
    the data: 0.35 for photographs, 1 (no crops) for other images. Lower it against over-fitting."""
    cutout: int = 0
    """Side in pixels of a square that is greyed out at a random place of each training image; 0 for none. Raise it
    against over-fitting."""
    trivial_augment: bool = False
    """Change each training image by one operation, chosen at random, with random strength: rotation, shear, brightness,
    contrast, saturation, sharpness, fewer grey levels, inverted bright pixels, stretched contrast, or none
    (TrivialAugment, Müller and Hutter 2021). It replaces the variation of colours. Set it against over-fitting."""
    mixup: float = 0.0
    """α of mixup (Zhang et al. 2018): each training example is averaged with another of its batch, and so are their
    labels, with a weight drawn from Beta(α, α); 0 for none. Raise it against over-fitting."""
    augmented_copies: int = 0
    """With --freeze, the number of augmented copies of each training image that are added to the training data; each is
    encoded once. Raise it against over-fitting."""
    validate_every: int = 1
    """Epochs between validations, each of which writes a line of metrics.jsonl; only these epochs can be selected. The
    last epoch is always validated. Raise it if validation takes longer than the epochs between, as with few rows."""
    measure_all: bool = False
    """After each validation also evaluate the test data and as many training rows, for curves; they do not select the
    epoch."""
    measure_every: int = 1
    """Epochs between evaluations of --measure-all; of these only validated epochs and the last are evaluated. Raise it
    if they take much of the time."""
    precision: Literal["auto", "float32", "bf16"] = "auto"
    """Precision of the encoder; auto is bf16 on a GPU that supports it, else float32. The refiner uses float32."""
    cuda_graph: bool = True
    """On a GPU, record the update as a CUDA graph and replay it: the same results, several times faster."""
    compile: Literal["auto", "on", "off"] = "auto"
    """Compile the encoder with torch.compile; auto compiles if updates are recorded as a CUDA graph and the run is long
    enough to make up for the time of compiling."""

    def __post_init__(self) -> None:
        require_finite(self)
        require(self.batch_size >= 2, "batch_size", self.batch_size, "at least 2")
        for name in ("epochs", "accumulate", "validate_every", "measure_every"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        for name in ("lr", "encoder_lr"):
            require(getattr(self, name) > 0, name, getattr(self, name), "above 0")
        for name in ("weight_decay", "warmup_epochs", "cutout", "mixup", "augmented_copies"):
            require(getattr(self, name) >= 0, name, getattr(self, name), "0 or more")
        for name in ("momentum", "average"):
            require(0 <= getattr(self, name) < 1, name, getattr(self, name), "from 0 to below 1")
        area = self.crop_area
        require(area is None or 0 < area <= 1, "crop_area", area, "above 0 and at most 1, or None")
        require(self.shift is None or self.shift >= 0, "shift", self.shift, "0 or more, or None")
        require(0 <= self.lr_end <= 1, "lr_end", self.lr_end, "from 0 to 1")
        require(self.patience is None or self.patience >= 1, "patience", self.patience, "at least 1, or None")
        require(self.clip is None or self.clip > 0, "clip", self.clip, "above 0, or None")

    def augmentation(self, of_data: Augmentation) -> Augmentation:
        """The augmentation of the data set with the changes of these settings."""
        area = of_data.crop_area if self.crop_area is None else self.crop_area
        shift = of_data.crop_padding if self.shift is None else self.shift
        colour = 0.0 if self.trivial_augment else of_data.colour
        reflect, trivial = self.padding == "reflect", self.trivial_augment
        cut = dataclasses.replace(of_data, crop_area=area, crop_padding=shift, cutout=self.cutout)
        return dataclasses.replace(cut, colour=colour, reflect=reflect, trivial=trivial)

    @property
    def extendable(self) -> bool:
        """Whether a run with more epochs would begin with the same epochs."""
        return self.schedule == "constant" and 2 * self.warmup_epochs < self.epochs


@dataclass(frozen=True, kw_only=True)
class Choices:
    """Settings of the data and of calibration, which all methods share."""

    text: str | None = None
    """Column of a table that holds texts; other columns are then not used. Not needed for a folder of .txt files."""
    resolution: int | None = None
    """Side in pixels that images are resized to; None for the resolution of the data set. Raise it for detail, lower it
    for speed."""
    oversize: float = 1.0
    """Side of stored photographs as a multiple of --resolution. Training cuts random crops out of the whole stored
    image, everything else reads its centre at --resolution. With 1, the whole image is read, and crops are enlarged
    to its size. With the preset fast, the default for photographs is 1.25, or less if they have fewer pixels. Raise it
    for sharper crops."""
    val_fraction: float = 0.1
    """Share of the training data held out for validation. Raise it for a more reliable choice of the epoch, lower it
    for more training rows."""
    test: str | None = None
    """Table of test rows, with the columns and classes of the data; not used in training. None takes test rows from the
    data."""
    test_fraction: float | None = None
    """Share of the rows held out for testing if the data has no test split; None for a quarter. With 0 there is no test
    split."""
    calibration_fraction: float = 0.0
    """Share of the training rows that is held out for guarantees (prediction sets, exits and answers of limited risk)
    and used for nothing else. 0 for none; ric calibrate takes other data. 19 examples are enough for a coverage of
    0.95, some hundreds make its sets precise."""
    train_fraction: float = 1.0
    """Share of the training rows to use, sampled per class with a fixed seed. A smaller share is a subset of a larger
    one; validation and test rows stay the same. Lower it to study the effect of fewer rows."""
    label_noise: float = 0.0
    """Share of training and validation labels that are replaced by a wrong one; test labels stay clean. Raise it to
    study the effect of wrong labels."""
    final_fit: bool = False
    """Train on the validation rows too: for a last run, once validation data has chosen the settings. The weights of
    the last epoch are kept, and neither temperature nor halting rule is fitted."""
    class_weight: Literal["balanced"] | None = None
    """balanced gives all classes the same total weight in training; None gives all rows the same weight. Balanced
    beliefs assume equally frequent classes; to select the epoch they are converted to the class frequencies of the
    training rows."""
    calibration: Literal["auto", "none", "temperature"] = "none"
    """Temperature fitted on validation data after training: none, temperature (one for all beliefs, with exits one per
    exit), or auto (a temperature only if it is shown to help on validation data). With RIC it has more effect for
    --readout mu, which has no floor."""
    halt_rule: Literal["auto", "value"] = "value"
    """Halting rule of RIC: value (halt when the value falls below --halt-threshold, as in the paper), or auto: another
    threshold, one step or all steps if they are shown to be better on validation data. With exits, auto chooses the
    whole network, or the cheapest rule that is shown to lose less than 0.01 NLL. If --halt-threshold or --compute-price
    is set, auto is the same as value."""
    budget: float | None = None
    """With exits, the largest mean share of compute per answer, from the cost of the first exit to 1, the whole
    network. The threshold is fitted to it on validation data. Raise it for better answers; None for --halt-rule. The
    trained model can be used with other budgets."""
    baselines: bool = True
    """After training, fit simpler models on the same rows for comparison: logistic regression and gradient boosting for
    tables, logistic regression on tf-idf for texts, none for images. Above 20 million rows × columns × classes they are
    fitted on a sample, so that each takes about a minute."""

    def __post_init__(self) -> None:
        require(0 < self.val_fraction < 1, "val_fraction", self.val_fraction, "between 0 and 1")
        fraction = self.test_fraction
        require(fraction is None or 0 <= fraction < 1, "test_fraction", fraction, "from 0 to below 1")
        held = self.calibration_fraction
        require(0 <= held < 1, "calibration_fraction", held, "from 0 to below 1")
        share = self.train_fraction
        require(0 < share <= 1, "train_fraction", share, "above 0 and at most 1")
        require(0 <= self.label_noise < 1, "label_noise", self.label_noise, "from 0 to below 1")
        require(self.resolution is None or self.resolution >= 1, "resolution", self.resolution, "at least 1")
        require(1 <= self.oversize <= MOST_OVERSIZE, "oversize", self.oversize, f"from 1 to {MOST_OVERSIZE:g}")
        budget = self.budget
        require(budget is None or 0 < budget <= 1, "budget", budget, "above 0 and at most 1")


@dataclass(frozen=True)
class Config(Choices):
    data: str = "digits"
    """Training data: a name (ric data list), a folder of images, or an .npz file."""
    preset: str = "fast"
    """The preset that the settings come from."""
    seed: int = 0
    """Seed of initial weights, order of the data, augmentation and exploration. Splits do not depend on it."""
    method: Method[Any] = field(default_factory=RIC)
    network: EncoderOptions = field(default_factory=EncoderOptions)
    optimization: Optimization = field(default_factory=Optimization)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.seed < 2**63, "seed", self.seed, "from 0 to 2^63 − 1")
        if self.final_fit:
            needed = {"calibration": "none", "halt_rule": "value", "budget": None, "select": "last"}
            given = {**vars(self), "select": self.optimization.select}
            for name, value in needed.items():
                rule = f"{value} with {setting('final_fit', True)}, which holds out no validation rows"
                require(given[name] == value, name, given[name], rule)
        if self.optimization.mixup:
            rule = f"0 for these settings of {self.method.name}, which cannot learn from mixed labels"
            require(self.method.takes_soft_labels, "mixup", self.optimization.mixup, rule)
            rule = f"0 with {setting('class_weight', self.class_weight)}: a mixed example has no class"
            require(self.class_weight is None, "mixup", self.optimization.mixup, rule)
        if self.network.freeze:
            rule = f"1 with {setting('freeze', True)}: features are computed once, from whole images"
            require(self.oversize == 1, "oversize", self.oversize, rule)
        if self.budget is None:
            return
        if self.network.exits == "none":
            raise RicnetError(
                f"{setting('budget', self.budget)} needs an encoder with exits; add {setting('exits', 'stage')}."
            )
        if not self.method.takes_budget:
            raise RicnetError(
                f"{setting('budget', self.budget)} has no effect with the method {self.method.name}, which has no "
                "value that decides when to exit; remove it."
            )
        for name in ("halt_threshold", "confidence_threshold"):
            threshold, default = (getattr(owner, name, None) for owner in (self.method, type(self.method)))
            if threshold != default:
                raise RicnetError(
                    f"{setting(name, threshold)} and {setting('budget', self.budget)} are two halting rules; "
                    "remove one."
                )

    def view_shape(self, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of what the network reads of an input."""
        return view_shape(input_shape, self.oversize)

    @property
    def fits_temperature(self) -> bool:
        """Whether a temperature is fitted on validation data. Validation rows are not weighted, so with balanced
        classes this is not automatic."""
        return self.calibration == "temperature" or (self.calibration == "auto" and self.class_weight is None)

    @property
    def chooses_halt(self) -> bool:
        """Whether the halting threshold is fitted on validation data: for a budget, or by --halt-rule auto if the
        method halts by a value and the user has set neither a threshold nor a price of compute. Validation rows are not
        weighted, so with balanced classes this is not automatic."""
        set_by_hand = getattr(self.method, "halt_threshold", None) != 0 or getattr(self.method, "compute_price", 0) > 0
        auto = self.halt_rule == "auto" and self.method.halts_by_value and not set_by_hand and self.class_weight is None
        return auto or self.budget is not None

    @property
    def has_budgets(self) -> bool:
        """Whether thresholds for all budgets are stored."""
        return self.network.exits != "none" and self.method.takes_budget and not self.final_fit


def stripped(config: Config) -> Config:
    """The configuration with the settings of `AFTER_TRAINING` at their defaults."""
    defaults = type(config.method)()
    known = {name: getattr(defaults, name) for name in AFTER_TRAINING if hasattr(defaults, name)}
    return dataclasses.replace(
        config, calibration="none", halt_rule="value", budget=None, method=dataclasses.replace(config.method, **known)
    )


def extends(config: Config, began: Config) -> bool:
    """Whether `config` is `began` with more epochs and no other change, and the first epochs are the same."""
    settings, before = config.optimization, began.optimization
    if settings.epochs <= before.epochs or not before.extendable:
        return False
    return dataclasses.replace(config, optimization=dataclasses.replace(settings, epochs=before.epochs)) == began


def to_json(config: Config) -> dict[str, Any]:
    """The configuration as JSON, with the name of the method."""
    return dataclasses.asdict(config) | {"method": {"name": config.method.name, **dataclasses.asdict(config.method)}}


def from_json(entry: Any, source: str) -> Config:
    """The configuration from the output of `to_json`, which is validated, because files are untrusted."""
    if misfit(entry, {"method": {"name": is_text}}) is not None:
        raise RicnetError(
            f"{source}: this is not a ricnet configuration (it has no method); was it written by ric train?"
        )
    method = modern_method(entry["method"])
    name = method.pop("name")
    if name not in METHODS:
        raise RicnetError(
            f"{source}: the method {name[:80]!r} is unknown; this ricnet has: {', '.join(sorted(METHODS))}."
        )
    entry = entry | {"method": method}
    if entry.get("preset") in RETIRED_PRESETS:
        entry["preset"] = "fast"
    parts: dict[str, Any] = {}
    for part, kind in {"method": METHODS[name], "network": EncoderOptions, "optimization": Optimization}.items():
        settings = entry.pop(part, {})
        if not isinstance(settings, dict):
            raise RicnetError(f"{source}: {part} cannot be {_shown(settings)}.")
        parts[part] = kind(**_typed(kind, settings, source, f"{part}."))
    return Config(**_typed(Config, entry, source), **parts)


def _typed(kind: type, settings: Mapping[str, Any], source: str, part: str = "") -> dict[str, Any]:
    """Settings from a file; some may be missing, as in files of older versions."""
    hints = field_types(kind)
    for name, value in settings.items():
        if name not in hints:
            raise RicnetError(f"{source}: the setting {_shown(name)} is unknown to this version of ricnet.")
        if not fits(value, hints[name]):
            raise RicnetError(f"{source}: {part}{name} cannot be {_shown(value)}.")
    return {name: as_typed(value, hints[name]) for name, value in settings.items()}


def given_settings(kind: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings from Python code, converted to the types of their fields; numpy scalars are accepted."""
    hints = field_types(kind)
    plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in given.items()}
    for name, value in plain.items():
        if not fits(value, hints[name]):
            raise RicnetError(f"{setting(name)} cannot be {_shown(value)}; give {wanted(hints[name])}.")
    return {name: as_typed(value, hints[name]) for name, value in plain.items()}


def field_types(kind: type) -> dict[str, Any]:
    """Type of each field of a dataclass."""
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def fits(value: object, hint: Any) -> bool:
    """Whether a JSON value has the type of a field; supports the types that settings have."""
    if get_origin(hint) in (Union, UnionType):
        return any(fits(value, option) for option in get_args(hint))
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if hint in (int, float):
        number = isinstance(value, int | hint) and not isinstance(value, bool)
        return number and not _is_vast(value)
    return isinstance(value, hint) if hint in (str, bool, NoneType) else False


def as_typed(value: Any, hint: Any) -> Any:
    """Convert an int to float if the field is a float; JSON does not distinguish 2 from 2.0."""
    options = (hint, *get_args(hint))
    return float(value) if type(value) is int and float in options and int not in options else value


def _is_vast(value: object) -> bool:
    """Whether an int does not fit into 64 bits; JSON has no limit."""
    return isinstance(value, int) and abs(value) >= 2**63


def _shown(value: object) -> str:
    """A short form of a value for messages."""
    if isinstance(value, dict | list):
        return f"a {type(value).__name__}"
    return repr(value[:80] if isinstance(value, str) else value) if not _is_vast(value) else "a number above 64 bits"
