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
    cuts_bands,
    draw_band,
    inline_svg,
    label_rows,
    legend_below,
    look_of,
    looks,
    panel_grid,
    styled,
    task_title,
    thin,
)
from ricnet.report.runs import RunGroup, RunRecord, by_task


def test_the_line_is_the_mean_and_the_band_its_t_interval() -> None:
    """Three seeds 4, 5, 6 at x = 0: s = 1, t = 4.3027 with two degrees of freedom, so 4.3027/√3 either way."""
    ax, alone = Figure().subplots(1, 2)
    draw_band(ax, np.array([0, 1]), np.array([[4.0, 7.0], [5.0, 7.0], [6.0, 7.0]]), BLUE)
    assert list(ax.lines[0].get_ydata()) == [5, 7]
    corners = ax.collections[0].get_paths()[0].vertices
    heights = sorted({round(y, 3) for x, y in corners if x == 0})
    assert heights == pytest.approx([5 - 4.3027 / 3**0.5, 5 + 4.3027 / 3**0.5], abs=1e-3)
    draw_band(alone, np.arange(3), np.array([[1.0, 2.0, 3.0]]), BLUE, "--", label="x")  # one seed has no band
    assert (len(alone.collections), alone.lines[0].get_linestyle()) == (0, "--")


def test_the_axes_make_room_for_the_band_up_to_twice_the_seeds() -> None:
    ax, share = Figure().subplots(1, 2)
    draw_band(ax, np.arange(2), np.array([[0.0, 1.0], [1.0, 2.0]]), BLUE)
    low, high = ax.get_ylim()
    assert low == pytest.approx(-0.2, abs=0.05)
    assert high == pytest.approx(4, abs=0.3)
    draw_band(share, np.arange(2), np.array([[0.1, 0.9], [0.2, 0.95]]), BLUE, ceiling=1.0)
    heights = share.collections[0].get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == (0, 1)  # clipped to possible values


def test_a_band_that_leaves_its_panel_is_noticed() -> None:
    """Two seeds give a band of 12.7 standard errors; here five give one narrower than their spread."""
    wide, narrow = (figure := Figure()).subplots(1, 2)
    draw_band(narrow, np.arange(2), np.linspace(1, 2, 5)[:, None] * np.ones((1, 2)), BLUE)
    assert not cuts_bands(figure)
    draw_band(wide, np.arange(2), np.array([[10.0, 11.0], [11.0, 12.0]]), BLUE)
    assert cuts_bands(figure)
    wide.set_ylim(0, 100)
    assert not cuts_bands(figure)


@pytest.mark.parametrize("count", [1, 2, POINTS, POINTS + 1, 2000])
def test_thinning_keeps_both_ends(count: int) -> None:
    kept = thin(count)
    assert (kept[0], kept[-1], len(kept)) == (0, count - 1, min(count, POINTS))
    assert np.diff(kept).max(initial=1) <= count / POINTS + 1


@pytest.fixture
def named(ric: RunRecord) -> Any:
    def group(method: str, label: str | None = None, **config: object) -> RunGroup:
        changed = replace(ric, config={**ric.config, "method": {"name": method}, **config})
        return RunGroup(label or method, (changed,))

    return group


def test_methods_and_their_variants_have_colours_of_their_own(systems: list[RunGroup], named: Any) -> None:
    assert [look.colour for look in looks(systems).values()] == [BLUE, VERMILLION, GREEN]
    assert [look.colour for look in looks(systems[::-1]).values()] == [GREEN, VERMILLION, BLUE]
    for count in (7, 10):
        found = looks([systems[0], *(named(f"m{i}") for i in range(count - 1))])
        assert len({look.colour for look in found.values()}) == count
    found = looks([named(f"m{i}") for i in range(20)])
    assert len({(look.colour, look.dash) for look in found.values()}) == 20
    first, second = looks([named("ric", f"RIC, gamma {gamma}") for gamma in (0.8, 0.9)]).values()
    assert (first.colour, first.name) == (BLUE, "RIC, gamma 0.8")
    assert second.colour in set(PALETTE) - {BLUE}


