"""The settings of a run as flags: what train, compare and sweep have in common, and how a trained model is asked.

The fields of a method, of the network and of the optimization are flags. Which method it is decides which flags there
are, so that it is looked for first. What was not typed comes from a preset, which depends on the data; what was typed
is found by `typed`.
"""

import argparse
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar, get_args, get_origin, get_type_hints

import tyro

from ricnet.apps.cli import UnknownFlag, docstrings, parse
from ricnet.data import whole_path
from ricnet.errors import RicnetError
from ricnet.io import with_target
from ricnet.methods import of_another_method
from ricnet.models.config import Choices, Config, Optimization, fits
from ricnet.nets.encoders import EncoderOptions
from ricnet.training.recipes import TYPICAL, Preset, preset

Hyper = TypeVar("Hyper")
DECIDING = ("exits", "credit", "head", "objective", "rollouts", "passes_per_snapshot")
"""Settings that decide about others in a preset."""
NOT_TYPED = "\0"
"""Stands for data that was not named, where that matters; no argument can have such a letter."""


@dataclass(frozen=True, kw_only=True)
class Answering:
    """How a trained model is asked."""

    max_steps: int | None = None
    """Stop after this many steps at the latest; by default what the run chose, or its horizon."""
    halt_threshold: float | None = None
    """Stop once the value falls below this, instead of what the run chose (0 is the paper's). Raise it to stop
    earlier."""
    budget: float | None = None
    """Of a model with exits: stop so that the mean share of compute stays within this, by the threshold that
    validation data gave for it. Raise it for better answers, up to 1, the whole network."""
    readout: Literal["mean", "mu", "implied"] | None = None
    """Reported belief: mean (the paper), mu (softmax), implied (what the Dirichlet's optimum implies)."""


@dataclass(frozen=True)
class Settings(Choices, Generic[Hyper]):
    """What the commands that train have in common."""

    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")] = "digits"
    """What to learn: a name (ric data list), a folder of images or of .txt files (a subfolder a class), an .npz file
    (x, y), or a table (.csv, .tsv, .jsonl, each also .gz, or .parquet; my.csv#label says its --target too)."""
    target: str | None = None
    """Column of a table that holds the classes. The others are learned from, be they numbers, dates or texts, with
    gaps; identifiers, detected by name and values, are left out."""
    preset: Preset = "fast"
    """fast: minutes on a GPU; paper: the paper's own settings, 2000 epochs. (The other three are methods now.)"""
    device: str = "auto"
    """auto (a GPU if there is one), cpu, cuda, cuda:1 …"""
    data_dir: Path | None = None
    """Where named data sets lie; by default $RICNET_DATA, else the user's cache folder."""
    hyper: Hyper = dataclasses.field(default=tyro.MISSING)
    network: EncoderOptions = dataclasses.field(default_factory=EncoderOptions)
    optimization: Optimization = dataclasses.field(default_factory=Optimization)

    @property
    def source(self) -> str:
        """The data, with the target of a table in its name."""
        return with_target(self.data, self.target)


@dataclass(frozen=True)
class MethodSettings(Settings[Hyper]):
    """Those of one method, and of one run after the other."""

    method: str = "ric-on-policy"
    """ric-on-policy, ric-closed-form (the default with --exits), ric (Algorithm 1; the default with --preset paper),
    supervised (cross-entropy in one pass), anytime, act or pondernet."""
    seed: int = dataclasses.field(default=0, metadata={"help": docstrings(Config)["seed"]})


Options = TypeVar("Options", bound=Settings[Any])


def read(kind: Any, arguments: Sequence[str], command: str, default: Options) -> Options:
    """The flags over a configuration's settings; a flag of another method is explained."""
    try:
        return parse(kind, arguments, command, default, grouped=True)  # type: ignore[no-any-return]
    except UnknownFlag as problem:
        raise _of_another_method(problem, default.hyper) or problem from None


