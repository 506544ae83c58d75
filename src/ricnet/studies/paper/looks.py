"""What the paper's systems are called, and how their lines look: told apart by colour, and in grey by marker."""

from dataclasses import dataclass

from ricnet.report.style import BLUE, GREEN, PURPLE, SKY, VERMILLION

NAMES = {
    "supervised": "SL",
    "act": "ACT",
    "pondernet": "PonderNet",
    "ric": "RIC",
    "ric-ppo": "RIC, PPO",
    "ric-logistic-normal": "RIC, logistic-normal",
}


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


def name_of(system: str) -> str:
    return NAMES.get(system, system)


def look_of(name: str) -> Look:
    return _LOOKS.get(name, Look(SKY, "x"))
