"""`ricnet.train(...)`: from data to a trained classifier in one call."""

import dataclasses
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import nn

from ricnet.data import Dataset
from ricnet.data import load as load_data
from ricnet.data.noise import flip_labels
from ricnet.errors import RicnetError
from ricnet.training.classifier import Classifier, load
from ricnet.training.config import DATA_SETTINGS, Config
from ricnet.training.distributed import launched, own_gpu, together
from ricnet.training.files import Unwritable
from ricnet.training.presets import Facts, preset
from ricnet.training.run_folder import RunFolder
from ricnet.training.trainer import Trainer


def train(
    data: str | Path | Dataset = "digits",
    *,
    method: str = "ric",
    preset: str = "fast",
    out: str | Path | None = None,
    encoder: str | nn.Module | None = None,
    device: str = "auto",
    overwrite: bool = False,
    resume: bool = False,
    data_dir: str | Path | None = None,
    **changes: Any,
) -> Classifier:
    """Train a classifier and return it; `changes` are any settings of `ric train --help`, such as epochs=30.

    `data` is what the command line takes, or a Dataset of your own; `encoder` a name or any module from a batch of
    inputs to a batch of vectors (without dropout: the snapshot and the network must see the same). The run is written
    to `out`, by default runs/DATA-METHOD-seedN; with `resume`, an interrupted one goes on.
    """
    module = encoder if isinstance(encoder, nn.Module) else None
    if encoder is not None:
        changes["encoder"] = "custom" if module is not None else encoder
    if isinstance(data, Dataset):
        dataset = flip_labels(data, changes.get("label_noise", 0.0))
    else:
        wanted = {k: changes[k] for k in DATA_SETTINGS if k in changes}
        dataset = load_data(data, data_dir=data_dir, **wanted)
    config = configure(dataset, method, preset, **changes)
    folder = RunFolder(out or default_folder(config))
    run(config, dataset, folder, pick_device(device), overwrite=overwrite, resume=resume, encoder=module)
    return load(folder.path, str(pick_device(device)), module)


def configure(dataset: Dataset, method: str, preset_name: str, **changes: Any) -> Config:
    """A preset for this data, with the given settings changed, wherever in the configuration they stand."""
    config = preset(preset_name, method, facts(dataset))
    parts: dict[str, Any] = {"data": dataset.name}
    for name in ("method", "network", "optimization"):
        part = getattr(config, name)
        mine = {f.name: changes.pop(f.name) for f in dataclasses.fields(part) if f.name in changes}
        parts[name] = dataclasses.replace(part, **mine)
    unknown = set(changes) - {f.name for f in dataclasses.fields(Config)}
    if unknown:
        raise RicnetError(
            f"{', '.join(sorted(unknown))}: no such setting for the method {method}; see ric train --help."
        )
    return dataclasses.replace(config, **parts, **changes)


def run(
    config: Config,
    dataset: Dataset,
    folder: RunFolder,
    device: torch.device,
    *,
    overwrite: bool = False,
    resume: bool = False,
    encoder: nn.Module | None = None,
    checkpoint_seconds: float = 60.0,
    console: Console | None = None,
    watch: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Train in a folder, anew or from where it stopped; returns the evaluation. The caller's random state is kept.

    `watch` is shown each line of metrics.jsonl; what it raises ends the training.
    """
    on_gpu = device.type == "cuda"
    tell = partial(_tell, console or Console(stderr=True))
    with (
        torch.random.fork_rng([device] if on_gpu else []),
        torch.cuda.device(device if on_gpu else -1),
        together(device) as processes,
        folder.held(tell) if processes.first else nullcontext(),
    ):
        first = processes.first
        if first and resume:
            folder.check_resumable(config, dataset)
        elif first:
            folder.refuse_if_taken(overwrite)
        mine = folder if first else None
        trainer = Trainer(config, dataset, mine, device, encoder, checkpoint_seconds, console, watch, processes)
        if first and not resume:
            folder.begin(config, dataset, device)  # only now: a configuration that cannot be built leaves no trace
        elif resume and (state := processes.agree(partial(folder.read_state, tell))) is not None:
            _restore(trainer, state, folder)
        elif first:
            folder.keep_metrics_until(0)
        try:
            return trainer.run()
        except Unwritable as problem:
            raise RicnetError(f"{problem} What was saved before is whole: go on with --resume.") from problem


def _tell(console: Console, sentence: str) -> None:
    console.print(f"note: {sentence}", highlight=False, markup=False, soft_wrap=True)


def _restore(trainer: Trainer, state: dict[str, Any], folder: RunFolder) -> None:
    try:
        trainer.restore(state)
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise RicnetError(
            f"{folder.state} is of another network or another version of ricnet; "
            "resume with what the run began with, or start anew with --overwrite."
        ) from error


def facts(dataset: Dataset) -> Facts:
    side = max(dataset.input_shape[1:]) if dataset.is_image else 0
    return Facts(len(dataset.train), len(dataset.class_names), side)


def default_folder(config: Config) -> Path:
    return Path("runs") / f"{Path(config.data).stem}-{config.method.name}-seed{config.seed}"


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
