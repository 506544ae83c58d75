"""The one way to train: `ricnet.train(...)` and `ric train` meet in `train_in_folder`, studies and estimators below it.

`train_in_folder` finds data and settings, `run` trains a configuration in a folder, anew or from where it stopped, and
`train_in_memory` without one.
"""

import dataclasses
import math
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn

from ricnet.core.randomness import building_with, drawing_from
from ricnet.data import DATASETS, Dataset, columns_from_json, whole_path
from ricnet.data import load as load_data
from ricnet.data.dataset import altered, copies_note
from ricnet.data.labels import labelled_frame
from ricnet.data.registry import check_test, is_resizable, read_test
from ricnet.data.tables import frame_table, is_frame
from ricnet.data.texts import Tokenizer
from ricnet.distributed import Processes, first_on_each_machine, launched, own_gpu, together
from ricnet.errors import Interrupted, RicnetError, in_python, nearest, setting, spelled_in_python
from ricnet.evaluation.choices import chosen_words
from ricnet.io import Unwritable, read_json, short_name, split_target, user_path, whole_name, with_target
from ricnet.machine import free_bytes
from ricnet.methods import of_another_method
from ricnet.methods.archive import RETIRED_PRESETS
from ricnet.nets.encoders import build_encoder, example_input, is_pretrained, known
from ricnet.nets.pretrained import ImageEncoder, TextEncoder
from ricnet.training.advice import advice
from ricnet.training.checkpoints import (
    describe_encoder,
    find_encoder,
    find_tokenizer,
    keep_encoder,
    read_encoder,
)
from ricnet.training.classifier import (
    Classifier,
    autocast_dtype,
    build_model,
    encoder_weights,
    load,
    settle_horizon,
)
from ricnet.training.config import DATA_SETTINGS, PARTS, Config, from_json, given_settings
from ricnet.training.console import (
    Narrator,
    Track,
    announcement,
    faster,
    preface,
    require_tracker,
    say,
    tracked,
)
from ricnet.training.features import featured
from ricnet.training.recipes import Facts, notices, preset
from ricnet.training.run import RunFolder, fit, read_config
from ricnet.training.speed import fitting_batch
from ricnet.training.trainer import Trainer, draws_globally, refuse_other_kind

GPU = torch.device("cuda")
"""What presets are for unless a CPU is to train."""


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
    **changes: Any,
) -> Classifier:
    """Train a classifier and return it; `changes` are any settings of `ric train --help-all`, such as epochs=30.

    `data` is what the command line takes (a name or a path, by default digits), a data frame, or a Dataset of your own;
    `target` the column of a table that holds the classes; `test` a table or data frame of test rows, by default taken
    from the data; `preset` is fast by default, and `method` then ric-on-policy, with exits ric-closed-form, with the
    preset paper ric (Algorithm 1); `encoder` a name or any module from a batch of inputs to a batch of vectors (without
    dropout: the snapshot and the network must see the same). The run is written to `out`, by default
    runs/DATA-METHOD-seedN. With `resume` an interrupted run continues with its own settings, or a new one starts if
    there is none; with more `epochs` and a constant schedule a finished run is extended. `track="tensorboard"` writes
    curves. Random numbers depend on `seed` alone; torch's random state is not changed.
    """
    module = encoder if isinstance(encoder, nn.Module) else None
    if encoder is not None:
        changes["encoder"] = "custom" if module is not None else encoder
    if isinstance(test, str | Path):
        changes["test"] = whole_path(str(test))
    with spelled_in_python():
        folder = train_in_folder(
            data,
            changes,
            target=target,
            test=None if isinstance(test, str | Path) else test,
            method=method,
            preset=preset,
            out=out,
            encoder=module,
            device=device,
            overwrite=overwrite,
            resume=resume,
            track=track,
            data_dir=data_dir,
        )
        return load(folder.path, str(pick_device(device)), module)


