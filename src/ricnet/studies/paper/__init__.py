"""Every table and figure of the paper as a recipe: the runs it needs, the rows they become, the figure or table."""

from ricnet.studies.paper import (
    ablation,
    adaptive,
    architecture,
    calibration,
    dynamics,
    generalization,
    hyperparameters,
    noise,
    results,
)
from ricnet.studies.paper.recipe import Recipe
from ricnet.studies.paper.rows import Rows, read_csv, write_csv

__all__ = ["RECIPES", "Recipe", "Rows", "read_csv", "write_csv"]

RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        results.TABLE1,
        hyperparameters.RECIPE,
        results.TABLE3,
        architecture.RECIPE,
        dynamics.RECIPE,
        noise.RECIPE,
        calibration.recipe("fig4", 0),
        adaptive.RECIPE,
        generalization.RECIPE,
        calibration.recipe("fig7", 1),
        calibration.recipe("fig8", 2),
        ablation.RECIPE,
    )
}
