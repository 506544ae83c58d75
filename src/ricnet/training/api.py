"""`ricnet.train(...)`: from data to a trained classifier in one call."""

import dataclasses
import math
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import nn

from ricnet.data import Dataset
from ricnet.data import load as load_data
from ricnet.data.dataset import flip_labels
from ricnet.data.labels import labelled_frame
from ricnet.data.memory import fitting_batch, free_bytes
from ricnet.data.tables import is_frame, short_name
from ricnet.distributed import first_on_each_machine, launched, own_gpu, together
from ricnet.errors import RicnetError, nearest
from ricnet.io import Unwritable, read_json
from ricnet.nets.encoders import build_encoder
from ricnet.training.classifier import Classifier, autocast_dtype, build_model, load, stopping_by
from ricnet.training.config import DATA_SETTINGS, Config, from_json, given_settings
from ricnet.training.console import (
    Interrupted,
    Track,
    advice,
    announcement,
    chosen_words,
    faster,
    in_python,
    preface,
    require_tracker,
    say,
    started,
    tracked,
)
from ricnet.training.finalize import fit
from ricnet.training.presets import Facts, preset
from ricnet.training.run import RunFolder, read_config
from ricnet.training.trainer import Trainer

GPU = torch.device("cuda")
"""What presets are for unless a CPU is to train."""


