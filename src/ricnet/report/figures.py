"""Parts of all figures, also of the paper's: style, colours of systems, panels, curves with intervals, reliability
diagrams, halting bars, and SVG for HTML pages."""

import functools
import io
import math
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from html import escape
from itertools import cycle
from typing import Any, Literal, ParamSpec, TypeVar

import matplotlib
import numpy as np
from cycler import cycler
from jaxtyping import Float, Num
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import Collection, LineCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator
from scipy.special import stdtrit

from ricnet.io import FIGURE, MARK, short
from ricnet.methods import METHODS
from ricnet.report.names import without_algorithm
from ricnet.report.runs import RunGroup
from ricnet.report.statistics import UPPER

P = ParamSpec("P")
R = TypeVar("R")

# Okabe & Ito's palette for colour-blind readers, without its yellow, which is too pale for lines.
BLUE, VERMILLION, GREEN, ORANGE, SKY, PURPLE = "#0072b2", "#d55e00", "#009e73", "#e69f00", "#56b4e9", "#cc79a7"
# Four darker colours for larger comparisons.
INDIGO, OLIVE, WINE, BROWN = "#332288", "#8a8a1f", "#882255", "#6b4c2a"
INK = "#24292f"
FAINT = "#8b949e"

TICKS = {"labelsize": 7, "color": FAINT, "labelcolor": INK, "major.width": 0.6, "major.size": 2.5}
STYLE: Any = {
    **{f"{axis}tick.{name}": value for axis in "xy" for name, value in TICKS.items()},
    "font.family": "DejaVu Sans",  # part of matplotlib
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.labelsize": 8,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "text.color": INK,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.prop_cycle": cycler(color=[BLUE, VERMILLION, GREEN, ORANGE, SKY, PURPLE]),
    "lines.linewidth": 1.4,
    "hatch.linewidth": 0.5,
    "text.parse_math": False,  # class names may contain "$"
    "text.usetex": False,
    "pdf.fonttype": 42,
    "svg.fonttype": "path",
    "svg.hashsalt": "ricnet",
}


def house_style() -> AbstractContextManager[None]:
    """Context with the style of ricnet."""
    return matplotlib.rc_context(STYLE)


def styled(draw: Callable[P, R]) -> Callable[P, R]:
    """Decorator: draw in `house_style`. Save the figure within `house_style` too, because ticks are made on saving."""

    @functools.wraps(draw)
    def draw_styled(*args: P.args, **kwargs: P.kwargs) -> R:
        with house_style():
            return draw(*args, **kwargs)

    return draw_styled


def percent_ticks() -> FuncFormatter:
    """Shares as percentages without trailing zeros."""
    return FuncFormatter(lambda share, _: f"{100 * share:.6g} %")


def end_at_whole(ax: Axes) -> None:
    """End an axis of shares just above 100 %: matplotlib's margin would have ticks."""
    bottom, top = ax.get_ylim()
    if top > 1:
        ax.set_ylim(top=1 + 0.04 * max(0.0, 1 - bottom))


# Look of a system: colour, dash and marker


@dataclass(frozen=True)
class Look:
    name: str
    """Name in legends, without the data set if panels name it."""
    colour: str
    dash: Any = "-"
    marker: str = "x"


PALETTE = (SKY, INDIGO, OLIVE, WINE, BROWN, GREEN, PURPLE, ORANGE, BLUE, VERMILLION)
DASHES = ("-", "--", ":", "-.")
MARKERS = "osD^vPX*"
VARIANT_COLOURS = {"RIC, PPO": GREEN, "RIC, logistic-normal": PURPLE}
FIXED_MARKERS = {"RIC": "o", "SL": "s", "ACT": "^", "PonderNet": "v", "RIC, PPO": "^", "RIC, logistic-normal": "D"}
"""Markers in the paper, by title without the algorithm of RIC."""


def look_of(title: str) -> Look:
    """Look of a system by its title, the same in all figures of the paper."""
    plain = without_algorithm(title)
    colours = {method.title: method.colour for method in METHODS.values()} | VARIANT_COLOURS
    return Look(title, colours.get(plain) or SKY, marker=FIXED_MARKERS.get(plain, "x"))


