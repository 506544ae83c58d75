from dataclasses import replace
from pathlib import Path

import pytest

from ricnet.studies.paper import RECIPES
from ricnet.studies.scales import SCALES, Scale
from ricnet.studies.systems import find_system

from .conftest import MakeRuns, draw, through_csv

FIGURES = [f"fig{i}" for i in (2, 3, 4, 5, 6, 9)]  # 7 and 8 are drawn as 4 is, 1 needs no seed


def test_every_table_and_figure_in_the_paper_s_order() -> None:
    assert list(RECIPES) == [*(f"table{i}" for i in (1, 2, 3)), *(f"fig{i}" for i in range(1, 10))]
    assert all((recipe.draw is None) != (recipe.write is None) for recipe in RECIPES.values())
    assert all(recipe.draw is None for name, recipe in RECIPES.items() if name.startswith("table"))


@pytest.mark.parametrize("scale", SCALES.values(), ids=lambda scale: scale.name)
def test_what_they_ask_for_exists(scale: Scale) -> None:
    for recipe in RECIPES.values():
        asked = recipe.cells(scale)
        assert len(set(asked)) == len(asked)
        assert all(find_system(cell.system) for cell in asked)


@pytest.mark.parametrize("name", FIGURES)
def test_one_seed_is_enough_to_draw(name: str, make_runs: MakeRuns, tmp_path: Path) -> None:
    one = replace(SCALES["smoke"], seeds=(0,))
    figure = draw(RECIPES[name], one, make_runs(RECIPES[name].cells(one)), tmp_path)
    assert all(ax.has_data() for ax in figure.axes)


@pytest.mark.parametrize("name", RECIPES)
def test_rows_survive_csv(name: str, scale: Scale, make_runs: MakeRuns, tmp_path: Path) -> None:
    recipe = RECIPES[name]
    rows = recipe.tabulate(scale, make_runs(recipe.cells(scale)[:-1], epochs=3))
    columns = {column for row in rows for column in row}
    assert through_csv(rows, tmp_path) == [{column: row.get(column) for column in columns} for row in rows]
