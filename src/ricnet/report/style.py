"""The look of every figure, in one place: colours that colour-blind readers can tell apart, quiet axes."""

import functools
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, ParamSpec

import matplotlib
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ricnet.report.runs import RunRecord

P = ParamSpec("P")

# Okabe & Ito's palette, without its yellow, which is too pale for a line on white.
BLUE, VERMILLION, GREEN, ORANGE, SKY, PURPLE = "#0072b2", "#d55e00", "#009e73", "#e69f00", "#56b4e9", "#cc79a7"
INK = "#24292f"
FAINT = "#8b949e"

METHOD_COLOURS = {"RIC": BLUE, "SL": VERMILLION, "ACT": GREEN, "PonderNet": PURPLE, "Anytime": ORANGE}
LINE_STYLES = ("-", "--", ":", "-.")

STYLE: Any = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so a figure looks the same everywhere
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "text.color": INK,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "axes.prop_cycle": cycler(color=[BLUE, VERMILLION, GREEN, ORANGE, SKY, PURPLE]),
    "lines.linewidth": 1.4,
    "hatch.linewidth": 0.5,
    "text.parse_math": False,  # a class called "$5" is a name, not a formula
    "text.usetex": False,
    "pdf.fonttype": 42,
    "svg.fonttype": "path",
    "svg.hashsalt": "ricnet",
}


def house_style() -> AbstractContextManager[None]:
    """Our style inside a `with`; matplotlib's own settings are as they were after it."""
    return matplotlib.rc_context(STYLE)


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Draw in our style, whole, so that it stays whoever saves the figure later."""

    @functools.wraps(draw)
    def draw_styled(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with house_style():
            figure = draw(*args, **kwargs)
            figure.draw_without_rendering()  # ticks are made late; made here, they keep the style
        return figure

    return draw_styled


def colour(run: RunRecord) -> str:
    return METHOD_COLOURS.get(run.method, SKY)


def line_styles(runs: Sequence[RunRecord]) -> list[str]:
    """Runs of one method share its colour and are told apart by their dashes."""
    before = [sum(other.method == run.method for other in runs[:i]) for i, run in enumerate(runs)]
    return [LINE_STYLES[count % len(LINE_STYLES)] for count in before]


def panel_grid(count: int, heights: tuple[float, ...], *, same_scale: bool = True) -> tuple[Figure, list[list[Axes]]]:
    """A figure of `count` panels, at most four abreast; each panel is a stack of axes of these heights (inches)."""
    rows = math.ceil(count / 4)
    columns = math.ceil(count / rows)
    figure = Figure(figsize=(max(3.6, 2.3 * columns), rows * (sum(heights) + 0.5)), layout="constrained")
    ratios = list(heights) * rows
    sharey: Literal["row", "none"] = "row" if same_scale else "none"
    axes = figure.subplots(len(ratios), columns, squeeze=False, sharex=True, sharey=sharey, height_ratios=ratios)
    depth = len(heights)
    panels = [[axes[depth * (i // columns) + k, i % columns] for k in range(depth)] for i in range(rows * columns)]
    for spare in panels[count:]:
        for ax in spare:
            ax.remove()
    for panel in panels[:count]:
        panel[-1].tick_params(labelbottom=True)
    return figure, panels[:count]


def label_rows(panels: Sequence[Sequence[Axes]], *labels: str) -> None:
    """Scales are named once a row, at its left end."""
    for panel in panels:
        for ax, label in zip(panel, labels, strict=True):
            place = ax.get_subplotspec()
            if place is not None and place.is_first_col():
                ax.set_ylabel(label)
