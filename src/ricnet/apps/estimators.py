"""Every method as a scikit-learn classifier: fit, predict, predict_proba, score, and `refine` for the beliefs on the
way.

`RICClassifier`, `SupervisedClassifier` and so on are made from `METHODS`, one for each method: its parameters are those
of `Estimator` and the method's own hyper-parameters. A method `Mine` of your own has its `MineClassifier` as soon as it
is registered.

Constructors only store what they are given, as scikit-learn asks; `fit` checks it. That is why types are not checked
here, neither by the constructor nor in the tests.
"""

import copy
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields, make_dataclass, replace
from functools import cache
from typing import Any, ClassVar, Literal, Self, no_type_check

import numpy as np
import torch
from jaxtyping import Float64, Num
from rich.console import Console
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_consistent_length, check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from ricnet.apps.estimator_inputs import (
    InputError,
    as_dataset,
    as_inputs,
    column_means,
    example_weights,
    pixel_scale,
    usual_fraction,
)
from ricnet.core.trajectory import Trajectory
from ricnet.data import Columns, Dataset, Table
from ricnet.data.columns import encode_array, fit_array, fit_columns, is_plain
from ricnet.data.labels import TEXT
from ricnet.data.tables import frame_table, is_frame
from ricnet.data.texts import as_texts, fit_text
from ricnet.errors import in_python, spelled_in_python
from ricnet.methods import METHODS, RIC, Method
from ricnet.models.classifier import Classifier, after_encoder, autocast_dtype, backbone_of
from ricnet.models.config import Config
from ricnet.models.locate import find_tokenizer
from ricnet.nets.stages import Exits
from ricnet.training.api import pick_device, train_in_memory
from ricnet.training.console import say
from ricnet.training.features import Features
from ricnet.training.recipes import Preset, configure, notices, unwatched_table

RUN_SETTINGS = (
    *("epochs", "batch_size", "lr", "weight_decay", "freeze", "width", "patience"),
    *("exits", "steps_per_exit", "budget"),
)
"""Settings of a run that have the same name here. None leaves them to the preset, as it does a method's own."""

OWN_NAMES = {"seed": "random_state", "val_fraction": "validation_fraction"}
"""Settings of a run that have another name here."""


