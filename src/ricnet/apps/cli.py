"""`ric`: finds the command, reads its flags, runs it, and turns what the user can mend into one sentence."""

import ast
import contextlib
import dataclasses
import importlib
import inspect
import io
import os
import re
import sys
import textwrap
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import tyro
from rich.console import Console
from rich.markup import escape

from ricnet.errors import Interrupted, RicnetError, listing, nearest, wanted, what_else
from ricnet.io import printable, short
from ricnet.version import __version__

COMMANDS = {
    "train": "train a classifier: on digits, a named data set, a folder of images, a table or an .npz file",
    "evaluate": "accuracy, calibration and steps of a trained run, on its data or on other data",
    "predict": "classify images, tables or arrays; --trace shows the belief after every step",
    "report": "one HTML page about a run, or comparing several",
    "compare": "train several systems with several seeds and compare them, with intervals and tests",
    "reproduce": "the tables, figures and theorems of the paper, each by one command",
    "sweep": "look for better settings with Optuna, on one machine or several",
    "export": "write a trained run as one ONNX file that stops by itself",
    "push": "put a trained run on the Hub, where others load it by its name",
    "serve": "answer over HTTP, with a page on which to watch the model think",
    "demo": "the page at once: the pretrained model, or digits learned on the spot",
    "data": "list, fetch and check the named data sets",
}

HELP = f"""\
ric {__version__}: classifiers that refine a belief in steps and learn when to stop.

usage: ric COMMAND [OPTIONS]

{chr(10).join(f"  {name:<10}{text}" for name, text in COMMANDS.items())}

Start here:
  ric train                                         learn scikit-learn's digits: a minute or two on a laptop
  ric predict runs/digits-ric-seed0 runs/digits-ric-seed0/examples.npz --trace
  ric COMMAND --help                                what each command can do
"""


def main(args: Sequence[str] | None = None) -> None:
    arguments = with_dashes(sys.argv[1:] if args is None else args)
    warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)  # class names in scripts that our font lacks
    try:
        _dispatch(arguments)
    except (Interrupted, KeyboardInterrupt) as stop:
        if os.environ.get("RANK", "0") == "0":
            _complain(str(stop) or "stopped before it was done; start it with the same command.")
        sys.exit(Interrupted.exit_code)
    except RicnetError as error:
        _complain(str(error))
        sys.exit(error.exit_code)
    except BrokenPipeError:  # the reader of our output has seen enough, as with `| head`
        sys.stderr.close()
    except (OSError, MemoryError) as error:  # of the machine, not of ours
        _complain(f"the machine cannot do it ({str(error) or 'its memory is used up'}); mend that and try again.")
        sys.exit(RicnetError.exit_code)


def with_dashes(arguments: Sequence[str]) -> list[str]:
    """Accept --batch_size for --batch-size; values keep their underscores."""
    return [_with_dashes(argument) if argument.startswith("--") else argument for argument in arguments]


def _with_dashes(flag: str) -> str:
    name, *value = flag.partition("=")
    return "".join([name.replace("_", "-"), *value])


def _complain(sentence: str) -> None:
    rank = os.environ.get("RANK", "0")  # torchrun's number of this process, where it started several
    name = "ric" if rank == "0" else f"ric, process {rank}"
    text = f"[bold red]{name}:[/] {escape(printable(sentence))}"
    Console(stderr=True).print(text, highlight=False, soft_wrap=True)


def _dispatch(arguments: list[str]) -> None:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(HELP, end="")
    elif arguments[0] == "--version":
        print(f"ric {__version__}")
    elif arguments[0] in COMMANDS:
        if arguments[0] != "train" and "RANK" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1":
            raise RicnetError(f"ric {arguments[0]} runs in one process; torchrun is for ric train.")
        # Imported here, so that help and typing errors do not wait for torch.
        importlib.import_module(f"ricnet.apps.commands.{arguments[0]}").main(arguments[1:])
    else:
        raise RicnetError(f"{arguments[0]!r} is not a command; {what_else(arguments[0], COMMANDS)}")


# Flags: the fields of a command's dataclass, by tyro

GROUPS: dict[str, Sequence[str]] = {
    "data": ("target", "text", "data_dir", "resolution", "val_fraction", "test", "test_fraction"),
    "model": ("method", "methods", "preset", "encoder", "width", "horizon", "exits"),
    "training": ("epochs", "batch_size", "lr", "weight_decay", "augment", "patience", "calibration", "budget"),
    "run": (
        *("seed", "seeds", "out", "resume", "overwrite", "device", "config", "track"),
        *("reference", "jobs", "trials", "space", "metric", "storage", "list"),
    ),
}
"""What people change, by the heading under which it stands in --help; the rest is on the page of --help-all."""
HOMES = {
    "train_fraction": "data",
    "label_noise": "data",
    "hyper": "model",
    "network": "model",
    "optimization": "training",
}
"""The heading there for a field, or for those of a nested class; by default the last one."""


