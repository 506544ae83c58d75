"""Flags from dataclasses, by tyro: what every command reads, and the settings of a run that train, compare and sweep
have in common.

The fields of a method, of the network and of the optimization are flags. Which method it is decides which flags there
are, so that it is looked for first. What was not typed comes from a preset, which depends on the data; what was typed
is found by `typed`.
"""

import argparse
import ast
import contextlib
import dataclasses
import inspect
import io
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar, get_args, get_origin, get_type_hints

import tyro

from ricnet.data.tables import with_target
from ricnet.errors import RicnetError, nearest
from ricnet.methods import METHODS
from ricnet.nets.encoders import EncoderOptions
from ricnet.training.config import Choices, Config, Optimization, fits
from ricnet.training.presets import Preset

GROUPS: dict[str, Sequence[str]] = {
    "data": ("target", "text", "data_dir", "resolution", "val_fraction"),
    "model": ("method", "methods", "preset", "encoder", "width", "horizon"),
    "training": ("epochs", "batch_size", "lr", "weight_decay", "augment", "patience", "calibration"),
    "run": (
        *("seed", "seeds", "out", "resume", "overwrite", "device", "config", "track"),
        *("reference", "jobs", "trials", "space", "metric", "storage", "list"),
    ),
}
"""What people change, by the heading under which it stands in --help; the rest is on the page of --help-all."""
HOMES = {"label_noise": "data", "hyper": "model", "network": "model", "optimization": "training"}
"""The heading there for a field, or for those of a nested class; by default the last one."""


class UnknownFlag(RicnetError):
    """`flag` as it was typed, without a value."""

    def __init__(self, flag: str, command: str, known: Sequence[str]) -> None:
        meant = nearest(flag.lstrip("-"), [name.lstrip("-") for name in known])
        advice = f"did you mean --{meant}?" if meant else f"see ric {command} --help."
        super().__init__(f"ric {command} has no flag {flag}; {advice}")
        self.flag = flag


def parse(
    kind: Any,
    arguments: Sequence[str],
    command: str,
    default: Any = tyro.MISSING_NONPROP,
    grouped: bool = False,
) -> Any:
    """An instance of a dataclass from flags; the fields of nested ones are flags of their own, without a prefix.

    `grouped` divides the help of a command with many flags: --help shows what `GROUPS` name, --help-all everything.
    """
    asked = {"-h", "--help", "--help-all"} & set(arguments)
    known = list(_flags(kind if default is tyro.MISSING_NONPROP else default))
    if not asked:
        _refuse_unknown(arguments, known, command)
    elif grouped:
        kind, default = _page(default, "--help-all" in asked), tyro.MISSING_NONPROP
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            found, extra = tyro.cli(
                kind,
                args=["--help"] if asked else list(arguments),
                prog=f"ric {command}",
                default=default,
                return_unknown_args=True,
                config=(tyro.conf.OmitArgPrefixes, tyro.conf.HelptextFromCommentsOff),
            )
    except SystemExit as end:
        if end.code in (0, None):
            raise
        raise RicnetError(f"ric {command} cannot read this:\n{complaint.getvalue().rstrip()}") from None
    if extra:
        meant = _flag_for(extra[0], known)
        advice = f"did you mean {meant} {extra[0]}?" if meant else f"see ric {command} --help."
        raise RicnetError(f"ric {command} does not know what to do with {extra[0]}; {advice}")
    return found


def flag_names(arguments: Sequence[str]) -> set[str]:
    """The fields whose flags were typed; a switch may be turned off."""
    flags = [argument.partition("=")[0][2:] for argument in arguments if argument.startswith("--")]
    return {flag.replace("-", "_").removeprefix("no_") for flag in flags}


def docstrings(kind: type) -> dict[str, str]:
    """The sentences under the fields of a dataclass, which Python itself forgets; one that has no source names them."""
    found: dict[str, str] = {f.name: f.metadata["help"] for f in dataclasses.fields(kind) if "help" in f.metadata}
    for base in reversed(kind.__mro__):
        if dataclasses.is_dataclass(base) and base.__module__ != "types":  # which one made on the spot is of
            [tree] = ast.parse(textwrap.dedent(inspect.getsource(base))).body
            assert isinstance(tree, ast.ClassDef)
            found |= dict(_sentences(tree.body))
    return found


def _sentences(body: list[ast.stmt]) -> list[tuple[str, str]]:
    return [
        (field.target.id, " ".join(below.value.value.split()))
        for field, below in pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(below, ast.Expr)
        and isinstance(below.value, ast.Constant)
        and isinstance(below.value.value, str)
    ]


