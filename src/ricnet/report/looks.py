"""Which colour, dash and marker a system has, the same in every figure of a report."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ricnet.report.groups import RunGroup
from ricnet.report.style import BLUE, BROWN, GREEN, INDIGO, OLIVE, ORANGE, PURPLE, SKY, VERMILLION, WINE
from ricnet.report.titles import ALGORITHMS
from ricnet.report.words import FIGURE, short

METHOD_COLOURS = {"SL": VERMILLION, "ACT": GREEN, "PonderNet": PURPLE, "Anytime": ORANGE} | dict.fromkeys(
    ALGORITHMS, BLUE
)
PALETTE = (SKY, INDIGO, OLIVE, WINE, BROWN, GREEN, PURPLE, ORANGE, BLUE, VERMILLION)
DASHES = ("-", "--", ":", "-.")
MARKERS = "osD^vPX*"


@dataclass(frozen=True)
class Look:
    name: str
    """What legends call it: without the data where panels already say them."""
    colour: str
    dash: Any
    """As matplotlib calls it."""
    marker: str


def looks(groups: Sequence[RunGroup]) -> dict[str, Look]:
    """The look of each group, by its label.

    A method keeps its colour on all data and in all reports; further systems take the colours that are left. Dashes
    and markers differ as well, for eyes and printers that see no colour.
    """
    names = _system_names(groups)
    wanted = {name: METHOD_COLOURS.get(group.first.method) for name, group in zip(names, groups, strict=True)}
    colours = _share_out(wanted)
    order = list(wanted)
    return {
        group.label: Look(name, colours[name], _nth(DASHES, order.index(name)), _nth(MARKERS, order.index(name)))
        for group, name in zip(groups, names, strict=True)
    }


def _share_out(wanted: Mapping[str, str | None]) -> dict[str, str]:
    """The first to want a colour gets it; the rest take what is left, in turn."""
    given: dict[str, str] = {}
    for name, shade in wanted.items():
        if shade is not None and shade not in given.values():
            given[name] = shade
    free = [shade for shade in PALETTE if shade not in given.values()] or list(PALETTE)
    others = [name for name in wanted if name not in given]
    return given | {name: _nth(free, place) for place, name in enumerate(others)}


def _system_names(groups: Sequence[RunGroup]) -> list[str]:
    """The method alone where it tells the systems of each data set apart, the whole label otherwise."""
    places = [(group.first.method, group.first.task) for group in groups]
    return [
        group.first.method if places.count(place) == 1 else group.label
        for group, place in zip(groups, places, strict=True)
    ]


def legend_below(figure: Figure, shown: Iterable[Look], *, markers: bool = False) -> None:
    """One legend for all panels, an entry for each system, as many abreast as the figure is wide."""
    lines = {
        look.name: Line2D(
            *([], []),
            color=look.colour,
            linestyle=look.dash,
            marker=look.marker if markers else "",
            markersize=5,
            label=short(look.name, FIGURE),
        )
        for look in shown
    }
    entry = 0.5 + 0.065 * max(len(short(name, FIGURE)) for name in lines)  # inches
    columns = max(1, int(figure.get_figwidth() / entry))
    figure.set_figheight(figure.get_figheight() + 0.16 * ((len(lines) - 1) // columns))
    figure.legend(handles=list(lines.values()), loc="outside lower center", ncols=columns)


def _nth(choices: Sequence[str], place: int) -> str:
    return choices[place % len(choices)]