def look_for(arguments: Sequence[str], command: str, *flags: str, several: Sequence[str] = ()) -> argparse.Namespace:
    """What decides which flags there are, before the rest is read."""
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for flag in flags:
        first.add_argument(flag)
    for flag in several:
        first.add_argument(flag, nargs="*")
    try:
        return first.parse_known_args(list(arguments))[0]
    except argparse.ArgumentError as error:
        raise RicnetError(f"{error}; see ric {command} --help.") from None


def typical(arguments: Sequence[str], command: str, preset_name: str | None, method: str | None) -> Config:
    """A preset before any data has been read. What was typed decides about the settings that follow it, so that the
    preset's own choices refuse no flag."""
    asked = vars(look_for(arguments, command, *(f"--{name.replace('_', '-')}" for name in DECIDING)))
    given = {name: value for name, value in asked.items() if value is not None}
    if given.get("rollouts") == "1":
        given["rollouts"] = 1
    facts = dataclasses.replace(TYPICAL, exits=given.get("exits", "none") != "none")
    return preset(preset_name or "fast", method, facts, given)


def over(kind: Any, config: Config) -> Any:
    """Options that hold a configuration's settings."""
    own = {field.name for field in dataclasses.fields(kind)}
    known = {field.name: getattr(config, field.name) for field in dataclasses.fields(Config)}
    method = known.pop("method")
    shared = {name: value for name, value in known.items() if name in own}
    return kind(**shared, hyper=method, **({"method": method.name} if "method" in own else {}))


def flag_names(arguments: Sequence[str]) -> set[str]:
    """The fields whose flags were typed; a switch may be turned off."""
    flags = [argument.partition("=")[0][2:] for argument in arguments if argument.startswith("--")]
    return {flag.replace("-", "_").removeprefix("no_") for flag in flags}


def typed(arguments: Sequence[str], options: Settings[Any]) -> dict[str, Any]:
    """The settings of a run that were given as flags, by name."""
    names = flag_names(arguments)
    parts = (options, options.hyper, options.network, options.optimization)
    ours = {field.name for field in dataclasses.fields(Config)} - {"data", "preset", "method"}
    found = {
        field.name: getattr(part, field.name)
        for part in parts
        for field in dataclasses.fields(part)
        if field.name in names and (part is not options or field.name in ours)
    }
    return found if found.get("test") is None else found | {"test": whole_path(found["test"])}


def merged(presets: Mapping[str | None, Config]) -> Any:
    """The settings of several methods as those of one, for flags that hold for whichever has them."""
    members: dict[str, tuple[Any, str, Any]] = {}
    for config in presets.values():
        hints, sentences = get_type_hints(type(config.method)), docstrings(type(config.method))
        for field in dataclasses.fields(config.method):
            first = (None, sentences.get(field.name, ""), getattr(config.method, field.name))
            hint, sentence, value = members.get(field.name, first)
            members[field.name] = _either(hint, hints[field.name]), sentence, value
    fields = [
        (name, hint, dataclasses.field(default=value, metadata={"help": sentence}))
        for name, (hint, sentence, value) in members.items()
    ]
    return dataclasses.make_dataclass("SettingsOfMethods", fields, frozen=True)()


def _either(one: Any, other: Any) -> Any:
    """A type for the values of both; the choices of two are one list of choices."""
    if one is None or one == other:
        return other
    if get_origin(one) is Literal and get_origin(other) is Literal:
        return Literal[tuple(dict.fromkeys((*get_args(one), *get_args(other))))]
    return one | other


def fitting(settings: Mapping[str, Any], hints: Mapping[str, Any]) -> dict[str, Any]:
    """Those that a method has, and with a value that it knows."""
    return {name: value for name, value in settings.items() if name in hints and fits(value, hints[name])}


def _of_another_method(problem: UnknownFlag, hyper: Any) -> RicnetError | None:
    name = problem.flag.removeprefix("--").removeprefix("no-").replace("-", "_")
    own = getattr(hyper, "name", None)
    elsewhere = of_another_method(name, own or "those that are trained here")
    if elsewhere is None:
        return None
    way_out = elsewhere if own is not None else f"{elsewhere.partition(';')[0]}; leave it out."  # several are compared
    return RicnetError(f"{problem.flag} {way_out}")
