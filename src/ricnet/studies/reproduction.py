"""`ric reproduce`: each table and figure of the paper, from the runs it needs to the files a journal takes.

The runs of everything asked for are made first, each once, however many figures show it, or taken as they are given. A
figure is drawn from its CSV file as read back, so the data beside a figure is all there is in it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from matplotlib.figure import Figure
from rich.console import Console

from ricnet.errors import RicnetError
from ricnet.report.figures import house_style
from ricnet.report.runs import RunRecord
from ricnet.studies.cells import Cell, Runs
from ricnet.studies.controls import CONTROLS
from ricnet.studies.execution import Workplace, harvest
from ricnet.studies.gathering import as_given, gather
from ricnet.studies.paper import RECIPES
from ricnet.studies.paper.recipe import Recipe
from ricnet.studies.paper.rows import read_csv, write_csv
from ricnet.studies.scales import Scale
from ricnet.studies.theory import EXPERIMENTS
from ricnet.studies.theory.finding import Finding

THEORY, PREMISE, FAIL = "theory", "premise", "FAIL"
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
    names: Sequence[str],
    scale: Scale,
    out: Path,
    place: Workplace,
    console: Console,
    given: Sequence[RunRecord] | None = None,
) -> tuple[list[Made], list[str]]:
    """What was made, and a sentence for everything that could not be. With `given` runs none is made."""
    scale = scale if given is None else as_given(scale, given)
    names = list(CATALOGUE) if "all" in names else list(dict.fromkeys(names))
    recipes = [(RECIPES | CONTROLS)[name] for name in names if name != THEORY]
    cells = [cell for recipe in recipes for cell in recipe.cells(scale)]
    cells += _premise_cells(scale) if THEORY in names else []
    found = harvest(cells, place, console) if given is None else gather(cells, given, console)
    problems = list(found.problems)
    out.mkdir(parents=True, exist_ok=True)
    made: list[Made] = []
    for recipe in recipes:
        try:
            made.append(Made(recipe.name, _make(recipe, scale, found.runs, out)))
        except RicnetError as problem:
            problems.append(f"{recipe.name}: {problem}")
    if THEORY in names:
        examined, unmade = _examine(_experiments(scale, found.runs, place), out / THEORY, console)
        made += examined
        problems += unmade
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


def _experiments(scale: Scale, runs: Runs, place: Workplace) -> dict[str, Callable[[], Finding]]:
    """All but the premise stand alone; that one is asked of trained networks, where there are any."""
    ric, sl = (runs.get(cell, []) for cell in _premise_cells(scale))
    experiments: dict[str, Callable[[], Finding]] = {k: v for k, v in EXPERIMENTS.items() if k != PREMISE}
    return experiments | (
        {PREMISE: partial(EXPERIMENTS[PREMISE], ric, sl, place.data_dir, place.device)} if ric and sl else {}
    )


def _examine(
    experiments: Mapping[str, Callable[[], Finding]], out: Path, console: Console
) -> tuple[list[Made], list[str]]:
    out.mkdir(parents=True, exist_ok=True)
    made, problems, lines = [], [], []
    for name, examine in experiments.items():
        console.print(f"examining {name}", highlight=False)
        try:
            finding = examine()
        except RicnetError as problem:
            problems.append(f"{THEORY}/{name}: {problem}")
            continue
        write_csv(finding.rows, out / f"{name}.csv")
        # A theorem holds or we have erred; its premise on some network is a question, to which no is an answer.
        verdict = ("yes" if finding.passed else "no") if name == PREMISE else "pass" if finding.passed else FAIL
        made.append(Made(f"{THEORY}/{name}", [*save_figure(finding.figure, out / name), out / f"{name}.csv"], verdict))
        lines.append(f"## {name}: {verdict}\n\n{finding.claim}\n\n{finding.statement}\n\n![{name}]({name}.png)\n")
    account = out / "theory.md"
    account.write_text("\n".join(lines), encoding="utf-8")
    return [*made, Made(THEORY, [account])], problems
