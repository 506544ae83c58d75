"""A curve of a system: the mean over its seeds, and a band that says how far to trust it."""

from typing import Any

import numpy as np
from jaxtyping import Float, Num
from matplotlib.axes import Axes
from matplotlib.collections import Collection, PolyCollection
from matplotlib.figure import Figure

from ricnet.report.statistics import band

POINTS = 200  # more are not seen, and a page of long runs would grow with them
BAND = "_band"  # matplotlib keeps labels with an underscore out of legends


def draw_band(
    ax: Axes,
    x: Num[np.ndarray, "x"],
    curves: Float[np.ndarray, "seeds x"],
    shade: str,
    dash: str = "-",
    ceiling: float = np.inf,
    **line: Any,
) -> None:
    """`ceiling` is the most the quantity can be; none that we draw can be less than 0."""
    kept = thin(len(x))
    x, curves = x[kept], curves[:, kept]
    mean, half = band(curves)
    if not np.isnan(half).all():
        _fill(ax, x, curves, np.clip(mean + [[-1], [1]] * half, 0, ceiling), shade)
    ax.plot(x, mean, dash, color=shade, **line)


def _fill(
    ax: Axes,
    x: Num[np.ndarray, "x"],
    curves: Float[np.ndarray, "seeds x"],
    edges: Float[np.ndarray, "2 x"],
    shade: str,
) -> None:
    """The axes make room for the band as far as the seeds reach once more: of two seeds it may be ten times that."""
    known = ~np.isnan(edges[0])
    outline = np.concatenate([np.stack([x, edges[0]], axis=1)[known], np.stack([x, edges[1]], axis=1)[known][::-1]])
    area = PolyCollection([outline], facecolor=shade, alpha=0.15, linewidth=0, label=BAND)
    ax.add_collection(area, autolim=False)
    low, high = float(np.nanmin(curves)), float(np.nanmax(curves))
    shown = np.clip(edges[:, known], 2 * low - high, 2 * high - low)
    ax.update_datalim(np.column_stack([np.tile(x[known], 2), shown.ravel()]))


def cuts_bands(figure: Figure) -> bool:
    """Whether a band goes on beyond the edge of its panel."""
    return any(_is_cut(ax, area) for ax in figure.axes for area in ax.collections if area.get_label() == BAND)


def _is_cut(ax: Axes, area: Collection) -> bool:
    heights = np.concatenate([np.asarray(path.vertices)[:, 1] for path in area.get_paths()])
    low, high = ax.get_ylim()
    return bool(heights.min() < low or heights.max() > high)


def thin(count: int) -> Num[np.ndarray, "kept"]:
    """Places of at most `POINTS` of them, evenly spread, the first and the last always among them."""
    return np.unique(np.linspace(0, count - 1, min(count, POINTS)).round().astype(int))
