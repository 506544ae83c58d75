"""Settings of a run as flags of train, compare and sweep, and the flags by which a trained model is asked.

The fields of a method, of the network and of the optimization are flags. The method decides which flags exist, so
`look_for` finds it first. `typed` returns the settings that were given; the others come from the recipe for the data.
"""

import argparse
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar, get_args, get_origin, get_type_hints

import tyro

from ricnet.apps.cli import UnknownFlag, docstrings, parse
from ricnet.data import whole_path
from ricnet.errors import RicnetError
from ricnet.io import with_target
from ricnet.methods import METHODS, of_another_method
from ricnet.models.config import Choices, Config, Optimization, fits
from ricnet.nets.encoders import EncoderOptions
from ricnet.training.recipes import TYPICAL, Preset, choose_method, preset

Hyper = TypeVar("Hyper")
COUPLED = (
    *("credit", "head", "objective", "readout", "rollouts", "label_baseline", "reward_floor"),
    *("c_min", "c_max", "halt_threshold", "value_coef", "label_smoothing", "uniform_mix"),
)
"""Settings whose range depends on other settings: they are checked once the recipe is known."""
NOT_TYPED = "\0"
"""Default of DATA if it must be known whether it was given; no argument can contain this character."""


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
    """Parse the flags; an error about a flag of another method names that method."""
    try:
        return parse(kind, arguments, command, default, grouped=True)  # type: ignore[no-any-return]
    except UnknownFlag as problem:
        raise _of_another_method(problem, default.hyper) or problem from None


def look_for(arguments: Sequence[str], command: str, *flags: str, several: Sequence[str] = ()) -> argparse.Namespace:
    """Values of the flags that decide which other flags exist."""
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for flag in flags:
        first.add_argument(flag)
    for flag in several:
        first.add_argument(flag, nargs="*")
    try:
        return first.parse_known_args(list(arguments))[0]
    except argparse.ArgumentError as error:
        raise RicnetError(f"{error}; see ric {command} --help.") from None


def unread(arguments: Sequence[str], chosen: argparse.Namespace, method: str | None) -> Config:
    """Settings before any data has been read, for the flags and their help: on a help page those of the preset for
    typical data, else only the method is of use."""
    name, exits = chosen.preset or "fast", (chosen.exits or "none") != "none"
    if {"-h", "--help", "--help-all"} & set(arguments):
        return preset(name, method, dataclasses.replace(TYPICAL, exits=exits))
    return Config(preset=name, method=METHODS[choose_method(name, method, exits)]())


def read_method(kind: Any, arguments: Sequence[str], command: str, config: Config, **defaults: Any) -> Any:
    """Options of a command that trains one method. Method settings that do not depend on others are checked here,
    before any data is read; the rest by `configure`."""
    name = config.method.name
    default = dataclasses.replace(over(kind, config), hyper=merged([config.method], name), **defaults)
    options: Any = read(kind[type(default.hyper)], arguments, command, default)
    given = typed(arguments, options)
    alone = [field.name for field in dataclasses.fields(METHODS[name]) if field.name not in COUPLED]
    METHODS[name](**{field: given[field] for field in alone if field in given})
    return options


def over(kind: Any, config: Config) -> Any:
    """Options with the settings of a configuration."""
    own = {field.name for field in dataclasses.fields(kind)}
    known = {field.name: getattr(config, field.name) for field in dataclasses.fields(Config)}
    method = known.pop("method")
    shared = {name: value for name, value in known.items() if name in own}
    return kind(**shared, hyper=method, **({"method": method.name} if "method" in own else {}))


def flag_names(arguments: Sequence[str]) -> set[str]:
    """Names of the settings whose flags were given; --no-x is x."""
    flags = [argument.partition("=")[0][2:] for argument in arguments if argument.startswith("--")]
    return {flag.replace("-", "_").removeprefix("no_") for flag in flags}


def typed(arguments: Sequence[str], options: Settings[Any]) -> dict[str, Any]:
    """Settings of a run that were given as flags."""
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


def merged(methods: Iterable[Any], name: str | None = None) -> Any:
    """The settings of all these methods in one dataclass without checks; `name` is that of a single method."""
    members: dict[str, tuple[Any, str, Any]] = {}
    for method in methods:
        hints, sentences = get_type_hints(type(method)), docstrings(type(method))
        for field in dataclasses.fields(method):
            first = (None, sentences.get(field.name, ""), getattr(method, field.name))
            hint, sentence, value = members.get(field.name, first)
            members[field.name] = _either(hint, hints[field.name]), sentence, value
    fields = [
        (name, hint, dataclasses.field(default=value, metadata={"help": sentence}))
        for name, (hint, sentence, value) in members.items()
    ]
    return dataclasses.make_dataclass("SettingsOfMethods", fields, frozen=True, namespace={"name": name})()


def _either(one: Any, other: Any) -> Any:
    """Union of two types; two literals become one."""
    if one is None or one == other:
        return other
    if get_origin(one) is Literal and get_origin(other) is Literal:
        return Literal[tuple(dict.fromkeys((*get_args(one), *get_args(other))))]
    return one | other


def fitting(settings: Mapping[str, Any], hints: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that exist in `hints`, with a value of their type."""
    return {name: value for name, value in settings.items() if name in hints and fits(value, hints[name])}


def _of_another_method(problem: UnknownFlag, hyper: Any) -> RicnetError | None:
    name = problem.flag.removeprefix("--").removeprefix("no-").replace("-", "_")
    elsewhere = of_another_method(name, hyper.name or "those that are trained here")
    if elsewhere is None:
        return None
    way_out = elsewhere if hyper.name else f"{elsewhere.partition(';')[0]}; leave it out."  # several are compared
    return RicnetError(f"{problem.flag} {way_out}")