@no_type_check
@dataclass(eq=False, repr=False, kw_only=True)
class Estimator(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """What the estimators of all methods share."""

    method: ClassVar[type[Method[Any]]]

    preset: Preset = "fast"
    """Where settings come from that are None: ours, which look at what there is to learn, or the paper's."""
    epochs: int | None = None
    """Passes through the training data. Raise it if the training accuracy is too low; the time grows with it."""
    batch_size: int | None = None
    """Examples an update. Lower it for more updates an epoch, raise it for quicker epochs on a GPU."""
    lr: float | None = None
    """Learning rate at its highest. Raise it to learn in fewer epochs, lower it when training diverges."""
    weight_decay: float | None = None
    """Pull of the weights towards zero. Raise it against over-fitting; too much and nothing is learned."""
    encoder: str | nn.Module = "auto"
    """What reads the input: mlp, conv, resnet10, resnet18, resnet34, words, or any module from inputs to vectors; auto
    takes words for texts, mlp for tables, conv for images of up to 16 pixels a side and a ResNet above. hf:FOLDER,
    hf:USER/NAME or timm:NAME is one that others have trained."""
    freeze: bool | None = None
    """Leave an encoder that has learned already as it is: each row is encoded once, for all folds and searches. None
    does with few rows or on a CPU, if others have trained it."""
    width: float | None = None
    """Multiplies every layer's width. Raise it for accuracy on much data, lower it for speed."""
    exits: Exits | None = None
    """Where an answer may leave the encoder early: after each stage or block of it; None or none reads it whole."""
    steps_per_exit: int | None = None
    """Steps at each exit. Raise it to think longer about what was seen before looking at more."""
    class_weight: Literal["balanced"] | dict[Any, float] | None = None
    """How much the rows of each class count. "balanced" makes all classes count the same; raise one class's weight and
    it is answered more often."""
    validation_fraction: float | None = None
    """Share of the rows kept aside to choose the best epoch, and in `fast` also when to stop and a temperature if one
    helps. From 50 rows on, None means 0.15 for tables (at most 7,500 rows) and 0.15 for anything with exits; otherwise
    it means 0. At 0 all rows are for training, the last epoch is kept and nothing is fitted after it. Raise it for a
    more reliable choice."""
    patience: int | None = None
    """Stop after this many epochs that were no better on the rows kept aside; None leaves it to the preset. Lower it to
    stop sooner, raise it if it stops too soon. Needs rows kept aside."""
    budget: float | None = None
    """With exits, the mean share of compute that an answer may take. Raise it for better answers, lower it for quicker
    ones; None takes as little as is no worse than the best single exit on the rows kept aside, which a
    budget needs."""
    random_state: int | np.random.RandomState | None = None
    """Fixes initial weights, order of the rows, exploration and which rows are kept aside; None differs each time."""
    device: str = "auto"
    """Where to train and answer: cpu, cuda, cuda:1; auto takes a GPU if there is one. A pickled estimator comes back on
    the CPU."""
    verbose: int = 0
    """1 shows a progress bar."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:  # noqa: N803
        """Learn from a table (n, columns), from images (n, height, width[, channels]) or from a list of n texts.

        A data frame may have columns of texts and dates, and gaps; they are read as `ric train` reads those of a file,
        but no column is left out. NaN in an array of numbers is a gap too and treated in the same way. Images are whole
        numbers or real ones from 0 to 255; real ones that never exceed 1 are fractions of full brightness, and so are
        those to predict then. `sample_weight` says how much each row counts; rows of weight 0 are left out.
        """
        inputs, labels, columns, notes = self._learn_to_read(X, y)
        check_classification_targets(labels)
        self.classes_, numbers = np.unique(labels, return_inverse=True)
        weights = example_weights(sample_weight, self.class_weight, labels)
        fraction = self.validation_fraction
        if fraction is None:
            fraction = usual_fraction(numbers, weights, self.pixel_scale_ is None, self._has_exits)
        dataset = as_dataset(
            inputs,
            torch.tensor(numbers, dtype=torch.int64),
            weights,
            tuple(str(name) for name in self.classes_),
            fraction,
            seed := _seed(self.random_state),
        )
        console = Console(stderr=True) if self.verbose else Console(quiet=True, force_terminal=False)
        say([f"note: {note}" for note in notes], console)
        with _own_words():
            classifier, self.n_iter_ = train_in_memory(
                self._config(dataset, fraction, seed),
                dataset,
                pick_device(self.device),
                encoder=self.encoder if isinstance(self.encoder, nn.Module) else None,
                console=console,
            )
        budgets = classifier.budgets if fraction > 0 else ()  # rows that were learned say nothing of others
        self.classifier_ = replace(classifier, columns=columns, budgets=budgets)
        if self.pixel_scale_ is None:
            # Tables are answered in float64, as others of scikit-learn do: what a row gets shall not depend, not even
            # in its seventh digit, on the rows beside it.
            self.classifier_.model.double()
        return self

    def refine(self, X: Any, max_steps: int | None = None, halt: bool = True) -> Trajectory:  # noqa: N803
        """The belief after each step, for at most so many steps; with `halt`, each row's from its halt on stays.

        The order of the classes is that of `classes_`.
        """
        classifier, inputs = self._asked(X)
        return classifier.refine(inputs, max_steps, halt)

    def predict_proba(self, X: Any) -> Float64[np.ndarray, "n classes"]:  # noqa: N803
        """Each row's belief at its own halt."""
        classifier, inputs = self._asked(X)
        return classifier.predict_proba(inputs)

    def predict(self, X: Any) -> np.ndarray:  # noqa: N803
        best = self.predict_proba(X).argmax(1)
        answers: np.ndarray = self.classes_[best]
        return answers

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.input_tags.allow_nan = True
        return tags

    def __getstate__(self) -> dict[str, Any]:
        """Weights travel as those of a CPU, which every machine has."""
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
        """Inputs and labels, how cells or words became numbers, and what is to be said of it."""
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
                raise InputError("X is no list of texts, but fit saw one; give texts.")
            return torch.from_numpy(columns.text.rows(texts))
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
        """The names of the columns are remembered, or held against those that fit saw."""
        validate_data(self, X, reset=reset, skip_check_array=True)
        return frame_table(X, "X")

    def _encode(self, columns: Columns, X: Any) -> Num[Tensor, "n width"]:  # noqa: N803
        if not is_frame(X):
            raise InputError(
                "X is no data frame, but fit saw one with texts, dates or gaps; give one with the same columns."
            )
        table = self._table(X, reset=False)
        with _own_words():
            inputs = columns.encode(table)
        for surprise in columns.surprises(table):
            warnings.warn(surprise, stacklevel=4)
        return inputs

    @property
    def _has_exits(self) -> bool:
        return self.exits not in (None, "none")

    @property
    def _algorithm(self) -> str | None:
        """The method to train. `RICClassifier` takes the default one of `ric train` unless it is told."""
        return self.algorithm if self.method is RIC else self.method.name

    def _config(self, dataset: Dataset, fraction: float, seed: int) -> Config:
        """The preset for this data, with what the user set."""
        names = (*RUN_SETTINGS, *(setting.name for setting in fields(self.method)))
        settings = {name: value for name in names if (value := getattr(self, name)) is not None}
        if self.encoder != "auto":
            settings["encoder"] = "custom" if isinstance(self.encoder, nn.Module) else self.encoder
        for notice in notices(None, self.preset):
            warnings.warn(in_python(notice), FutureWarning, stacklevel=4)
        device = pick_device(self.device)
        if fraction > 0:
            return configure(dataset, self._algorithm, self.preset, device, seed=seed, **settings)
        if self.patience is not None:
            raise InputError("patience needs rows kept aside to judge by; set validation_fraction, to 0.1 for example.")
        if self.budget is not None and self._has_exits:
            raise InputError("budget needs rows kept aside to fit it on; set validation_fraction, to 0.1 for example.")
        unwatched: dict[str, Any] = {"select": "last", "patience": None, "calibration": "none", "halt_rule": "value"}
        if self.preset != "paper" and not dataset.is_image:
            unwatched |= unwatched_table(len(dataset.train))
        return configure(dataset, self._algorithm, self.preset, device, seed=seed, **unwatched | settings)


ABOUT_RIC = """Reinforced Iterative Classification.

    `algorithm` is ric-on-policy, ric-closed-form or ric (Algorithm 1 of the paper); None takes what `ric train` takes:
    on-policy, with exits the closed form, with preset="paper" Algorithm 1. The other parameters are those of
    `Estimator` and the hyper-parameters of the algorithms, which `ric train --method ric --help-all` explains. None
    leaves one to the preset; one that the algorithm does not have is refused.
    """


@cache
def estimator_of(method: type[Method[Any]]) -> type[Any]:
    """A class named after the method's, which pickle finds in this module by that name."""
    about = f"""{method.about[:1].upper()}{method.about[1:]}.

    Its parameters are those of `Estimator` and the hyper-parameters of the method, which `ric train --method
    {method.name} --help-all` explains. None leaves one to the preset.
    """
    if method is RIC:
        about = ABOUT_RIC
    algorithm = ["algorithm"] if method is RIC else []
    return make_dataclass(
        f"{method.__name__}Classifier",
        [(name, Any, field(default=None)) for name in (*algorithm, *(setting.name for setting in fields(method)))],
        bases=(Estimator,),
        namespace={"__doc__": about, "__module__": __name__, "method": method},
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


def _own_words() -> AbstractContextManager[None]:
    """Settings are parameters here, some by other names, and scikit-learn expects a ValueError."""
    return spelled_in_python(OWN_NAMES, InputError)


def _seed(random_state: int | np.random.RandomState | None) -> int:
    if isinstance(random_state, int | np.integer):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))


def _on_cpu(classifier: Classifier) -> Classifier:
    model, cpu = copy.deepcopy(classifier.model).cpu(), torch.device("cpu")
    backbone_of(model).autocast = autocast_dtype(classifier.config.optimization.precision, cpu)
    return replace(classifier, model=model)
