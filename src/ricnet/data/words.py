"""Lists of names in a sentence."""

from collections.abc import Sequence


def listed(items: Sequence[str], most: int = 5) -> str:
    rest = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(items[:most]) + rest
