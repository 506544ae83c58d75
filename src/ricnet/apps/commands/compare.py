"""`ric compare`: trains several systems with several seeds on the same data, and compares them."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from ricnet.apps.cli import make_folder, replacing
from ricnet.apps.commands.train import Training, check_settings, given_methods, read_training
from ricnet.data import whole_path
from ricnet.errors import RicnetError, listing, require
from ricnet.io import read_json, short_name
from ricnet.models.config import Config, fits
from ricnet.report.comparison import compare as compare_groups
from ricnet.report.page import write_page
from ricnet.report.runs import RunRecord, group_seeds
from ricnet.report.tables import csv_text, latex, markdown, terminal_table
from ricnet.studies.experiments import (
    Benchmark,
    Experiment,
    Runs,
    System,
    all_systems,
    find_system,
    settings_of,
)
from ricnet.studies.runner import Runner
from ricnet.terminal import Narrator, say
from ricnet.training.api import pick_device
from ricnet.training.recipes import TYPICAL, preset

PAPER = ("supervised", "anytime", "act", "pondernet", "ric")


@dataclass(frozen=True)
class Compare(Training):
    """Train systems on the same data with several seeds, or use runs that exist, and compare them: means with 95 %
    intervals over seeds, and differences tested seed by seed and example by example. The settings of `ric train` apply
    to every system that has them; `ric compare --help-all` shows those of the systems compared."""

    methods: tuple[str, ...] = PAPER
    """Systems, optionally with settings (ric:gamma=0.9,rollouts=2); --list shows all names."""
    seeds: int = 5
    """Seeds 0 to N − 1; differences are tested from 5 seeds."""
    reference: str | None = None
    """System that the others are compared with; by default the first."""
    jobs: int | None = None
    """Runs at once; by default one per CPU core, or one on a GPU."""
    runs: Path = Path("runs/studies")
    """Folder of runs: existing ones are reused, new ones are written there."""
    out: Path | None = None
    """Folder for the table (CSV, Markdown, LaTeX) and the page, which are replaced; by default comparison-DATA."""
    list: bool = False
    """Print the names that --methods takes, and exit."""

    def __post_init__(self) -> None:
        require(self.seeds >= 1, "seeds", self.seeds, "at least 1")
        require(self.jobs is None or self.jobs >= 1, "jobs", self.jobs, "at least 1")
        if self.reference not in (None, *self.methods):
            systems = ", ".join(self.methods)
            raise RicnetError(f"--reference {self.reference} is not among the systems compared: {systems}.")


def compare(arguments: Sequence[str]) -> None:
    options, given = read_compare(arguments)
    if options.list:
        print("\n".join(f"  {name:<24}{system.about}" for name, system in all_systems().items()))
        return
    console = Narrator(stderr=True)
    experiments = _experiments(options, given, console)
    pick_device(options.device)
    out = make_folder(options.out or Path(f"comparison-{experiments[0].benchmark.label}"))
    runner = Runner(options.runs, options.data_dir, options.device, options.jobs)
    try:
        found, problems = runner.run(experiments, console, all_or_none=True)
        if not any(found.values()):
            raise RicnetError(" ".join(problems))
    except RicnetError:
        with contextlib.suppress(OSError):
            out.rmdir()  # removes only an empty folder
        raise
    if not given.get("baselines", True):  # runs of an earlier call may have some
        found = {
            one: [replace(run, evaluation=run.evaluation | {"baselines": {}}) for run in found[one]] for one in found
        }
    runs = list({run.path: run for one in experiments for run in found.get(one, [])}.values())
    say([*(f"ric: {problem}" for problem in problems), *(f"note: {note}" for note in _notes(experiments, found))])
    chosen = next((one for one in experiments if one.system == options.reference), experiments[0])
    _present(runs, found.get(chosen, []), out, given.get("budget"))
    if missing := [one.system for one in experiments if not found.get(one)]:
        raise RicnetError(f"{listing(missing)} could not be compared (see above) and is not in the table.")


def read_compare(arguments: Sequence[str]) -> tuple[Compare, dict[str, Any]]:
    """The options, and the settings of a run that were given."""
    options, settings, given = read_training(Compare, arguments, "compare", _methods)
    check_settings(settings, _methods(given), Config(), compared=True)
    return options, settings


def _methods(given: Mapping[str, Any]) -> Sequence[str]:
    systems = [find_system(name) for name in given.get("methods", PAPER)]
    return list(dict.fromkeys(method for system in systems for method in given_methods(given, system.method)))


def _experiments(options: Compare, given: Mapping[str, Any], console: Console) -> list[Experiment]:
    """A system takes those of the given settings that it has; a note names the others."""
    label = short_name(whole_path(options.source))
    experiments, without = [], dict[str, list[str]]()
    for name in dict.fromkeys(options.methods):
        system = find_system(name)
        own = own_settings(system, given, options.preset)
        for setting in given.keys() - own.keys():
            without.setdefault(setting, []).append(name)
        if "seed" in system.changes:
            raise RicnetError("seeds are given by --seeds, which takes 0 to N − 1; remove seed from the settings.")
        benchmark = Benchmark(label, options.source, tuple(sorted(own.items())))
        experiments.append(Experiment(name, benchmark, tuple(range(options.seeds)), preset=options.preset))
    for setting, names in sorted(without.items()):
        flag = f"--{setting.replace('_', '-')} {given[setting]}"
        say([f"note: {flag} has no effect on {' and '.join(names)}, compared without it."], console)
    return experiments


def own_settings(system: System, given: Mapping[str, Any], preset_name: str) -> dict[str, Any]:
    """The settings that a system has, with a value of their type."""
    hints = settings_of(system.method)
    own = {name: value for name, value in given.items() if name in hints and fits(value, hints[name])}
    if not _takes_budget(system, preset_name, own):
        own.pop("budget", None)
    return own


def _takes_budget(system: System, preset_name: str, given: Mapping[str, Any]) -> bool:
    known = replace(TYPICAL, exits=given.get("exits", "none") != "none")
    changes = {**given, **system.changes, **system.after}
    method = preset(system.preset or preset_name, system.method, known, changes).method
    return replace(method, **{name: value for name, value in changes.items() if name in vars(method)}).takes_budget


def _notes(experiments: Sequence[Experiment], runs: Runs) -> list[str]:
    notes, known = [], dict[Path, str]()
    for one in experiments:
        found = runs.get(one, [])
        same = {known.setdefault(run.path, one.system) for run in found} - {one.system}
        notes += [f"{one.system} and {name} are the same system." for name in same]
        stored = [read_json(path) for run in found if (path := run.path / "calibration.json").is_file()]
        left = sum(not fit.get("found") for fit in stored)
        if left:
            notes.append(f"{one.system}: in {left} of {len(stored)} seeds no best temperature was found; it stays 1.")
    return notes


def _present(runs: Sequence[RunRecord], reference: Sequence[RunRecord], out: Path, budget: float | None) -> None:
    groups, paths = group_seeds(runs), {run.path for run in reference}
    against = next((group.label for group in groups if paths & {run.path for run in group.runs}), None)
    comparison = compare_groups(groups, against)
    replaced = replacing(out / "comparison.csv")
    try:  # before anything is printed, because the reader may close the pipe, as `| head` does
        for ending, text in {"csv": csv_text, "md": markdown, "tex": latex}.items():
            (out / f"comparison.{ending}").write_text(text(comparison), encoding="utf-8")
        write_page(runs, out / "report.html")
    except OSError as error:
        raise RicnetError(f"the comparison cannot be written ({error}); choose another --out.") from error
    Console().print(terminal_table(comparison))
    halt = "each by its own halting rule" if budget is None else f"within a budget of {budget:g} where there are exits"
    say(
        [f"Compared as trained: {halt}, without temperature unless the name says so (ric train fits both)."], Narrator()
    )
    print(f"written  {out}: comparison.csv, comparison.md, comparison.tex, report.html{replaced}")
