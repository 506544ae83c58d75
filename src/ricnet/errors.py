"""What the user did that cannot work, said in one sentence.

Every message names the file, flag or value and says what to do. The command line prints it and exits with 2;
Python callers can catch it. Anything else that escapes is a bug of ours.
"""

import math


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
