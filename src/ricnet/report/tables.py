"""The comparison table: one row a run, for the terminal, for Markdown and (through `comparison`) for the page.

Only what is a merit is set in bold: accuracy, calibration and scores on the test set. Fewer steps, a higher
training accuracy or fewer seconds are facts, not merits.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from ricnet.report.runs import RunRecord, Task
from ricnet.report.words import TABLE, listing, markdown_safe, number, percent, short


@dataclass(frozen=True)
class Column:
    title: str
    text: Callable[[RunRecord], str]
    merit: Callable[[RunRecord], float] | None = None
    """Larger is better; None where there is nothing to win."""
    numeric: bool = True


@dataclass(frozen=True)
class Cell:
    text: str
    best: bool = False

    @property
    def markdown(self) -> str:
        return f"**{markdown_safe(self.text)}**" if self.best else markdown_safe(self.text)


def comparison(runs: Sequence[RunRecord]) -> tuple[list[Column], list[list[Cell]]]:
    """The columns, and for each run its cells."""
    columns = _columns(runs)
    runs = [each for run in runs for each in (run, run.raw) if each is not None]
    return columns, [[Cell(column.text(run), _is_best(column, run, runs)) for column in columns] for run in runs]


def comparison_table(runs: Sequence[RunRecord]) -> Table:
    columns, rows = comparison(runs)
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, header_style="none")
    table.caption, table.caption_justify = Text(caption(runs)), "left"
    for column in columns:
        title = Text(column.title.replace(" ", "\n", 1))  # two short lines keep the table within 80 columns
        table.add_column(title, justify="right" if column.numeric else "left", no_wrap=column.numeric)
    for cells in rows:
        table.add_row(*(Text(cell.text, style="bold" if cell.best else "") for cell in cells))
    return table


def comparison_markdown(runs: Sequence[RunRecord]) -> str:
    columns, rows = comparison(runs)
    lines = [
        [column.title for column in columns],
        ["---:" if column.numeric else ":---" for column in columns],
        *([cell.markdown for cell in cells] for cells in rows),
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + f"\n\n{markdown_safe(caption(runs))}\n"


def caption(runs: Sequence[RunRecord]) -> str:
    """What one must know to read the numbers: how many examples, how many seeds, how sure."""
    tests = "; ".join(f"{alike[0].data_label}, n = {n:,}{_error(alike)}" for (*_, n), alike in _by_task(runs).items())
    rivals = _rivals_exist(runs) or any(run.raw for run in runs)
    bold = " Bold: the best of the column on the same data." if rivals else ""
    timed = " Run seconds include measuring each epoch." if any(run.seconds is not None for run in runs) else ""
    raw = " Raw: as trained, with nothing chosen on validation data." if any(run.raw for run in runs) else ""
    return f"Test set: {tests}. {_seeds(runs)}{bold}{raw}{timed}"


def _columns(runs: Sequence[RunRecord]) -> list[Column]:
    bins = listing([str(count) for count in dict.fromkeys(run.test["ece_bins"] for run in runs)])
    return [
        Column("Method", lambda run: short(run.label, TABLE), numeric=False),
        Column("Data", lambda run: short(run.data_label, TABLE), numeric=False),
        Column("Test accuracy", lambda run: percent(run.test["accuracy"]), lambda run: run.test["accuracy"]),
        Column(f"ECE ({bins} bins)", lambda run: number(run.test["ece"], 3), lambda run: -run.test["ece"]),
        Column("NLL", lambda run: number(run.test["nll"], 3), lambda run: -run.test["nll"]),
        Column("Brier", lambda run: number(run.test["brier"], 3), lambda run: -run.test["brier"]),
        Column("Mean steps", lambda run: number(run.test["mean_steps"], 1)),
        Column("Train accuracy", lambda run: percent(run.evaluation["train"]["accuracy"])),
        Column("Run seconds", lambda run: number(run.seconds, 0)),
    ]


def _is_best(column: Column, run: RunRecord, runs: Sequence[RunRecord]) -> bool:
    """Numbers that print alike win alike: the digits not shown decide nothing."""
    rivals = _rivals(run, runs)
    if column.merit is None or len(rivals) < 2 or not math.isfinite(column.merit(run)):
        return False
    winner = max((rival for rival in rivals if math.isfinite(column.merit(rival))), key=column.merit)
    return column.text(run) == column.text(winner)


def _rivals(run: RunRecord, runs: Sequence[RunRecord]) -> list[RunRecord]:
    return _by_task(runs)[run.task]


def _by_task(runs: Sequence[RunRecord]) -> dict[Task, list[RunRecord]]:
    found: dict[Task, list[RunRecord]] = {}
    for run in runs:
        found.setdefault(run.task, []).append(run)
    return found


def _rivals_exist(runs: Sequence[RunRecord]) -> bool:
    return any(len(_rivals(run, runs)) > 1 for run in runs)


def _error(runs: Sequence[RunRecord]) -> str:
    """Small test sets make large accidents, so the table says how large."""
    mean = sum(run.test["accuracy"] for run in runs) / len(runs)
    points = 100 * math.sqrt(mean * (1 - mean) / runs[0].test["n"])
    return f" (standard error of an accuracy: about {points:.2f} points)" if points > 0 else ""


def _seeds(runs: Sequence[RunRecord]) -> str:
    seeds: dict[tuple[str, str], dict[str, None]] = {}
    for run in runs:
        seeds.setdefault((run.method, run.data_label), {})[str(run.config.get("seed"))] = None
    if len({tuple(found) for found in seeds.values()}) > 1:
        parts = [f"{method} on {data}: {', '.join(found)}" for (method, data), found in seeds.items()]
        return f"Seeds: {'; '.join(parts)}."
    same = list(next(iter(seeds.values())))
    return f"One seed{' each' * (len(runs) > 1)} ({same[0]})." if len(same) == 1 else f"Seeds {listing(same)} each."
