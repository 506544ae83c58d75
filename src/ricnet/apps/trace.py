"""`ric predict --trace`: a table in the terminal with the belief after each step as a stacked bar.

Bars differ in shade as well as in colour, so that they can be read in a log file.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from rich.table import Table
from rich.text import Text

from ricnet.evaluation.choices import NEVER
from ricnet.io import short

SHADES = "█▓▒░▚"
COLOURS = ("blue", "yellow", "magenta", "cyan", "green")  # the terminal's own, so that its theme is kept
TERMINAL = 80
TIME_UP = "time's up"
"""Reason for the end, if a time limit ended the steps."""


def trace_lines(
    belief: Float[np.ndarray, "steps classes"],
    values: Sequence[float] | None,
    halt_step: int,
    class_names: Sequence[str],
    top: int = 3,
    costs: Sequence[float] = (),
    steps_per_exit: int = 1,
    end: str = "last step",
    threshold: float = 0.0,
) -> Table:
    """One row per step with the probabilities of the `top` classes (at most five). `costs` are those of a trajectory
    with exits, `end` is the reason for the last step, `threshold` the one of the value."""
    leaders = leading_classes(belief, halt_step, min(top, len(SHADES)))
    names = [short(class_names[k], 9 if top <= 3 else 6) for k in leaders]
    places = ["step"] if not costs else ["exit", "compute"] if steps_per_exit == 1 else ["step", "exit", "compute"]
    table = _trace_table(places, names, None if values is None else threshold)
    taken = sum(len(place) + 2 for place in places) + sum(max(len(name) + 2, 5) + 2 for name in names)
    width = min(30, TERMINAL - len("  " + "+0.000  " + "◀ last step  ") - taken)
    for step, row in enumerate(belief, start=1):
        shares = row[leaders]
        place = {"step": str(step), "exit": str((step - 1) // steps_per_exit + 1)}
        if costs:
            place["compute"] = f"{100 * costs[step - 1]:.0f} %"
        cells = [Text(place[name]) for name in places]
        cells += [_stacked_bar(shares, width), *(Text(f"{share:.3f}") for share in shares)]
        if values is not None:
            cells.append(Text(f"{values[step]:+.3f}" if step < len(values) else ""))
        cells.append(Text(_mark(step, halt_step, len(belief), end, values is not None, bool(costs)), style="bold"))
        table.add_row(*cells, style="dim" if step > halt_step else None)
    return table


def leading_classes(belief: Float[np.ndarray, "steps classes"], halt_step: int, top: int) -> list[int]:
    """The answer, then the classes of highest probability at any step before the halt."""
    answer = int(belief[halt_step - 1].argmax())
    order = np.argsort(-belief[:halt_step].max(axis=0), kind="stable")
    return [answer, *(int(k) for k in order if k != answer)][:top]


def _trace_table(places: Sequence[str], names: Sequence[str], threshold: float | None) -> Table:
    """An empty table; without a threshold it has no column of values."""
    going, stops = ("looking further", "leaves") if "compute" in places else ("going on", "stops")
    note = None if threshold is None else f"V: the gain expected from {going}; below {threshold:.3g}, it {stops}."
    if threshold == NEVER:
        note = f"V: the gain expected from {going}. All steps are taken."
    table = Table(box=None, padding=(0, 2, 0, 0), caption=note, caption_justify="left", header_style="none")
    for place in places:
        table.add_column(place, justify="right", no_wrap=True)
    table.add_column("belief", no_wrap=True)
    for name, shade, colour in zip(names, SHADES, COLOURS, strict=False):
        table.add_column(Text(f"{shade} {name}", style=colour), justify="right", no_wrap=True)
    if threshold is not None:
        table.add_column("V", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    return table


def _stacked_bar(shares: Float[np.ndarray, "leaders"], width: int) -> Text:
    """Round the ends of parts, not their lengths, so that they do not exceed the width."""
    ends = np.rint(width * np.cumsum(shares)).astype(int).clip(0, width)
    lengths = np.diff(ends, prepend=0)
    bar = Text()
    for length, shade, colour in zip(lengths, SHADES, COLOURS, strict=False):
        bar.append(shade * int(length), style=colour)
    return bar.append("·" * (width - int(ends[-1])), style="dim")


def _mark(step: int, halt_step: int, last: int, end: str, has_values: bool, has_exits: bool) -> str:
    if step != halt_step:
        return ""
    if step == last and (has_values or has_exits or end == TIME_UP):
        return f"◀ {end}"
    return "◀ leaves" if has_exits else "◀ stops"