def _page(options: Any, everything: bool) -> type:
    """A dataclass of which tyro makes our page of help: nested in it one a heading."""
    heading = {name: title for title, names in GROUPS.items() for name in names}
    groups: dict[str, list[Any]] = {title: [] for title in GROUPS}
    more = Annotated[bool, tyro.conf.FlagCreatePairsOff, tyro.conf.arg(help="show every setting and exit")]
    page: list[Any] = [("help_all", more, dataclasses.field(default=False))]
    for name, hint, value, sentence, home in _described(options):
        is_data = tyro.conf.Positional in getattr(hint, "__metadata__", ())
        value = getattr(type(options), name) if is_data else value
        text = sentence if everything or is_data else re.split(r"(?<=\.) (?=[A-Z])", sentence)[0]
        entry = Annotated[hint, tyro.conf.arg(help=text)], dataclasses.field(default=value)
        if is_data:
            page.append((name.upper(), *entry))  # the heading may be called like it
        elif everything or name in heading:
            groups[heading.get(name, home)].append((name, *entry))
    place = {name: number for number, name in enumerate(heading)}
    for title, entries in groups.items():
        entries.sort(key=lambda entry: place.get(entry[0], len(place)))
        made = dataclasses.make_dataclass(title, entries)
        page.append((title, made, dataclasses.field(default_factory=made)))
    return dataclasses.make_dataclass("Page", page, namespace={"__doc__": inspect.getdoc(type(options))})


def _described(options: Any, home: str = "run") -> Iterator[tuple[str, Any, Any, str, str]]:
    """Name, type, value, sentence and heading of each field, those of nested dataclasses in their place."""
    hints, sentences = get_type_hints(type(options), include_extras=True), docstrings(type(options))
    for field in dataclasses.fields(options):
        value, where = getattr(options, field.name), HOMES.get(field.name, home)
        if dataclasses.is_dataclass(value):
            yield from _described(value, where)
        else:
            yield field.name, hints[field.name], value, sentences[field.name], where


def make_folder(path: Path) -> Path:
    """Before any work is done for it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RicnetError(f"--out {path} cannot be made ({error.strerror}); choose another folder.") from error
    return path


def _flags(settings: Any) -> Iterator[str]:
    """The flags that the fields of a dataclass have become, those of nested ones included."""
    for field in dataclasses.fields(settings):
        made = field.default_factory() if callable(field.default_factory) else None
        value, name = getattr(settings, field.name, made), field.name.replace("_", "-")
        if dataclasses.is_dataclass(value):
            yield from _flags(value)
        elif tyro.conf.Positional not in getattr(field.type, "__metadata__", ()):
            yield from (f"--{name}", f"--no-{name}") if field.type is bool else (f"--{name}",)


def _refuse_unknown(arguments: Sequence[str], known: Sequence[str], command: str) -> None:
    """What looks like a flag and is none; numbers below zero look otherwise."""
    for argument in arguments:
        flag = argument.partition("=")[0]
        if flag.lstrip("-")[:1].isalpha() and flag[0] == "-" and flag.replace("_", "-") not in known:
            raise UnknownFlag(flag, command, known)


def _flag_for(extra: str, known: Sequence[str]) -> str | None:
    """The flag that takes a path which nobody else does: what is read, or, where nothing is there yet, written."""
    suffix = Path(extra).suffix[1:2]
    if "/" not in extra and not suffix.isalpha():
        return None
    flags = ("--data",) if Path(extra).exists() else ("--data", "--out")
    return next((flag for flag in flags if flag in known), None)


Hyper = TypeVar("Hyper")
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
    gaps; those that only name the row are left out."""
    preset: Preset = "fast"
    """fast: minutes on a GPU; paper: the paper's own settings, 2000 epochs. For RIC also on-policy (what fast is up to
    20 classes), closed-form (no sampled rewards; fast beyond that) and snapshots (Algorithm 1 with short rounds)."""
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

    method: str = "ric"
    """ric (the paper), supervised (cross-entropy in one pass), anytime, act or pondernet."""
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


def over(kind: Any, config: Config) -> Any:
    """Options that hold a configuration's settings."""
    own = {field.name for field in dataclasses.fields(kind)}
    known = {field.name: getattr(config, field.name) for field in dataclasses.fields(Config)}
    method = known.pop("method")
    shared = {name: value for name, value in known.items() if name in own}
    return kind(**shared, hyper=method, **({"method": method.name} if "method" in own else {}))


def typed(arguments: Sequence[str], options: Settings[Any]) -> dict[str, Any]:
    """The settings of a run that were given as flags, by name."""
    names = flag_names(arguments)
    parts = (options, options.hyper, options.network, options.optimization)
    ours = {field.name for field in dataclasses.fields(Config)} - {"data", "preset", "method"}
    return {
        field.name: getattr(part, field.name)
        for part in parts
        for field in dataclasses.fields(part)
        if field.name in names and (part is not options or field.name in ours)
    }


def merged(presets: Mapping[str, Config]) -> Any:
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
    setting = problem.flag.removeprefix("--").removeprefix("no-").replace("-", "_")
    owners = [name for name, kind in METHODS.items() if setting in {f.name for f in dataclasses.fields(kind)}]
    if not owners:
        return None
    own = getattr(hyper, "name", "those that are trained here")
    return RicnetError(f"{problem.flag} is a setting of {', '.join(owners)}, not of {own}; leave it out.")
