"""ric reproduce: the tables, figures and theorems of the paper, from the runs they need to the files a journal takes.

The runs of everything asked for are made first, each once, however many figures show it, or taken as they are given.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import pandas as pd
import tyro
from matplotlib.figure import Figure
from rich.console import Console

from ricnet.apps.cli import make_folder, parse
from ricnet.errors import RicnetError, listing, require, what_else
from ricnet.methods import RIC
from ricnet.report.figures import house_style
from ricnet.report.runs import RunRecord, group_seeds, read_runs, system_name, without_algorithm
from ricnet.studies.experiments import GIVEN, RAW, Benchmark, Experiment, Runs, Scale, System, find_scale, find_system
from ricnet.studies.paper import ITEMS, Item
from ricnet.studies.paper.kit import distinct, read_csv, write_csv
from ricnet.studies.runner import Runner
from ricnet.studies.theory import CLAIMS, Finding
from ricnet.training.console import Narrator, say
from ricnet.training.recipes import TYPICAL, preset
from ricnet.training.run import RunFolder

THEORY, PREMISE, FAIL = "theory", "premise", "FAIL"
CATALOGUE = {name: item.title for name, item in ITEMS.items()} | {
    THEORY: "the lemmas and propositions, tried with numbers"
}
"""Everything that can be reproduced, and what it is."""


@dataclass(frozen=True)
class Reproduce:
    """Make tables and figures of the paper, numbered as in the paper, with the data of each as CSV. Runs are shared
    between figures and never repeated; an interrupted reproduction goes on where it stopped."""

    items: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="ITEM...")] = ()
    """What to make: table1 to table3, fig1 to fig9, peers, ablations, halting, theory, or all; no item lists them."""
    scale: Literal["smoke", "small", "paper"] = "smoke"
    """smoke: digits, minutes on a laptop; small: about an hour on one GPU; paper: the paper's own setting."""
    out: Path | None = None
    """Folder for the results; by default reproduction/SCALE."""
    runs: Path = Path("runs/studies")
    """Folder in which runs are looked for and made."""
    from_runs: tuple[Path, ...] = ()
    """Train nothing: show the runs in these folders, whatever their settings, on the data sets of --scale (run folders,
    or files that scripts/archive_results.py wrote). What is not there is marked missing."""
    jobs: int | None = None
    """Runs at once; by default one a CPU core, or one on a GPU."""
    device: str = "auto"
    """auto (a GPU if there is one), cpu, cuda, cuda:1 …"""
    data_dir: Path | None = None
    """Where named data sets lie; by default $RICNET_DATA, else the user's cache folder."""


@dataclass(frozen=True)
class Made:
    name: str
    files: list[Path]
    verdict: str = ""


def main(arguments: Sequence[str]) -> None:
    options: Reproduce = parse(Reproduce, arguments, "reproduce")
    if not options.items:
        print("\n".join(f"  {name:<10}{title}" for name, title in CATALOGUE.items()))
        return
    unknown = [item for item in options.items if item not in CATALOGUE and item != "all"]
    if unknown:
        raise RicnetError(f"{unknown[0]!r} cannot be reproduced; {what_else(unknown[0], (*CATALOGUE, 'all'))}")
    require(options.jobs is None or options.jobs >= 1, "jobs", options.jobs, "at least 1")
    console = Narrator(stderr=True)
    given = read_given(options.from_runs) if options.from_runs else None
    out = make_folder(options.out or Path("reproduction") / ("given" if options.from_runs else options.scale))
    runner = Runner(options.runs, options.data_dir, options.device, options.jobs)
    try:
        made, problems = reproduce(options.items, find_scale(options.scale), out, runner, console, given)
    except OSError as error:
        raise RicnetError(f"the results cannot be written ({error}); choose another --out.") from error
    for item in made:
        print(f"{item.name:<22}{item.verdict:<6}{'  '.join(str(path) for path in item.files)}")
    failed = [item.name for item in made if item.verdict == FAIL]
    say(f"ric: {problem}" for problem in problems)
    if problems or failed:
        parts = ["not everything could be made"] * bool(problems)
        parts += [f"not confirmed: {', '.join(failed)}"] * bool(failed)
        raise RicnetError(f"{'; '.join(parts)} (see above).")


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
        say([f"examining {name}"], console)
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