def train_in_folder(
    data: Any,
    changes: Mapping[str, Any],
    *,
    target: str | None,
    test: Any = None,
    method: str | None,
    preset: str | None,
    start: Config | None = None,
    out: str | Path | None,
    encoder: nn.Module | None = None,
    device: str,
    overwrite: bool,
    resume: bool,
    track: Track,
    checkpoint_seconds: float = 60.0,
    data_dir: str | Path | None,
    spell: Callable[[str], str] = in_python,
    present: Callable[[RunFolder], None] | None = None,
) -> RunFolder:
    """From data and settings to a finished run. What is None was not given: it comes from `start`, the settings of
    another run, or from those that a resumed run began with, or from the preset for this data and device. `test` is a
    data frame of test rows; a file of them is one of the `changes`.

    `spell` is how this door names settings; `present` shows the result, before advice is given.
    """
    place = pick_device(device)
    require_tracker(track)
    if isinstance(named := changes.get("encoder"), str):
        changes = {**changes, "encoder": whole_name(named)}
    asked = Request(data, changes, target, method, preset, start, test)
    with together(place) as processes:
        console = Narrator(stderr=True, quiet=not processes.first)
        folder = RunFolder(out or default_folder(*asked.names))
        if processes.first:
            folder.refuse_if_held()
        stored = processes.broadcast(partial(_stored, folder)) if resume else None
        if stored is not None:
            began, asked = stored, asked.resumed(stored, folder)
            stored = asked.start
            if stored == began and processes.broadcast(lambda: folder.finished):
                anew = f"start anew with {setting('overwrite', True)}, or in another {setting('out')}"
                if folder.state.is_file():
                    anew = f"go on with more {setting('epochs')}, or {anew}"
                say([spell(f"{folder.path} is finished: nothing is left to resume; {anew}.")], console)
                return folder
        with first_on_each_machine(processes):
            if stored is None:
                asked = replace(asked, changes=for_encoder(asked.what, changes))
            encoder, tokenizer = _reader(asked.encoder, encoder, folder if stored is not None else None)
            dataset = asked.dataset(data_dir, tokenizer)
        notes = [f"{folder.path} holds no run yet, so that this one starts anew."] * (resume and stored is None)
        if processes.first:
            dataset = replace(dataset, notes=(*dataset.notes, *copies_note(dataset)))
        notes += dataset.notes
        config = stored or processes.broadcast(partial(asked.config, dataset, place, notes, encoder, processes.count))
        if stored is None and processes.first:
            folder.refuse_if_taken(overwrite)  # last, so that it hides nothing else that is wrong
        said = [*(f"note: {note}" for note in notes), announcement(config, dataset, place, processes.count)]
        if stored is None:
            said += preface(config, dataset, facts(dataset, place))
        say(map(spell, said), console)
        hint = faster(config, dataset, place) if stored is None else None
        run(
            config,
            dataset,
            folder,
            place,
            overwrite=overwrite,
            resume=stored is not None,
            encoder=encoder,
            track=track,
            checkpoint_seconds=checkpoint_seconds,
            console=console,
            hint=hint and spell(hint),
            keep_state=True,
        )
        if processes.first:
            _conclude(folder, config, dataset, spell, present)
        processes.any(False)  # wait until the first has written everything
    return folder


