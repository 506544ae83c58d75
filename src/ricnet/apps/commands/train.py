"""`ric train`, and the flags that it shares with `ric compare` and `ric sweep`: the settings of a run.

The flags of all methods are read at once. Then settings that the chosen methods do not have are refused. Settings that
were not given come from the recipe for the data.
"""

import dataclasses
import inspect
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from ricnet.apps.cli import Flag, Positional, UnknownFlag, build, flags_of, read, show_help
from ricnet.data import whole_path
from ricnet.errors import RicnetError, in_flags, setting, wanted
from ricnet.evaluation.choices import chosen_words
from ricnet.io import read_json, with_target
from ricnet.methods import METHODS, of_another_method
from ricnet.models.config import Choices, Config, Optimization, field_types, fits, from_json
from ricnet.models.run import RunFolder
from ricnet.nets.encoders import EncoderOptions
from ricnet.report.page import write_page
from ricnet.report.runs import read_run
from ricnet.report.tables import run_table
from ricnet.terminal import Narrator, say
from ricnet.training.api import Request, train_in_folder
from ricnet.training.callbacks import Track
from ricnet.training.recipes import TYPICAL, possible_methods, preset

COUPLED = {
    *("credit", "head", "objective", "readout", "rollouts", "label_baseline", "reward_floor"),
    *("c_min", "c_max", "halt_threshold", "value_coef", "label_smoothing", "uniform_mix"),
}
"""Settings whose range depends on other settings: they are checked once the recipe is known."""
GROUPS: dict[str, Sequence[str]] = {
    "data": (
        *("target", "text", "data_dir", "resolution", "val_fraction", "test", "test_fraction"),
        "calibration_fraction",
    ),
    "model": ("method", "methods", "preset", "encoder", "width", "horizon", "exits"),
    "training": ("epochs", "batch_size", "lr", "weight_decay", "augment", "patience", "calibration", "budget"),
    "run": (
        *("seed", "seeds", "out", "resume", "overwrite", "device", "config", "track"),
        *("reference", "jobs", "trials", "space", "metric", "storage", "list"),
    ),
}
"""Settings in --help, by heading. --help-all shows the others too, under the headings of `PARTS`."""
PARTS = {"method": "model", "network": "model", "optimization": "training"}


@dataclass(frozen=True)
class Training:
    """Flags of the commands that train, besides the settings of a run."""

    data: Annotated[str, Positional("DATA")] = "digits"
    """Training data: a name (ric data list), a folder of images or of .txt files (one subfolder per class), an .npz
    file (x, y), or a table (.csv, .tsv, .jsonl, each also .gz, or .parquet; my.csv#label names its --target too).
    By default digits."""
    target: str | None = None
    """Column of a table that holds the classes. The other columns are inputs: numbers, dates or texts, also with gaps.
    Identifiers, detected by name and values, are left out."""
    preset: str = "fast"
    """fast: minutes on a GPU; paper: the paper's own settings, 2000 epochs."""
    device: str = "auto"
    """auto (a GPU if there is one), cpu, cuda, cuda:1 …"""
    data_dir: Path | None = None
    """Folder of named data sets; by default $RICNET_DATA, else the user's cache folder."""

    @property
    def source(self) -> str:
        """The data, with the target of a table in its name."""
        return with_target(self.data, self.target)


@dataclass(frozen=True)
class Train(Training):
    """Train a classifier. `ric train` alone learns scikit-learn's digits; `ric train DIR` your own folder of images,
    one subfolder per class; `ric train my.csv --target COLUMN` your own table. Settings that are not given come from
    the preset, scaled to the data; those shown are for 50,000 images of 10 classes. `ric train --help-all` shows every
    setting, `ric train --method supervised --help-all` those of another method."""

    method: str | None = None
    """ric-on-policy (default), ric-closed-form (default with --exits), ric (Algorithm 1; default for texts and with
    --preset paper), supervised (cross-entropy in one pass), anytime, act or pondernet."""
    config: Path | None = None
    """Take all settings from another run (its folder or its config.json); flags override them."""
    out: Path | None = None
    """Folder of the run; by default runs/DATA-METHOD-seedN, for a table runs/DATA-TARGET-METHOD-seedN."""
    resume: bool = False
    """Continue an interrupted run with the same result as without the interruption, or start it if there is none. With
    more --epochs a finished run of --schedule constant continues too."""
    overwrite: bool = False
    """Replace a run that exists."""
    track: Track = "none"
    """tensorboard: also write the numbers of metrics.jsonl as curves, into the folder tensorboard of the run
    (pip install 'ricnet[track]'; view them with tensorboard --logdir RUNS)."""
    checkpoint_seconds: float = 60.0
    """Save the state at least this often; 0 saves after every update."""


class Typed(NamedTuple):
    """The arguments of a command that trains."""

    options: Any
    settings: dict[str, Any]
    """Settings of a run that were given."""
    given: Mapping[str, Any]
    """All values that were given."""


def train(arguments: Sequence[str]) -> None:
    options, settings, given = read_training(Train, arguments, "train")
    start = None if options.config is None else _settings_of(options.config)
    if start is not None and given.keys() & {"method", "preset"}:
        raise RicnetError("--config brings its own method and preset; remove --method and --preset.")
    if start is not None and settings.get("final_fit") and "epochs" not in settings:
        settings |= _epochs_of(options.config, start)
    check_settings(settings, given_methods(given) if start is None else [start.method.name], start or Config())
    request = Request(
        *(given.get("data"), settings, options.target, options.method, given.get("preset"), start),
        out=options.out,
        device=options.device,
        overwrite=options.overwrite,
        resume=options.resume,
        track=options.track,
        data_dir=options.data_dir,
        checkpoint_seconds=options.checkpoint_seconds,
    )
    train_in_folder(request, in_flags, _present)