# Runs taken from those at hand: nothing is trained, no data is read, settings are as they were run. A run belongs to
# an experiment if its system and its data do, whatever else it was trained with; a figure says what that was. Where
# systems differ in a setting (`ric:gamma=0.9`, the grid of Table 2), that setting must agree.


def read_given(places: Sequence[Path]) -> list[RunRecord]:
    """Finished run folders and archived runs in these folders; a place may also be one of either."""
    if missing := [str(place) for place in places if not place.exists()]:
        raise RicnetError(f"--from-runs: there is no {listing(missing)}.")
    found = [path for place in places for path in _runs_at(place)]
    if not found:
        raise RicnetError(f"--from-runs: there are no finished runs in {listing([str(place) for place in places])}.")
    return read_runs(found)


def _runs_at(place: Path) -> list[Path]:
    if place.suffix == ".json" and place.is_file():
        return [place]
    folders = [place, *sorted(path.parent for path in place.glob("*/config.json"))]
    finished = [folder for folder in folders if RunFolder(folder).begun and RunFolder(folder).finished]
    return finished if place in finished else finished + sorted(place.glob("*.json"))


def as_given(scale: Scale, runs: Sequence[RunRecord]) -> Scale:
    """The scale's data sets and systems, with none of its settings and the seeds that are there. What looks at one
    data set looks at one that there are runs of."""
    seeds = tuple(sorted({run.seed for run in runs}))
    there = [place for place, benchmark in enumerate(scale.benchmarks) if any(_is_of(run, benchmark) for run in runs)]
    return dataclasses.replace(
        scale, name=GIVEN, seeds=seeds, changes=(), dynamics=(), ablation=(), looked_at=max(there, default=2)
    )


def take_given(
    experiments: Sequence[Experiment], runs: Sequence[RunRecord], console: Console
) -> tuple[dict[Experiment, list[RunRecord]], list[str]]:
    """The runs of each experiment, and what is wrong with them; what is missing is said."""
    found: dict[Experiment, list[RunRecord]] = {}
    problems: list[str] = []
    for experiment in dict.fromkeys(experiments):
        name = f"{experiment.system} on {experiment.benchmark.label}"
        groups = group_seeds([run for run in runs if _belongs(run, experiment)])
        found[experiment] = list(groups[0].runs) if len(groups) == 1 else []
        if len(groups) > 1:
            paths = listing([str(group.first.path) for group in groups])
            problems.append(f"{name} was run with different settings ({paths}): leave all but one out.")
    missing = [f"{e.system} on {e.benchmark.label}" for e, own in found.items() if not own]
    if missing:
        say([f"missing: {'; '.join(dict.fromkeys(missing))}"], console)
    return found, problems


def _belongs(run: RunRecord, experiment: Experiment) -> bool:
    system = find_system(experiment.system)
    parts = [run.config, *(run.config.get(part, {}) for part in ("network", "optimization", "method"))]
    settings = {name: value for part in parts for name, value in part.items()}
    return (
        _is_made_by(run, system)
        and without_algorithm(run.method) == _title(system)
        and _is_of(run, experiment.benchmark)
        and run.seed in experiment.seeds
        and all(settings.get(name) == value for name, value in (*system.changes.items(), *experiment.changes))
        and all(settings.get(name, RAW[name]) == system.after.get(name, RAW[name]) for name in RAW)
    )


def _is_of(run: RunRecord, benchmark: Benchmark) -> bool:
    noise = dict(benchmark.changes).get("label_noise", 0.0)
    return Path(run.data_name).name == Path(benchmark.data).name and run.label_noise == noise


def _is_made_by(run: RunRecord, system: System) -> bool:
    """Whether the algorithm of RIC is the one that the system asks for, if it asks for any."""
    if system.preset is None or system.method is None:
        return True
    wanted = preset(system.preset, system.method, TYPICAL).method
    return run.config["method"]["name"] == wanted.name and wanted.title_of(run.config["method"]) == wanted.title_of(
        dataclasses.asdict(wanted)
    )


def _title(system: System) -> str:
    """What the report calls its runs, whichever algorithm of RIC made them."""
    settings = {
        **system.changes,
        **system.after,
        "name": system.method or RIC.name,
        "uniform_mix": float(system.capped),
    }
    return without_algorithm(system_name({"method": settings, "calibration": system.after.get("calibration")}))
