"""How a table becomes a figure of the paper: curves over epochs, panels whose data is missing, the legend and notes.

What all figures of ricnet share is in `report.figures`.
"""

import textwrap
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
from jaxtyping import Float
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ricnet.report import figures
from ricnet.report.figures import cuts_bands, integer_ticks, look_of
from ricnet.studies.paper.item import distinct

WIDTH = 7.0
"""Inches; the text width of most journals."""
SMALL = 6.5
"""Points; nothing is written smaller."""
LINE = 125
"""Letters of that size that fit the width."""
MOST_POINTS = 250
"""A curve of 2000 epochs on two inches of paper shows no more than this."""
Dash = Literal["-"] | tuple[float, tuple[float, ...]]
"""A solid line, or lengths of ink and gap."""


def thin(table: pd.DataFrame) -> pd.DataFrame:
    """At most so many rows, the first and the last among them: what is drawn was measured, nothing is smoothed."""
    return table.iloc[figures.thin(len(table), MOST_POINTS)]


def draw_curve(ax: Axes, table: pd.DataFrame, x: str, **line: Any) -> None:
    """Mean and band over `x`; nothing without rows."""
    if table.empty:
        return
    at, mean, half = (thin(table.sort_values(x))[name].to_numpy(float) for name in (x, "mean", "half_width"))
    shade, dash = line.pop("color"), line.pop("linestyle", "-")
    figures.draw_curve(ax, at, mean, half, shade, dash, floor=-np.inf, **({"linewidth": 1.1} | line))


def system_line(system: str, points: int, dash: Dash = "-") -> dict[str, Any]:
    """Half a dozen markers a curve, so that systems can be told apart in grey."""
    look, every = look_of(system), max(1, min(points, MOST_POINTS) // 6)
    # Markers of two systems that run together must not cover each other.
    first = (every // 2) * (look.marker == "s") + (every // 4) * (look.marker == "^")
    style = {"color": look.colour, "linestyle": dash, "marker": look.marker, "markevery": (first, every)}
    return style | {"markersize": 3.2, "markerfacecolor": "white", "markeredgewidth": 0.8}


def draw_systems(ax: Axes, table: pd.DataFrame, dash: Dash = "-") -> None:
    """Each system's curve over epochs."""
    for system, own in table.groupby("system", sort=False):
        draw_curve(ax, own, "epoch", **system_line(str(system), len(own), dash))
    ax.set_xlabel("epoch")
    integer_ticks(ax, 4)


def fit(ax: Axes, values: Float[np.ndarray, "n"] | pd.Series) -> None:
    """The vertical range of the means: bands of three seeds are so wide that nothing else would be seen."""
    known = np.asarray(values)[np.isfinite(values)]
    if known.size:
        margin = 0.07 * max(np.ptp(known), 0.01)
        ax.set_ylim(known.min() - margin, known.max() + margin)


def note_missing(ax: Axes, table: pd.DataFrame) -> None:
    """Say in the panel itself what is not in it. To be called last."""
    missing = table.dropna(subset=["missing"]) if "missing" in table else table[:0]
    if len(missing) and len(missing) == len(table):
        _close(ax, "\n".join(distinct(missing, "missing")))
    elif len(missing):
        lines = [f"missing: {row.system} ({row.missing})" for row in missing.itertuples()]
        # An axes has one legend, and it alone looks for a place where no curve runs.
        blank = [Line2D([], [], linestyle="none", label=textwrap.fill(line, 30)) for line in lines]
        ax.legend(handles=blank, loc="best", handlelength=0, handletextpad=0)


def _close(ax: Axes, reason: str) -> None:
    """A panel with nothing in it says why, and has no scales; one that shares its scale keeps it for the others."""
    text = textwrap.fill(f"missing: {reason}", 24)
    ax.text(0.5, 0.5, text, transform=ax.transAxes, va="center", ha="center", fontsize=7)
    ax.tick_params(bottom=False, labelbottom=False)
    ax.set_xlabel("")
    if len(ax.get_shared_y_axes().get_siblings(ax)) == 1:
        ax.tick_params(left=False, labelleft=False)
        ax.set_ylabel("")


def system_handles(table: pd.DataFrame) -> list[Artist]:
    """One entry a system, with how many of its seeds are in the figure."""
    return [
        Line2D([], [], linewidth=1.1, label=f"{system} ({seeds(own)})", **system_line(system, 1) | {"markevery": None})
        for system, own in table.groupby("system", sort=False)
    ]


def seeds(table: pd.DataFrame) -> str:
    """5 seeds; 4 of 5 seeds where one did not finish; 3 to 5 of 5 seeds where panels differ."""
    asked, finished = int(table["asked"].max()), table["seeds"][table["seeds"] > 0]
    if finished.empty:
        return "missing"
    least, most = int(finished.min()), int(finished.max())
    span = f"{most}" if least == most else f"{least} to {most}"
    some = span if least == asked else f"{span} of {asked}"
    return f"{some} seed{'s' * (asked > 1)}"


def intervals(table: pd.DataFrame, shape: str = "Bands") -> str:
    """What the bands are; why there are none; nothing where nothing is drawn."""
    if table["half_width"].notna().any():
        return f"{shape}: 95 % Student-t intervals over seeds"
    return "A single seed has no interval" if table["mean"].notna().any() else ""


def legend(figure: Figure, handles: Sequence[Artist], notes: Sequence[str], columns: int = 6) -> None:
    """Under the panels, with what one must know to read them. To be called last, for it looks at what is drawn."""
    cut = "Intervals are cut at the panel's edge" if cuts_bands(figure) else ""
    where: dict[str, Any] = {"loc": "outside lower center", "ncols": min(columns, len(handles))}
    box = figure.legend(handles=list(handles), title=fill_lines([*notes, cut]), title_fontsize=SMALL, **where)
    box.get_title().set_multialignment("center")


def fill_lines(notes: Sequence[str]) -> str:
    """As many notes on a line as it holds; none is broken that fits a line."""
    lines: list[str] = []
    for note in filter(None, notes):
        longer = f"{lines[-1]}. {note}" if lines else note
        lines[-1:] = [longer] if len(longer) <= LINE else [*lines[-1:], *textwrap.wrap(note, LINE)]
    return "\n".join(lines)