def looks(groups: Sequence[RunGroup]) -> dict[str, Look]:
    """Look of each group by its label. A method always has the same colour; other systems get the remaining ones."""
    places = [(group.first.title, group.first.task) for group in groups]
    names = [  # the run's title if unique on its data
        group.first.title if places.count(place) == 1 else group.label.removesuffix(MARK)
        for group, place in zip(groups, places, strict=True)
    ]
    order, colours = list(dict.fromkeys(names)), dict[str, str]()
    for name, group in zip(names, groups, strict=True):  # first come, first served
        settings = group.first.config["method"]
        method = METHODS.get(settings["name"])
        own = method.colour if method and group.first.method == method.title_of(settings) else None  # None: a variant
        if own is not None and own not in colours.values():
            colours.setdefault(name, own)
    free = cycle([shade for shade in PALETTE if shade not in colours.values()] or PALETTE)
    colours |= {name: next(free) for name in order if name not in colours}
    found = {}
    for group, name in zip(groups, names, strict=True):
        i = order.index(name)
        dash, marker = DASHES[i % len(DASHES)], MARKERS[i % len(MARKERS)]
        found[group.label] = Look(name + MARK * group.collapsed, colours[name], dash, marker)
    return found


# Panels and legends


def task_title(group: RunGroup) -> str:
    return short(group.first.data_label, FIGURE)


