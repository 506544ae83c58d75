"""How names and numbers are written, the same in every table, figure and page."""

import math
from collections.abc import Sequence

CLASS, FIGURE, TABLE = 14, 32, 48
"""The most letters of a class's name anywhere, and of a system's or a data set's in figures and in tables."""


def short(name: str, width: int = CLASS) -> str:
    """Names come from strangers' folders: one printable line of bounded length is safe to draw anywhere."""
    clean = "".join(c if c.isprintable() else "�" for c in name)
    return clean if len(clean) <= width else clean[: width - 1] + "…"


def number(value: float | int | None, digits: int) -> str:
    return "–" if value is None or math.isnan(value) else f"{value:,.{digits}f}"


def percent(share: float | int | None, digits: int = 2) -> str:
    return "–" if share is None or math.isnan(share) else f"{100 * share:.{digits}f} %"


def belief(share: float) -> str:
    """In whole percent; nothing short of certainty is called so."""
    return "> 99 %" if 0.995 <= share < 1 else f"{100 * share:.0f} %"


def steps(count: int) -> str:
    return "1 step" if count == 1 else f"{count} steps"


def epochs(count: int) -> str:
    return "1 epoch" if count == 1 else f"{count} epochs"


def listing(words: Sequence[str]) -> str:
    """a, b and c."""
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def markdown_safe(text: str) -> str:
    """Markdown's own signs, made harmless."""
    for sign in "\\|*_`[]":
        text = text.replace(sign, "\\" + sign)
    return text.replace("<", "&lt;")
