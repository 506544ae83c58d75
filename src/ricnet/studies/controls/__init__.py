"""Questions the paper leaves open, answered with the same machinery: peers, ablations, and when to stop."""

from ricnet.studies.controls.halting import HALTING
from ricnet.studies.controls.tables import TABLES
from ricnet.studies.paper.recipe import Recipe

CONTROLS: dict[str, Recipe] = {recipe.name: recipe for recipe in (*TABLES, HALTING)}