def _settings_of(run: Path) -> Config:
    path = run / "config.json" if run.is_dir() else run
    if not path.exists():
        raise RicnetError(f"--config {path} does not exist; give the folder of a run, or its config.json.")
    return from_json(read_json(path).get("config"), str(path))


def _epochs_of(run: Path, start: Config) -> dict[str, int]:
    """Epochs of a final fit, which cannot stop early: the selected epoch of a run with patience; else empty."""
    folder = RunFolder(run if run.is_dir() else run.parent)
    if start.optimization.patience is None or not folder.finished:
        return {}
    epochs = int(read_json(folder.evaluation)["selected_epoch"])
    say([f"note: --epochs {epochs}, the selected epoch of {folder.path}"], Narrator(stderr=True))
    return {"epochs": epochs}


def _present(folder: RunFolder) -> None:
    """Print the results, the choices made on validation data, and what to do next."""
    record = read_run(folder.path)
    write_page([record], folder.report)
    console = Narrator()
    console.print(run_table(record))
    look = shlex.join(["ric", "predict", str(folder.path), "--trace"])
    say(chosen_words(record.evaluation), console)
    say([f"report   {folder.report}", f"look     {look}"], console, wrap=False)  # paths can be copied


# Settings of a run as flags


def given_methods(given: Mapping[str, Any], method: str | None = None) -> list[str]:
    """Methods that these flags allow; the data decides between them. `method` is that of a compared system."""
    exits = given.get("exits", "none") != "none"
    return possible_methods(given.get("preset", "fast"), method or given.get("method"), exits)


def read_training(
    kind: type,
    arguments: Sequence[str],
    command: str,
    methods_of: Callable[[Mapping[str, Any]], Iterable[str]] = lambda given: given_methods(given)[:1],
) -> Typed:
    """Read the flags of a command that trains; --help shows the settings of the methods that the flags choose."""
    own = {flag.name: flag for flag in flags_of(kind, "run")}
    left_out = {"seed"} if "seeds" in own else set()
    every = _setting_flags([Config, *METHODS.values()], {*own, *left_out})
    try:
        given = read([*own.values(), *every], arguments, command)
    except UnknownFlag as problem:
        retired = of_another_method(problem.flag.removeprefix("--").replace("-", "_"), command)
        raise problem if retired is None else RicnetError(f"{problem.flag} {retired}") from None
    if given.keys() & {"help", "help_all"}:
        typical = dataclasses.replace(TYPICAL, exits=given.get("exits", "none") != "none")
        presets = [preset(given.get("preset", "fast"), method, typical) for method in methods_of(given)]
        flags = [*own.values(), *_setting_flags(presets, {*own, *left_out})]
        show_help(_page(flags, "help_all" in given), command, inspect.getdoc(kind) or "")
    names = {flag.name for flag in every}
    settings = {name: value for name, value in given.items() if name in names}
    if settings.get("test") is not None:
        settings["test"] = whole_path(settings["test"])
    return Typed(build(kind, given, command), settings, given)


def _setting_flags(owners: Iterable[Any], without: set[str]) -> list[Flag]:
    """Flags of the fields of these dataclasses or instances; one that several have may take the values of each."""
    found: dict[str, Flag] = {}
    for owner in owners:
        for flag in flags_of(owner, "training", PARTS):
            first = found.setdefault(flag.name, flag)
            found[flag.name] = first._replace(kind=first.kind | flag.kind if first.kind != flag.kind else first.kind)
    return [flag for flag in found.values() if flag.name not in without]


def _page(flags: Sequence[Flag], everything: bool) -> list[Flag]:
    """The flags to show, by heading; without `everything` those of `GROUPS`, each with its first sentence."""
    headings = {name: heading for heading, names in GROUPS.items() for name in names}
    order, groups = list(headings), list(GROUPS)
    shown = [flag._replace(group=headings.get(flag.name, flag.group)) for flag in flags]
    if not everything:
        shown = [flag for flag in shown if flag.metavar or flag.name in headings]
        shown = [flag._replace(help=re.split(r"(?<=\.) (?=[A-Z])", flag.help)[0]) for flag in shown]
    shown.sort(key=lambda flag: (groups.index(flag.group), order.index(flag.name) if flag.name in headings else 99))
    return [flag._replace(group=f"{flag.group} options") for flag in shown]


def check_settings(given: Mapping[str, Any], methods: Sequence[str], base: Config, compared: bool = False) -> None:
    """Raise on a setting that none of these methods has, or whose value is out of range for any other settings.

    The rest is checked once data and recipe are known. Settings of the encoder are checked with those of `base`.
    """
    shared = field_types(Config) | field_types(EncoderOptions) | field_types(Optimization)
    kinds = [shared | field_types(METHODS[method]) for method in methods]
    for name, value in given.items():
        hints = [kind[name] for kind in kinds if name in kind]
        if not hints:
            advice = of_another_method(name, "the systems compared" if compared else methods[0]) or ""
            raise RicnetError(f"{setting(name)} {advice.partition(';')[0] + '; remove it.' if compared else advice}")
        if not any(fits(value, hint) for hint in hints):
            raise RicnetError(f"{setting(name)} cannot be {value!r}; give {wanted(reduce(or_, hints))}.")
    parts: list[Any] = [Choices(), base.network, base.optimization, *(METHODS[method]() for method in methods)]
    for part in parts:
        own = {name for name, hint in field_types(type(part)).items() if name in given and fits(given[name], hint)}
        dataclasses.replace(part, **{name: given[name] for name in own - COUPLED})
