"""`ric`: finds and runs a command, reads its flags, and prints an error that the user can fix as one sentence.

The flags of a command are the fields of its dataclass, and the docstring under a field is the help of its flag. Fields
of nested dataclasses are flags without a prefix, and a bool has two: --name and --no-name.
"""

import argparse
import ast
import dataclasses
import importlib
import inspect
import os
import re
import sys
import textwrap
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType, NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from ricnet.errors import Interrupted, RicnetError, listing, nearest, wanted, what_else
from ricnet.io import short
from ricnet.version import __version__

COMMANDS = {
    "train": "train a classifier on a named data set, images, texts or a table",
    "evaluate": "scores of a trained run, on its own data or on other data",
    "predict": "classify images, texts or rows; --trace shows every step",
    "calibrate": "give a run unseen labelled data, for prediction sets and limits",
    "monitor": "compare new data with the calibration data of a run",
    "report": "one HTML page about a run, or about several in comparison",
    "compare": "train several systems with several seeds, and test differences",
    "reproduce": "the tables, figures and theorems of the paper",
    "sweep": "search for better settings with Optuna",
    "export": "write a trained run as one ONNX file that halts by itself",
    "push": "upload a trained run to the Hub, where others load it by name",
    "serve": "answer over HTTP, with a page that shows the belief by step",
    "demo": "the page of serve with the pretrained model, or one of digits",
    "data": "list, download and check the named data sets",
}
MODULES = {"calibrate": "monitor", "reproduce": "report", "push": "export", "demo": "serve"}
"""Commands that share a module of `commands` with another one."""

_METAVARS = {int: "INT", float: "FLOAT", str: "TEXT", Path: "PATH", NoneType: "None"}

