"""ric train: from data to a run folder."""

import dataclasses
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from ricnet.apps.commands.settings import Hyper, MethodSettings, look_for, over, read
from ricnet.data import Dataset, whole_path
from ricnet.data import load as load_data
from ricnet.data.registry import DATASETS
from ricnet.distributed import Processes, first_on_each_machine, launched, together
from ricnet.errors import RicnetError
from ricnet.io import read_json, split_target, user_path
from ricnet.nets.encoders import build_encoder
from ricnet.report.page import write_page
from ricnet.report.runs import read_run
from ricnet.report.tables import runs_table
from ricnet.training.api import default_folder, facts, fit_batch, pick_device, run
from ricnet.training.config import Config, from_json
from ricnet.training.console import (
    Interrupted,
    Track,
    advice,
    announcement,
    chosen_words,
    faster,
    preface,
    require_tracker,
    say,
    started,
)
from ricnet.training.presets import TYPICAL, preset
from ricnet.training.run import RunFolder, read_config

TOO_SOON = "stopped before the first update, with nothing new to save; the same command begins again."


@dataclass(frozen=True)
class Train(MethodSettings[Hyper]):
    """Train a classifier. `ric train` alone learns scikit-learn's digits; `ric train DIR` your own folder of images,
    one subfolder a class; `ric train my.csv --target COLUMN` your own table. Settings not given come from the preset,
    scaled to the data; those shown are for 50,000 images of 10 classes. `ric train --help-all` shows every setting,
    `ric train --method supervised --help-all` those of another method."""

    config: Path | None = None
    """Take all settings from another run (its folder or its config.json); flags given beside it win."""
    out: Path | None = None
    """Folder of the run; by default runs/DATA-METHOD-seedN, of a table runs/DATA-TARGET-METHOD-seedN."""
    resume: bool = False
    """Go on where an interrupted run stopped, exactly as if it never had; where there is none yet, start it."""
    overwrite: bool = False
    """Replace a run that is already there."""
    track: Track = "none"
    """tensorboard: write every number of metrics.jsonl as a curve too, into the folder tensorboard of the run
    (pip install 'ricnet[track]'; look at it with tensorboard --logdir RUNS)."""
    checkpoint_seconds: float = 60.0
    """Save the state at least this often; 0 saves after every update."""


def main(arguments: Sequence[str]) -> None:
    options = _parse(arguments, _preset_for(arguments, TYPICAL))
    device = pick_device(options.device)
    require_tracker(options.track)
    try:
        with together(device) as processes:
            _train(arguments, options, device, processes)
    except (Interrupted, KeyboardInterrupt) as stop:
        if launched().first:
            folder = RunFolder(options.out or default_folder(_config(options)))
            say([str(stop) or (f"stopped; the run in {folder.path} is finished." if folder.finished else TOO_SOON)])
        sys.exit(Interrupted.exit_code)


def _train(arguments: Sequence[str], options: Train[Any], device: torch.device, processes: Processes) -> None:
    folder = RunFolder(options.out or default_folder(_config(options)))
    if processes.first:
        folder.refuse_if_held()
    stored = processes.broadcast(partial(_stored, folder)) if options.resume else None
    if stored is not None:
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
    notes = [started(folder)] * (options.resume and stored is None) + list(dataset.notes)
    if stored is None:
        config = processes.broadcast(lambda: _settle(arguments, dataset, device, notes, processes.count))
        if processes.first:
            folder.refuse_if_taken(options.overwrite)  # last, so that it hides nothing else that is wrong
    say([*(f"note: {note}" for note in notes), announcement(config, dataset, device, processes.count)], console)
    say([] if stored is not None else preface(config, dataset, facts(dataset, device)), console)
    run(
        config,
        dataset,
        folder,
        device,
        overwrite=options.overwrite,
        resume=stored is not None,
        track=options.track,
        checkpoint_seconds=options.checkpoint_seconds,
        console=console,
        hint=faster(config, dataset, device) if stored is None else None,
    )
    if processes.first:
        _present(folder)
        say(advice(folder, config, dataset))


def _stored(folder: RunFolder) -> Config | None:
    """The settings that an unfinished run began with; None where there is no run yet."""
    folder.refuse_if_finished()
    if not folder.begun:
        return None
    return from_json(read_config(folder.path).get("config"), str(folder.config))


def _settle(
    arguments: Sequence[str], dataset: Dataset, device: torch.device, notes: list[str], processes: int
) -> Config:
    """The preset for this data under the flags; a batch that no flag asked for is made to fit into memory."""
    chosen = _preset_for(arguments, facts(dataset, device))
    options = _parse(arguments, chosen)
    config = _config(options)
    build_encoder(config.network, dataset.input_shape)  # which says so if there is no such network for these inputs
    asked = config.optimization.batch_size != chosen.optimization.batch_size or options.config is not None
    return config if asked else fit_batch(config, dataset, device, notes, processes=processes)


def _preset_for(arguments: Sequence[str], known: Any) -> Config:
    """The method decides which flags there are, so it is read first; a configuration decides everything."""
    chosen = look_for(arguments, "train", "--method", "--preset", "--config")
    if chosen.config is None:
        return preset(chosen.preset or "fast", chosen.method or "ric", known)
    if chosen.method is not None or chosen.preset is not None:
        raise RicnetError("--config brings its own method and preset; leave out --method and --preset.")
    path = Path(chosen.config) / "config.json" if Path(chosen.config).is_dir() else Path(chosen.config)
    if not path.exists():
        raise RicnetError(f"--config {path} does not exist; give the folder of a run, or its config.json.")
    return from_json(read_json(path).get("config"), str(path))


def _parse(arguments: Sequence[str], config: Config) -> Train[Any]:
    """Read the flags over a configuration's settings."""
    default: Train[Any] = over(Train, config)
    options = read(Train[type(config.method)], arguments, "train", default)  # type: ignore[misc]
    return replace(options, data=whole_path(options.source))


def _config(options: Train[Any]) -> Config:
    shared = {field.name: getattr(options, field.name) for field in dataclasses.fields(Config)}
    return Config(**shared | {"method": options.hyper})


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
    if path not in DATASETS and not user_path(path).exists():
        raise RicnetError(
            f"{path}, the data that {folder.path} began with, is not there any more; put it back to go on."
        )


def _present(folder: RunFolder) -> None:
    """What the user gets to see at the end: the result, and what to do next."""
    record = read_run(folder.path)
    write_page([record], folder.report)
    console = Console()
    console.print(runs_table([record]))
    for sentence in chosen_words(record.evaluation):
        console.print(f"\n{sentence}", highlight=False, markup=False)
    look = shlex.join(["ric", "predict", str(folder.path), str(folder.examples), "--trace"])
    console.print(f"\nreport   {folder.report}\nlook     {look}", highlight=False, markup=False, soft_wrap=True)