def panel_grid(count: int, heights: tuple[float, ...], *, same_scale: bool = True) -> tuple[Figure, list[list[Axes]]]:
    """`count` panels, at most four per row; each panel is a stack of axes with these heights in inches."""
    rows = math.ceil(count / 4)
    columns = math.ceil(count / rows)
    figure = Figure(figsize=(max(3.6, 2.3 * columns), rows * (sum(heights) + 0.55)))
    figure.set_layout_engine("constrained", h_pad=0.07)  # inches
    ratios = list(heights) * rows
    sharey: Literal["row", "none"] = "row" if same_scale else "none"
    axes = figure.subplots(len(ratios), columns, squeeze=False, sharex=True, sharey=sharey, height_ratios=ratios)
    depth = len(heights)
    panels = [[axes[depth * (i // columns) + k, i % columns] for k in range(depth)] for i in range(rows * columns)]
    for ax in (ax for spare in panels[count:] for ax in spare):
        ax.remove()
    for panel in panels[:count]:
        panel[-1].tick_params(labelbottom=True)
    return figure, panels[:count]


def label_rows(panels: Sequence[Sequence[Axes]], *labels: str) -> None:
    """Label the leftmost axes of each row."""
    for panel in panels:
        for ax, label in zip(panel, labels, strict=True):
            place = ax.get_subplotspec()
            if place is not None and place.is_first_col():
                ax.set_ylabel(label)


def letter(ax: Axes, index: int, title: str, **settings: Any) -> None:
    """Set the title with the letter (a), (b), … of a panel."""
    ax.set_title(f"({'abcdefghi'[index]}) {title}", loc="left", **settings)


def legend_below(figure: Figure, shown: Iterable[Look], *, markers: bool = False, more: Sequence[Line2D] = ()) -> None:
    """One legend for all panels, with as many columns as fit; `more` are further entries."""
    lines = [
        Line2D(
            *([], []),
            color=look.colour,
            linestyle=look.dash,
            marker=look.marker if markers else "",
            markersize=5,
            label=short(look.name, FIGURE),
        )
        for look in {look.name: look for look in shown}.values()
    ]
    handles = [*lines, *more]
    entry = 0.5 + 0.065 * max(len(str(handle.get_label())) for handle in handles)  # inches
    columns = max(1, int(figure.get_figwidth() / entry))
    figure.set_figheight(figure.get_figheight() + 0.16 * ((len(handles) - 1) // columns))
    figure.legend(handles=handles, loc="outside lower center", ncols=columns)


def integer_ticks(ax: Axes, most: int = 6) -> None:
    """Integer ticks for steps and epochs."""
    ax.xaxis.set_major_locator(MaxNLocator(most, integer=True, min_n_ticks=1))


# Curves with intervals

POINTS = 200
"""Maximum points of a curve, which limits the size of pages."""
BAND = "_band"
"""Label of intervals; the underscore excludes them from legends."""


def band(curves: Float[np.ndarray, "seeds x"]) -> tuple[Float[np.ndarray, "x"], Float[np.ndarray, "x"]]:
    """Mean over seeds and half-width of the 95 % interval at every point; NaN marks a missing value.

    The half-width is NaN where fewer than two seeds have a value.
    """
    known = ~np.isnan(curves)
    n = known.sum(axis=0).astype(np.float64)
    mean = np.where(known, curves, 0.0).sum(axis=0) / np.where(n > 0, n, np.nan)
    squares = np.where(known, curves - mean, 0.0) ** 2
    freedom = np.where(n > 1, n - 1, np.nan)
    return mean, stdtrit(freedom, UPPER) * np.sqrt(squares.sum(axis=0) / freedom / n)


def draw_band(
    ax: Axes,
    x: Num[np.ndarray, "x"],
    curves: Float[np.ndarray, "seeds x"],
    shade: str,
    dash: Any = "-",
    ceiling: float = np.inf,
    **line: Any,
) -> None:
    """Draw the mean over seeds and its 95 % interval. The axes show at most three times the range of the seeds."""
    kept = thin(len(x))
    x, curves = x[kept], curves[:, kept]
    low, high = float(np.nanmin(curves)), float(np.nanmax(curves))
    draw_curve(ax, x, *band(curves), shade, dash, ceiling, reach=(2 * low - high, 2 * high - low), **line)


def draw_curve(
    ax: Axes,
    x: Num[np.ndarray, "x"],
    mean: Float[np.ndarray, "x"],
    half: Float[np.ndarray, "x"],
    shade: str,
    dash: Any = "-",
    ceiling: float = np.inf,
    reach: tuple[float, float] = (-np.inf, np.inf),
    floor: float = 0.0,
    **line: Any,
) -> None:
    """Draw means and intervals; a NaN half-width has no interval.

    Intervals are clipped to the possible values, `floor` to `ceiling`. `reach` limits how far they extend the axes.
    """
    known = ~np.isnan(half)
    if known.any():
        low, high = np.clip(mean - half, floor, ceiling)[known], np.clip(mean + half, floor, ceiling)[known]
        across = x[known]
        outline = np.concatenate([np.column_stack([across, low]), np.column_stack([across, high])[::-1]])
        area = PolyCollection([outline], facecolor=shade, alpha=0.15, linewidth=0, label=BAND)
        ax.add_collection(area, autolim=False)
        ax.update_datalim(np.column_stack([np.tile(across, 2), np.clip([low, high], *reach).ravel()]))
    ax.plot(x, mean, linestyle=dash, color=shade, **line)


def cuts_bands(figure: Figure) -> bool:
    """Whether an interval extends beyond its panel."""
    return any(_is_cut(ax, area) for ax in figure.axes for area in ax.collections if area.get_label() == BAND)


def _is_cut(ax: Axes, area: Collection) -> bool:
    corners = np.concatenate([np.asarray(path.vertices) for path in area.get_paths()])
    panel = np.transpose([sorted(ax.get_xlim()), sorted(ax.get_ylim())])
    return bool(((corners < panel[0]) | (corners > panel[1])).any())


def thin(count: int, most: int = POINTS) -> Num[np.ndarray, "kept"]:
    """Indices of at most `most` evenly spaced points, including the first and the last."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int))


def draw_intervals(
    ax: Axes, x: Num[np.ndarray, "x"], low: Float[np.ndarray, "x"], high: Float[np.ndarray, "x"], width: float = 0.8
) -> None:
    """Vertical lines for intervals of bars and points."""
    lines = [[(place, a), (place, b)] for place, a, b in zip(x, low, high, strict=True) if np.isfinite([a, b]).all()]
    if lines:
        ax.add_collection(LineCollection(lines, colors=INK, linewidths=width, zorder=3, label=BAND))


# Reliability diagrams and halting steps

DIAGONAL: dict[str, Any] = {"color": FAINT, "linewidth": 0.8, "linestyle": (0, (4, 3))}
GAP: dict[str, Any] = {"facecolor": "none", "edgecolor": INK, "linewidth": 0.5, "hatch": "//////"}


def draw_reliability(
    ax: Axes,
    lower: Float[np.ndarray, "bins"],
    upper: Float[np.ndarray, "bins"],
    accuracy: Float[np.ndarray, "bins"],
    confidence: Float[np.ndarray, "bins"],
    shade: str,
    alpha: float | Float[np.ndarray, "bins"] = 0.8,
) -> None:
    """Bars of accuracy by bin of confidence, with the gap to the confidence hatched; NaN draws no bar."""
    ax.plot([0, 1], [0, 1], zorder=0, **DIAGONAL)
    shown = ~np.isnan(accuracy)
    left, width, height = lower[shown], (upper - lower)[shown], accuracy[shown]
    bars = ax.bar(left, height, width, align="edge", color=shade, edgecolor="none")
    for bar, strength in zip(bars, np.broadcast_to(alpha, accuracy.shape)[shown], strict=True):
        bar.set_alpha(float(strength))
    ax.bar(left, confidence[shown] - height, width, height, align="edge", **GAP)
    ax.set(xlim=(0, 1), yticks=[0, 0.25, 0.5, 0.75, 1])


def reliability_handles() -> list[Artist]:
    return [Patch(**GAP, label="gap to confidence"), Line2D([], [], **DIAGONAL, label="perfectly calibrated")]


def draw_halting(
    ax: Axes, steps: Num[np.ndarray, "steps"], right: Num[np.ndarray, "steps"], wrong: Num[np.ndarray, "steps"]
) -> None:
    """Histogram of steps taken, right answers upwards and wrong ones downwards, each as percentage of its own number.

    `right` and `wrong` are counts or shares by step; triangles mark the means.
    """
    for counts, shade, sign in ((right, BLUE, 1), (wrong, VERMILLION, -1)):
        total = counts.sum()
        ax.bar(steps, sign * 100 * counts / (total or 1), 0.82, color=shade, alpha=0.85)
        if total:
            mark = "^" if sign > 0 else "v"
            ax.plot([(steps * counts).sum() / total], [0], mark, color=INK, markersize=4, clip_on=False, zorder=4)
    ax.axhline(0, color=FAINT, linewidth=0.6)
    integer_ticks(ax)
    ax.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{abs(share):.0f}"))


def halting_handles(right: int, wrong: int) -> list[Artist]:
    """Legend entries with numbers of answers."""
    counts = {f"right (n = {right:,})": BLUE, f"wrong (n = {wrong:,})": VERMILLION}
    return [Patch(facecolor=shade, alpha=0.85, label=label) for label, shade in counts.items()]


# SVG inside an HTML page

PAGE_COLOURS = {
    INK: "currentColor",
    FAINT: "color-mix(in srgb, currentColor 50%, transparent)",
    BLUE: "var(--accent)",
    INDIGO: "var(--indigo)",
    WINE: "var(--wine)",
    BROWN: "var(--brown)",
}
"""Colours that the style sheet of the page replaces, so that they are visible on a dark page."""


def inline_svg(figure: Figure, name: str, alt: str) -> str:
    """SVG for an HTML page. `name` makes ids unique on the page; `alt` is the text for screen readers."""
    with io.StringIO() as text, house_style():
        figure.savefig(text, format="svg", transparent=True)
        drawing = text.getvalue()
    drawing = drawing[drawing.index("<svg") :]
    drawing = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", drawing, flags=re.DOTALL)
    drawing = re.sub(r'\bid="', f'id="{name}-', drawing)
    drawing = re.sub(r'(href="#|url\(#)', rf"\g<1>{name}-", drawing)
    drawing = re.sub(r' d="[^"]*"', _rounded, drawing)
    for colour, page_colour in PAGE_COLOURS.items():
        drawing = drawing.replace(colour, page_colour)
    # Between 85 % and 135 % of the drawn size.
    width, height = (72 * inches for inches in figure.get_size_inches())
    size = f"min-width: {0.85 * width:.0f}pt; max-width: {1.35 * width:.0f}pt"
    opening = f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(alt)}" style="{size}">'
    return opening + drawing[drawing.index(">") + 1 :]


def _rounded(path: re.Match[str]) -> str:
    """Round coordinates to a hundredth of a point, which saves a third of the page's size."""
    return re.sub(r"\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}", path[0]).replace("\n", "")