def train(
    data: Any = "digits",
    *,
    target: str | None = None,
    method: str = "ric",
    preset: str = "fast",
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

    `data` is what the command line takes (a name or a path), a data frame, or a Dataset of your own; `target` the
    column of a table that holds the classes; `encoder` a name or any module from a batch of inputs to a batch of
    vectors (without dropout: the snapshot and the network must see the same). The run is written to `out`, by default
    runs/DATA-METHOD-seedN; with `resume`, an interrupted one goes on, and where there is none yet it starts.
    `track="tensorboard"` draws its curves there.
    """
    module = encoder if isinstance(encoder, nn.Module) else None
    if encoder is not None:
        changes["encoder"] = "custom" if module is not None else encoder
    with python_words(), together(place := pick_device(device)) as processes:
        require_tracker(track)
        with first_on_each_machine(processes):
            dataset = _dataset(data, target, data_dir, changes)
        config = configure(dataset, method, preset, place, **changes)
        folder = RunFolder(out or default_folder(config))
        notes = list(dataset.notes)
        if resume and not processes.broadcast(lambda: folder.begun):
            resume = False
            notes.append(started(folder))
        if "batch_size" not in changes:
            fit = partial(fit_batch, config, dataset, place, notes, module, processes.count)
            config = processes.broadcast(partial(_stored_batch, config, folder) if resume else fit)
        if not resume and processes.first:
            folder.refuse_if_taken(overwrite)
        console = Console(stderr=True, quiet=not processes.first)
        say([*(f"note: {note}" for note in notes), announcement(config, dataset, place, processes.count)], console)
        say([] if resume else map(in_python, preface(config, dataset, facts(dataset, place))), console)
        hint = None if resume else faster(config, dataset, place)
        run(
            config,
            dataset,
            folder,
            place,
            overwrite=overwrite,
            resume=resume,
            encoder=module,
            track=track,
            console=console,
            hint=hint and in_python(hint),
        )
        if processes.first:
            say([*chosen_words(read_json(folder.evaluation)), *map(in_python, advice(folder, config, dataset))])
        processes.any(False)  # wait until the first has written everything
        return load(folder.path, str(place), module)


@contextmanager
def python_words() -> Iterator[None]:
    """Messages name flags of the command line; who calls from Python knows them as parameters."""
    try:
        yield
    except Interrupted:  # which names a command to type
        raise
    except RicnetError as error:
        raise type(error)(in_python(str(error))) from error


def _dataset(data: Any, target: str | None, data_dir: str | Path | None, changes: Mapping[str, Any]) -> Dataset:
    settings = given_settings(Config, {k: changes[k] for k in DATA_SETTINGS if k in changes})
    if is_frame(data):
        dataset = labelled_frame(data, target, settings.get("val_fraction", 0.1))
        return flip_labels(dataset, settings.get("label_noise", 0.0))
    if isinstance(data, Dataset):
        if target is not None:
            raise RicnetError(f"--target {target} is for tables; {data.name} says by itself what its classes are.")
        if not (len(data.train) and len(data.val)):
            lacking = "validation" if len(data.train) else "training"
            raise RicnetError(
                f"{data.name} has no {lacking} rows; give it both, those to learn from and those to choose by."
            )
        return flip_labels(data, settings.get("label_noise", 0.0))
    return load_data(data, target=target, data_dir=data_dir, **settings)


def _stored_batch(config: Config, folder: RunFolder) -> Config:
    """How large a batch fitted when the run began is for the run to say."""
    stored = from_json(read_config(folder.path).get("config"), str(folder.config))
    return _with_batch(config, stored.optimization.batch_size)


def fit_batch(
    config: Config,
    dataset: Dataset,
    device: torch.device,
    notes: list[str],
    encoder: nn.Module | None = None,
    processes: int = 1,
) -> Config:
    """Make a batch that nobody asked for fit into memory; if it must be smaller, a note says so."""
    wanted, free = config.optimization.batch_size, free_bytes(device)
    network = encoder if encoder is not None else build_encoder(config.network, dataset.input_shape)
    home = next((parameter.device for parameter in network.parameters()), None)
    example = torch.zeros(1, *dataset.input_shape, device=home)
    pieces = processes * config.optimization.accumulate
    fitting = min(wanted, pieces * fitting_batch(network, example, math.ceil(wanted / pieces), free))
    if fitting < wanted:
        notes.append(f"Batches of {fitting} instead of {wanted}, to fit into {free / 1e9:.1f} GB of free memory.")
    return _with_batch(config, fitting)


def _with_batch(config: Config, batch_size: int) -> Config:
    return dataclasses.replace(config, optimization=dataclasses.replace(config.optimization, batch_size=batch_size))


def configure(dataset: Dataset, method: str, preset_name: str, device: torch.device = GPU, /, **changes: Any) -> Config:
    """A preset for this data on this device, with the given settings changed, wherever in the configuration they
    stand."""
    config = preset(preset_name, method, facts(dataset, device))
    parts: dict[str, Any] = {"data": dataset.name}
    for name in ("method", "network", "optimization"):
        part = getattr(config, name)
        mine = {f.name: changes.pop(f.name) for f in dataclasses.fields(part) if f.name in changes}
        parts[name] = dataclasses.replace(part, **given_settings(type(part), mine))
    unknown = set(changes) - {f.name for f in dataclasses.fields(Config)} | set(changes) & set(parts)
    if unknown:
        raise RicnetError(_unknown_setting(min(unknown), config))
    return dataclasses.replace(config, **parts, **given_settings(Config, changes))


def _unknown_setting(name: str, config: Config) -> str:
    parts = (config, config.method, config.network, config.optimization)
    meant = nearest(name, [field.name for part in parts for field in dataclasses.fields(part)])
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
) -> dict[str, Any]:
    """Train in a folder, anew or from where it stopped; returns the evaluation. The caller's random state is kept.

    `watch` is shown each line of metrics.jsonl; what it raises ends the training. `hint` is given if that takes long.
    """
    tell = partial(_tell, console or Console(stderr=True))
    with (
        isolated_rng(config, device),
        together(device) as processes,
        folder.held(tell) if processes.first else nullcontext(),
    ):
        first = processes.first
        if first and resume:
            folder.check_resumable(config, dataset)
        elif first:
            folder.refuse_if_taken(overwrite)
        mine = folder if first else None
        trainer = Trainer(config, dataset, mine, device, encoder, checkpoint_seconds, console, processes, hint)
        if first and not resume:
            folder.begin(config, dataset, device)  # only now: a configuration that cannot be built leaves no trace
        with _saved_so_far(folder):
            if resume and (state := processes.broadcast(partial(folder.read_state, tell))) is not None:
                _restore(trainer, state, folder)
            elif resume and first:
                tell(f"{folder.path} was stopped before its first checkpoint, so that it starts from the beginning.")
                folder.keep_metrics_until(0)
            with tracked(folder, track if first else "none") as draw:
                trainer.watchers = [follower for follower in (watch, draw) if follower is not None]
                return trainer.run()


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
        raise RicnetError(f"{problem} What was saved before is whole: go on with --resume.") from problem


def _restore(trainer: Trainer, state: dict[str, Any], folder: RunFolder) -> None:
    try:
        trainer.restore(state)
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise RicnetError(
            f"{folder.state} is of another network or another version of ricnet; "
            "resume with what the run began with, or start anew with --overwrite."
        ) from error


def facts(dataset: Dataset, device: torch.device) -> Facts:
    side = max(dataset.input_shape[1:]) if dataset.is_image else 0
    return Facts(len(dataset.train), len(dataset.class_names), side, device.type)


def default_folder(config: Config) -> Path:
    return Path("runs") / f"{short_name(config.data)}-{config.method.name}-seed{config.seed}"


def pick_device(name: str) -> torch.device:
    if name == "auto":
        return own_gpu() if torch.cuda.is_available() else torch.device("cpu")
    if name == "cuda" and torch.cuda.is_available():
        return own_gpu()
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise RicnetError(f"--device {name} is unknown; use auto, cpu, cuda or cuda:0.") from error
    if device.type not in ("cpu", "cuda"):
        raise RicnetError(f"--device {name} is not supported; use auto, cpu or cuda.")
    if device.type == "cuda" and launched().count > 1:
        raise RicnetError(f"--device {name}: with torchrun each process takes a GPU of its own; use --device cuda.")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise RicnetError(f"--device {name}: this machine has {torch.cuda.device_count()} CUDA devices; use another.")
    return device


def train_in_memory(
    config: Config,
    dataset: Dataset,
    device: torch.device,
    *,
    encoder: nn.Module | None = None,
    console: Console | None = None,
) -> tuple[Classifier, int]:
    """The classifier, and how many epochs it took. Stopped by Ctrl-C, nothing is left. The caller's random state is
    kept."""
    with isolated_rng(config, device):
        trainer = Trainer(config, dataset, None, device, encoder, console=console)
        trainer.train()
        # A new network: the trained one may hold compiled code, which cannot be copied or pickled.
        model, backbone = build_model(config, dataset.input_shape, len(dataset.class_names), encoder)
        model.load_state_dict(trainer.best["weights"])
        backbone.autocast = autocast_dtype(config.optimization.precision, device)
        model = model.to(device).eval()
        fitted = fit(config, model, dataset.val)
    rule = fitted.halting
    method = stopping_by(config.method, rule.halt_threshold, rule.max_steps) if rule else config.method
    shape, names = dataset.input_shape, dataset.class_names
    classifier = Classifier(config, method, model, shape, names, fitted.reading.temperature)
    return classifier, trainer.update // trainer.updates_per_epoch


@contextmanager
def isolated_rng(config: Config, device: torch.device) -> Iterator[None]:
    """The caller's random state, current device and choice of kernels are as before; too little memory is a
    sentence."""
    on_gpu = device.type == "cuda"
    with torch.random.fork_rng([device] if on_gpu else []), torch.cuda.device(device if on_gpu else -1):
        before = torch.backends.cudnn.benchmark
        try:
            yield
        except torch.OutOfMemoryError:
            raise RicnetError(
                f"{device} has too little memory for batches of {config.optimization.batch_size}; "
                "lower --batch-size, --resolution or --width."
            ) from None
        finally:
            torch.backends.cudnn.benchmark = before
