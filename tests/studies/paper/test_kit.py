from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from ricnet.report.figures import look_of
from ricnet.studies.paper.kit import (
    MOST_POINTS,
    draw_curve,
    fill_lines,
    fit,
    intervals,
    legend,
    note_missing,
    seeds,
    system_handles,
    system_line,
    thin,
)

from .conftest import check_words, record, texts_of


def curve(count: int, half_width: float = 0.1) -> pd.DataFrame:
    epoch = np.arange(1, count + 1)
    tags = {"system": "RIC", "seeds": 3, "asked": 3, "half_width": half_width, "missing": None}
    return pd.DataFrame({"epoch": epoch, "mean": epoch / count}).assign(**tags)


def with_row(table: pd.DataFrame, **row: object) -> pd.DataFrame:
    return pd.DataFrame([*table.to_dict("records"), row])


def test_systems_of_one_figure_have_looks_of_their_own(tmp_path: Path) -> None:
    """Under the names that the report gives their runs: a name it changes would lose its colour."""
    for together in (("supervised", "ric"), ("ric", "ric-ppo", "ric-logistic-normal")):
        looks = [look_of(record(tmp_path, system).method) for system in together]
        assert len({look.colour for look in looks}) == len({look.marker for look in looks}) == len(looks)


def test_long_curves_are_thinned_but_not_smoothed() -> None:
    shown = thin(curve(2000))["epoch"].tolist()
    assert (shown[0], shown[-1]) == (1, 2000)
    assert len(shown) <= MOST_POINTS + 1
    assert set(shown) <= set(range(1, 2001))
    for count in (0, MOST_POINTS):
        assert len(thin(curve(count))) == count


def test_a_curve_has_its_mean_and_its_band() -> None:
    ax = Figure().subplots()
    draw_curve(ax, curve(4), "epoch", **system_line("RIC", 4))
    np.testing.assert_allclose(ax.lines[0].get_ydata(), [0.25, 0.5, 0.75, 1])
    vertices = ax.collections[0].get_paths()[0].vertices
    np.testing.assert_allclose(np.ptp(vertices[vertices[:, 0] == 2][:, 1]), 0.2)


def test_one_seed_has_no_band() -> None:
    ax = Figure().subplots()
    draw_curve(ax, curve(4, half_width=np.nan), "epoch", color="k")
    draw_curve(ax, curve(0), "epoch", color="k")
    assert len(ax.lines) == 1
    assert not ax.collections


def test_the_range_is_that_of_the_means() -> None:
    ax = Figure().subplots()
    draw_curve(ax, curve(4, half_width=50.0), "epoch", color="k")
    fit(ax, np.array([0.25, np.nan, 1.0]))
    assert ax.get_ylim() == pytest.approx((0.25 - 0.07 * 0.75, 1 + 0.07 * 0.75))


def test_seeds_in_words() -> None:
    def rows(*counts: int, asked: int = 5) -> pd.DataFrame:
        return pd.DataFrame({"seeds": counts, "asked": asked})

    assert seeds(rows(5, 5)) == "5 seeds"
    assert seeds(rows(4, 4)) == "4 of 5 seeds"
    assert seeds(rows(3, 5, 0)) == "3 to 5 of 5 seeds"
    assert seeds(rows(1, asked=1)) == "1 seed"
    assert seeds(rows(0)) == "missing"


def test_bands_are_explained_only_where_there_are_any() -> None:
    assert intervals(curve(2)) == "Bands: 95 % Student-t intervals over seeds"
    assert intervals(curve(2, np.nan)) == "A single seed has no interval"
    assert intervals(curve(0)) == ""


def test_an_empty_panel_says_why_and_nothing_else() -> None:
    figure = Figure(figsize=(2.3, 2), layout="constrained")
    ax = figure.subplots()
    ax.set(xlabel="epoch", ylabel="ECE")
    note_missing(ax, pd.DataFrame({"system": ["SL", "RIC"], "missing": "cifar10n-aggregate is not here"}))
    figure.draw_without_rendering()
    check_words(figure)
    assert texts_of(figure).replace("\n", " ") == "missing: cifar10n-aggregate is not here"


def test_a_panel_that_lacks_one_system_names_it() -> None:
    ax = Figure(figsize=(2.3, 2)).subplots()
    draw_curve(ax, curve(4), "epoch", color="k")
    note_missing(ax, with_row(curve(4), system="SL", missing="no run finished"))
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["missing: SL (no run finished)"]


def test_notes_share_lines_but_are_not_broken() -> None:
    assert fill_lines(["a" * 50, "", "b" * 50, "c" * 50]) == "a" * 50 + ". " + "b" * 50 + "\n" + "c" * 50
    assert fill_lines([]) == ""
    assert fill_lines(["word " * 30 + "end"]).splitlines() == ["word " * 24 + "word", "word " * 5 + "end"]


def test_intervals_cut_by_the_panel_are_told() -> None:
    for half_width, cut in ((0.001, False), (50.0, True), (np.nan, False)):
        figure = Figure(figsize=(7, 2), layout="constrained")
        ax = figure.subplots()
        draw_curve(ax, curve(4, half_width), "epoch", color="k")
        fit(ax, np.array([0.25, 1.0]))
        legend(figure, system_handles(curve(4)), ["A note"])
        assert ("Intervals are cut at the panel's edge" in texts_of(figure)) == cut


def test_the_legend_counts_seeds_and_breaks_long_notes() -> None:
    figure = Figure(figsize=(7, 2), layout="constrained")
    figure.subplots()
    legend(figure, system_handles(with_row(curve(1), system="SL", seeds=0, asked=3)), ["a" * 70, "", "b" * 70])
    box = figure.legends[0]
    assert [text.get_text() for text in box.get_texts()] == ["RIC (3 seeds)", "SL (missing)"]
    assert box.get_title().get_text() == "a" * 70 + "\n" + "b" * 70
    figure.draw_without_rendering()
    check_words(figure)
