"""Logarithmic axes for figures in the house style, which reads no formulas, so not 10^3 as matplotlib writes it."""

from typing import Literal

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter


def use_log_scale(ax: Axes, which: Literal["x", "y"], ticks: int = 6) -> None:
    """Plain numbers at powers of ten, few enough to be read."""
    ax.set(**{f"{which}scale": "log"})
    axis = ax.xaxis if which == "x" else ax.yaxis
    axis.set_major_locator(LogLocator(numticks=ticks))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())
