import numpy as np
import pytest
from matplotlib.figure import Figure

from ricnet.report.figures import POINTS, cuts_bands, draw_band, thin


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