HELP = f"""\
ric {__version__}: classifiers that refine a belief in steps and learn when to stop.

usage: ric COMMAND [OPTIONS]

{chr(10).join(f"  {name:<11}{text}" for name, text in COMMANDS.items())}

Start here:
  ric train            train on scikit-learn's digits, in a minute or two
  ric predict runs/digits-ric-on-policy-seed0 --trace
  ric COMMAND --help   options of a command
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
    except BrokenPipeError:  # the reader has closed the pipe, as `| head` does
        sys.stderr.close()
    except (OSError, MemoryError) as error:
        _complain(f"the operating system reports: {str(error) or 'out of memory'}; fix the cause and try again.")
        sys.exit(RicnetError.exit_code)


def with_dashes(arguments: Sequence[str]) -> list[str]:
    """Accept --batch_size for --batch-size; values keep their underscores."""
    split = [argument.partition("=") for argument in arguments]
    return [
        "".join((name.replace("_", "-") if name.startswith("--") else name, equals, value))
        for name, equals, value in split
    ]


def _complain(sentence: str) -> None:
    from rich.text import Text

    from ricnet.terminal import Narrator, fitted

    rank = os.environ.get("RANK", "0")  # torchrun's number of this process
    name = "ric" if rank == "0" else f"ric, process {rank}"
    console = Narrator(stderr=True)
    text = Text("\n".join(fitted(f"{name}: {sentence}", console)))
    text.stylize("bold red", 0, len(name) + 1)
    console.print(text, highlight=False, soft_wrap=True)


def _dispatch(arguments: list[str]) -> None:
    command = arguments[0] if arguments else "help"
    if command in ("-h", "--help", "help"):
        print(HELP, end="")
    elif command == "--version":
        print(f"ric {__version__}")
    elif command not in COMMANDS:
        raise RicnetError(f"{command!r} is not a command; {what_else(command, COMMANDS)}")
    elif command != "train" and "RANK" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1":
        raise RicnetError(f"ric {command} runs in one process; torchrun is for ric train.")
    else:  # imported here, so that help and mistakes in flags do not wait for torch
        from ricnet.apps.commands.options import OPTIONS

        given: Any = arguments[1:]
        if command in OPTIONS:
            given = parse(OPTIONS[command], given, command)
        module = importlib.import_module(f"ricnet.apps.commands.{MODULES.get(command, command)}")
        getattr(module, command)(given)


def make_folder(path: Path) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RicnetError(f"--out {path} cannot be made ({error.strerror}); choose another folder.") from error
    return path


def replacing(path: Path) -> str:
    """Note beside the name of a file that is about to be written."""
    return " (replaced)" * path.exists()


# Flags


class Positional(NamedTuple):
    """Mark of a field that is given without a flag: `Annotated[str, Positional("RUN")]`."""

    metavar: str


class Flag(NamedTuple):
    name: str
    """Name of the field."""
    kind: Any
    help: str
    default: Any = None
    group: str = "options"
    """Heading in the help."""
    metavar: str | None = None
    """None, unless it is a positional argument."""

    @property
    def option(self) -> str:
        return f"--{self.name.replace('_', '-')}"

    @property
    def several(self) -> bool:
        return get_origin(self.kind) is tuple

    @property
    def element(self) -> Any:
        """Type of one value."""
        return get_args(self.kind)[0] if self.several else self.kind


class UnknownFlag(RicnetError):
    def __init__(self, flag: str, command: str, known: Iterable[str]) -> None:
        meant = nearest(flag.lstrip("-"), [name.lstrip("-") for name in known])
        advice = f"did you mean --{meant}?" if meant else f"see ric {command} --help."
        super().__init__(f"ric {command} has no flag {flag}; {advice}")
        self.flag = flag


def parse(kind: Any, arguments: Sequence[str], command: str) -> Any:
    """An instance of a dataclass from the arguments of a command; --help prints its help and exits."""
    flags = list(flags_of(kind))
    given = read(flags, arguments, command)
    if given.keys() & {"help", "help_all"}:
        show_help(flags, command, inspect.getdoc(kind) or "")
    return build(kind, given, command)


def flags_of(owner: Any, group: str = "options", parts: Mapping[str, str] = MappingProxyType({})) -> Iterator[Flag]:
    """The flags of a dataclass; those of an instance have its values as defaults. `parts` are the headings of nested
    dataclasses."""
    kind = owner if isinstance(owner, type) else type(owner)
    hints, sentences = get_type_hints(kind, include_extras=True), docstrings(kind)
    for field in dataclasses.fields(kind):
        default, hint = getattr(owner, field.name, field.default_factory), hints[field.name]
        if dataclasses.is_dataclass(default):
            yield from flags_of(default, parts.get(field.name, group))
            continue
        marks = getattr(hint, "__metadata__", ())
        metavar = marks[0].metavar if marks else None
        yield Flag(
            field.name, get_args(hint)[0] if marks else hint, sentences.get(field.name, ""), default, group, metavar
        )


def read(flags: Sequence[Flag], arguments: Sequence[str], command: str) -> dict[str, Any]:
    """Values of the flags and positional arguments that were given."""
    options = [flag for flag in flags if flag.metavar is None]
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False, usage="")
    parser._negative_number_matcher = re.compile(r"-\.?\d")  # by default -1e-3 is not a number
    parser.add_argument("-h", "--help", action="store_true", default=argparse.SUPPRESS)
    parser.add_argument("--help-all", action="store_true", default=argparse.SUPPRESS)
    for flag in options:
        _add_option(parser, flag)
    try:
        found, rest = parser.parse_known_args(list(arguments))
    except argparse.ArgumentError as error:
        raise RicnetError(_complaint(error, options, command)) from None
    for argument in rest:
        if argument.startswith("-") and argument.lstrip("-")[:1].isalpha():
            raise UnknownFlag(argument.partition("=")[0], command, parser._option_string_actions)
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in vars(found).items()}
    return given | _assign(flags, [argument for argument in rest if argument != "--"], command)


def _add_option(parser: Any, flag: Flag, **more: Any) -> None:
    if flag.kind is bool:
        action = argparse.BooleanOptionalAction
        parser.add_argument(flag.option, dest=flag.name, action=action, default=argparse.SUPPRESS, **more)
        return
    if flag.several:
        more |= {"nargs": "+", "action": "extend"}
    metavar = _metavar(flag.element)
    if flag.default is None:
        metavar = metavar.removesuffix("|None")
    how = {"type": partial(_convert, flag.element), "metavar": metavar, "default": argparse.SUPPRESS}
    parser.add_argument(flag.option, dest=flag.name, **how, **more)


def _convert(kind: Any, text: str) -> Any:
    options = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    if NoneType in options and (text == "None" or (text == "none" and str not in options)):
        return None
    for option in options:
        if get_origin(option) is Literal:
            if text in get_args(option):
                return text
        elif option is not NoneType:
            try:
                value = option(text)
            except ValueError:
                continue
            if option is int and abs(value) >= 2**63:
                raise argparse.ArgumentTypeError(f"{short(text, 40)} is out of range: it must fit into 64 bits.")
            return value
    raise argparse.ArgumentTypeError(f"cannot be {short(text, 80)!r}; give {wanted(kind)}.")


def _metavar(kind: Any) -> str:
    if get_origin(kind) in (Union, UnionType):
        return "|".join(map(_metavar, get_args(kind)))
    if get_origin(kind) is Literal:
        return f"{{{','.join(get_args(kind))}}}"
    return _METAVARS.get(kind, "VALUE")


def _complaint(error: argparse.ArgumentError, options: Sequence[Flag], command: str) -> str:
    flag = next((flag for flag in options if flag.option == error.argument_name), None)
    if flag is None:  # a bool with a value
        return f"{str(error.argument_name).replace('/', ' or ')} takes no value; see ric {command} --help."
    if "expected" not in error.message:
        return f"{flag.option} {error.message}"
    kind = f"one or more, see ric {command} --help" if flag.several else wanted(flag.kind)
    return f"{flag.option} needs a value; give {kind}."


def _assign(flags: Sequence[Flag], values: list[str], command: str) -> dict[str, Any]:
    """Positional arguments by field; the last field may take several."""
    given: dict[str, Any] = {}
    for flag in flags:
        if flag.metavar is not None and values:
            own, values = (values, []) if flag.several else (values[:1], values[1:])
            read = [_convert(flag.element, text) for text in own]
            given[flag.name] = tuple(read) if flag.several else read[0]
    if values:
        raise RicnetError(f"ric {command} does not know what to do with {values[0]}; see ric {command} --help.")
    return given


def build(kind: Any, given: Mapping[str, Any], command: str) -> Any:
    """An instance of a dataclass with these values; those of nested dataclasses are among them."""
    values = {field.name: given[field.name] for field in dataclasses.fields(kind) if field.name in given}
    for field in dataclasses.fields(kind):
        part: Any = field.default_factory
        if dataclasses.is_dataclass(part):
            values[field.name] = build(part, given, command)
    missing = [flag for flag in flags_of(kind) if flag.default is dataclasses.MISSING and flag.name not in given]
    if missing:
        names = listing([flag.metavar or flag.option for flag in missing])
        raise RicnetError(f"ric {command} needs {names}; see ric {command} --help.")
    return kind(**values)


# Help


def _in_usage(flag: Flag) -> str:
    return f"{flag.metavar}" if flag.default is dataclasses.MISSING else f"[{flag.metavar}]"


def show_help(flags: Sequence[Flag], command: str, about: str) -> None:
    """Print the help and exit."""
    parser = argparse.ArgumentParser(
        prog=f"ric {command}",
        description=about,
        usage=" ".join(["ric", command, *(_in_usage(flag) for flag in flags if flag.metavar), "[OPTIONS]"]),
        add_help=False,
        formatter_class=partial(argparse.HelpFormatter, max_help_position=26),
    )
    groups = {flag.group: parser.add_argument_group(flag.group) for flag in flags if flag.metavar is None}
    for flag in flags:
        text = flag.help.replace("%", "%%")
        if flag.metavar is not None:
            parser.add_argument(flag.name, metavar=flag.metavar, help=text)
            continue
        if flag.default not in (None, (), False, dataclasses.MISSING):
            values = flag.default if isinstance(flag.default, tuple) else (flag.default,)
            shown = " ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in values)
            text += f" (default: {'yes' if flag.default is True else shown})"
        if flag.kind is bool and flag.default is False:  # --no-NAME is accepted too, to override --config
            groups[flag.group].add_argument(flag.option, action="store_true", help=text)
            continue
        _add_option(groups[flag.group], flag, help=text)
    print(parser.format_help(), end="")
    sys.exit(0)


@cache
def docstrings(kind: type) -> dict[str, str]:
    """The docstrings under the fields of a dataclass, which Python does not keep."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if dataclasses.is_dataclass(base):
            tree = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
            found |= dict(_docstrings(tree))
    return found


def _docstrings(tree: Any) -> Iterator[tuple[str, str]]:
    for field, below in pairwise(tree.body):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                yield name, " ".join(text.split())


if __name__ == "__main__":  # python -m ricnet.apps.cli
    main()
