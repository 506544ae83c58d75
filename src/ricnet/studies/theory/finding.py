"""What an experiment on a claim of the paper found."""

from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure


@dataclass(frozen=True)
class Finding:
    name: str
    claim: str
    """What the paper says, in one sentence."""
    passed: bool
    """Whether it was found so, within the bounds that the statement names."""
    statement: str
    """What was measured, against what, with the numbers."""
    rows: list[dict[str, Any]]
    """The data of the figure: text and numbers, ready for a CSV file."""
    figure: Figure
