"""Train a classifier: read the data, choose the settings, build the network, train, evaluate.

`ricnet.train` and `ric train` make a `Request`, which `train_in_folder` carries out. `run` trains a configuration in a
folder, new or resumed; `train_in_memory` trains without a folder.
"""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn

from ricnet.core.policies import building_with, drawing_from
from ricnet.data import DATASETS, Dataset, columns_from_json, whole_path
from ricnet.data import load as load_data
from ricnet.data.dataset import altered, copies_note
from ricnet.data.texts import Text, Tokenizer
from ricnet.distributed import Processes, first_on_each_machine, together
from ricnet.distributed import pick_device as pick_device
from ricnet.errors import Interrupted, RicnetError, in_python, listing, setting, spelled_in_python
from ricnet.evaluation.choices import chosen_words
from ricnet.io import (
    Unwritable,
    frame_name,
    is_frame,
    read_json,
    short_name,
    split_target,
    user_path,
    whole_name,
    with_target,
)
from ricnet.methods import METHODS, RETIRED_PRESETS, RIC
from ricnet.models.classifier import Classifier, autocast_dtype, build_model, encoder_weights
from ricnet.models.config import DATA_SETTINGS, Config, from_json, given_settings
from ricnet.models.guarantees import calibrate
from ricnet.models.loading import load
from ricnet.models.locate import (
    describe_encoder,
    find_tokenizer,
    keep_encoder,
)
from ricnet.models.run import RunFolder, read_config
from ricnet.terminal import Narrator, say
from ricnet.training.callbacks import Callback, Track, Tracking, check_callbacks
from ricnet.training.console import advice, announcement, augmentation_note, faster, limited
from ricnet.training.finish import fit
from ricnet.training.network import Encoder, behind_frozen, fit_batch, isolated_rng, resolve
from ricnet.training.recipes import (
    TYPICAL,
    Facts,
    all_settings,
    changed,
    choose_method,
    configure,
    default_oversize,
    for_encoder,
    notices,
    possible_methods,
    unknown_setting,
)
from ricnet.training.trainer import Trainer

MAX_HINTS = 4
"""Lines of hints that `ric train` prints; the page of the run has all of them."""


def train(
    data: Any = None,
    *,
    target: str | None = None,
    test: Any = None,
    method: str | None = None,
    preset: str | None = None,
    out: str | Path | None = None,
    encoder: str | nn.Module | None = None,
    device: str = "auto",
    overwrite: bool = False,
    resume: bool = False,
    track: Track = "none",
    data_dir: str | Path | None = None,
    callbacks: Sequence[Callback] = (),
    **changes: Any,
) -> Classifier:
    """Train a classifier and return it; `changes` are any settings of `ric train --help-all`, such as epochs=30.

    `data` is a name or a path as for `ric train` (default digits), a data frame, or a Dataset; `target` the column of a
    table that holds the classes; `test` a table or data frame of test rows, by default taken from the data. `preset` is
    fast by default. The default `method` is ric-on-policy; ric for texts and with preset="paper"; ric-closed-form with
    exits. `encoder` is a name or any module from a batch of inputs to a batch of vectors (without dropout: the snapshot
    and the network must see the same). The run is written to `out`, by default runs/DATA-METHOD-seedN. With `resume` an
    interrupted run continues with its own settings, or a new one starts; with more `epochs` and a constant schedule a
    finished run is extended. `track="tensorboard"` writes curves; `callbacks` are called during training (see
    `ricnet.Callback`).
    Random numbers depend on `seed` alone; torch's random state is not changed.
    """
    module = encoder if isinstance(encoder, nn.Module) else None
    if encoder is not None:
        changes["encoder"] = "custom" if module is not None else encoder
    if isinstance(test, str | Path):
        changes["test"], test = whole_path(str(test)), None
    how: dict[str, Any] = {"out": out, "device": device, "overwrite": overwrite, "resume": resume, "track": track}
    request = Request(data, changes, target, method, preset, None, test, module, **how)
    with spelled_in_python():
        folder = train_in_folder(replace(request, data_dir=data_dir, callbacks=callbacks))
        return load(folder.path, str(pick_device(device)), module)


