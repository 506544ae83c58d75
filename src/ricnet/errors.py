"""What the user did that cannot work, said in one sentence.

Every message names the file, setting or value and says what to do. The command line prints it and exits with 2; Python
callers can catch it. Anything else that escapes is a bug of ours.

A setting is a flag at one door and a parameter at another. So a sentence holds `setting("batch_size", 8)`, and each
door spells it: --batch-size 8 on the command line, batch_size=8 in Python.
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
"""So many can be shown beside the one that was probably meant."""
_MARK, _COMMA = "\x0e", "\x0f"
"""Around a setting in a sentence, and between its parts; no file has such letters."""


def setting(name: str, value: Any = None) -> str:
    """A setting in a sentence, perhaps with its value. True and False are those of a switch."""
    dashed, value = name.replace("_", "-"), os.fspath(value) if isinstance(value, os.PathLike) else value
    if isinstance(value, bool):
        parts = (name, f"--{dashed}" if value else f"--no-{dashed}", f"={value}")
    else:
        parts = (name, f"--{dashed}", "") if value is None else (name, f"--{dashed} {value}", f"={value!r}")
    return f"{_MARK}{_COMMA.join(parts)}{_MARK}"


def in_flags(sentence: str) -> str:
    """As the command line spells it."""
    return "".join(text if found is None else found[1] for text, found in _parts(sentence))


def in_python(sentence: str, renamed: Mapping[str, str] | None = None) -> str:
    """As Python spells it; `renamed` maps settings that this caller names differently."""
    names = renamed or {}
    return "".join(
        text if found is None else names.get(found[0], found[0]) + found[2] for text, found in _parts(sentence)
    )


def _parts(sentence: str) -> Iterator[tuple[str, list[str] | None]]:
    for place, text in enumerate(sentence.split(_MARK)):
        found = text.split(_COMMA)
        yield text, found if place % 2 and len(found) == 3 else None


class RicnetError(Exception):
    """A problem the user can mend; its text is one clear sentence."""

    exit_code = 2

    @property
    def sentence(self) -> str:
        """With settings that are not spelled yet, for another sentence."""
        return str(self.args[0]) if self.args else ""

    @property
    def settings(self) -> tuple[str, ...]:
        """The names of those that the sentence speaks of, the one that is wrong first."""
        return tuple(found[0] for _, found in _parts(self.sentence) if found is not None)

    def __str__(self) -> str:
        return in_flags(self.sentence)


class Interrupted(RicnetError):
    """Asked to stop; what there was is saved."""

    exit_code = 130  # as a shell reports Ctrl-C


@contextmanager
def spelled_in_python(
    renamed: Mapping[str, str] | None = None, kind: type[RicnetError] | None = None
) -> Iterator[None]:
    """For a door to Python: errors name parameters, not flags; those of `kind` where the caller expects it."""
    try:
        yield
    except RicnetError as error:
        raise (kind or type(error))(in_python(error.sentence, renamed)) from error


def require(holds: bool, name: str, value: object, rule: str) -> None:
    """Refuse the value of a setting."""
    if not holds:
        shown = f"{setting(name)} {value}" if isinstance(value, bool) or value is None else setting(name, value)
        raise RicnetError(f"{shown} is out of range: it must be {rule}.")


def require_finite(settings: object) -> None:
    """Refuse NaN and infinity in any field: range checks by comparison let them pass."""
    for name, value in vars(settings).items():
        require(not isinstance(value, float) or math.isfinite(value), name, value, "a finite number")


def whole_number(value: Any, name: str) -> int:
    """An integer of any library's; refused is all else, even 2.0, and True, which Python takes for 1."""
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise RicnetError(f"{name} is {value!r}; it must be a whole number.") from None


def wanted(kind: Any) -> str:
    """What a setting of this type may be."""
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
    """The name that was probably meant, whatever its capitals, or one with this word in it: label-noise for noise."""
    names = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), names, n=1, cutoff=0.72)  # --readout, for --out, has .71
    part = word.lower().strip("-")
    close += [name for name in names if part in re.split("[-_]", name)]
    return names[close[0]] if close else None


def what_else(word: str, known: Iterable[str]) -> str:
    """How a sentence about an unknown name goes on: with the name that was probably meant, and with all there are
    where they are few or none of them is near."""
    names = list(known)
    meant = nearest(word, names)
    if meant is None:
        return f"choose one of: {', '.join(names)}."
    return f"did you mean {meant}?" + (f" There are: {', '.join(names)}." if len(names) <= FEW_NAMES else "")


def listed(items: Sequence[str], most: int = 5) -> str:
    """The first few of some names, and how many more there are."""
    rest = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(items[:most]) + rest


def listing(words: Sequence[str]) -> str:
    """a, b and c."""
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def counted(count: int, noun: str) -> str:
    """1 step; 3 steps."""
    return f"{count} {noun}{'s' * (count != 1)}"


def first_line(error: BaseException) -> str:
    """Of an explanation that may go on for a paragraph, or be empty."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return text[:200].rstrip(".")


def require_extra(who: str, extra: str, *modules: str) -> None:
    """Refuse, before any work is done, what needs libraries that only some doors need."""
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        raise RicnetError(f"{who} needs {', '.join(missing)}; install with: pip install 'ricnet[{extra}]'.")