def test_a_system_looks_the_same_on_all_data(named: Any) -> None:
    groups = [named("ric", "RIC, a"), named("ric", "RIC, b", data="svhn"), named("ric", "RIC, c", label_noise=0.4)]
    assert {(look.name, look.colour, look.dash) for look in looks(groups).values()} == {("RIC", BLUE, "-")}


def test_a_long_legend_makes_the_figure_taller_not_its_panels_smaller(named: Any) -> None:
    figure = Figure(figsize=(4, 3))
    legend_below(figure, looks([named(f"method number {i}") for i in range(9)]).values())
    assert figure.get_figheight() > 3.4
    assert len(figure.legends[0].get_texts()) == 9


def test_data_and_noise_make_a_task(named: Any) -> None:
    groups = [named("ric"), named("act", data="my/svhn"), named("sl", label_noise=0.2), named("sl")]
    found = by_task(groups)
    assert [[group.label for group in alike] for alike in found] == [["ric", "sl"], ["act"], ["sl"]]
    assert [task_title(alike[0]) for alike in found] == ["digits", "svhn", "digits, 20 % flipped"]


@pytest.mark.parametrize(("count", "columns"), [(1, 1), (4, 4), (5, 3), (8, 4), (9, 3)])
def test_panels_stand_at_most_four_abreast(count: int, columns: int) -> None:
    figure, panels = panel_grid(count, heights=(2.0, 1.0))
    label_rows(panels, "above", "below")
    assert (len(panels), len(figure.axes)) == (count, 2 * count)
    named = [above.get_ylabel() == "above" for above, _ in panels]
    assert named == [place % columns == 0 for place in range(count)]


def test_drawings_stand_in_the_page() -> None:
    """Colours are those of the page, ids start with the figure's name, paths are rounded, text is escaped."""

    @styled
    def drawing() -> Figure:
        ax = (figure := Figure(figsize=(2, 1))).subplots()
        for shade in (BLUE, INDIGO, INK, FAINT):
            ax.plot([0, 1 / 3], [0, 2 / 3], color=shade)
        return figure

    svg = inline_svg(drawing(), "steps", '<b> "x"')
    assert all(name in svg for name in ("var(--accent)", "var(--indigo)", "currentColor"))
    assert not any(shade in svg for shade in (BLUE, INDIGO, INK, FAINT))
    ids = set(re.findall(r'\bid="([^"]+)"', svg))
    assert ids
    assert all(name.startswith("steps-") for name in ids)
    assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', svg)) <= ids
    assert not re.search(r"\.\d{3}", "".join(re.findall(r' d="([^"]*)"', svg)))
    assert "scale(0.015625)" in svg
    assert 'aria-label="&lt;b&gt; &quot;x&quot;"' in svg


def test_a_registered_method_has_its_own_title_and_colour(named: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True)
    class Mine(Supervised):
        name: ClassVar[str] = "mine"
        title: ClassVar[str] = "Mine"
        colour: ClassVar[str] = "#123456"

    monkeypatch.setitem(METHODS, "mine", Mine)
    group = named("mine", "Mine")
    assert group.first.method == "Mine"
    assert looks([group])["Mine"].colour == look_of("Mine").colour == "#123456"


def test_a_collapsed_system_is_marked_in_legends_and_keeps_its_colour(systems: list[RunGroup]) -> None:
    ric, sl = systems[:2]
    fallen = ({"epoch": 3, "accuracy": 0.1, "best_accuracy": 0.9},)
    marked = RunGroup("RIC †", (ric.first, replace(ric.first, collapses=fallen)))
    before, after = looks([ric, sl]), looks([marked, sl])
    assert after["RIC †"] == replace(before["RIC"], name="RIC †")
    assert after["SL"] == before["SL"]
    twice = looks([ric, marked])  # two systems of a method: their labels are their names
    assert [look.name for look in twice.values()] == ["RIC", "RIC †"]
