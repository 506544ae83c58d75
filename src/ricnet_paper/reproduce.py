"""Makes tables, figures and checks of the theory: finds or trains the runs they share, then writes their files."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure
from rich.console import Console

from ricnet import RicnetError
from ricnet.report.figures import house_style
from ricnet.report.runs import RunRecord
from ricnet.studies.experiments import Experiment, Runs
from ricnet.studies.runner import Runner, take_given
from ricnet_paper import ITEMS, Item
from ricnet_paper.kit import distinct, read_csv, write_csv
from ricnet_paper.scales import SCALES as SCALES
from ricnet_paper.scales import Scale, as_given
from ricnet_paper.theory import CLAIMS, Finding

THEORY, PREMISE, FAIL = "theory", "premise", "FAIL"
CATALOGUE = {name: item.title for name, item in ITEMS.items()} | {
    THEORY: "the lemmas and propositions, tried with numbers"
}
"""Title of each item by its name on the command line."""


@dataclass(frozen=True)
class Made:
    """The files of one item; `verdict` is pass, FAIL, yes or no for a claim, else empty."""

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
    """Make the named items, or `all`. Returns what was made and one sentence for each item that failed.

    With `given` runs nothing is trained.
    """
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
        examined, failed = _examine(_claims(scale, runs, runner), out / THEORY, console)
        made += examined
        problems += failed
    return made, problems


def _make(item: Item, scale: Scale, runs: Runs, out: Path) -> list[Path]:
    """Write the table as CSV, then draw and write from the file as read back."""
    table = item.tabulate(scale, runs)
    if "missing" in table and table["missing"].notna().all():
        raise RicnetError(f"nothing to show: {'; '.join(distinct(table, 'missing'))}.")
    path = out / f"{item.name}.csv"
    write_csv(table, path)
    table = read_csv(path)
    files = save_figure(item.draw(table), out / item.name) if item.draw else []
    for ending, content in (item.write(table) if item.write else {}).items():
        files.append(path.with_suffix(f".{ending}"))
        files[-1].write_bytes(content if isinstance(content, bytes) else content.encode())
    return [*files, path]


def save_figure(figure: Figure, path: Path) -> list[Path]:
    """As PDF with embedded fonts and as PNG at 300 dpi."""
    pdf, png = path.with_suffix(".pdf"), path.with_suffix(".png")
    with house_style():
        figure.savefig(pdf, metadata={"CreationDate": None})  # equal data gives equal bytes
        figure.savefig(png, dpi=300)
    return [pdf, png]


def _premise_experiments(scale: Scale) -> list[Experiment]:
    return scale.experiments(["ric", "supervised"], scale.benchmarks[:1])


def _claims(scale: Scale, runs: Runs, runner: Runner) -> dict[str, Callable[[], Finding]]:
    """The claims that can be examined. The premise needs trained runs; the others need none."""
    claims: dict[str, Callable[..., Finding]] = dict(CLAIMS)
    ric, sl = (runs.get(experiment, []) for experiment in _premise_experiments(scale))
    premise = partial(claims.pop(PREMISE), ric, sl, runner.data_dir, runner.device)
    return claims | ({PREMISE: premise} if ric and sl else {})


def _examine(claims: Mapping[str, Callable[[], Finding]], out: Path, console: Console) -> tuple[list[Made], list[str]]:
    """Files of each claim, and theory.md with all statements."""
    out.mkdir(parents=True, exist_ok=True)
    made, problems, lines = [], [], []
    for name, examine in claims.items():
        console.print(f"examining {name}", highlight=False, markup=False)
        try:
            finding = examine()
        except RicnetError as problem:
            problems.append(f"{THEORY}/{name}: {problem}")
            continue
        write_csv(pd.DataFrame(finding.rows), out / f"{name}.csv")
        # A theorem passes or fails; the premise is an empirical question, answered yes or no.
        verdict = ("yes" if finding.passed else "no") if name == PREMISE else "pass" if finding.passed else FAIL
        made.append(Made(f"{THEORY}/{name}", [*save_figure(finding.figure, out / name), out / f"{name}.csv"], verdict))
        lines.append(f"## {name}: {verdict}\n\n{finding.claim}\n\n{finding.statement}\n\n![{name}]({name}.png)\n")
    account = out / "theory.md"
    account.write_text("\n".join(lines), encoding="utf-8")
    return [*made, Made(THEORY, [account])], problems