@dataclass(frozen=True)
class Request:
    """What somebody wants trained. What is None was not said: it comes from `start`, or from a preset."""

    data: Any
    changes: Mapping[str, Any]
    """Settings, wherever in a configuration they stand."""
    target: str | None = None
    method: str | None = None
    preset: str | None = None
    start: Config | None = None
    test: Any = None
    """A data frame of test rows."""

    @property
    def what(self) -> Any:
        """The data: a name, a path, a data frame or a Dataset."""
        return self.data if self.data is not None else self.start.data if self.start is not None else "digits"

    @property
    def is_named(self) -> bool:
        """Whether the data is a name or a path."""
        return isinstance(self.what, str | Path) or not (isinstance(self.what, Dataset) or is_frame(self.what))

    @property
    def names(self) -> tuple[str, str, int]:
        """What the folder of a run is called after: its data, its method and its seed."""
        if self.is_named:
            data = with_target(str(self.what), self.target)
            data = data if self.data is None else whole_path(data)
        else:
            data = self.what.name if isinstance(self.what, Dataset) else self._frame({}, None).name
        method, seed = ("ric", 0) if self.start is None else (self.start.method.name, self.start.seed)
        return data, self.method or method, self.changes.get("seed", seed)

    @property
    def encoder(self) -> str:
        return str(self.changes.get("encoder", self.start.network.encoder if self.start is not None else "auto"))

    def resumed(self, stored: Config, folder: RunFolder) -> "Request":
        """The same for a run that goes on with the settings it began with; those that are given must be the same, but
        for more epochs."""
        began = {field.name: getattr(part, field.name) for part in _parts(stored) for field in dataclasses.fields(part)}
        began["method"] = stored.method.name
        given = dict(self.changes, method=self.method, preset=self.preset)
        if self.preset in RETIRED_PRESETS:
            given |= {"method": RETIRED_PRESETS[self.preset], "preset": "fast"}
        for name in given:
            if name not in began:
                raise RicnetError(_unknown_setting(name, stored))
        names = [setting(name) for name, value in given.items() if value is not None and value != began[name]]
        if isinstance(self.data, str | Path) and whole_path(with_target(str(self.data), self.target)) != stored.data:
            names.insert(0, "the data")
        longer = _extended(stored, given["epochs"], folder) if names == [setting("epochs")] else stored
        if names and longer == stored:
            change, them = ("changes", "it") if len(names) == 1 else ("change", "them")
            raise RicnetError(
                f"{setting('resume', True)} goes on with the settings the run began with, but {' and '.join(names)} "
                f"{change} them; leave {them} out."
            )
        path = split_target(stored.data)[0]
        if self.data is None and path not in DATASETS and not user_path(path).exists():
            raise RicnetError(
                f"{path}, the data that {folder.path} began with, is not there any more; put it back to go on."
            )
        return replace(self, start=longer)

    def dataset(self, data_dir: str | Path | None, tokenizer: Tokenizer | None) -> Dataset:
        began = {} if self.start is None else {name: getattr(self.start, name) for name in DATA_SETTINGS}
        settings = began | given_settings(Config, {k: self.changes[k] for k in DATA_SETTINGS if k in self.changes})
        if self.test is not None and not is_frame(self.test):
            raise RicnetError(
                f"{setting('test')} is a {type(self.test).__name__}; give a table's path or a data frame."
            )
        if self.is_named and self.test is not None:
            raise RicnetError(f"{setting('test')} is a data frame, but the data is not; give the path of a table.")
        if self.is_named:
            return load_data(self.what, target=self.target, data_dir=data_dir, tokenizer=tokenizer, **settings)
        dataset = self._own(self.what, settings) if isinstance(self.what, Dataset) else self._frame(settings, tokenizer)
        return altered(dataset, settings.get("train_fraction", 1.0), settings.get("label_noise", 0.0))

    def _frame(self, settings: Mapping[str, Any], tokenizer: Tokenizer | None) -> Dataset:
        path, fraction = settings.get("test"), settings.get("test_fraction")
        check_test(path if self.test is None else self.test, fraction)
        test = None if path is None else read_test(path)
        if self.test is not None:
            test = frame_table(self.test, "the test data frame")
        val_fraction, text = settings.get("val_fraction", 0.1), settings.get("text")
        return labelled_frame(self.what, self.target, val_fraction, text, tokenizer, test, fraction)

    def _own(self, dataset: Dataset, settings: Mapping[str, Any]) -> Dataset:
        given = {name: settings.get(name) for name in ("text", "test", "test_fraction")}
        for name, value in ({"target": self.target} | given | {"test": given["test"] or self.test}).items():
            if value is not None:
                named = setting(name) if value is self.test else setting(name, value)
                raise RicnetError(f"{named} is for tables, not for the Dataset {dataset.name}; leave it out.")
        if not (len(dataset.train) and len(dataset.val)):
            lacking = "validation" if len(dataset.train) else "training"
            raise RicnetError(
                f"{dataset.name} has no {lacking} rows; give it both, those to learn from and those to choose by."
            )
        return dataset

    def config(
        self, dataset: Dataset, device: torch.device, notes: list[str], encoder: nn.Module | None, processes: int
    ) -> Config:
        """The settings of a new run: those of another, or a preset, whose batch size is lowered to fit into memory
        unless it was given."""
        if self.start is not None:
            config = _changed(replace(self.start, data=dataset.name), self.changes)
        else:
            notes += notices(self.method, self.preset or "fast")
            config = configure(dataset, self.method, self.preset or "fast", device, **self.changes)
            if "batch_size" not in self.changes:
                config = fit_batch(config, dataset, device, notes, encoder, processes)
        return replace(config, data=whole_path(with_target(str(self.what), self.target))) if self.is_named else config


