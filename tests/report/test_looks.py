from dataclasses import replace

import pytest
from matplotlib.figure import Figure

from ricnet.report.figures import BLUE, GREEN, PALETTE, VERMILLION, legend_below, looks
from ricnet.report.runs import RunGroup


def named(group: RunGroup, method: str, label: str | None = None, data: str = "digits", noise: float = 0) -> RunGroup:
    config = {**group.first.config, "method": {"name": method}, "data": data, "label_noise": noise}
    return RunGroup(label or method, (replace(group.first, config=config),))


def test_methods_keep_their_colours(systems: list[RunGroup]) -> None:
    assert [look.colour for look in looks(systems).values()] == [BLUE, VERMILLION, GREEN]
    assert [look.colour for look in looks(systems[::-1]).values()] == [GREEN, VERMILLION, BLUE]


@pytest.mark.parametrize("count", [7, 10])
def test_many_systems_have_a_colour_each(systems: list[RunGroup], count: int) -> None:
    found = looks([systems[0], *(named(systems[0], f"m{i}") for i in range(count - 1))])
    assert len({look.colour for look in found.values()}) == count


def test_twenty_systems_differ_in_colour_or_dash(systems: list[RunGroup]) -> None:
    found = looks([named(systems[0], f"m{i}") for i in range(20)])
    assert len({(look.colour, look.dash) for look in found.values()}) == 20


def test_variants_of_a_method_differ(systems: list[RunGroup]) -> None:
    """The first has the method's colour, and legends say what differs."""
    found = looks([named(systems[0], "ric", f"RIC, gamma {gamma}") for gamma in (0.8, 0.9)])
    first, second = found.values()
    assert (first.colour, first.name) == (BLUE, "RIC, gamma 0.8")
    assert second.colour != first.colour
    assert second.colour in PALETTE


def test_a_system_looks_the_same_on_all_data(systems: list[RunGroup]) -> None:
    groups = [named(systems[0], "ric", f"RIC, {data}", data) for data in ("digits", "svhn")]
    groups.append(named(systems[0], "ric", "RIC, noisy", noise=0.4))
    assert {(look.name, look.colour, look.dash) for look in looks(groups).values()} == {("RIC", BLUE, "-")}


def test_a_long_legend_makes_the_figure_taller_not_its_panels_smaller(systems: list[RunGroup]) -> None:
    figure = Figure(figsize=(4, 3))
    legend_below(figure, looks([named(systems[0], f"method number {i}") for i in range(9)]).values())
    assert figure.get_figheight() > 3.4
    assert len(figure.legends[0].get_texts()) == 9
