"""What a table or a figure asks for: all seeds of one system on one data set."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ricnet.report.runs import RunRecord

Changes = tuple[tuple[str, Any], ...]
"""Settings that differ from the preset's, hashable."""


@dataclass(frozen=True)
class Benchmark:
    label: str
    """What a figure calls it."""
    data: str
    """A name, a folder or a file, as `ric train` takes it."""
    changes: Changes = ()
    """What the data asks of the training, for instance label noise or a resolution."""


@dataclass(frozen=True)
class Cell:
    system: str
    """A name of `systems.SYSTEMS`, perhaps with settings: ric, supervised-temperature, ric:gamma=0.9."""
    benchmark: Benchmark
    seeds: tuple[int, ...]
    changes: Changes = ()
    """Settings of this cell alone; they win over the system's and the benchmark's."""
    preset: str = "fast"


Runs = Mapping[Cell, Sequence[RunRecord]]
"""The finished runs of each cell, in the order of its seeds. A cell whose data is not here has none."""
