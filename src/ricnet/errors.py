"""What the user did that cannot work, said in one sentence.

Every message names the file, flag or value and says what to do. The command line prints it and exits with 2;
Python callers can catch it. Anything else that escapes is a bug of ours.
"""

import difflib
import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any

FEW_NAMES = 7
"""So many can be shown beside the one that was probably meant."""


class RicnetError(Exception):
    """A problem the user can mend; its text is one clear sentence."""

    exit_code = 2


def require(holds: bool, flag: str, value: object, rule: str) -> None:
    """Refuse a setting with a sentence that names its flag."""
    if not holds:
        raise RicnetError(f"--{flag.replace('_', '-')} {value} is out of range: it must be {rule}.")


def require_finite(settings: object) -> None:
    """Refuse NaN and infinity in any field: both pass comparisons that nobody meant them to pass."""
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


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The name that was probably meant, whatever its capitals."""
    names = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), names, n=1)
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
