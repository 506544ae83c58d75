"""`ric reproduce`: each table and figure of the paper, from the runs it needs to the files a journal takes.

The runs of everything asked for are made first, each once, however many figures show it, or taken as they are given.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure
from rich.console import Console

from ricnet.errors import RicnetError
from ricnet.report.figures import house_style
from ricnet.report.runs import RunRecord
from ricnet.studies.given import as_given, take_given
from ricnet.studies.paper import ITEMS, Item
from ricnet.studies.paper.kit import distinct, read_csv, write_csv
from ricnet.studies.runner import Experiment, Runner, Runs
from ricnet.studies.scales import Scale
from ricnet.studies.theory import CLAIMS, Finding

THEORY, PREMISE, FAIL = "theory", "premise", "FAIL"
CATALOGUE = {name: item.title for name, item in ITEMS.items()} | {
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
    runner: Runner,
    console: Console,
    given: Sequence[RunRecord] | None = None,
) -> tuple[list[Made], list[str]]:
    """What was made, and a sentence for everything that could not be. With `given` runs none is trained."""
    scale = scale if given is None else as_given(scale, given)
    names = list(CATALOGUE) if "all" in names else list(dict.fromkeys(names))
    items = [ITEMS[name] for name in names if name != THEORY]
    experiments = [experiment for item in items for experiment in item.experiments(scale)]
    experiments += _premise_experiments(scale) if THEORY in names else []
    runs, problems = runner.run(experiments, console) if given is None else take_given(experiments, given, console)
    out.mkdir(parents=True, exist_ok=True)
    made: list[Made] = []
    for item in items:
        try:
            made.append(Made(item.name, _make(item, scale, runs, out)))
        except RicnetError as problem:
            problems.append(f"{item.name}: {problem}")
    if THEORY in names:
        examined, unmade = _examine(_claims(scale, runs, runner), out / THEORY, console)
        made += examined
        problems += unmade
    return made, problems


def _make(item: Item, scale: Scale, runs: Runs, out: Path) -> list[Path]:
    """Its table as CSV, and what is drawn and written from the file as read back."""
    table = item.tabulate(scale, runs)
    if "missing" in table and table["missing"].notna().all():
        raise RicnetError(f"nothing to show: {'; '.join(distinct(table, 'missing'))}.")
    path = out / f"{item.name}.csv"
    write_csv(table, path)
    table = read_csv(path)
    files = save_figure(item.draw(table), out / item.name) if item.draw else []
    for ending, text in (item.write(table) if item.write else {}).items():
        files.append(path.with_suffix(f".{ending}"))
        files[-1].write_text(text, encoding="utf-8")
    return [*files, path]


def save_figure(figure: Figure, path: Path) -> list[Path]:
    """As PDF with its fonts in it, and as PNG of 300 dots an inch."""
    pdf, png = path.with_suffix(".pdf"), path.with_suffix(".png")
    with house_style():
        figure.savefig(pdf, metadata={"CreationDate": None})  # the same data gives the same bytes
        figure.savefig(png, dpi=300)
    return [pdf, png]


def _premise_experiments(scale: Scale) -> list[Experiment]:
    return scale.experiments(["ric", "supervised"], scale.benchmarks[:1])


def _claims(scale: Scale, runs: Runs, runner: Runner) -> dict[str, Callable[[], Finding]]:
    """All but the premise stand alone; that one is asked of trained networks, where there are any."""
    claims: dict[str, Callable[..., Finding]] = dict(CLAIMS)
    ric, sl = (runs.get(experiment, []) for experiment in _premise_experiments(scale))
    premise = partial(claims.pop(PREMISE), ric, sl, runner.data_dir, runner.device)
    return claims | ({PREMISE: premise} if ric and sl else {})


def _examine(claims: Mapping[str, Callable[[], Finding]], out: Path, console: Console) -> tuple[list[Made], list[str]]:
    out.mkdir(parents=True, exist_ok=True)
    made, problems, lines = [], [], []
    for name, examine in claims.items():
        console.print(f"examining {name}", highlight=False)
        try:
            finding = examine()
        except RicnetError as problem:
            problems.append(f"{THEORY}/{name}: {problem}")
            continue
        write_csv(pd.DataFrame(finding.rows), out / f"{name}.csv")
        # A theorem holds or we have erred; its premise on some network is a question, to which no is an answer.
        verdict = ("yes" if finding.passed else "no") if name == PREMISE else "pass" if finding.passed else FAIL
        made.append(Made(f"{THEORY}/{name}", [*save_figure(finding.figure, out / name), out / f"{name}.csv"], verdict))
        lines.append(f"## {name}: {verdict}\n\n{finding.claim}\n\n{finding.statement}\n\n![{name}]({name}.png)\n")
    account = out / "theory.md"
    account.write_text("\n".join(lines), encoding="utf-8")
    return [*made, Made(THEORY, [account])], problems
