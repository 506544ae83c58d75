"""Flags from dataclasses, by tyro; its message for a wrong flag cut down to one sentence."""

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
from typing import Annotated, Any, get_type_hints

import tyro

from ricnet.errors import RicnetError, nearest


class UnknownFlag(RicnetError):
    """`flag` as it was typed, without a value."""

    def __init__(self, flag: str, command: str, known: Sequence[str]) -> None:
        meant = nearest(flag.lstrip("-"), [name.lstrip("-") for name in known])
        advice = f"did you mean --{meant}?" if meant else f"see ric {command} --help."
        super().__init__(f"ric {command} has no flag {flag}; {advice}")
        self.flag = flag


@dataclass(frozen=True)
class Pages:
    """How the help of a command with many flags is divided: --help shows what `groups` name, --help-all everything."""

    groups: Mapping[str, Sequence[str]]
    """Fields by the heading under which they stand, those of nested classes too."""
    homes: Mapping[str, str]
    """The heading for any other field, or for those of a nested class; by default the last one."""


def parse(
    kind: Any,
    arguments: Sequence[str],
    command: str,
    default: Any = tyro.MISSING_NONPROP,
    pages: Pages | None = None,
) -> Any:
    """An instance of a dataclass from flags; the fields of nested ones are flags of their own, without a prefix."""
    asked = {"-h", "--help", "--help-all"} & set(arguments)
    known = list(_flags(kind if default is tyro.MISSING_NONPROP else default))
    if not asked:
        _refuse_unknown(arguments, known, command)
    elif pages is not None:
        kind, default = _page(default, pages, "--help-all" in asked), tyro.MISSING_NONPROP
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


def _page(options: Any, pages: Pages, everything: bool) -> type:
    """A dataclass of which tyro makes our page of help: nested in it one a heading."""
    heading = {name: title for title, names in pages.groups.items() for name in names}
    groups: dict[str, list[Any]] = {title: [] for title in pages.groups}
    more = Annotated[bool, tyro.conf.FlagCreatePairsOff, tyro.conf.arg(help="show every setting and exit")]
    page: list[Any] = [("help_all", more, dataclasses.field(default=False))]
    for name, hint, value, sentence, home in _described(options, pages.homes, list(groups)[-1]):
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


def _described(options: Any, homes: Mapping[str, str], home: str) -> Iterator[tuple[str, Any, Any, str, str]]:
    """Name, type, value, sentence and heading of each field, those of nested dataclasses in their place."""
    hints, sentences = get_type_hints(type(options), include_extras=True), docstrings(type(options))
    for field in dataclasses.fields(options):
        value, where = getattr(options, field.name), homes.get(field.name, home)
        if dataclasses.is_dataclass(value):
            yield from _described(value, homes, where)
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
