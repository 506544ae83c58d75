"""A prediction thinking aloud in the terminal: one line a step, the belief as a stacked bar. With exits each line also
says how much of the network had been computed by then.

Shades of the bar differ as well as its colours, so the trace reads the same in a log file.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from rich.table import Table
from rich.text import Text

from ricnet.report.titles import short

SHADES = "█▓▒░▚"
COLOURS = ("blue", "yellow", "magenta", "cyan", "green")  # the terminal's own, so that its theme is kept
WIDTH = 80


def trace_lines(
    log_beliefs: Float[np.ndarray, "steps classes"],
    values: Float[np.ndarray, "steps"] | None,
    halt_step: int,
    class_names: Sequence[str],
    top: int = 3,
    costs: Sequence[float] = (),
    steps_per_exit: int = 1,
) -> Table:
    """The belief after each step; `top` classes (at most five) have a shade of their own. With exits, `costs` are those
    of the trajectory."""
    belief = np.exp(log_beliefs)
    leaders = leading_classes(belief, halt_step, min(top, len(SHADES)))
    names = [short(class_names[k], 9 if top <= 3 else 6) for k in leaders]
    places = ["step"] if not costs else ["exit", "compute"] if steps_per_exit == 1 else ["step", "exit", "compute"]
    table = _frame(places, names, values is not None)
    taken = sum(len(place) + 2 for place in places) + sum(max(len(name) + 2, 5) + 2 for name in names)
    width = min(30, WIDTH - len("  " + "+0.000  " + "◀ last step  ") - taken)
    for step, row in enumerate(belief, start=1):
        shares = row[leaders]
        place = {"step": str(step), "exit": str((step - 1) // steps_per_exit + 1)}
        if costs:
            place["compute"] = f"{100 * costs[step - 1]:.0f} %"
        cells = [
            *(Text(place[name]) for name in places),
            _bar(shares, width),
            *(Text(f"{share:.3f}") for share in shares),
        ]
        if values is not None:
            cells.append(Text(f"{values[step]:+.3f}" if step < len(values) else ""))
        cells.append(Text(_mark(step, halt_step, len(belief), values is not None, bool(costs)), style="bold"))
        table.add_row(*cells, style="dim" if step > halt_step else None)
    return table


def leading_classes(belief: Float[np.ndarray, "steps classes"], halt_step: int, top: int) -> list[int]:
    """The answer first, then the classes that were ever believed most before the halt."""
    answer = int(belief[halt_step - 1].argmax())
    order = np.argsort(-belief[:halt_step].max(axis=0), kind="stable")
    return [answer, *(int(k) for k in order if k != answer)][:top]


def _frame(places: Sequence[str], names: Sequence[str], has_values: bool) -> Table:
    note = "V: the gain expected from going on; below its threshold, it stops." if has_values else None
    if note and "compute" in places:
        note = "V: the gain expected from looking further; below its threshold, it leaves."
    table = Table(box=None, padding=(0, 2, 0, 0), caption=note, caption_justify="left", header_style="none")
    for place in places:
        table.add_column(place, justify="right", no_wrap=True)
    table.add_column("belief", no_wrap=True)
    for name, shade, colour in zip(names, SHADES, COLOURS, strict=False):
        table.add_column(Text(f"{shade} {name}", style=colour), justify="right", no_wrap=True)
    if has_values:
        table.add_column("V", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    return table


def _bar(shares: Float[np.ndarray, "leaders"], width: int) -> Text:
    """Ends are rounded, not lengths, so the parts never add up to more than the whole."""
    ends = np.rint(width * np.cumsum(shares)).astype(int).clip(0, width)
    lengths = np.diff(ends, prepend=0)
    bar = Text()
    for length, shade, colour in zip(lengths, SHADES, COLOURS, strict=False):
        bar.append(shade * int(length), style=colour)
    return bar.append("·" * (width - int(ends[-1])), style="dim")


def _mark(step: int, halt_step: int, last: int, has_values: bool, has_exits: bool) -> str:
    if step != halt_step:
        return ""
    if step == last and (has_values or has_exits):
        return "◀ last exit" if has_exits else "◀ last step"
    return "◀ leaves" if has_exits else "◀ stops"
