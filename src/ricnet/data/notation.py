"""Notations of numbers in tables: decimal comma or point, thousands separators, and units."""

import re
from collections import Counter
from collections.abc import Iterable

PLAIN, COMMAS, POINTS, ENGLISH = "1234.5", "1234,5", "1.234,5", "1,234.5"
_GROUPS = r"[1-9]\d{{0,2}}(?:{0}\d{{3}})+"  # groups of three digits with a separator
_BY_POINTS, _BY_COMMAS = _GROUPS.format(r"\."), _GROUPS.format(",")
_NUMBERS = {
    PLAIN: r"\d+(?:\.\d+)?",
    COMMAS: rf"\d+(?:,\d+)?|{_BY_POINTS},\d+",  # a number with a point and no comma is read as a plain one
    POINTS: rf"(?:{_BY_POINTS}|\d+)(?:,\d+)?",
    ENGLISH: rf"(?:{_BY_COMMAS}|\d+)(?:\.\d+)?",
}
NOTATIONS = frozenset(_NUMBERS)
_CELL = {name: re.compile(rf"[+-]?(?:{number})") for name, number in _NUMBERS.items()}
_BLOCK = {name: re.compile(rf"(?>(?:[+-]?(?:{number})(?![^\n]))?+\n?+)*+") for name, number in _NUMBERS.items()}
_CURRENCY = r"[$€£¥₹]|EUR|USD|GBP|CHF|JPY|CNY|INR|CAD|AUD|SEK|NOK|DKK|PLN|CZK"
_NUMBER = r"[+-]?\d[\d.,]*"
_LETTERS = r"[°µ]?[^\W\d_][^\s\d.,;:]{1,9}|(?<=\s)[^\W\d_]"  # a single letter needs a space before it: 12A is a code
_UNIT = re.compile(rf"[+-]?(?P<before>%|{_CURRENCY})\s*{_NUMBER}|{_NUMBER}\s*(?P<after>[%‰°$€£¥₹]|{_LETTERS})")
_AROUND = re.compile(r" *\n *")


def is_written(cell: str, notation: str) -> bool:
    """Whether a cell is a number in this notation."""
    return _CELL[notation].fullmatch(cell) is not None


def all_written(cells: str, notation: str) -> bool:
    """Whether all lines are empty or numbers in this notation."""
    return _BLOCK[notation].fullmatch(cells) is not None


def in_plain(numbers: str, notation: str) -> str:
    """Convert numbers of this notation, one per line, to the notation of Python."""
    if notation in (COMMAS, POINTS):
        return numbers.replace(".", "").replace(",", ".")
    return numbers.replace(",", "") if notation == ENGLISH else numbers


def without_unit(cells: str, unit: str) -> str:
    """Remove the unit at the beginning or the end of each line."""
    if not unit:
        return cells
    lines = "\n" + cells.replace("\u00a0", " ").replace("\u202f", " ") + "\n"
    for sign in ("", "+", "-"):
        lines = lines.replace(f"\n{sign}{unit}", f"\n{sign}")
    lines = _AROUND.sub("\n", lines.replace(f"{unit}\n", "\n"))
    return lines.replace("\n- ", "\n-").replace("\n+ ", "\n+")[1:-1]


def common_unit(cells: Iterable[str]) -> str:
    """The most frequent unit before or after the number of a cell; empty if no cell has one."""
    found = Counter(match["before"] or match["after"] for cell in cells if (match := _UNIT.fullmatch(cell)))
    return found.most_common(1)[0][0] if found else ""
