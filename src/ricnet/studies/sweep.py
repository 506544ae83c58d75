"""Hyper-parameter search with Optuna on a validation metric.

The study is stored in a SQLite file, or in a database server that several machines share. A worker takes the next
trial, trains it in a run folder, reports each epoch, and stops it early if it is worse than the median.
"""

import json
import math
import time
import warnings
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args, get_origin

import optuna
from optuna.trial import TrialState
from rich.console import Console
from sqlalchemy.exc import DBAPIError

from ricnet.data import Dataset
from ricnet.errors import RicnetError, first_line, setting
from ricnet.io import read_json
from ricnet.methods import METHODS
from ricnet.models.classifier import settle_horizon
from ricnet.models.config import PARTS, Config, to_json
from ricnet.models.run import RunFolder, describe_data
from ricnet.studies.experiments import parse_settings, read_setting, settings_of
from ricnet.studies.runner import RunIndex
from ricnet.terminal import say
from ricnet.training.api import pick_device, run
from ricnet.training.callbacks import Callback
from ricnet.training.console import Interrupted
from ricnet.training.recipes import following
from ricnet.training.trainer import Trainer

DIRECTIONS: dict[str, Literal["minimize", "maximize"]] = {"nll": "minimize", "ece": "minimize", "accuracy": "maximize"}
FINISHED = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)
FAILED = "failed"
"""Attribute of a trial that failed because of its settings, not because of its machine or an interruption."""
HEARTBEAT_SECONDS = 60
ATTEMPTS = 4


class Failed(Exception):
    """A trial failed, for instance by divergence; the study continues."""


@dataclass(frozen=True)
class Range:
    low: float
    high: float
    whole: bool
    log: bool

    def suggest(self, trial: optuna.Trial, name: str) -> int | float:
        if self.whole:
            return trial.suggest_int(name, int(self.low), int(self.high), log=self.log)
        return trial.suggest_float(name, self.low, self.high, log=self.log)

    def contains(self, value: Any) -> bool:
        return value is not None and self.low <= value <= self.high

    def around(self, value: int | float) -> "Range":
        """A range that contains the value. A logarithmic range is moved so that the value is in its middle; a linear
        one, whose ends may be limits of the setting, is extended to the value."""
        if not self.log:
            return replace(self, low=min(self.low, float(value)), high=max(self.high, float(value)))
        factor = math.sqrt(self.high / self.low)
        low, high = (float(f"{end:.3g}") for end in (value / factor, value * factor))
        if self.whole:
            low, high = float(max(1, round(low))), float(max(2, round(high)))
        return replace(self, low=low, high=high)


@dataclass(frozen=True)
class Choice:
    options: tuple[Any, ...]

    def suggest(self, trial: optuna.Trial, name: str) -> Any:
        return trial.suggest_categorical(name, self.options)

    def contains(self, value: Any) -> bool:
        return value in self.options

    def around(self, value: Any) -> "Choice":
        return self if self.contains(value) else Choice((value, *self.options))


Space = Mapping[str, Range | Choice]
EVERY_METHOD = ("lr=1e-4..1e-2:log", "weight_decay=1e-2..1:log")
"""Search space of all methods. Logarithmic ranges are centred on the value of the preset, here a factor of 10 below and
above it."""


def default_space(base: Config, given: Collection[str] = ()) -> Space:
    """The most important settings, around the values of `base`. Not searched: settings `given` for all trials, and
    those that are None, or 0 on a logarithmic scale."""
    method, values = base.method.name, values_of(base)
    space: dict[str, Range | Choice] = {}
    for name, part in parse_space((*EVERY_METHOD, *METHODS[method].search_space), method).items():
        has_start = isinstance(part, Choice) or (values[name] is not None and (values[name] > 0 or not part.log))
        if has_start and name not in given:
            space[name] = part.around(values[name])
    if not space:
        raise RicnetError(
            f"all settings that a sweep searches by default are given as flags; name others with {setting('space')}."
        )
    return space