def _extended(stored: Config, epochs: object, folder: RunFolder) -> Config:
    """The settings of a run with more epochs, where they are more than it began with."""
    settings = stored.optimization
    if not isinstance(epochs, int) or epochs <= settings.epochs:
        return stored
    if not settings.extendable:
        cause = setting("schedule", "cosine") if settings.schedule == "cosine" else setting("warmup_epochs")
        raise RicnetError(
            f"{folder.path} cannot go on to {setting('epochs', epochs)}: with its {cause} the learning rate of every "
            f"epoch depends on their number ({settings.epochs}); start anew with {setting('overwrite', True)}."
        )
    return replace(stored, optimization=replace(settings, epochs=epochs))


def _reader(name: str, own: nn.Module | None, resumed: RunFolder | None) -> tuple[nn.Module | None, Tokenizer | None]:
    """The encoder that others have trained, if it is one, unless the user gives it; and for texts what it cuts them
    with. A run that is resumed has both."""
    encoder = own
    if own is None and is_pretrained(name):
        encoder = find_encoder(name) if resumed is None else _began_with(resumed)
    if not isinstance(encoder, TextEncoder):
        return encoder, None
    return encoder, find_tokenizer(name) if resumed is None else _kept_tokenizer(resumed)


def _began_with(folder: RunFolder) -> nn.Module:
    """The encoder that others have trained, as a run had it at its beginning."""
    return read_encoder(read_config(folder.path).get("encoder"), folder)


def _kept_tokenizer(folder: RunFolder) -> Tokenizer | None:
    """What a run of texts cuts them with."""
    described = read_config(folder.path).get("data")
    entry = described.get("columns") if isinstance(described, dict) else None
    text = None if entry is None else columns_from_json(entry, str(folder.config)).text
    return None if text is None else text.tokenizer


