"""Flags from dataclasses, by tyro; its message for a wrong flag cut down to one sentence."""

import contextlib
import dataclasses
import io
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import tyro

from ricnet.errors import RicnetError, nearest, what_else


class UnknownFlag(RicnetError):
    """`flag` as it was typed, without a value."""

    def __init__(self, flag: str, command: str, known: Sequence[str]) -> None:
        meant = nearest(flag.lstrip("-"), [name.lstrip("-") for name in known])
        advice = f"did you mean --{meant}?" if meant else f"see ric {command} --help."
        super().__init__(f"ric {command} has no flag {flag}; {advice}")
        self.flag = flag


def parse(kind: Any, arguments: Sequence[str], command: str, default: Any = tyro.MISSING_NONPROP) -> Any:
    """An instance of a dataclass from flags; the fields of nested ones are flags of their own, without a prefix."""
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint), _in_long_lines(arguments):
            return tyro.cli(
                kind,
                args=list(arguments),
                prog=f"ric {command}",
                default=default,
                config=(tyro.conf.OmitArgPrefixes, tyro.conf.HelptextFromCommentsOff),
            )
    except SystemExit as end:
        if end.code in (0, None):
            raise
        known = list(_flags(kind if default is tyro.MISSING_NONPROP else default))
        raise _explained(_unframed(complaint.getvalue()), arguments, command, known) from None


@contextlib.contextmanager
def _in_long_lines(arguments: Sequence[str]) -> Iterator[None]:
    """tyro fits what it says to the terminal, and breaks a long path to do so; only help is to be read as it is."""
    if {"-h", "--help"} & set(arguments):
        yield
        return
    width = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "100000"
    try:
        yield
    finally:
        os.environ.pop("COLUMNS")
        os.environ |= {} if width is None else {"COLUMNS": width}


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


def _unframed(message: str) -> str:
    """tyro frames its explanations; keep the words of the first one."""
    lines = [re.sub(r"^[\s│|]+|[\s│|]+$", "", line) for line in message.splitlines()]
    words = [line for line in lines if line and not set(line) <= set("─╭╮╰╯-+ ") and line[0] not in "╭╰"]
    text = re.split("Argument helptext|For full helptext|Perhaps you meant", " ".join(words))[0]
    return re.sub(r"\s+", " ", text).strip().rstrip(".:") or "these options cannot be read"


def _explained(message: str, arguments: Sequence[str], command: str, known: Sequence[str]) -> RicnetError:
    """The commonest of tyro's messages in our words, any other in its own."""
    if message.startswith("Unrecognized options"):
        unknown = _unknown_flag(arguments, known)
        if unknown is not None:
            return UnknownFlag(unknown, command, known)
        extra = message.partition(": ")[2]
        meant = _flag_for(extra, known)
        advice = f"did you mean {meant} {extra}?" if meant else f"see ric {command} --help."
        return RicnetError(f"ric {command} does not know what to do with {extra}; {advice}")
    if choice := re.match(r"invalid choice '(.*)' for argument '(.*)'\. Expected one of \((.*)\)", message):
        options = re.findall(r"'([^']*)'", choice[3])
        return RicnetError(f"{choice[2]} {choice[1]} is unknown; {what_else(choice[1], options)}")
    if missing := re.match(r"Missing from ric \w+: ([A-Z./]+)", message):
        return RicnetError(f"ric {command} needs {missing[1]}; see ric {command} --help.")
    if value := re.match(r"Missing value for argument '(.*)'", message):
        return RicnetError(f"{value[1]} needs a value; see ric {command} --help.")
    if kind := re.match(r"Error parsing (\S+): (.*)", message):
        return RicnetError(f"{_not_a_number(kind[1], kind[2]) or message}; see ric {command} --help.")
    return RicnetError(f"{message}; see ric {command} --help.")


def _flag_for(extra: str, known: Sequence[str]) -> str | None:
    """The flag that takes a path which nobody else does: what is read, or, where nothing is there yet, written."""
    if not re.fullmatch(r"\S*(/\S*|\.[A-Za-z]\w*)", extra):
        return None
    flags = ("--data",) if Path(extra).exists() else ("--data", "--out")
    return next((flag for flag in flags if flag in known), None)


def _not_a_number(flag: str, message: str) -> str | None:
    text = re.search(r"(?:string to float: |base 10: |instantiated from \[)'(.*?)'", message)
    if text is None:
        return None
    wanted = "a whole number" if "INT" in message or "base 10" in message else "a number"
    given = text[1] or "''"
    return f"{flag} {given} is not {wanted}" + " or None" * ("None" in message)


def _unknown_flag(arguments: Sequence[str], known: Sequence[str]) -> str | None:
    """What looks like a flag and is none; numbers below zero do too."""
    for argument in arguments:
        flag = argument.partition("=")[0]
        if re.match("--?[A-Za-z]", flag) and flag.replace("_", "-") not in known:
            return flag
    return None