def train_in_folder(
    request: "Request", spell: Callable[[str], str] = in_python, present: Callable[[RunFolder], None] | None = None
) -> RunFolder:
    """Train from a request to a finished run. Settings that the request leaves open come from the run that is resumed,
    or from the recipe for this data and device. `spell` writes settings for Python or the command line; `present`
    prints the result."""
    device = pick_device(request.device)
    check_callbacks(request.callbacks)
    tracking = [Tracking()] if request.track == "tensorboard" else []
    with together(device) as processes:
        console = Narrator(stderr=True, quiet=not processes.first)
        request, resumed = _settle(request, processes)
        if resumed and processes.broadcast(lambda: resumed.finished and _stored(resumed) == request.start):
            say([spell(_nothing_left(resumed))], console)
            return resumed
        dataset = _read(request, processes)
        config, encoder, notes = _choose(request, dataset, device, processes, resumed)
        folder = resumed or request.folder(config.method.name)
        if processes.first and not resumed:
            folder.refuse_if_held()
            folder.refuse_if_taken(request.overwrite)  # after all other checks
        dataset = replace(dataset, notes=(*dataset.notes, *notes))
        lines = [spell(f"note: {note}") for note in dataset.notes]
        say([*lines, spell(announcement(config, dataset, device, processes.count))], console)
        hint = None if resumed else faster(config, dataset, device)
        options: dict[str, Any] = {"overwrite": request.overwrite, "resume": resumed is not None, "encoder": encoder}
        options |= {"checkpoint_seconds": request.checkpoint_seconds, "console": console}
        options |= {"hint": hint and spell(hint), "keep_state": True}
        options |= {"callbacks": [*(tracking if processes.first else []), *request.callbacks]}
        run(config, dataset, folder, device, **options)
        if processes.first:
            if dataset.calibration is not None:
                calibrate(load(folder.path, str(device), encoder.given), dataset.calibration)
            _conclude(folder, config, dataset, spell, present)
        processes.any(False)  # wait until the first has written everything
    return folder


# Settings of the run that is resumed, or of the pretrained encoder


def _settle(request: "Request", processes: Processes) -> tuple["Request", RunFolder | None]:
    """The request, completed, and the folder of the run that is resumed, if any. A resumed run brings its stored
    settings, a new one those of its encoder."""
    if isinstance(named := request.changes.get("encoder"), str):
        request = replace(request, changes={**request.changes, "encoder": whole_name(named)})
    folder = processes.broadcast(request.resumable) if request.resume else None
    if folder is not None:
        if processes.first:
            folder.refuse_if_held()
        stored = processes.broadcast(lambda: _stored(folder))
        texts = _stored_texts(folder)
        tokenizer = None if texts is None else texts.tokenizer
        return replace(request.continuing(stored, folder), tokenizer=tokenizer), folder
    with first_on_each_machine(processes):
        changes = for_encoder(request.what, request.changes)
        return replace(request, changes=changes, tokenizer=find_tokenizer(request.encoder)), None


def _stored(folder: RunFolder) -> Config:
    return from_json(read_config(folder.path).get("config"), str(folder.config))


def _stored_texts(folder: RunFolder) -> Text | None:
    described = read_config(folder.path).get("data")
    entry = described.get("columns") if isinstance(described, dict) else None
    return None if entry is None else columns_from_json(entry, str(folder.config)).text


def _default_method(folder: RunFolder) -> str:
    """The default method for the data and the preset of a run."""
    stored, text = _stored(folder), _stored_texts(folder) is not None
    network = stored.network
    facts = replace(TYPICAL, text=text, encoder=network.encoder, freeze=network.freeze, exits=network.exits != "none")
    return choose_method(stored.preset, None, facts)


def _nothing_left(folder: RunFolder) -> str:
    anew = f"start anew with {setting('overwrite', True)}, or in another {setting('out')}"
    more = f"go on with more {setting('epochs')}, or " if folder.state.is_file() else ""
    return f"{folder.path} is finished: nothing is left to resume; {more}{anew}."


# Data, settings and encoder


def _read(request: "Request", processes: Processes) -> Dataset:
    with first_on_each_machine(processes):
        dataset = request.dataset()
    final = request.changes.get("final_fit", request.start is not None and request.start.final_fit)
    return replace(dataset, notes=(*dataset.notes, *copies_note(dataset, final))) if processes.first else dataset


