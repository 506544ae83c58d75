from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from ricnet.studies.experiments import all_systems, find_system
from ricnet_paper import ITEMS
from ricnet_paper.scales import SCALES, Scale

from .conftest import MakeRuns, draw, record, texts_of, through_csv

FIGURES = [f"fig{i}" for i in range(1, 10)]


def test_every_table_and_figure_in_the_paper_s_order() -> None:
    numbered = [*(f"table{i}" for i in (1, 2, 3)), *FIGURES]
    assert list(ITEMS) == [*numbered, "peers", "ablations", "halting"]
    assert [name for name in numbered if ITEMS[name].draw is None] == ["table1", "table2", "table3", "fig1"]


@pytest.mark.parametrize("scale", SCALES.values(), ids=lambda scale: scale.name)
def test_what_they_ask_for_exists(scale: Scale) -> None:
    for item in ITEMS.values():
        asked = item.experiments(scale)
        assert len(set(asked)) == len(asked)
        assert all(find_system(one.system) for one in asked)


@pytest.mark.parametrize("name", FIGURES[1:])
def test_one_seed_is_enough_for_a_figure_that_says_its_scale(name: str, make_runs: MakeRuns, tmp_path: Path) -> None:
    small = replace(SCALES["small"], seeds=(0,))
    figure = draw(ITEMS[name], small, make_runs(ITEMS[name].experiments(small), epochs=3), tmp_path)
    assert all(ax.has_data() for ax in figure.axes)
    assert "scale small: " in texts_of(figure).lower()


@pytest.mark.parametrize("name", [name for name in ITEMS if name.startswith(("fig", "table"))])
def test_tables_survive_csv(name: str, scale: Scale, make_runs: MakeRuns, tmp_path: Path) -> None:
    item = ITEMS[name]
    asked = item.experiments(scale)
    table = item.tabulate(scale, make_runs(asked[:-1] or asked))
    again = through_csv(table, tmp_path)
    both = [found.astype(object).where(found.notna(), None) for found in (again, table)]
    pd.testing.assert_frame_equal(*both, rtol=1e-12)


def test_no_two_systems_are_called_alike(tmp_path: Path) -> None:
    """They would share a line of a table."""
    distinct = [name for name, system in all_systems().items() if system.preset is None]  # those with one differ more
    names = [record(tmp_path, system).method for system in distinct]
    assert len(set(names)) == len(distinct)
