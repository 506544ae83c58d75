"""The seeds of a cell as samples of a number: its mean, its 95 % interval, how many there are, why there are none."""

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float

from ricnet.report.runs import RunRecord
from ricnet.report.statistics import band
from ricnet.studies.cells import Cell, Runs
from ricnet.studies.paper.conditions import GIVEN, conditions_of
from ricnet.studies.paper.rows import Row, Rows
from ricnet.studies.scales import Scale


def tabulate_cells(
    scale: Scale,
    cells: Sequence[Cell],
    runs: Runs,
    rows_of: Callable[[Sequence[RunRecord]], Rows],
    usable: Callable[[Sequence[RunRecord]], Sequence[RunRecord]] = lambda runs: runs,
) -> Rows:
    """The rows of each cell's runs, each with the cell's name and conditions; one without runs has a row that says why.

    `seeds` are `usable` of those `asked` for; of runs that are taken as found, none was asked for that is not there. A
    row's own n may be less, where a seed has no such number.
    """
    rows: Rows = []
    for cell in cells:
        finished = runs.get(cell, ())
        found = usable(finished)
        tags: Row = {"benchmark": cell.benchmark.label, "system": _name(cell, runs)}
        asked = len(finished) if finished and scale.name == GIVEN else len(cell.seeds)
        tags |= {"seeds": len(found), "asked": asked, **conditions_of(scale, found)}
        own: Rows = rows_of(found) if found else [{"missing": _reason(cell, runs, scale)}]
        rows += [tags | row for row in own]
    return rows


def summary(values: Iterable[float | None]) -> Row:
    """Mean and half-width of the 95 % Student-t interval over the seeds that have the number."""
    return summaries(np.array([[np.nan if value is None else value] for value in values], dtype=float))[0]


def summaries(tracks: Float[np.ndarray, "seeds x"]) -> Rows:
    """The same at every x; NaN where a seed has no number, None in a row that nothing can be said in."""
    counts = np.isfinite(tracks).sum(axis=0)
    mean, half = band(np.where(np.isfinite(tracks), tracks, np.nan))
    columns = zip(mean.tolist(), half.tolist(), counts.tolist(), strict=True)
    return [{"mean": _known(m), "half_width": _known(h), "n": n} for m, h, n in columns]


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _name(cell: Cell, runs: Runs) -> str:
    """As the report calls the system's runs; as the command line does if it has settings of its own, or no runs."""
    called = [found[0].method for other, found in runs.items() if found and other.system == cell.system]
    return called[0] if called and ":" not in cell.system else cell.system


def _reason(cell: Cell, runs: Runs, scale: Scale) -> str:
    """Where runs of the cell were asked for, or another system has learned from the same data, the data is here."""
    if scale.name == GIVEN:
        return "not among the given runs"
    here = cell in runs or any(found and other.benchmark.data == cell.benchmark.data for other, found in runs.items())
    return "no run finished" if here else f"{Path(cell.benchmark.data).name} is not here"
