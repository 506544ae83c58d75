"""A prediction thinking aloud in the terminal: one line a step, the belief as a stacked bar.

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
) -> Table:
    """The belief after each step; `top` classes (at most five) have a shade of their own."""
    belief = np.exp(log_beliefs)
    leaders = leading_classes(belief, halt_step, min(top, len(SHADES)))
    names = [short(class_names[k], 9 if top <= 3 else 6) for k in leaders]
    table = _frame(names, values is not None)
    taken = sum(max(len(name) + 2, 5) + 2 for name in names)
    width = min(30, WIDTH - len("step  " + "  " + "+0.000  " + "◀ last step  ") - taken)
    for step, row in enumerate(belief, start=1):
        shares = row[leaders]
        cells = [Text(str(step)), _bar(shares, width), *(Text(f"{share:.3f}") for share in shares)]
        if values is not None:
            cells.append(Text(f"{values[step]:+.3f}" if step < len(values) else ""))
        cells.append(Text(_mark(step, halt_step, values), style="bold"))
        table.add_row(*cells, style="dim" if step > halt_step else None)
    return table


def leading_classes(belief: Float[np.ndarray, "steps classes"], halt_step: int, top: int) -> list[int]:
    """The answer first, then the classes that were ever believed most before the halt."""
    answer = int(belief[halt_step - 1].argmax())
    order = np.argsort(-belief[:halt_step].max(axis=0), kind="stable")
    return [answer, *(int(k) for k in order if k != answer)][:top]


def _frame(names: Sequence[str], has_values: bool) -> Table:
    note = "V: the gain expected from going on; below its threshold, it stops." if has_values else None
    table = Table(box=None, padding=(0, 2, 0, 0), caption=note, caption_justify="left", header_style="none")
    table.add_column("step", justify="right")
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


def _mark(step: int, halt_step: int, values: np.ndarray | None) -> str:
    if step != halt_step:
        return ""
    return "◀ last step" if values is not None and step == len(values) else "◀ stops"
