"""ric train: from data to a run folder."""

import argparse
import dataclasses
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar

import torch
import tyro
from rich.console import Console

from ricnet.apps.commands.parsing import UnknownFlag, parse
from ricnet.data import Dataset, whole_path
from ricnet.data import load as load_data
from ricnet.data.registry import SOURCES
from ricnet.data.tables import with_target
from ricnet.errors import RicnetError
from ricnet.methods import METHODS, Method
from ricnet.nets.encoders import EncoderOptions, build_encoder
from ricnet.paths import split_target, user_path
from ricnet.processes import Processes
from ricnet.report.page import write_page
from ricnet.report.runs import read_run
from ricnet.report.tables import comparison_table
from ricnet.training.api import default_folder, facts, fit_batch, pick_device, run
from ricnet.training.classifier import read_config
from ricnet.training.config import Config, Optimization, from_json
from ricnet.training.distributed import first_on_each_machine, together
from ricnet.training.files import read_json
from ricnet.training.interruption import Interrupted
from ricnet.training.presets import TYPICAL, preset
from ricnet.training.remarks import advice, announcement, faster, say
from ricnet.training.run_folder import RunFolder

Hyper = TypeVar("Hyper", bound=Method[Any])


@dataclass(frozen=True)
class Train(Generic[Hyper]):
    """Train a classifier. `ric train` alone learns scikit-learn's digits; `ric train DIR` your own folder of images,
    one subfolder a class; `ric train my.csv --target COLUMN` your own table. Settings not given come from the preset,
    scaled to the data; those shown here are for 50,000 images of 10 classes. `ric train --method supervised
    --help` shows another method's settings."""

    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")] = "digits"
    """What to learn: a name (ric data list), a folder of images (a subfolder a class), an .npz file (x, y), or a table
    (.csv, .tsv, .jsonl, each also .gz, or .parquet; my.csv#label says its --target too)."""
    target: str | None = None
    """Column of a table that holds the classes. The others are learned from, be they numbers, dates or texts, with
    gaps; those that only name the row are left out."""
    method: str = "ric"
    """ric (the paper), supervised (cross-entropy in one pass), anytime, act or pondernet."""
    preset: Literal["fast", "paper"] = "fast"
    """fast: minutes on a GPU; paper: the paper's own settings, 2000 epochs."""
    config: Path | None = None
    """Take all settings from another run (its folder or its config.json); flags given beside it win."""
    seed: int = 0
    """Fixes initial weights, order of the data, augmentation and exploration. Splits do not depend on it."""
    out: Path | None = None
    """Folder of the run; by default runs/DATA-METHOD-seedN, of a table runs/DATA-TARGET-METHOD-seedN."""
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
    class_weight: Literal["balanced"] | None = None
    """balanced makes all classes count the same in training and in choosing the epoch, however rare; None counts
    rows. Beliefs are then those for classes that are equally frequent."""
    calibration: Literal["none", "temperature"] = "none"
    """What is fitted on validation data after training: nothing, or one temperature for all beliefs; with RIC it does
    more for --readout mu, which has no floor."""
    checkpoint_seconds: float = 60.0
    """Save the state at least this often; 0 saves after every update."""
    hyper: Hyper = dataclasses.field(default=tyro.MISSING)
    network: EncoderOptions = dataclasses.field(default_factory=EncoderOptions)
    optimization: Optimization = dataclasses.field(default_factory=Optimization)


def main(arguments: Sequence[str]) -> None:
    options = _parse(arguments, _preset_for(arguments, TYPICAL))
    device = pick_device(options.device)
    with together(device) as processes:
        _train(arguments, options, device, processes)


