"""What a table or a figure of the paper takes: the runs it needs, the rows they become, what is made of the rows."""

from collections.abc import Callable
from dataclasses import dataclass

from matplotlib.figure import Figure

from ricnet.studies.cells import Cell, Runs
from ricnet.studies.paper.rows import Rows
from ricnet.studies.scales import Scale


@dataclass(frozen=True)
class Recipe:
    """Rows are all that `draw` and `write` get, so a figure can be drawn again from its CSV file alone."""

    name: str
    """fig2: what the command line calls it, and its files."""
    title: str
    cells: Callable[[Scale], list[Cell]]
    tabulate: Callable[[Scale, Runs], Rows]
    draw: Callable[[Rows], Figure] | None = None
    """Figures only."""
    write: Callable[[Rows], dict[str, str]] | None = None
    """Tables only: their text by the ending of its file, md and tex."""