def values_of(config: Config) -> dict[str, Any]:
    """Value of each setting that can be searched."""
    return {name: value for part in PARTS for name, value in vars(getattr(config, part)).items()}


def parse_space(texts: Sequence[str], method: str) -> dict[str, Range | Choice]:
    """Parse a search space: lr=1e-4..1e-2:log is a range on a logarithmic scale, activation=relu,silu a choice."""
    shared = {field.name for field in fields(Config)}  # by all trials, such as data and seed
    hints = {name: hint for name, hint in settings_of(method).items() if name not in shared}
    space: dict[str, Range | Choice] = {}
    for text in texts:
        name, _, values = text.partition("=")
        key = name.strip().replace("-", "_")
        if not values or key not in hints:
            raise RicnetError(
                f"--space {text}: {name} is not a setting of {method}; see ric train --method {method} --help-all."
            )
        if ".." in values:
            space[key] = _range(text, values, hints[key])
        else:
            options = [parse_settings([f"{key}={value}"], method, "--space")[key] for value in values.split(",")]
            space[key] = Choice(tuple(options))
    if all(isinstance(part, Choice) and len(part.options) == 1 for part in space.values()):
        raise RicnetError(f"--space {' '.join(texts)} leaves nothing to search; give ranges or several values.")
    return space


def _range(text: str, values: str, hint: Any) -> Range:
    bounds, _, scale = values.partition(":")
    ends = [read_setting(end) for end in bounds.split("..")]
    kinds = get_args(hint) if get_origin(hint) is not None else (hint,)
    numbers = len(ends) == 2 and all(isinstance(end, int | float) and not isinstance(end, bool) for end in ends)
    if not numbers or not ends[0] < ends[1] or scale not in ("", "log") or not {int, float} & set(kinds):
        raise RicnetError(f"--space {text} is not a range; write low..high, or low..high:log, for a numeric setting.")
    if scale == "log" and ends[0] <= 0:
        raise RicnetError(f"--space {text}: a logarithmic range must begin above 0.")
    return Range(float(ends[0]), float(ends[1]), whole=float not in kinds, log=scale == "log")


@dataclass(frozen=True)
class Sweep:
    dataset: Dataset
    base: Config
    """Configuration that all trials share."""
    space: Space
    metric: Literal["nll", "ece", "accuracy"]
    root: Path
    device: str

    def objective(self, trial: optuna.Trial, console: Console) -> float:
        """Validation metric of the selected epoch."""
        settings = {name: part.suggest(trial, name) for name, part in self.space.items()}
        try:
            config = settle_horizon(self.config(settings), self.dataset.input_shape)
        except RicnetError as problem:  # incompatible settings
            self._fail(trial, problem)
        index = RunIndex(self.root)
        folder = index.find(config, describe_data(self.dataset)) or index.new(f"trial-{trial.number:04d}")
        trial.set_user_attr("folder", folder.path.name)
        if not folder.finished:
            self._train(trial, config, folder, console)
        evaluation = read_json(folder.evaluation)
        raw = evaluation.get("raw", evaluation)  # before calibration, which is fitted on validation data
        return float(raw["val"][self.metric])

    def config(self, settings: Mapping[str, Any]) -> Config:
        method, parts = self.base.method, {}
        judged = "credit" in vars(method)
        followers = following(vars(method)["credit"], settings, len(self.dataset.class_names)) if judged else {}
        for name in PARTS:
            part, changes = getattr(self.base, name), {**(followers if name == "method" else {}), **settings}
            parts[name] = replace(part, **{key: value for key, value in changes.items() if hasattr(part, key)})
        return replace(self.base, **parts, baselines=False)

    def _fail(self, trial: optuna.Trial, problem: RicnetError) -> NoReturn:
        trial.set_user_attr(FAILED, str(problem))
        raise Failed(str(problem)) from problem

    def _train(self, trial: optuna.Trial, config: Config, folder: RunFolder, console: Console) -> None:
        device, resume = pick_device(self.device), folder.config.is_file()
        pruning = [Pruning(trial, self.metric)]
        try:
            run(config, self.dataset, folder, device, resume=resume, console=console, callbacks=pruning)
        except Interrupted:
            trial.study.enqueue_trial(trial.params)
            raise
        except RicnetError as problem:
            self._fail(trial, problem)


