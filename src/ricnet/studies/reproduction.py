"""`ric reproduce`: each table and figure of the paper, from the runs it needs to the files a journal takes.

The runs of everything asked for are made first, each once, however many figures show it. A figure is drawn from its
CSV file as read back, so the data beside a figure is all there is in it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from matplotlib.figure import Figure
from rich.console import Console

from ricnet.errors import RicnetError
from ricnet.report.style import house_style
from ricnet.studies.cells import Cell, Runs
from ricnet.studies.controls import CONTROLS
from ricnet.studies.execution import Workplace, harvest
from ricnet.studies.paper import RECIPES
from ricnet.studies.paper.recipe import Recipe
from ricnet.studies.paper.rows import read_csv, write_csv
from ricnet.studies.scales import Scale
from ricnet.studies.theory import EXPERIMENTS
from ricnet.studies.theory.finding import Finding

THEORY = "theory"
CATALOGUE = {name: recipe.title for name, recipe in (RECIPES | CONTROLS).items()} | {
    THEORY: "the lemmas and propositions, tried with numbers"
}
"""Everything that can be reproduced, and what it is."""


@dataclass(frozen=True)
class Made:
    name: str
    files: list[Path]
    verdict: str = ""


def reproduce(
    names: Sequence[str], scale: Scale, out: Path, place: Workplace, console: Console
) -> tuple[list[Made], list[str]]:
    """What was made, and a sentence for everything that could not be."""
    names = list(CATALOGUE) if "all" in names else list(dict.fromkeys(names))
    recipes = [(RECIPES | CONTROLS)[name] for name in names if name != THEORY]
    cells = [cell for recipe in recipes for cell in recipe.cells(scale)]
    found = harvest(cells + (_premise_cells(scale) if THEORY in names else []), place, console)
    problems = list(found.problems)
    out.mkdir(parents=True, exist_ok=True)
    made: list[Made] = []
    for recipe in recipes:
        try:
            made.append(Made(recipe.name, _make(recipe, scale, found.runs, out)))
        except RicnetError as problem:
            problems.append(f"{recipe.name}: {problem}")
    if THEORY in names:
        made += _examine(scale, found.runs, out / THEORY, console)
    return made, problems


def _make(recipe: Recipe, scale: Scale, runs: Runs, out: Path) -> list[Path]:
    rows = recipe.tabulate(scale, runs)
    if rows and all(row.get("missing") for row in rows):
        raise RicnetError(f"nothing to show: {'; '.join(dict.fromkeys(str(row['missing']) for row in rows))}.")
    table = out / f"{recipe.name}.csv"
    write_csv(rows, table)
    rows = read_csv(table)
    files = save_figure(recipe.draw(rows), out / recipe.name) if recipe.draw else []
    for ending, text in (recipe.write(rows) if recipe.write else {}).items():
        path = out / f"{recipe.name}.{ending}"
        path.write_text(text, encoding="utf-8")
        files.append(path)
    return [*files, table]


def save_figure(figure: Figure, path: Path) -> list[Path]:
    """As PDF with its fonts in it, and as PNG of 300 dots an inch."""
    pdf, png = path.with_suffix(".pdf"), path.with_suffix(".png")
    with house_style():
        figure.savefig(pdf, metadata={"CreationDate": None})  # the same data gives the same bytes
        figure.savefig(png, dpi=300)
    return [pdf, png]


def _premise_cells(scale: Scale) -> list[Cell]:
    return scale.cells(["ric", "supervised"], scale.benchmarks[:1])


def _examine(scale: Scale, runs: Runs, out: Path, console: Console) -> list[Made]:
    out.mkdir(parents=True, exist_ok=True)
    ric, sl = (runs.get(cell, []) for cell in _premise_cells(scale))
    examinations: dict[str, Callable[..., Finding]] = {
        name: partial(examine, ric, sl) if name == "premise" else examine
        for name, examine in EXPERIMENTS.items()
        if name != "premise" or (ric and sl)
    }
    made, lines = [], []
    for name, examine in examinations.items():
        console.print(f"examining {name}", highlight=False)
        finding = examine()
        write_csv(finding.rows, out / f"{name}.csv")
        verdict = "pass" if finding.passed else "FAIL"
        made.append(Made(f"{THEORY}/{name}", [*save_figure(finding.figure, out / name), out / f"{name}.csv"], verdict))
        lines.append(f"## {name}: {verdict}\n\n{finding.claim}\n\n{finding.statement}\n\n![{name}]({name}.png)\n")
    (out / "theory.md").write_text("\n".join(lines), encoding="utf-8")
    return made
