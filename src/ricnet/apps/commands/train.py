"""ric train: from data to a run folder."""

import argparse
import dataclasses
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar

import torch
import tyro
from rich.console import Console

from ricnet.apps.commands.parsing import parse
from ricnet.data import Dataset, whole_path
from ricnet.data import load as load_data
from ricnet.data.memory import fitting_batch, free_bytes
from ricnet.data.tables import with_target
from ricnet.errors import RicnetError
from ricnet.methods import Method
from ricnet.nets.encoders import EncoderOptions, build_encoder, choose_encoder
from ricnet.report.page import write_page
from ricnet.report.runs import read_run
from ricnet.report.tables import comparison_table
from ricnet.training.api import default_folder, facts, pick_device, run
from ricnet.training.classifier import read_config
from ricnet.training.config import Config, Optimization, from_json
from ricnet.training.files import read_json
from ricnet.training.interruption import Interrupted
from ricnet.training.presets import TYPICAL, preset
from ricnet.training.run_folder import RunFolder
from ricnet.untrusted import printable

Hyper = TypeVar("Hyper", bound=Method[Any])


@dataclass(frozen=True)
class Train(Generic[Hyper]):
    """Train a classifier. `ric train` alone learns scikit-learn's digits; `ric train DIR` your own folder of images,
    one subfolder a class; `ric train my.csv --target COLUMN` your own table. Settings not given come from the preset,
    scaled to the data; those shown here are for 50,000 images of 10 classes. `ric train --method supervised
    --help` shows another method's settings."""

    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")] = "digits"
    """What to learn: a name (ric data list), a folder of images (a subfolder a class), an .npz file (x, y), or a table
    (.csv, .tsv; my.csv#label says its --target too)."""
    target: str | None = None
    """Column of a table that holds the classes. The others are learned from, be they numbers or texts, with gaps."""
    method: str = "ric"
    """ric (the paper), supervised (cross-entropy in one pass), anytime, act or pondernet."""
    preset: Literal["fast", "paper"] = "fast"
    """fast: minutes on a GPU; paper: the paper's own settings, 2000 epochs."""
    config: Path | None = None
    """Take all settings from another run (its folder or its config.json); flags given beside it win."""
    seed: int = 0
    """Fixes initial weights, order of the data, augmentation and exploration. Splits do not depend on it."""
    out: Path | None = None
    """Folder of the run; by default runs/DATA-METHOD-seedN."""
    resume: bool = False
    """Go on where an interrupted run stopped, exactly as if it never had."""
    overwrite: bool = False
    """Replace a run that is already there."""
    device: str = "auto"
    """auto (a GPU if there is one), cpu, cuda, cuda:1 …"""
    data_dir: Path | None = None
    """Where named data sets lie; by default $RICNET_DATA, else the user's cache folder."""
    resolution: int | None = None
    """Side in pixels that images are resized to; by default chosen from the data."""
    val_fraction: float = 0.1
    """Share of the training data kept aside to choose the best epoch."""
    label_noise: float = 0.0
    """Share of training and validation labels that are replaced by a wrong one; the test labels stay clean."""
    calibration: Literal["none", "temperature"] = "none"
    """What is fitted on validation data after training: nothing, or one temperature for all beliefs."""
    checkpoint_seconds: float = 60.0
    """Save the state at least this often; 0 saves after every update."""
    hyper: Hyper = dataclasses.field(default=tyro.MISSING)
    network: EncoderOptions = dataclasses.field(default_factory=EncoderOptions)
    optimization: Optimization = dataclasses.field(default_factory=Optimization)


def main(arguments: Sequence[str]) -> None:
    options = _parse(arguments, _preset_for(arguments, TYPICAL))
    folder = RunFolder(options.out or default_folder(_config(options)))
    if options.resume:
        folder.refuse_if_finished()
        stored = from_json(read_config(folder.path).get("config"), str(folder.config))
        options = _parse(arguments, stored)
        _refuse_changes(stored, _config(options))
    else:
        folder.refuse_if_taken(options.overwrite)
    device = pick_device(options.device)
    dataset = load_data(
        options.data,
        data_dir=options.data_dir,
        resolution=options.resolution,
        val_fraction=options.val_fraction,
        label_noise=options.label_noise,
    )
    console = Console(stderr=True)
    notes = list(dataset.notes)
    if not options.resume:
        options = _settle(arguments, dataset, device, notes)
    for note in notes:
        console.print(f"note: {printable(note)}", highlight=False, markup=False, soft_wrap=True)
    console.print(_announcement(options, dataset, device), highlight=False, markup=False, soft_wrap=True)
    try:
        run(
            _config(options),
            dataset,
            folder,
            device,
            overwrite=options.overwrite,
            resume=options.resume,
            checkpoint_seconds=options.checkpoint_seconds,
        )
    except torch.OutOfMemoryError:
        raise RicnetError(
            f"{device} has too little memory for batches of {options.optimization.batch_size}; "
            "lower --batch-size, --resolution or --width."
        ) from None
    except Interrupted as stop:
        console.print(str(stop), highlight=False, markup=False, soft_wrap=True)
        sys.exit(130)
    _present(folder)