def for_encoder(data: Any, changes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Settings as an encoder that others have trained wants them: its path whole, and images that are resized anyway at
    the size that it reads, unless the user says otherwise."""
    name = changes.get("encoder")
    if not isinstance(name, str) or not is_pretrained(name):
        return changes
    changes = {**changes, "encoder": whole_name(name)}
    if changes.get("resolution") is not None or not (isinstance(data, str | Path) and is_resizable(data)):
        return changes
    encoder = find_encoder(changes["encoder"])
    size = max(encoder.architecture.size) if isinstance(encoder, ImageEncoder) else None
    return {**changes, "resolution": size}


def _stored(folder: RunFolder) -> Config | None:
    """The settings that a run began with; None where there is no run yet."""
    return from_json(read_config(folder.path).get("config"), str(folder.config)) if folder.begun else None


def _conclude(
    folder: RunFolder,
    config: Config,
    dataset: Dataset,
    spell: Callable[[str], str],
    present: Callable[[RunFolder], None] | None,
) -> None:
    try:
        evaluation = read_json(folder.evaluation)
        if present is None:
            say(chosen_words(evaluation))
        else:
            present(folder)
        say(map(spell, advice(evaluation, folder.validation_nll(), config, dataset)))
    except KeyboardInterrupt:
        raise Interrupted(f"stopped; the run in {folder.path} is finished.") from None


def fit_batch(
    config: Config,
    dataset: Dataset,
    device: torch.device,
    notes: list[str],
    encoder: nn.Module | None = None,
    processes: int = 1,
) -> Config:
    """Lower a default batch size until it fits into memory; a note says so."""
    if config.network.freeze:  # rows of features are small
        return config
    wanted, free = config.optimization.batch_size, free_bytes(device)
    with building_with(torch.Generator()):  # it is only measured
        network = encoder if encoder is not None else build_encoder(config.network, dataset.input_shape)
    example = example_input(network, dataset.input_shape)
    pieces = processes * config.optimization.accumulate
    fitting = min(wanted, pieces * fitting_batch(network, example, math.ceil(wanted / pieces), free))
    if fitting < wanted:
        notes.append(f"Batches of {fitting} instead of {wanted}, to fit into {free / 1e9:.1f} GB of free memory.")
    return replace(config, optimization=replace(config.optimization, batch_size=fitting))


def configure(
    dataset: Dataset, method: str | None, preset_name: str, device: torch.device = GPU, /, **changes: Any
) -> Config:
    """A preset for this data on this device, with the given settings changed, wherever in the configuration they
    stand. None takes the preset's default method."""
    if dataset.is_text and changes.get("encoder") == "auto":
        changes["encoder"] = "words"
    known = facts(dataset, device, changes)
    config = preset(preset_name, method, known, changes)
    return _changed(replace(config, data=dataset.name), changes)


def _changed(config: Config, changes: Mapping[str, Any]) -> Config:
    left = dict(changes)
    parts: dict[str, Any] = {}
    for name in PARTS:
        part = getattr(config, name)
        own = {f.name: left.pop(f.name) for f in dataclasses.fields(part) if f.name in left}
        parts[name] = replace(part, **given_settings(type(part), own))
    if "horizon" in changes and parts["network"].exits != "none":
        raise RicnetError(f"with {setting('exits')} there is a step for every exit; leave {setting('horizon')} out.")
    price = getattr(parts["method"], "compute_price", 0.0)
    if price > 0 and parts["network"].exits == "none":
        priced, exits = setting("compute_price", price), setting("exits", "stage")
        raise RicnetError(f"{priced} needs exits; add {exits} or leave it out.")
    unknown = set(left) - {f.name for f in dataclasses.fields(Config)} | set(left) & {"data", *PARTS}
    if unknown:
        raise RicnetError(_unknown_setting(min(unknown), config))
    for name, reason in parts["method"].without_effect(exits=parts["network"].exits != "none").items():
        if name in changes:
            raise RicnetError(f"{setting(name, changes[name])} has no effect here: {reason}; leave it out.")
    return replace(config, **parts, **given_settings(Config, left))


def _parts(config: Config) -> tuple[Any, ...]:
    return config, *(getattr(config, name) for name in PARTS)


def _unknown_setting(name: str, config: Config) -> str:
    if (elsewhere := of_another_method(name, config.method.name)) is not None:
        return f"{setting(name)} {elsewhere}"
    meant = nearest(name, [field.name for part in _parts(config) for field in dataclasses.fields(part)])
    method = config.method.name
    advice = f"did you mean {meant}?" if meant else f"see ric train --method {method} --help-all."
    return f"{name}: no such setting for the method {method}; {advice}"


def run(
    config: Config,
    dataset: Dataset,
    folder: RunFolder,
    device: torch.device,
    *,
    overwrite: bool = False,
    resume: bool = False,
    encoder: nn.Module | None = None,
    track: Track = "none",
    checkpoint_seconds: float = 60.0,
    console: Console | None = None,
    watch: Callable[[dict[str, Any]], None] | None = None,
    hint: str | None = None,
    keep_state: bool = False,
) -> dict[str, Any]:
    """Train in a folder, anew or from where it stopped; returns the evaluation. The caller's random state is kept.

    `watch` is shown each line of metrics.jsonl; what it raises ends the training. `hint` is given if that takes long.
    With `keep_state` the last state stays if more epochs could follow it.
    """
    tell = partial(_tell, console or Narrator(stderr=True))
    learned = config.network.freeze or is_pretrained(config.network.encoder)
    if learned and encoder is None:
        encoder = _began_with(folder) if resume else find_encoder(config.network.encoder)
    config = settle_horizon(config, dataset.input_shape, encoder)
    with (
        isolated_rng(config, device, encoder),
        together(device) as processes,
        folder.held(tell) if processes.first else nullcontext(),
    ):
        first = processes.first
        if first and resume:
            folder.check_resumable(config, dataset)
        elif first:
            folder.refuse_if_taken(overwrite)
        mine = folder if first else None
        with first_on_each_machine(processes):
            data = _as_features(config, dataset, encoder, device, console)
        own = _for_head(config, encoder, dataset)
        trainer = Trainer(config, data, mine, device, own, checkpoint_seconds, console, processes, hint)
        if first and not resume:
            # only now: a configuration that cannot be built leaves no trace
            described = describe_encoder(encoder) if learned and encoder is not None else None
            folder.begin(config, dataset, device, encoder=described)
            if learned and encoder is not None:
                keep_encoder(encoder, folder)
        with _saved_so_far(folder):
            trainer.keeps_state = keep_state and config.optimization.extendable
            if resume:
                _restore(trainer, folder, processes, tell)
            with tracked(folder, track if first else "none") as draw:
                trainer.watchers = [follower for follower in (watch, draw) if follower is not None]
                evaluation = trainer.run()
        if first and not (config.network.freeze or trainer.keeps_state):  # what it began with is of no use any more
            folder.encoder.unlink(missing_ok=True)
        return evaluation


def _as_features(
    config: Config, dataset: Dataset, encoder: nn.Module | None, device: torch.device, console: Console | None
) -> Dataset:
    """What a network after a frozen encoder learns from; without one, the data as it is."""
    if not config.network.freeze or encoder is None:
        return dataset
    refuse_other_kind(encoder, dataset, config)
    settings = config.optimization
    varied = replace(dataset.augmentation, cutout=settings.cutout)
    copies = settings.augmented_copies if settings.augment and dataset.is_image else 0
    return featured(dataset, encoder, device, copies, varied, console, config.network.exits)


def _for_head(config: Config, encoder: nn.Module | None, dataset: Dataset) -> nn.Module | None:
    """The encoder of the network that is trained: none after a frozen one, unless it has exits, of which it knows."""
    if not config.network.freeze or encoder is None:
        return encoder
    exits = config.network.exits
    return None if exits == "none" else known(encoder, dataset.input_shape, exits)


def _tell(console: Console, sentence: str) -> None:
    say([f"note: {sentence}"], console)


@contextmanager
def _saved_so_far(folder: RunFolder) -> Iterator[None]:
    """While a run is being trained its own way to stop is better: it saves first. This is for before and after."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(
            "stopped; what was saved before is whole. "
            f"Go on with: ric train --out {shlex.quote(str(folder.path))} --resume"
        ) from None
    except Unwritable as problem:
        raise RicnetError(
            f"{problem.sentence} What was saved before is whole: go on with {setting('resume', True)}."
        ) from problem


def _restore(trainer: Trainer, folder: RunFolder, processes: Processes, tell: Callable[[str], None]) -> None:
    state = processes.broadcast(partial(folder.read_state, tell))
    if state is None:
        if processes.first:
            tell(f"{folder.path} was stopped before its first checkpoint, so that it starts from the beginning.")
            folder.keep_metrics_until(0)
        return
    try:
        if (wrong := trainer.impossible(state)) is not None:
            anew = setting("overwrite", True)
            raise RicnetError(f"{folder.state} does not belong to this run ({wrong}); start anew with {anew}.")
        trainer.restore(state)
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise RicnetError(
            f"{folder.state} is of another network or another version of ricnet; "
            f"resume with what the run began with, or start anew with {setting('overwrite', True)}."
        ) from error


def train_in_memory(
    config: Config,
    dataset: Dataset,
    device: torch.device,
    *,
    encoder: nn.Module | None = None,
    console: Console | None = None,
) -> tuple[Classifier, int]:
    """The classifier, and how many epochs it took. Nothing else is left: no folder, no checkpoint, no evaluation. The
    caller's random state is kept."""
    if encoder is None and is_pretrained(config.network.encoder):
        encoder = find_encoder(config.network.encoder)
    with isolated_rng(config, device, encoder):
        config = settle_horizon(config, dataset.input_shape, encoder)
        data = _as_features(config, dataset, encoder, device, console)
        own = _for_head(config, encoder, dataset)
        trainer = Trainer(config, data, None, device, own, console=console)
        trainer.train()
        with building_with(trainer.generator):
            # A new network: the trained one may hold compiled code, which cannot be copied or pickled.
            model = _trained(config, data, own, trainer.best["weights"], device)
        with drawing_from(trainer.generator):
            fitted = fit(config, model, data.val)
        if config.network.freeze:
            with building_with(trainer.generator):
                model = _trained(config, dataset, encoder, trainer.best["weights"], device)
    rule = fitted.halting
    method = config.method.stopping_by(rule.halt_threshold, rule.max_steps) if rule else config.method
    shape, names = dataset.input_shape, dataset.class_names
    classifier = Classifier(config, method, model, shape, names, fitted.reading.temperature, budgets=fitted.budgets)
    return classifier, trainer.update // trainer.updates_per_epoch


def _trained(
    config: Config, dataset: Dataset, encoder: nn.Module | None, weights: dict[str, Tensor], device: torch.device
) -> nn.Module:
    model, backbone = build_model(config, dataset.input_shape, len(dataset.class_names), encoder)
    model.load_state_dict(weights | encoder_weights(model))
    backbone.autocast = autocast_dtype(config.optimization.precision, device)
    return model.to(device).eval()


@contextmanager
def isolated_rng(config: Config, device: torch.device, encoder: nn.Module | None) -> Iterator[None]:
    """Restore the caller's random state, current device and choice of kernels; turn out-of-memory into a RicnetError.

    A run with its own generator does not touch torch's. One that draws globally seeds the global generator while it
    runs; other threads that draw from it at the same time change the run's numbers, and the run theirs."""
    on_gpu = device.type == "cuda"
    shared = draws_globally(config, encoder, device)
    forked = torch.random.fork_rng([device] if on_gpu else []) if shared else nullcontext()
    with forked, torch.cuda.device(device if on_gpu else -1):
        before = torch.backends.cudnn.benchmark
        try:
            yield
        except torch.OutOfMemoryError:
            raise RicnetError(
                f"{device} has too little memory for batches of {config.optimization.batch_size}; "
                f"lower {setting('batch_size')}, {setting('resolution')} or {setting('width')}."
            ) from None
        finally:
            torch.backends.cudnn.benchmark = before


def facts(dataset: Dataset, device: torch.device, given: Mapping[str, Any] | None = None) -> Facts:
    """What a preset needs to know of the data, and of the settings that a user gives."""
    given = given or {}
    return Facts(
        rows=len(dataset.train),
        classes=len(dataset.class_names),
        side=max(dataset.input_shape[1:]) if dataset.is_image else 0,
        device=device.type,
        encoder=given.get("encoder"),
        text=dataset.is_text,
        freeze=given.get("freeze"),
        copies=given.get("augmented_copies", 0),
        exits=given.get("exits", "none") != "none",
    )


def default_folder(data: str, method: str, seed: int) -> Path:
    return Path("runs") / f"{short_name(data)}-{method}-seed{seed}"


def pick_device(name: str) -> torch.device:
    if name == "auto":
        return own_gpu() if torch.cuda.is_available() else torch.device("cpu")
    if name == "cuda" and torch.cuda.is_available():
        return own_gpu()
    asked = setting("device", name)
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise RicnetError(f"{asked} is unknown; use auto, cpu, cuda or cuda:0.") from error
    if device.type not in ("cpu", "cuda"):
        raise RicnetError(f"{asked} is not supported; use auto, cpu or cuda.")
    if device.type == "cuda" and launched().count > 1:
        cuda = setting("device", "cuda")
        raise RicnetError(f"{asked}: with torchrun each process takes a GPU of its own; use {cuda}.")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise RicnetError(f"{asked}: this machine has {torch.cuda.device_count()} CUDA devices; use another.")
    return device
