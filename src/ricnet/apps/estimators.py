"""Every method as a scikit-learn classifier: fit, predict, predict_proba, score, and `refine` for the beliefs after
each step.

`RICClassifier`, `SupervisedClassifier` and so on are made from `METHODS`; a registered method `Mine` has a
`MineClassifier`. Constructors only store their arguments, as scikit-learn requires, and `fit` checks them. So the types
of constructor arguments are not checked in the tests either.
"""

import copy
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, make_dataclass, replace
from functools import cache
from typing import Any, ClassVar, Literal, Self, no_type_check

import numpy as np
import torch
from jaxtyping import Float64, Int64, Num
from rich.console import Console
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import assert_all_finite, check_array, check_consistent_length, check_random_state, column_or_1d
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor, nn

from ricnet.core.trajectory import Trajectory
from ricnet.data import Columns, Dataset, Split, Table
from ricnet.data.columns import encode_array, fit_array, fit_columns, is_plain
from ricnet.data.dataset import small_crops, split_off
from ricnet.data.images import as_bytes
from ricnet.data.labels import TEXT
from ricnet.data.tables import frame_table
from ricnet.data.texts import as_texts, fit_text
from ricnet.errors import InputWarning, RicnetError, in_python, listed, spelled_in_python, what_else
from ricnet.evaluation.conformal import Score
from ricnet.evaluation.costs import costs_of
from ricnet.io import is_frame
from ricnet.methods import METHODS, RIC, Method
from ricnet.models.classifier import Classifier, after_encoder, autocast_dtype, backbone_of
from ricnet.models.config import Config
from ricnet.models.guarantees import calibration_of, named_sets, set_rule
from ricnet.models.locate import find_tokenizer
from ricnet.nets.backbone import Exits
from ricnet.nets.words import known_words
from ricnet.terminal import say
from ricnet.training.api import pick_device, train_in_memory
from ricnet.training.features import Features
from ricnet.training.recipes import (
    HELD_OUT,
    LARGE_TABLE,
    ROWS_TO_JUDGE,
    Preset,
    configure,
    notices,
    unwatched_table,
)

RUN_SETTINGS = (
    *("epochs", "batch_size", "lr", "weight_decay", "freeze", "width", "patience"),
    *("exits", "steps_per_exit", "budget"),
)
"""Settings of a run that have the same name here. None takes the value of the preset."""
OWN_NAMES = {"seed": "random_state", "val_fraction": "validation_fraction"}
"""Settings of a run that have another name here."""
MOST_CHANNELS = 4
SHOWN = 1_000
"""Training rows used as validation split if none is held out; no choice depends on them."""


class InputError(RicnetError, ValueError):
    """A ValueError, which scikit-learn requires for wrong inputs."""


