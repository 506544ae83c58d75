"""How the lines of the paper's systems look: told apart by colour, and in grey by marker."""

from dataclasses import dataclass

from ricnet.report.figures import BLUE, GREEN, PURPLE, SKY, VERMILLION
from ricnet.report.titles import without_algorithm


@dataclass(frozen=True)
class Look:
    colour: str
    marker: str


_LOOKS = {
    "SL": Look(VERMILLION, "s"),
    "ACT": Look(GREEN, "^"),
    "PonderNet": Look(PURPLE, "v"),
    "RIC": Look(BLUE, "o"),
    "RIC, PPO": Look(GREEN, "^"),
    "RIC, logistic-normal": Look(PURPLE, "D"),
}
"""By the name that `RunRecord.method` gives a system, less RIC's algorithm."""


def look_of(name: str) -> Look:
    return _LOOKS.get(without_algorithm(name), Look(SKY, "x"))
