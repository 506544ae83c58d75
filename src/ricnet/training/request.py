"""What a user asks for becomes a dataset and a configuration: given settings, another run's, or a preset."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ricnet.core.policies import building_with
from ricnet.data import DATASETS, Dataset, whole_path
from ricnet.data import load as load_data
from ricnet.data.dataset import altered
from ricnet.data.labels import labelled_frame
from ricnet.data.registry import check_test, is_resizable, read_test
from ricnet.data.tables import frame_table, is_frame
from ricnet.data.texts import Tokenizer
from ricnet.errors import RicnetError, nearest, setting
from ricnet.io import short_name, split_target, user_path, whole_name, with_target
from ricnet.machine import free_bytes
from ricnet.methods import of_another_method
from ricnet.methods.archive import RETIRED_PRESETS
from ricnet.models.config import DATA_SETTINGS, PARTS, Config, given_settings
from ricnet.models.locate import find_encoder
from ricnet.models.run import RunFolder
from ricnet.nets.backbone import example_input
from ricnet.nets.encoders import build_encoder, is_pretrained
from ricnet.nets.pretrained import ImageEncoder
from ricnet.training.recipes import Facts, notices, preset
from ricnet.training.speed import fitting_batch

GPU = torch.device("cuda")
"""Default device of presets."""


@dataclass(frozen=True)
class Request:
    """What to train. A field that is None comes from `start`, or from a preset."""

    data: Any
    changes: Mapping[str, Any]
    """Settings of any part of a configuration."""
    target: str | None = None
    method: str | None = None
    preset: str | None = None
    start: Config | None = None
    """Settings of another run."""
    test: Any = None
    """A data frame of test rows; a file of them is one of the `changes`."""

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
        """Data, method and seed, for the name of the run folder."""
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
        """The request with the settings of a run that is resumed; given settings must equal them, except for more
        epochs."""
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
        """Settings of a new run: those of another run, or a preset, whose batch size is lowered to fit into memory
        unless given."""
        if self.start is not None:
            config = _changed(replace(self.start, data=dataset.name), self.changes)
        else:
            notes += notices(self.method, self.preset or "fast")
            config = configure(dataset, self.method, self.preset or "fast", device, **self.changes)
            if "batch_size" not in self.changes:
                config = fit_batch(config, dataset, device, notes, encoder, processes)
        return replace(config, data=whole_path(with_target(str(self.what), self.target))) if self.is_named else config


def _extended(stored: Config, epochs: object, folder: RunFolder) -> Config:
    """The settings of a run with more epochs, if they are more."""
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


def for_encoder(data: Any, changes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Settings for a pretrained encoder: its absolute path, and unless given the resolution that it reads, for images
    that are resized anyway."""
    name = changes.get("encoder")
    if not isinstance(name, str) or not is_pretrained(name):
        return changes
    changes = {**changes, "encoder": whole_name(name)}
    if changes.get("resolution") is not None or not (isinstance(data, str | Path) and is_resizable(data)):
        return changes
    encoder = find_encoder(changes["encoder"])
    size = max(encoder.architecture.size) if isinstance(encoder, ImageEncoder) else None
    return {**changes, "resolution": size}


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
    with building_with(torch.Generator()):  # only measured
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
    """A preset for this data and device, with these settings changed. Method None is the preset's default."""
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


def facts(dataset: Dataset, device: torch.device, given: Mapping[str, Any] | None = None) -> Facts:
    """Facts about data, device and given settings that a preset depends on."""
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