@no_type_check
@dataclass(eq=False, repr=False, kw_only=True)
class Estimator(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Base class of the estimators of all methods."""

    method: ClassVar[type[Method[Any]]]

    preset: Preset = "fast"
    """Source of settings that are None: `fast` has defaults for the kind and size of the data, `paper` the paper's."""
    epochs: int | None = None
    """Passes over the training data. Raise it if the training accuracy is too low; the time grows with it."""
    batch_size: int | None = None
    """Examples per update. Lower it for more updates per epoch, raise it for faster epochs on a GPU."""
    lr: float | None = None
    """Highest learning rate. Raise it to learn in fewer epochs, lower it if training diverges."""
    weight_decay: float | None = None
    """Weight decay. Raise it against over-fitting, lower it if too little is learned."""
    encoder: str | nn.Module = "auto"
    """Network that reads the input: tabular or mlp (tables), tfidf or words (texts), conv, whitened, resnet10,
    resnet18 or resnet34 (images), or any module from inputs to vectors. auto takes tabular for tables, tfidf for texts,
    conv for images of up to 16 pixels a side and a ResNet above, on a CPU whitened up to 32 pixels. hf:FOLDER,
    hf:USER/NAME and timm:NAME are pretrained."""
    freeze: bool | None = None
    """Do not train the encoder: each row is encoded once, for all folds and searches. None freezes a pretrained encoder
    if there are few rows, or on a CPU."""
    width: float | None = None
    """Multiplies every layer's width. Raise it for accuracy on much data, lower it for speed."""
    exits: Exits | None = None
    """Early exits after each stage or block of the encoder; None or none always computes the whole encoder."""
    steps_per_exit: int | None = None
    """Steps at each exit. Raise it for more steps before the next stage is computed."""
    class_weight: Literal["balanced"] | dict[Any, float] | None = None
    """Weight of the rows of each class; "balanced" gives all classes the same total weight. A class of higher weight is
    predicted more often."""
    validation_fraction: float | None = None
    """Share of validation rows, which choose the epoch, and in `fast` also the halting rule and a temperature if one
    helps. From 50 rows on, None means 0.15 for tables (at most 7,500 rows) and 0.15 for anything with exits; otherwise
    it means 0. At 0 all rows are for training, the last epoch is kept and nothing is fitted after it."""
    patience: int | None = None
    """Stop after this many epochs without improvement on validation rows; None leaves it to the preset."""
    budget: float | None = None
    """With exits, the mean share of compute of an answer; needs validation rows. Raise it for better answers, lower it
    for faster ones; None takes the cheapest rule that is not worse than the best single exit on validation rows."""
    random_state: int | np.random.RandomState | None = None
    """Fixes initial weights, order of the rows, exploration and the validation rows; None differs each time."""
    device: str = "auto"
    """Where to train and answer: cpu, cuda, cuda:1; auto takes a GPU if there is one. A pickled estimator is loaded on
    the CPU."""
    cost_matrix: Any = None
    """Cost of each answer (column) for each true class (row), in the order of `classes_`; `predict` then gives the
    answer of least expected cost. None: all mistakes cost the same."""
    verbose: int = 0
    """1 shows a progress bar."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:  # noqa: N803
        """Learn from a table (n, columns), from images (n, height, width[, channels]) or from a list of n texts.

        A data frame may have texts, dates and missing values, which are read as `ric train` reads those of a file, but
        no column is left out. NaN in an array counts as missing too. Images have numbers from 0 to 255; real numbers
        that never exceed 1 are fractions of full brightness, also when predicting. Rows of weight 0 are left out.
        """
        _refuse_missing(y)
        inputs, labels, columns, notes = self._learn_to_read(X, y)
        check_classification_targets(labels)
        self.classes_, numbers = np.unique(labels, return_inverse=True)
        weights = example_weights(sample_weight, self.class_weight, labels)
        fraction, state = self.validation_fraction, self.random_state
        if fraction is None:
            fraction = usual_fraction(numbers, weights, self.pixel_scale_ is None, self._has_exits)
        seed = int(state if isinstance(state, int | np.integer) else check_random_state(state).randint(2**31 - 1))
        names = tuple(str(name) for name in self.classes_)
        dataset = as_dataset(inputs, torch.tensor(numbers, dtype=torch.int64), weights, names, fraction, seed)
        console = Console(stderr=True) if self.verbose else Console(quiet=True, force_terminal=False)
        say([f"note: {note}" for note in notes], console)
        with spelled_in_python(OWN_NAMES, InputError):
            classifier, self.n_iter_ = train_in_memory(
                self._config(dataset, fraction, seed),
                dataset,
                pick_device(self.device),
                encoder=self.encoder if isinstance(self.encoder, nn.Module) else None,
                console=console,
            )
        budgets = classifier.budgets if fraction > 0 else ()  # thresholds need rows that were not trained on
        columns = columns and columns.with_known_words(known_words(classifier.model))
        self.classifier_ = replace(classifier, columns=columns, budgets=budgets)
        if self.pixel_scale_ is None:
            # Tables are answered in float64, as by other estimators of scikit-learn: in float32 the seventh digit of
            # an answer would depend on the other rows of the batch.
            self.classifier_.model.double()
        return self

    def refine(self, X: Any, max_steps: int | None = None, halt: bool = True) -> Trajectory:  # noqa: N803
        """Beliefs after each of at most `max_steps` steps, by class in the order of `classes_`. With `halt`, the belief
        of a row stays the same from its halt on."""
        classifier, inputs = self._asked(X)
        return classifier.refine(inputs, max_steps, halt)

    def predict_proba(self, X: Any) -> Float64[np.ndarray, "n classes"]:  # noqa: N803
        """Each row's belief at its own halt."""
        classifier, inputs = self._asked(X)
        return classifier.predict_proba(inputs)

    def predict(self, X: Any) -> np.ndarray:  # noqa: N803
        beliefs = self.predict_proba(X)
        best = beliefs.argmax(1)
        if self.cost_matrix is not None:
            with spelled_in_python(OWN_NAMES, InputError):
                best = costs_of(self.cost_matrix, [str(name) for name in self.classes_], abstain=False).decide(beliefs)
        answers: np.ndarray = self.classes_[best]
        return answers

    def calibrate(self, X: Any, y: Any) -> Self:  # noqa: N803
        """Keep labelled rows for `predict_set`. They must not be among the rows of `fit` or of any search, and must
        come from the same distribution as the rows to predict."""
        classifier, inputs = self._asked(X)
        labels = column_or_1d(y, warn=True)
        check_consistent_length(inputs, labels)
        place = {name: number for number, name in enumerate(self.classes_.tolist())}
        unknown = [label for label in labels.tolist() if label not in place]
        if unknown:
            raise InputError(f"y has the class {unknown[0]!r}, which fit did not see; leave its rows out.")
        split = Split(inputs, torch.tensor([place[label] for label in labels.tolist()], dtype=torch.int64))
        with spelled_in_python(OWN_NAMES, InputError):
            self.classifier_ = replace(self.classifier_, calibration=calibration_of(classifier, split))
        return self

    def predict_set(
        self,
        X: Any,  # noqa: N803
        coverage: float = 0.95,
        score: Literal["lac", "aps"] = "lac",
        per_class: bool = False,
    ) -> list[np.ndarray]:
        """Classes of each row, most likely first, that contain the true one with probability `coverage`, on average
        over rows drawn like those of `calibrate`; with `per_class` over the rows of each class."""
        check_is_fitted(self)
        if self.classifier_.calibration is None:
            raise InputError("predict_set needs labelled rows that fit has not seen; call calibrate(X, y) first.")
        beliefs = self.predict_proba(X)
        with spelled_in_python(OWN_NAMES, InputError):
            rule = set_rule(self.classifier_, coverage, Score(score), per_class)
        numbers = named_sets(rule.sets(beliefs, allow_empty=False), beliefs, range(len(self.classes_)))
        return [self.classes_[each] for each in numbers]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.input_tags.allow_nan = True
        return tags

    def __getstate__(self) -> dict[str, Any]:
        """Weights are pickled on the CPU, which every machine has."""
        state: dict[str, Any] = super().__getstate__()
        return state | {"classifier_": _on_cpu(state["classifier_"])} if "classifier_" in state else state

    def _asked(self, X: Any) -> tuple[Classifier, Num[Tensor, "n ..."]]:  # noqa: N803
        """The classifier and its inputs; with a frozen encoder the part after it, and features, which folds share."""
        inputs, frozen = self._read(X), backbone_of(self.classifier_.model).frozen_encoder
        if frozen is None:
            return self.classifier_, inputs
        device, exits = next(self.classifier_.model.parameters()).device, self.classifier_.config.network.exits
        return after_encoder(self.classifier_), Features(frozen, device, Console(quiet=True), exits)(inputs)

    def _learn_to_read(self, X: Any, y: Any) -> tuple[Num[Tensor, "n ..."], np.ndarray, Columns | None, Sequence[str]]:  # noqa: N803
        """Inputs, labels, how cells or words are encoded, and notes about it."""
        texts, self.pixel_scale_, self.column_means_ = as_texts(X), None, None
        if texts is not None:
            labels = column_or_1d(y, warn=True)
            check_consistent_length(texts, labels)
            table = Table("X", {TEXT: texts}, range(len(texts)), "text")
            tokenizer = find_tokenizer(self.encoder) if isinstance(self.encoder, str) else None
            columns = Columns("", (fit_text(texts, TEXT, tokenizer),))
            return columns.encode(table), labels, columns, ()
        if is_frame(X) and not is_plain(X):
            labels, table = column_or_1d(y, warn=True), self._table(X, reset=True)
            check_consistent_length(X, labels)
            columns, notes = fit_columns(table, target="", keep_all=True)
            notes += columns.odd_cells(table)
            return as_inputs(columns.encode(table).numpy(), None), labels, columns, notes
        array, labels = validate_data(self, X, y, dtype="numeric", allow_nd=True, ensure_all_finite="allow-nan")
        self.column_means_ = column_means(array)
        if self.column_means_ is not None and np.isnan(array).any():
            columns = fit_array(array, "X")
            return as_inputs(encode_array(columns, array), None), labels, columns, ()
        self.pixel_scale_ = pixel_scale(array)
        return as_inputs(array, self.pixel_scale_), labels, None, ()

    def _read(self, X: Any) -> Num[Tensor, "n ..."]:  # noqa: N803
        check_is_fitted(self)
        columns = self.classifier_.columns
        if columns is not None and columns.text is not None:
            texts = as_texts(X)
            if texts is None:
                raise InputError("X is not a list of at least one text, but fit saw texts; give texts.")
            ids = columns.text.rows(texts)
            for note in columns.text.notes(texts, ids):
                warnings.warn(note, InputWarning, stacklevel=4)
            return torch.from_numpy(ids)
        means = self.column_means_
        if columns is not None and means is None:
            return self._encode(columns, X)
        array = validate_data(self, X, reset=False, dtype="numeric", allow_nd=True, ensure_all_finite="allow-nan")
        if columns is not None and array.ndim == 2:
            return as_inputs(encode_array(columns, array), None)
        if means is not None and array.ndim == 2 and np.isnan(array).any():  # fit saw no gaps
            array = np.where(np.isnan(array), means, array)
        inputs, fitted = as_inputs(array, self.pixel_scale_), self.classifier_.input_shape
        if tuple(inputs.shape[1:]) != fitted:
            raise InputError(f"X is read as inputs of shape {tuple(inputs.shape[1:])}, but fit saw {fitted}.")
        return inputs

    def _table(self, X: Any, reset: bool) -> Table:  # noqa: N803
        """Store the names of the columns, or compare them with those that fit saw."""
        validate_data(self, X, reset=reset, skip_check_array=True)
        return frame_table(X, "X")

    def _encode(self, columns: Columns, X: Any) -> Num[Tensor, "n width"]:  # noqa: N803
        if not is_frame(X):
            words = "X is not a data frame, but fit saw one with texts, dates or missing values"
            raise InputError(f"{words}; give one with the same columns.")
        table = self._table(X, reset=False)
        with spelled_in_python(OWN_NAMES, InputError):
            inputs = columns.encode(table)
        for surprise in columns.surprises(table):
            warnings.warn(surprise, InputWarning, stacklevel=4)
        return inputs

    @property
    def _has_exits(self) -> bool:
        return self.exits not in (None, "none")

    def _config(self, dataset: Dataset, fraction: float, seed: int) -> Config:
        """The preset for this data, with the user's settings."""
        names = (*RUN_SETTINGS, *(setting.name for setting in fields(self.method)))
        settings = {name: value for name in names if (value := getattr(self, name)) is not None}
        if self.encoder != "auto":
            settings["encoder"] = "custom" if isinstance(self.encoder, nn.Module) else self.encoder
        for notice in notices(None, self.preset):
            warnings.warn(in_python(notice), FutureWarning, stacklevel=4)
        if fraction == 0:
            for name in ("patience", *(["budget"] if self._has_exits else [])):
                if name in settings:
                    raise InputError(f"{name} needs validation rows; set validation_fraction, to 0.1 for example.")
            unwatched = {"select": "last", "patience": None, "calibration": "none", "halt_rule": "value"}
            if self.preset != "paper" and not dataset.is_image:
                unwatched |= unwatched_table(len(dataset.train))
            settings = unwatched | settings
        # By default RICClassifier uses the default algorithm of `ric train`.
        algorithm = self._algorithm() if self.method is RIC else self.method.name
        return configure(dataset, algorithm, self.preset, pick_device(self.device), seed=seed, **settings)

    def _algorithm(self) -> str | None:
        """One of RIC's algorithms; other methods have classes of their own."""
        chosen: str | None = self.algorithm
        names = [name for name, kind in METHODS.items() if issubclass(kind, RIC)]
        if chosen is not None and chosen not in names:
            raise InputError(f"algorithm={chosen!r} is unknown; {what_else(str(chosen), names)}")
        return chosen


ABOUT_RIC = """Reinforced Iterative Classification.

    `algorithm` is ric-on-policy, ric-closed-form or ric (Algorithm 1 of the paper); None takes what `ric train` takes:
    on-policy, for texts Algorithm 1, with exits the closed form, with preset="paper" Algorithm 1. The other parameters
    are those of `Estimator` and the hyper-parameters of the algorithms, which `ric train --method ric --help-all`
    explains. None leaves one to the preset; one that the algorithm does not have is refused.
    """


@cache
def estimator_of(method: type[Method[Any]]) -> type[Any]:
    """A class named after the method's, which pickle finds in this module by that name."""
    about = f"""{method.about[:1].upper()}{method.about[1:]}.

    Its parameters are those of `Estimator` and the hyper-parameters of the method, which `ric train --method
    {method.name} --help-all` explains. None leaves one to the preset.
    """
    names = [*(["algorithm"] if method is RIC else []), *(setting.name for setting in fields(method))]
    return make_dataclass(
        f"{method.__name__}Classifier",
        [(name, Any, field(default=None)) for name in names],
        bases=(Estimator,),
        namespace={"__doc__": ABOUT_RIC if method is RIC else about, "__module__": __name__, "method": method},
        eq=False,
        repr=False,
        kw_only=True,
    )


def __getattr__(name: str) -> type[Any]:
    for method in METHODS.values():
        if name == f"{method.__name__}Classifier":
            return estimator_of(method)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *(f"{method.__name__}Classifier" for method in METHODS.values())]


