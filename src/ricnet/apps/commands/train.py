"""ric train: from data to a run folder."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ricnet.apps.commands.settings import NOT_TYPED, Hyper, MethodSettings, look_for, read_method, typed, unread
from ricnet.errors import RicnetError, in_flags
from ricnet.evaluation.choices import chosen_words
from ricnet.io import printable, read_json
from ricnet.models.config import Config, from_json
from ricnet.models.run import RunFolder
from ricnet.report.page import write_page
from ricnet.report.runs import read_run
from ricnet.report.tables import run_table
from ricnet.training.api import Request, train_in_folder
from ricnet.training.callbacks import Track
from ricnet.training.console import Narrator, say


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
    """Go on where an interrupted run stopped, exactly as if it never had; where there is none yet, start it. With more
    --epochs a finished run of --schedule constant goes on too."""
    overwrite: bool = False
    """Replace a run that is already there."""
    track: Track = "none"
    """tensorboard: write every number of metrics.jsonl as a curve too, into the folder tensorboard of the run
    (pip install 'ricnet[track]'; look at it with tensorboard --logdir RUNS)."""
    checkpoint_seconds: float = 60.0
    """Save the state at least this often; 0 saves after every update."""


def main(arguments: Sequence[str]) -> None:
    chosen = look_for(arguments, "train", "--method", "--preset", "--config", "--exits")
    start = None if chosen.config is None else _settings_of(chosen.config)
    if start is not None and (chosen.method is not None or chosen.preset is not None):
        raise RicnetError("--config brings its own method and preset; leave out --method and --preset.")
    shown = start or unread(arguments, chosen, chosen.method)
    options: Train[Any] = read_method(Train, arguments, "train", shown, data=NOT_TYPED)
    request = Request(
        None if options.data == NOT_TYPED else options.data,
        typed(arguments, options),
        options.target,
        chosen.method,
        chosen.preset,
        start,
        out=options.out,
        device=options.device,
        overwrite=options.overwrite,
        resume=options.resume,
        track=options.track,
        data_dir=options.data_dir,
        checkpoint_seconds=options.checkpoint_seconds,
    )
    train_in_folder(request, in_flags, _present)


def _settings_of(run: str) -> Config:
    path = Path(run) / "config.json" if Path(run).is_dir() else Path(run)
    if not path.exists():
        raise RicnetError(f"--config {path} does not exist; give the folder of a run, or its config.json.")
    return from_json(read_json(path).get("config"), str(path))


def _present(folder: RunFolder) -> None:
    """Print the results, the choices made on validation data, and what to do next."""
    record = read_run(folder.path)
    write_page([record], folder.report)
    console = Narrator()
    console.print(run_table(record))
    look = shlex.join(["ric", "predict", str(folder.path), "--trace"])
    say(chosen_words(record.evaluation), console)
    for line in (f"report   {folder.report}", f"look     {look}"):  # paths are not wrapped
        console.print(printable(line), highlight=False, markup=False, soft_wrap=True)