def _choose(
    request: "Request", dataset: Dataset, device: torch.device, processes: Processes, resumed: RunFolder | None
) -> tuple[Config, Encoder, list[str]]:
    """The settings of the run, its encoder, and notes. The batch size of a preset is lowered to fit into memory."""
    if resumed is not None and request.start is not None:
        return *resolve(request.start, dataset, device, request.module, resumed), []
    config = processes.broadcast(lambda: request.config(dataset, device))
    with first_on_each_machine(processes):
        config, encoder = resolve(config, dataset, device, request.module)
    facts = Facts.of(dataset, device, request.changes)
    notes = [] if request.start is not None else notices(request.method, request.preset or "fast", facts)
    if request.start is None and "batch_size" not in request.changes and not encoder.frozen:
        fitting = partial(fit_batch, config, encoder.module, dataset.view_shape, device, processes.count)
        config, smaller = processes.broadcast(fitting)
        notes += smaller
    if request.resume:
        notes.insert(0, f"{request.folder(config.method.name).path} holds no run yet; this one starts anew.")
    return config, encoder, [*notes, *augmentation_note(config, dataset)]


# Training


def run(
    config: Config,
    dataset: Dataset,
    folder: RunFolder,
    device: torch.device,
    *,
    overwrite: bool = False,
    resume: bool = False,
    encoder: nn.Module | Encoder | None = None,
    checkpoint_seconds: float = 60.0,
    console: Console | None = None,
    callbacks: Sequence[Callback] = (),
    hint: str | None = None,
    keep_state: bool = False,
) -> dict[str, Any]:
    """Train a configuration in a folder, new or resumed; return the evaluation. The caller's random state is kept.
    `encoder` is the user's, or comes from `resolve`. `hint` is printed if training takes long; `keep_state` keeps the
    last checkpoint if the run can be extended."""
    tell = partial(_tell, console)
    if not isinstance(encoder, Encoder):
        config, encoder = resolve(config, dataset, device, encoder, folder if resume else None)
    with isolated_rng(config, device, encoder), together(device) as processes, ExitStack() as lock:
        mine = folder if processes.first else None
        if mine is not None:
            lock.enter_context(mine.held(tell))
            if resume:
                mine.check_resumable(config, dataset)
            else:
                mine.refuse_if_taken(overwrite)
        with first_on_each_machine(processes):
            data, head = behind_frozen(config, dataset, encoder, device, console)
        trainer = Trainer(config, data, mine, device, head, checkpoint_seconds, console, processes, hint, callbacks)
        trainer.keeps_state = keep_state and config.optimization.extendable
        if mine is not None and not resume:  # the network is built: an impossible configuration leaves no folder
            _begin(mine, config, dataset, device, encoder)
        if mine is not None:
            mine.write_rows(dataset)
        with _saved_so_far(folder):
            if resume:
                trainer.resume(folder, tell)
            return trainer.run()


def _tell(console: Console | None, sentence: str) -> None:
    say([f"note: {sentence}"], console)


def _begin(folder: RunFolder, config: Config, dataset: Dataset, device: torch.device, encoder: Encoder) -> None:
    """Write the configuration, and the weights of a pretrained encoder."""
    folder.begin(config, dataset, device, encoder=describe_encoder(encoder.module) if encoder.pretrained else None)
    if encoder.pretrained:
        keep_encoder(encoder.module, folder)