def _on_cpu(classifier: Classifier) -> Classifier:
    model, cpu = copy.deepcopy(classifier.model).cpu(), torch.device("cpu")
    backbone_of(model).autocast = autocast_dtype(classifier.config.optimization.precision, cpu)
    return replace(classifier, model=model)


# Arrays as tensors


def pixel_scale(array: np.ndarray) -> float | None:
    """Factor that takes pixels to 0..255; None for a table. Real numbers that never exceed 1 are fractions of full
    brightness. It is decided when fitting, because a dark image alone would look like fractions."""
    if array.ndim == 2:
        return None
    if array.size == 0:
        raise InputError(f"X of shape {array.shape} holds no pixels; give at least one image.")
    return 255.0 if array.dtype.kind in "fb" and array.max() <= 1 else 1.0


def column_means(array: np.ndarray) -> Float64[np.ndarray, "columns"] | None:
    """Mean of each column without its missing values (NaN), 0 if all are missing; None for images, in which NaN is
    refused."""
    if array.ndim != 2:
        assert_all_finite(array, input_name="X")
        return None
    known = ~np.isnan(array)
    sums = np.where(known, array, 0).sum(axis=0, dtype=np.float64)
    return np.asarray(sums / known.sum(axis=0).clip(min=1))


def as_inputs(array: np.ndarray, scale: float | None) -> Num[Tensor, "n ..."]:
    """A float32 table, or uint8 images with channels first. The network standardises them."""
    own = pixel_scale(array)
    if own is None:
        with np.errstate(over="ignore"):  # check_array refuses numbers that are too large for float32
            return torch.tensor(check_array(array, dtype=np.float32))
    if scale == 1 and own == 255 and array.max() > 0:
        raise InputError(
            "X holds fractions of full brightness, none above 1, but fit saw pixels from 0 to 255; multiply X by 255, "
            "or round it to whole numbers (uint8) if all of these images are almost black."
        )
    if array.ndim > 4 or (array.ndim == 4 and array.shape[3] > MOST_CHANNELS):
        raise InputError(
            f"X is of shape {array.shape}; give a table (n, columns) or images (n, height, width) or "
            f"(n, height, width, channels), with at most {MOST_CHANNELS} channels, which come last."
        )
    scale = 1.0 if scale is None else scale
    try:
        pixels = array if array.dtype == np.uint8 else as_bytes(array, scale)
    except ValueError as error:
        raise InputError(
            f"X of shape {array.shape} is read as images, but its values are not in 0..{255 / scale:.0f} as when "
            "fitting; scale them, or flatten each image into a row of features."
        ) from error
    last = pixels[..., None] if pixels.ndim == 3 else pixels
    return torch.tensor(np.ascontiguousarray(last.transpose(0, 3, 1, 2)))