class UnknownFlag(RicnetError):
    """`flag` as it was typed, without a value."""

    def __init__(self, flag: str, command: str, known: Iterable[str]) -> None:
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
    settings = kind if default is tyro.MISSING_NONPROP else default
    known = dict(_flags(settings))
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
        told = f"ric {command} cannot read this:\n{complaint.getvalue().rstrip()}"
        raise RicnetError(_misread(arguments, known) or _missing(settings, command) or told) from None
    for argument, following in pairwise([*arguments, None]):  # tyro takes none for an empty list
        several = get_origin(known.get(str(argument), bool)) is tuple
        if several and (following is None or _name(following) in known):
            raise RicnetError(f"{argument} needs a value or more; see ric {command} --help.")
    if extra:
        meant = _flag_for(extra[0], known)
        advice = f"did you mean {meant} {extra[0]}?" if meant else f"see ric {command} --help."
        raise RicnetError(f"ric {command} does not know what to do with {extra[0]}; {advice}")
    return found


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


def replacing(path: Path) -> str:
    """What to say beside a file that is about to be written."""
    return " (in place of what was there)" * path.exists()


def _flags(settings: Any) -> Iterator[tuple[str, Any]]:
    """The flags that the fields of a dataclass have become, with their types, those of nested ones included."""
    for field in dataclasses.fields(settings):
        made = field.default_factory() if callable(field.default_factory) else None
        value, name = getattr(settings, field.name, made), field.name.replace("_", "-")
        if dataclasses.is_dataclass(value):
            yield from _flags(value)
        elif tyro.conf.Positional not in getattr(field.type, "__metadata__", ()):
            yield f"--{name}", field.type
            if field.type is bool:
                yield f"--no-{name}", bool


def _misread(arguments: Sequence[str], known: Mapping[str, Any]) -> str | None:
    """What is wrong with the first flag whose value is not of its type; tyro would fill a box with it."""
    for argument, following in pairwise([*arguments, None]):
        flag, is_given, value = str(argument).partition("=")
        kind = known.get(_name(flag), bool)
        if kind is bool or get_origin(kind) is tuple:
            continue
        if not is_given and (following is None or _name(following) in known):
            return f"{flag} needs a value; give {wanted(kind)}."
        if not _reads(kind, text := value if is_given else str(following)):
            return f"{flag} cannot be {short(text, 80)!r}; give {wanted(kind)}."
    return None


def _name(argument: str) -> str:
    """The flag of an argument: --lr of --lr=0.1."""
    return argument.partition("=")[0]


def _reads(kind: Any, text: str) -> bool:
    if get_origin(kind) in (Union, UnionType):
        return any(_reads(option, text) for option in get_args(kind))
    if get_origin(kind) is Literal:
        return text in get_args(kind)
    if kind in (int, float):
        try:
            kind(text)
        except ValueError:
            return False
    return kind is not NoneType or text == "None"


def _missing(settings: Any, command: str) -> str | None:
    """What a command needs without a flag before it."""
    fields = [field for field in dataclasses.fields(settings) if field.default is dataclasses.MISSING]
    hints = [hint for field in fields for hint in getattr(field.type, "__metadata__", ())]
    names = [hint.metavar for hint in hints if getattr(hint, "metavar", None)]
    return f"ric {command} needs {listing(names)}; see ric {command} --help." if names else None


def _refuse_unknown(arguments: Sequence[str], known: Iterable[str], command: str) -> None:
    """What looks like a flag and is none; numbers below zero look otherwise."""
    for argument in arguments:
        if argument.startswith("-") and argument.lstrip("-")[:1].isalpha() and _name(argument) not in known:
            raise UnknownFlag(_name(argument), command, known)


def _flag_for(extra: str, known: Mapping[str, Any]) -> str | None:
    """The flag that a stray path was probably meant for: --data if it exists, else --data or --out."""
    suffix = Path(extra).suffix[1:2]
    if "/" not in extra and not suffix.isalpha():
        return None
    flags = ("--data",) if Path(extra).exists() else ("--data", "--out")
    return next((flag for flag in flags if flag in known), None)


if __name__ == "__main__":  # python -m ricnet.apps.cli
    main()