@contextmanager
def _saved_so_far(folder: RunFolder) -> Iterator[None]:
    """Say how to resume if the run is interrupted outside the training loop, which saves by itself."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(
            "stopped; the state saved before is intact. "
            f"Go on with: ric train --out {shlex.quote(str(folder.path))} --resume"
        ) from None
    except Unwritable as problem:
        raise RicnetError(
            f"{problem.sentence} The state saved before is intact: go on with {setting('resume', True)}."
        ) from problem


# The end


def _conclude(
    folder: RunFolder,
    config: Config,
    dataset: Dataset,
    spell: Callable[[str], str],
    present: Callable[[RunFolder], None] | None,
) -> None:
    """Print results and advice."""
    try:
        evaluation = read_json(folder.evaluation)
        found = [spell(line) for line in advice(evaluation, folder.validation_nll(), config, dataset)]
        if present is None:
            say([*chosen_words(evaluation), *found])
        else:
            present(folder)
            say(limited(found, MAX_HINTS, folder.report.name))
    except KeyboardInterrupt:
        raise Interrupted(f"stopped; the run in {folder.path} is finished.") from None


# Without a folder


def train_in_memory(
    config: Config,
    dataset: Dataset,
    device: torch.device,
    *,
    encoder: nn.Module | None = None,
    console: Console | None = None,
) -> tuple[Classifier, int]:
    """Train without folder, checkpoint or evaluation; return the classifier and its number of epochs. The caller's
    random state is kept."""
    config, resolved = resolve(config, dataset, device, encoder)
    with isolated_rng(config, device, resolved):
        data, head = behind_frozen(config, dataset, resolved, device, console)
        trainer = Trainer(config, data, None, device, head, console=console)
        trainer.train()
        with building_with(trainer.generator):
            # a new network: compiled code cannot be copied or pickled
            model = _trained(config, data, head, trainer.best["weights"], device)
        with drawing_from(trainer.generator):
            fitted = fit(config, model, data.val)
        if resolved.frozen:
            with building_with(trainer.generator):
                model = _trained(config, dataset, resolved, trainer.best["weights"], device)
    rule = fitted.halting
    method = config.method.stopping_by(rule.halt_threshold, rule.max_steps) if rule else config.method
    shape, names = dataset.input_shape, dataset.class_names
    classifier = Classifier(config, method, model, shape, names, fitted.reading.temperature, budgets=fitted.budgets)
    return classifier, trainer.epoch


def _trained(
    config: Config, dataset: Dataset, encoder: Encoder | None, weights: dict[str, Tensor], device: torch.device
) -> nn.Module:
    given = None if encoder is None else encoder.given
    model, backbone = build_model(config, dataset.input_shape, len(dataset.class_names), given)
    model.load_state_dict(weights | encoder_weights(model))
    backbone.autocast = autocast_dtype(config.optimization.precision, device)
    return model.to(device).eval()


# The request: data and settings as given by the user


@dataclass(frozen=True)
class Request:
    """Data and settings of a run as given by the user. Settings that are None come from `start`, or from a preset."""

    data: Any
    """A name, a path, a data frame or a Dataset."""
    changes: Mapping[str, Any]
    """Settings of any part of a configuration."""
    target: str | None = None
    method: str | None = None
    preset: str | None = None
    start: Config | None = None
    """Settings of another run."""
    test: Any = None
    """A data frame of test rows; a file of them is one of the `changes`."""
    module: nn.Module | None = None
    """The user's encoder."""
    out: str | Path | None = None
    device: str = "auto"
    overwrite: bool = False
    resume: bool = False
    track: Track = "none"
    data_dir: str | Path | None = None
    callbacks: Sequence[Any] = ()
    checkpoint_seconds: float = 60.0
    tokenizer: Tokenizer | None = None
    """That of the run that is resumed, or of the pretrained encoder; found by `_settle`."""

    @property
    def what(self) -> Any:
        """The given data, else that of `start`, else digits."""
        return self.data if self.data is not None else self.start.data if self.start is not None else "digits"

    @property
    def is_named(self) -> bool:
        """Whether the data is a name or a path."""
        return not isinstance(self.what, Dataset) and not is_frame(self.what)

    def folder(self, method: str) -> RunFolder:
        """`out`, by default runs/DATA-METHOD-seedN."""
        if self.out is not None:
            return RunFolder(self.out)
        if self.is_named:
            data = with_target(str(self.what), self.target)
            data = data if self.data is None else whole_path(data)
        else:
            data = self.what.name if isinstance(self.what, Dataset) else frame_name(self.target or "")
        seed = self.changes.get("seed", 0 if self.start is None else self.start.seed)
        return RunFolder(Path("runs") / f"{short_name(data)}-{method}-seed{seed}")

    def resumable(self) -> RunFolder | None:
        """The begun run of this request, if there is one. Without a method it may be of any of RIC's algorithms, since
        the data, which chooses the default, has not been read. If several exist, it is the one whose method is the
        default for its data."""
        preset = self.preset or "fast"
        if self.out is not None:
            begun = [RunFolder(self.out)] if RunFolder(self.out).begun else []
        elif self.start is not None:
            begun = self._begun([self.start.method.name])
        elif self.method is not None:
            begun = self._begun([choose_method(preset, self.method)])
        else:
            begun = self._begun([name for name, kind in METHODS.items() if issubclass(kind, RIC)])
            if "text" in self.changes:
                begun = [each for each in begun if _stored(each).text == self.changes["text"]]
            if self.preset is not None or "exits" in self.changes:
                methods = possible_methods(preset, None, self.changes.get("exits", "none") != "none")
                begun = [each for each in begun if _stored(each).method.name in methods]
        if len(begun) > 1:
            begun = [each for each in begun if each.path == self.folder(_default_method(each)).path] or begun
        if len(begun) > 1:
            raise RicnetError(
                f"{setting('resume', True)} finds {listing([str(each.path) for each in begun])}; "
                f"name one of them by {setting('out')}."
            )
        return begun[0] if begun else None

    def _begun(self, methods: Sequence[str]) -> list[RunFolder]:
        return [folder for folder in map(self.folder, methods) if folder.begun]

    @property
    def encoder(self) -> str:
        return str(self.changes.get("encoder", self.start.network.encoder if self.start is not None else "auto"))

    def continuing(self, stored: Config, folder: RunFolder) -> "Request":
        """The request with the settings of a run that is resumed; given settings must equal them, except for more
        epochs."""
        began = all_settings(stored) | {"method": stored.method.name}
        given = dict(self.changes, method=self.method, preset=self.preset)
        if self.preset in RETIRED_PRESETS:
            given |= {"method": RETIRED_PRESETS[self.preset], "preset": "fast"}
        for name in given:
            if name not in began:
                raise RicnetError(unknown_setting(name, stored))
        names = [setting(name) for name, value in given.items() if value is not None and value != began[name]]
        if isinstance(self.data, str | Path) and whole_path(with_target(str(self.data), self.target)) != stored.data:
            names.insert(0, "the data")
        longer = _extended(stored, given["epochs"], folder) if names == [setting("epochs")] else stored
        if names and longer == stored:
            change, them = ("changes", "it") if len(names) == 1 else ("change", "them")
            raise RicnetError(
                f"{setting('resume', True)} continues with the settings of the run, but {' and '.join(names)} "
                f"{change} them; leave {them} out."
            )
        path = split_target(stored.data)[0]
        if self.data is None and path not in DATASETS and not user_path(path).exists():
            raise RicnetError(f"{path}, the data of {folder.path}, no longer exists; restore it to resume the run.")
        return replace(self, start=longer)

    def dataset(self) -> Dataset:
        if self.start is None:
            began = default_oversize(self.preset or "fast", self.changes)
        else:
            began = {name: getattr(self.start, name) for name in DATA_SETTINGS}
        settings = began | given_settings(Config, {k: self.changes[k] for k in DATA_SETTINGS if k in self.changes})
        if self.test is not None and not is_frame(self.test):
            raise RicnetError(
                f"{setting('test')} is a {type(self.test).__name__}; give a table's path or a data frame."
            )
        if self.is_named and self.test is not None:
            raise RicnetError(f"{setting('test')} is a data frame, but the data is not; give the path of a table.")
        if isinstance(self.what, Dataset):
            names = ("train_fraction", "label_noise", "final_fit")
            changes = {name: settings[name] for name in names if name in settings}
            return altered(self._own(self.what, settings), **changes)
        if self.test is not None:
            settings |= {"test": self.test}
        return load_data(self.what, target=self.target, data_dir=self.data_dir, tokenizer=self.tokenizer, **settings)

    def _own(self, dataset: Dataset, settings: Mapping[str, Any]) -> Dataset:
        given = {name: settings.get(name) for name in ("text", "test", "test_fraction")}
        for name, value in ({"target": self.target} | given | {"test": given["test"] or self.test}).items():
            if value is not None:
                named = setting(name) if value is self.test else setting(name, value)
                raise RicnetError(f"{named} is for tables, not for the Dataset {dataset.name}; leave it out.")
        if settings.get("calibration_fraction"):
            named = setting("calibration_fraction")
            raise RicnetError(f"{named} is not for a Dataset; give {dataset.name} a calibration split.")
        if not (len(dataset.train) and len(dataset.val)):
            lacking = "validation" if len(dataset.train) else "training"
            raise RicnetError(f"{dataset.name} has no {lacking} rows; give it training and validation rows.")
        return dataset

    def config(self, dataset: Dataset, device: torch.device) -> Config:
        """Settings of a new run: those of another run or of a preset, with the changes."""
        if self.start is not None:
            config = changed(replace(self.start, data=dataset.name), self.changes)
        else:
            config = configure(dataset, self.method, self.preset or "fast", device, **self.changes)
        return replace(config, data=whole_path(with_target(str(self.what), self.target))) if self.is_named else config


def _extended(stored: Config, epochs: object, folder: RunFolder) -> Config:
    """The settings of a run with more epochs, if they are more."""
    settings = stored.optimization
    if not isinstance(epochs, int) or epochs <= settings.epochs:
        return stored
    if not settings.extendable:
        constant = settings.schedule == "constant"
        cause = setting("warmup_epochs") if constant else setting("schedule", settings.schedule)
        raise RicnetError(
            f"{folder.path} cannot be extended to {setting('epochs', epochs)}: with its {cause} the learning rate "
            f"depends on the number of epochs ({settings.epochs}); start anew with {setting('overwrite', True)}."
        )
    return replace(stored, optimization=replace(settings, epochs=epochs))
