"""`RicnetError` for mistakes of the user, and helpers for its one-sentence messages.

A message names the file, setting or value, and says what to do. The CLI prints it and exits with 2. Any other exception
is a bug. A setting is a flag in the CLI and a parameter in Python: `setting("batch_size", 8)` in a message is shown as
--batch-size 8 or as batch_size=8.
"""

import difflib
import math
import operator
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

FEW_NAMES = 7
"""Largest number of names that are all listed in a message beside the closest one."""
_MARK, _COMMA = "\x0e", "\x0f"
"""Control characters around a setting in a message, and between its parts."""


def setting(name: str, value: Any = None) -> str:
    """A setting, optionally with its value, for a message. A bool becomes --name or --no-name."""
    dashed, value = name.replace("_", "-"), os.fspath(value) if isinstance(value, os.PathLike) else value
    if isinstance(value, bool):
        parts = (name, f"--{dashed}" if value else f"--no-{dashed}", f"={value}")
    else:
        parts = (name, f"--{dashed}", "") if value is None else (name, f"--{dashed} {value}", f"={value!r}")
    return f"{_MARK}{_COMMA.join(parts)}{_MARK}"


def in_flags(sentence: str) -> str:
    """A message with settings as flags of the CLI."""
    return "".join(text if found is None else found[1] for text, found in _parts(sentence))


def in_python(sentence: str, renamed: Mapping[str, str] | None = None) -> str:
    """A message with settings as Python parameters; `renamed` maps settings to other parameter names."""
    names = renamed or {}
    return "".join(
        text if found is None else names.get(found[0], found[0]) + found[2] for text, found in _parts(sentence)
    )


def _parts(sentence: str) -> Iterator[tuple[str, list[str] | None]]:
    for place, text in enumerate(sentence.split(_MARK)):
        found = text.split(_COMMA)
        yield text, found if place % 2 and len(found) == 3 else None


class RicnetError(Exception):
    """A problem that the user can fix; its text is one sentence."""

    exit_code = 2

    @property
    def sentence(self) -> str:
        """The message with marked settings, for use in another message."""
        return str(self.args[0]) if self.args else ""

    @property
    def settings(self) -> tuple[str, ...]:
        """Names of the settings in the message, the wrong one first."""
        return tuple(found[0] for _, found in _parts(self.sentence) if found is not None)

    def __str__(self) -> str:
        return in_flags(self.sentence)


class Interrupted(RicnetError):
    """The user asked to stop; the state is saved."""

    exit_code = 130  # as a shell reports Ctrl-C


class InputWarning(UserWarning):
    """Inputs whose predictions are unreliable, such as unknown values and words, and skipped files."""


@contextmanager
def spelled_in_python(
    renamed: Mapping[str, str] | None = None, kind: type[RicnetError] | None = None
) -> Iterator[None]:
    """Context for the Python API: errors name parameters instead of flags, and are of type `kind` if given."""
    try:
        yield
    except RicnetError as error:
        raise (kind or type(error))(in_python(error.sentence, renamed)) from error


def require(holds: bool, name: str, value: object, rule: str) -> None:
    """Raise unless `holds`; `rule` says which values of the setting are allowed."""
    if not holds:
        shown = f"{setting(name)} {value}" if isinstance(value, bool) or value is None else setting(name, value)
        is_amount = isinstance(value, int | float) and not isinstance(value, bool)
        raise RicnetError(f"{shown} is {'out of range' if is_amount else 'not allowed'}: it must be {rule}.")


def require_finite(settings: object) -> None:
    """Raise if a field is NaN or infinite, which range checks by comparison may miss."""
    for name, value in vars(settings).items():
        require(not isinstance(value, float) or math.isfinite(value), name, value, "a finite number")


def whole_number(value: Any, name: str) -> int:
    """An int from any integer type. Raises on everything else, also on 2.0 and True."""
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise RicnetError(f"{name} is {value!r}; it must be a whole number.") from None


def wanted(kind: Any) -> str:
    """Description of the values that a setting of this type may have."""
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(wanted(option) for option in get_args(kind))
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(repr, get_args(kind)))}"
    names: dict[Any, str] = {
        int: "a whole number",
        float: "a number",
        str: "a text",
        bool: "True or False",
        Path: "a path",
        NoneType: "None",
    }
    return names.get(kind, str(kind))


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known name closest to `word`, ignoring case, or one that contains it as a part: label-noise for noise."""
    names = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), names, n=1, cutoff=0.72)  # --readout scores 0.71 for --out
    part = word.lower().strip("-")
    close += [name for name in names if part in re.split("[-_]", name)]
    return names[close[0]] if close else None


def what_else(word: str, known: Iterable[str]) -> str:
    """End of a message about an unknown name: the closest known name, and all names if they are few or none is
    close."""
    names = list(known)
    meant = nearest(word, names)
    if meant is None:
        return f"choose one of: {', '.join(names)}."
    return f"did you mean {meant}?" + (f" There are: {', '.join(names)}." if len(names) <= FEW_NAMES else "")


def listed(items: Sequence[str], most: int = 5) -> str:
    """The first `most` items, and the number of the rest."""
    rest = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(items[:most]) + rest


def listing(words: Sequence[str]) -> str:
    """a, b and c."""
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def counted(count: int, noun: str) -> str:
    """1 step; 3 steps."""
    return f"{count} {noun}{'s' * (count != 1)}"


def first_line(error: BaseException) -> str:
    """First non-empty line of an error message, at most 200 characters; the error's type if there is none."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return text[:200].rstrip(".")


def require_extra(feature: str, extra: str, *modules: str) -> None:
    """Raise if a module of an optional dependency is not installed; `feature` names what needs it."""
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        raise RicnetError(f"{feature} needs {', '.join(missing)}; install with: pip install 'ricnet[{extra}]'.")
