"""The look of every figure, in one place: colours that colour-blind readers can tell apart, quiet axes."""

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, ParamSpec

import matplotlib
from cycler import cycler
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

P = ParamSpec("P")

# Okabe & Ito's palette, without its yellow, which is too pale for a line on white.
BLUE, VERMILLION, GREEN, ORANGE, SKY, PURPLE = "#0072b2", "#d55e00", "#009e73", "#e69f00", "#56b4e9", "#cc79a7"
# Four more for larger comparisons, dark where the six are bright.
INDIGO, OLIVE, WINE, BROWN = "#332288", "#8a8a1f", "#882255", "#6b4c2a"
INK = "#24292f"
FAINT = "#8b949e"

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


def percent_ticks() -> FuncFormatter:
    """Of a share, in per cent: as many digits as a tick has, none to fill up."""
    return FuncFormatter(lambda share, _: f"{100 * share:.6g} %")