def _settle(arguments: Sequence[str], dataset: Dataset, device: torch.device, notes: list[str]) -> Train[Any]:
    """The preset for this data under the flags; a batch that no flag asked for is made to fit into memory."""
    chosen = _preset_for(arguments, facts(dataset))
    options = _parse(arguments, chosen)
    wanted, free = chosen.optimization.batch_size, free_bytes(device)
    encoder = build_encoder(options.network, dataset.input_shape)
    fitting = fitting_batch(encoder, torch.zeros(1, *dataset.input_shape), wanted, free)
    if fitting == wanted or options.optimization.batch_size != wanted or options.config is not None:
        return options
    notes.append(f"Batches of {fitting} instead of {wanted}, to fit into {free / 1e9:.1f} GB of free memory.")
    return _parse(arguments, replace(chosen, optimization=replace(chosen.optimization, batch_size=fitting)))


def _preset_for(arguments: Sequence[str], known: Any) -> Config:
    """The method decides which flags there are, so it is read first; a configuration decides everything."""
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    first.add_argument("--method")
    first.add_argument("--preset")
    first.add_argument("--config", type=Path)
    try:
        chosen, _ = first.parse_known_args(list(arguments))
    except argparse.ArgumentError as error:
        raise RicnetError(f"{error}; see ric train --help.") from None
    if chosen.config is not None:
        if chosen.method is not None or chosen.preset is not None:
            raise RicnetError("--config brings its own method and preset; leave out --method and --preset.")
        path = chosen.config / "config.json" if chosen.config.is_dir() else chosen.config
        return from_json(read_json(path).get("config"), str(path))
    return preset(chosen.preset or "fast", chosen.method or "ric", known)


def _parse(arguments: Sequence[str], config: Config) -> Train[Any]:
    """Read the flags over a configuration's settings."""
    default = Train(
        data=config.data,
        method=config.method.name,
        config=None,
        preset=config.preset,  # type: ignore[arg-type]
        seed=config.seed,
        resolution=config.resolution,
        val_fraction=config.val_fraction,
        label_noise=config.label_noise,
        calibration=config.calibration,
        hyper=config.method,
        network=config.network,
        optimization=config.optimization,
    )
    options: Train[Any] = parse(Train[type(config.method)], arguments, "train", default)  # type: ignore[misc]
    return replace(options, data=whole_path(with_target(options.data, options.target)))


def _config(options: Train[Any]) -> Config:
    return Config(
        options.data,
        options.preset,
        options.seed,
        options.resolution,
        options.val_fraction,
        options.label_noise,
        options.calibration,
        options.hyper,
        options.network,
        options.optimization,
    )


def _refuse_changes(stored: Config, wanted: Config) -> None:
    if wanted != stored:
        names = [f.name for f in dataclasses.fields(Config) if getattr(wanted, f.name) != getattr(stored, f.name)]
        raise RicnetError(
            f"--resume goes on with the settings the run began with, but the flags change its {' and '.join(names)}; "
            "leave them out."
        )


def _announcement(options: Train[Any], dataset: Dataset, device: torch.device) -> str:
    rows, kind = len(dataset.train), "images" if dataset.is_image else "rows"
    numbers = "" if dataset.is_image else " numbers"
    encoder = choose_encoder(options.network.encoder, dataset.input_shape)
    shape = " × ".join(str(side) for side in dataset.input_shape)
    return (
        f"training {options.method} on {rows:,} {kind} of {shape}{numbers}, {len(dataset.class_names)} classes, "
        f"encoder {encoder}, {options.optimization.epochs} epochs, on {device}"
    )


def _present(folder: RunFolder) -> None:
    """What the user gets to see at the end: the result, and what to do next."""
    record = read_run(folder.path)
    write_page([record], folder.report)
    console = Console()
    console.print(comparison_table([record]))
    if folder.calibration.is_file():
        console.print(f"\n{_calibration(read_json(folder.calibration))}", highlight=False, markup=False)
    look = shlex.join(["ric", "predict", str(folder.path), str(folder.examples), "--trace"])
    console.print(f"\nreport   {folder.report}\nlook     {look}", highlight=False, markup=False, soft_wrap=True)


def _calibration(fit: dict[str, Any]) -> str:
    if not fit["found"]:
        return (
            f"temperature left at 1: on {fit['n']} validation examples no finite one is best (is none of them wrong?)"
        )
    change = f"validation NLL {fit['nll_before']:.4f} → {fit['nll_after']:.4f}"
    return f"temperature {fit['temperature']:.3f}, fitted on {fit['n']} validation examples: {change}"