def example_weights(sample_weight: Any, class_weight: Any, labels: np.ndarray) -> Float64[np.ndarray, "n"] | None:
    """Product of sample and class weights; None if neither is given."""
    if sample_weight is None and class_weight is None:
        return None
    by_row = _check_sample_weight(sample_weight, labels, dtype=np.float64, ensure_non_negative=True)
    weights: np.ndarray = by_row * compute_sample_weight(class_weight, labels)
    return weights


def usual_fraction(
    labels: Int64[np.ndarray, "n"], weights: Float64[np.ndarray, "n"] | None, is_table: bool, has_exits: bool
) -> float:
    """The default share of validation rows. Tables need them against over-fitting, exits to fit thresholds. With fewer
    than `ROWS_TO_JUDGE` rows, all are for training. Above `LARGE_TABLE` rows their number no longer grows."""
    counts = np.bincount(labels if weights is None else labels[weights > 0])
    if not (has_exits or is_table) or counts.sum() < ROWS_TO_JUDGE or counts[counts > 0].min() < 2:
        return 0.0
    return HELD_OUT if has_exits else HELD_OUT * min(1.0, LARGE_TABLE / int(counts.sum()))


def as_dataset(
    inputs: Num[Tensor, "n ..."],
    labels: Int64[Tensor, "n"],
    weights: Float64[np.ndarray, "n"] | None,
    class_names: tuple[str, ...],
    fraction: float,
    seed: int,
) -> Dataset:
    """A dataset with this fraction of validation rows, without the rows of weight 0. It has no test split; the
    validation split stands in for it."""
    rows = Split(inputs, labels, None if weights is None else torch.tensor(weights, dtype=torch.float32))
    if rows.weights is not None:
        rows = rows.take(rows.weights.nonzero().flatten())
    counts = torch.bincount(rows.labels, minlength=len(class_names)).tolist()
    if sum(count > 0 for count in counts) < 2:
        raise InputError("y has only one class (counting rows of a weight above 0); give at least two classes.")
    lonely = [name for name, count in zip(class_names, counts, strict=True) if count == 1]
    if lonely and fraction != 0:
        raise InputError(f"y has only one row of {listed(lonely)}; a validation_fraction needs two of every class.")
    if not 0 <= fraction < 1:
        raise InputError(f"validation_fraction is {fraction}; it must be 0 or lie between 0 and 1.")
    if fraction == 0:
        train, val = rows, rows.take(torch.arange(0, len(rows), -(-len(rows) // SHOWN)))
    else:  # numpy's seeds have 32 bits; a wrong seed is refused later
        train, val = map(rows.take, split_off(rows.labels, fraction, seed % 2**32))
    return Dataset("the given rows", train, val, val, class_names, small_crops(inputs.shape))


def _refuse_missing(y: Any) -> None:
    """Raise if labels are missing; in a list of strings NumPy would turn them into a class called nan."""
    if isinstance(y, np.ndarray) and y.dtype.kind != "O":
        return
    from pandas import isna

    cells = np.asarray(y, dtype=object)
    if cells.ndim and (missing := int(isna(cells).sum())):
        raise InputError(f"Input y contains NaN: {missing} of {len(cells)} rows have no label; remove them.")
