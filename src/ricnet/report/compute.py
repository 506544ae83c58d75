"""What accuracy costs: answers forced after every step, and where each system stops by itself."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from ricnet.report.figures import (
    Look,
    by_task,
    draw_band,
    legend_below,
    looks,
    overlay_grid,
    percent_ticks,
    styled,
    task_title,
)
from ricnet.report.runs import RunGroup
from ricnet.report.steps import mean_of, step_curves, steps_computed

TICKS = (1, 2, 5, 10, 20, 50, 100, 200, 500)


@styled
def compute_figure(groups: Sequence[RunGroup]) -> Figure:
    """A panel for each data set. Steps are halved and doubled, not added: a logarithmic axis."""
    look, columns = looks(groups), by_task(groups)
    figure, panels = overlay_grid(len(columns))
    for ax, alike in zip(panels, columns, strict=True):
        for group in alike:
            _draw_system(ax, group, look[group.label])
        last = max(len(group.first.test["per_step"]) for group in alike)
        ax.set(title=task_title(alike[0]), xlabel="steps computed", xscale="log")
        ax.xaxis.set_major_locator(FixedLocator([tick for tick in TICKS if tick < 0.8 * last] + [last]))
        ax.xaxis.set_minor_locator(NullLocator())
        ax.xaxis.set_major_formatter("{x:g}")
        ax.yaxis.set_major_formatter(percent_ticks())
        ax.set_ylabel("test accuracy")
    legend_below(figure, look.values(), markers=True)
    return figure


def _draw_system(ax: Axes, group: RunGroup, look: Look) -> None:
    """One pass is a point, with a faint level to compare curves with; several steps are a curve with its halt.

    Made to answer after t steps, every example costs t. One that stops by its value pays for one more, which tells it
    that it is over.
    """
    if group.first.iterative:
        draw_band(ax, *step_curves(group, "accuracy"), look.colour, look.dash, ceiling=1.0)
    else:
        ax.axhline(mean_of(group, "accuracy"), color=look.colour, linewidth=0.8, linestyle=look.dash, alpha=0.6)
    halt = steps_computed(group), mean_of(group, "accuracy")
    ax.plot(*halt, look.marker, color=look.colour, markersize=5.5, markeredgecolor="white", zorder=3)
