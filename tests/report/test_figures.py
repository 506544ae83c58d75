import re
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
from matplotlib.figure import Figure

from ricnet.methods import METHODS, Supervised
from ricnet.report.figures import (
    BLUE,
    FAINT,
    GREEN,
    INDIGO,
    INK,
    PALETTE,
    POINTS,
    VERMILLION,
    by_task,
    cuts_bands,
    draw_band,
    inline_svg,
    label_rows,
    legend_below,
    look_of,
    looks,
    overlay_grid,
    panel_grid,
    styled,
    task_title,
    thin,
)
from ricnet.report.runs import RunGroup


def test_the_line_is_the_mean_and_the_band_its_t_interval() -> None:
    """Three seeds 4, 5, 6 at x = 0: s = 1, t = 4.3027 with two degrees of freedom, so 4.3027/√3 either way."""
    ax = Figure().subplots()
    draw_band(ax, np.array([0, 1]), np.array([[4.0, 7.0], [5.0, 7.0], [6.0, 7.0]]), "#0072b2")
    assert list(ax.lines[0].get_ydata()) == [5, 7]
    corners = ax.collections[0].get_paths()[0].vertices
    heights = sorted({round(y, 3) for x, y in corners if x == 0})
    assert heights == pytest.approx([5 - 4.3027 / 3**0.5, 5 + 4.3027 / 3**0.5], abs=1e-3)


def test_one_seed_has_no_band() -> None:
    ax = Figure().subplots()
    draw_band(ax, np.arange(3), np.array([[1.0, 2.0, 3.0]]), "#0072b2", "--", label="x")
    assert not ax.collections
    assert ax.lines[0].get_linestyle() == "--"


def test_the_axes_make_room_for_the_band_up_to_twice_the_seeds() -> None:
    ax = Figure().subplots()
    draw_band(ax, np.arange(2), np.array([[0.0, 1.0], [1.0, 2.0]]), "#0072b2")
    low, high = ax.get_ylim()
    assert low == pytest.approx(-0.2, abs=0.05)
    assert high == pytest.approx(4, abs=0.3)


def test_a_band_that_leaves_its_panel_is_noticed() -> None:
    """Two seeds have a band of 12.7 standard errors; of five, here, it is narrower than the seeds' own spread."""
    figure = Figure()
    wide, narrow = figure.subplots(1, 2)
    draw_band(narrow, np.arange(2), np.linspace(1, 2, 5)[:, None] * np.ones((1, 2)), "#0072b2")
    assert not cuts_bands(figure)
    draw_band(wide, np.arange(2), np.array([[10.0, 11.0], [11.0, 12.0]]), "#0072b2")
    assert cuts_bands(figure)
    wide.set_ylim(0, 100)
    assert not cuts_bands(figure)


def test_a_band_stays_where_the_quantity_can_be() -> None:
    ax = Figure().subplots()
    draw_band(ax, np.arange(2), np.array([[0.1, 0.9], [0.2, 0.95]]), "#0072b2", ceiling=1.0)
    heights = ax.collections[0].get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == (0, 1)


@pytest.mark.parametrize("count", [1, 2, POINTS, POINTS + 1, 2000])
def test_thinning_keeps_both_ends(count: int) -> None:
    kept = thin(count)
    assert (kept[0], kept[-1], len(kept)) == (0, count - 1, min(count, POINTS))
    assert np.diff(kept).max(initial=1) <= count / POINTS + 1


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


def on(group: RunGroup, **config: object) -> RunGroup:
    return RunGroup(group.label, (replace(group.first, config={**group.first.config, **config}),))


def test_data_and_noise_make_a_task(systems: list[RunGroup]) -> None:
    ric, sl, act = systems
    noisy, elsewhere = on(sl, label_noise=0.2), on(act, data="my/svhn")
    found = by_task([ric, elsewhere, noisy, sl])
    assert [[group.label for group in alike] for alike in found] == [["RIC", "SL"], ["ACT"], ["SL"]]
    assert [task_title(alike[0]) for alike in found] == ["digits", "svhn", "digits, 20 % flipped"]


@pytest.mark.parametrize(("count", "columns"), [(1, 1), (4, 4), (5, 3), (8, 4), (9, 3)])
def test_panels_stand_at_most_four_abreast(count: int, columns: int) -> None:
    figure, panels = panel_grid(count, heights=(2.0, 1.0))
    label_rows(panels, "above", "below")
    assert len(panels) == count
    assert len(figure.axes) == 2 * count
    named = [above.get_ylabel() == "above" for above, _ in panels]
    assert named == [place % columns == 0 for place in range(count)]


@pytest.mark.parametrize(("count", "rows"), [(1, 1), (3, 1), (4, 2), (5, 2)])
def test_overlays_stand_at_most_three_abreast(count: int, rows: int) -> None:
    figure, panels = overlay_grid(count)
    assert len(panels) == len(figure.axes) == count
    assert panels[0].get_gridspec().nrows == rows


@styled
def drawing() -> Figure:
    figure = Figure(figsize=(2, 1))
    ax = figure.subplots()
    for shade in (BLUE, INDIGO, INK, FAINT):
        ax.plot([0, 1 / 3], [0, 2 / 3], color=shade)
    return figure


def test_colours_follow_the_page() -> None:
    svg = inline_svg(drawing(), "x", "")
    assert all(name in svg for name in ("var(--accent)", "var(--indigo)", "currentColor"))
    assert not any(shade in svg for shade in (BLUE, INDIGO, INK, FAINT))


def test_ids_carry_the_figure_s_name() -> None:
    svg = inline_svg(drawing(), "steps", "")
    ids = set(re.findall(r'\bid="([^"]+)"', svg))
    assert ids
    assert all(name.startswith("steps-") for name in ids)
    assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', svg)) <= ids


def test_paths_are_rounded_and_transforms_are_not() -> None:
    svg = inline_svg(drawing(), "x", "")
    assert not re.search(r"\.\d{3}", "".join(re.findall(r' d="([^"]*)"', svg)))
    assert "scale(0.015625)" in svg


def test_the_alternative_text_is_escaped() -> None:
    assert 'aria-label="&lt;b&gt; &quot;x&quot;"' in inline_svg(drawing(), "x", '<b> "x"')


def test_a_registered_method_has_its_own_title_and_colour(systems: list[RunGroup], monkeypatch: Any) -> None:
    @dataclass(frozen=True)
    class Mine(Supervised):
        name: ClassVar[str] = "mine"
        title: ClassVar[str] = "Mine"
        colour: ClassVar[str] = "#123456"

    monkeypatch.setitem(METHODS, "mine", Mine)
    run = replace(systems[1].first, config=systems[1].first.config | {"method": {"name": "mine"}})
    assert run.method == "Mine"
    assert looks([RunGroup("Mine", (run,))])["Mine"].colour == look_of("Mine").colour == "#123456"