def _train(arguments: Sequence[str], options: Train[Any], device: torch.device, processes: Processes) -> None:
    folder = RunFolder(options.out or default_folder(_config(options)))
    if processes.first:
        folder.refuse_if_held()
    if options.resume:
        stored = processes.agree(partial(_stored, folder))
        options = _parse(arguments, stored)
        _refuse_changes(stored, _config(options))
        _refuse_missing_data(stored, folder)
    config = _config(options)
    with first_on_each_machine(processes):
        dataset = load_data(
            options.data,
            data_dir=options.data_dir,
            resolution=options.resolution,
            val_fraction=options.val_fraction,
            label_noise=options.label_noise,
        )
    console = Console(stderr=True, quiet=not processes.first)
    notes = list(dataset.notes)
    if not options.resume:
        config = processes.agree(lambda: _settle(arguments, dataset, device, notes, processes.count))
        if processes.first:
            folder.refuse_if_taken(options.overwrite)  # last, so that it hides nothing else that is wrong
    say([*(f"note: {note}" for note in notes), announcement(config, dataset, device, processes.count)], console)
    try:
        run(
            config,
            dataset,
            folder,
            device,
            overwrite=options.overwrite,
            resume=options.resume,
            checkpoint_seconds=options.checkpoint_seconds,
            console=console,
            hint=None if options.resume else faster(config, dataset, device),
        )
    except Interrupted as stop:
        say([str(stop)], console)
        sys.exit(130)
    if processes.first:
        _present(folder)
        say(advice(folder, config, dataset))


def _stored(folder: RunFolder) -> Config:
    """The settings that an unfinished run began with."""
    folder.refuse_if_finished()
    return from_json(read_config(folder.path).get("config"), str(folder.config))


def _settle(
    arguments: Sequence[str], dataset: Dataset, device: torch.device, notes: list[str], processes: int
) -> Config:
    """The preset for this data under the flags; a batch that no flag asked for is made to fit into memory."""
    chosen = _preset_for(arguments, facts(dataset))
    options = _parse(arguments, chosen)
    config = _config(options)
    build_encoder(config.network, dataset.input_shape)  # which says so if there is no such network for these inputs
    asked = config.optimization.batch_size != chosen.optimization.batch_size or options.config is not None
    return config if asked else fit_batch(config, dataset, device, notes, processes=processes)


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
        if not path.exists():
            raise RicnetError(f"--config {path} does not exist; give the folder of a run, or its config.json.")
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
        class_weight=config.class_weight,
        calibration=config.calibration,
        hyper=config.method,
        network=config.network,
        optimization=config.optimization,
    )
    try:
        options: Train[Any] = parse(Train[type(config.method)], arguments, "train", default)  # type: ignore[misc]
    except UnknownFlag as problem:
        raise _of_another_method(problem, config.method.name) or problem from None
    return replace(options, data=whole_path(with_target(options.data, options.target)))


def _of_another_method(problem: UnknownFlag, method: str) -> RicnetError | None:
    setting = problem.flag.removeprefix("--").removeprefix("no-").replace("-", "_")
    owners = [name for name, kind in METHODS.items() if setting in {f.name for f in dataclasses.fields(kind)}]
    if not owners:
        return None
    return RicnetError(f"{problem.flag} is a setting of {', '.join(owners)}, not of {method}; leave it out.")


def _config(options: Train[Any]) -> Config:
    return Config(
        options.data,
        options.preset,
        options.seed,
        options.resolution,
        options.val_fraction,
        options.label_noise,
        options.class_weight,
        options.calibration,
        options.hyper,
        options.network,
        options.optimization,
    )


def _refuse_changes(stored: Config, wanted: Config) -> None:
    if names := _changed(stored, wanted):
        change, them = ("changes", "it") if len(names) == 1 else ("change", "them")
        raise RicnetError(
            f"--resume goes on with the settings the run began with, but {' and '.join(names)} {change} them; "
            f"leave {them} out."
        )


def _changed(stored: Any, wanted: Any) -> list[str]:
    """The flags, those of the method, the network and the optimization too."""
    names = []
    for field in dataclasses.fields(stored):
        old, new = getattr(stored, field.name), getattr(wanted, field.name)
        if old != new and dataclasses.is_dataclass(old):
            names += _changed(old, new)
        elif old != new:
            names.append("DATA" if field.name == "data" else f"--{field.name.replace('_', '-')}")
    return names


def _refuse_missing_data(stored: Config, folder: RunFolder) -> None:
    path = split_target(stored.data)[0]
    if path not in SOURCES and not user_path(path).exists():
        raise RicnetError(
            f"{path}, the data that {folder.path} began with, is not there any more; put it back to go on."
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