class Pruning(Callback):
    """Reports each epoch to Optuna, and ends a trial that it prunes."""

    def __init__(self, trial: optuna.Trial, metric: str) -> None:
        self.trial, self.metric = trial, metric

    def on_epoch_end(self, trainer: Trainer, line: dict[str, Any]) -> None:
        self.trial.report(line["val"][self.metric], line["epoch"])
        if self.trial.should_prune():
            raise optuna.TrialPruned


def open_study(name: str, storage: str, metric: str, base: Config, space: Space) -> optuna.Study:
    """Create or continue the study of this name; raises if it has another metric, configuration or space. The first
    trial of a new study has the settings of `base` if the space contains them."""
    warm_up = max(1, base.optimization.epochs // 5)
    try:
        study = optuna.create_study(
            study_name=name,
            storage=_open_storage(storage),
            direction=DIRECTIONS[metric],
            load_if_exists=True,
            pruner=optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=warm_up),
        )
    except Exception as error:  # every database driver has its own
        raise RicnetError(
            f"--storage {storage} cannot be opened ({first_line(error)}); give a URL such as sqlite:///sweep.db."
        ) from error
    subject = json.loads(json.dumps({"metric": metric, "config": to_json(base), "space": repr(space)}))
    for key, value in subject.items():
        if study.user_attrs.get(key, value) != value:
            raise RicnetError(f"the study {name} in {storage} was begun with another {key}; give a new --name.")
        study.set_user_attr(key, value)
    values = values_of(base)
    if not study.get_trials(deepcopy=False) and all(part.contains(values[key]) for key, part in space.items()):
        study.enqueue_trial({key: values[key] for key in space}, skip_if_exists=True)
    return study


def _open_storage(storage: str) -> optuna.storages.RDBStorage:
    """Storage of the study. A trial without heartbeat, whose machine died, is repeated by another worker."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # experimental since 2021
        retry = optuna.storages.RetryHeartbeatStaleTrialCallback(max_retry=2)
        connect = partial(
            optuna.storages.RDBStorage,
            storage,
            heartbeat_interval=HEARTBEAT_SECONDS,
            heartbeat_stale_trial_callback=retry,
        )
        for _ in range(ATTEMPTS - 1):
            with suppress(DBAPIError):  # another machine creates the same tables at the same time
                return connect()
            time.sleep(1)
        return connect()


def search(study: optuna.Study, sweep: Sweep, trials: int, console: Console) -> None:
    """Run trials until the study has this many, those of other workers included."""
    while finished(study) < trials:
        study.optimize(lambda trial: sweep.objective(trial, console), n_trials=1, catch=(Failed,))
        _print_trial(study, trials, console)


def finished(study: optuna.Study) -> int:
    """Number of trials that are not repeated: complete, pruned, or failed because of their settings."""
    done = study.get_trials(deepcopy=False, states=FINISHED)
    return sum(trial.state is not TrialState.FAIL or FAILED in trial.user_attrs for trial in done)


def _print_trial(study: optuna.Study, trials: int, console: Console) -> None:
    last = study.get_trials(deepcopy=False, states=FINISHED)[-1]
    value = f"{last.value:.4f}" if last.state is TrialState.COMPLETE else last.state.name.lower()
    params = {name: f"{part:.3g}" if isinstance(part, float) else str(part) for name, part in last.params.items()}
    settings = "  ".join(f"{name} {text}" for name, text in params.items())
    say([f"trial {last.number} ({finished(study)}/{trials}): {value}  {settings}"], console)
