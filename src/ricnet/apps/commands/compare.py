"""ric compare: the same data, several systems, several seeds, and what may be said of their differences."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from ricnet.apps.cli import make_folder, replacing
from ricnet.apps.commands.settings import Hyper, Settings, fitting, look_for, merged, over, read, typed, unread
from ricnet.data import whole_path
from ricnet.errors import RicnetError, listing, require
from ricnet.io import read_json, short_name
from ricnet.report.comparison import Comparison, compare
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
    parse_settings,
    settings_of,
)
from ricnet.studies.runner import Runner
from ricnet.training.api import pick_device
from ricnet.training.console import Narrator, say
from ricnet.training.recipes import TYPICAL, preset

PAPER = ("supervised", "anytime", "act", "pondernet", "ric")


@dataclass(frozen=True)
class Compare(Settings[Hyper]):
    """Train systems on the same data with several seeds, or take the runs that are there already, and compare them:
    means with 95 % intervals over seeds, and differences tested seed by seed and example by example. The settings of
    `ric train` hold for every system that has them; `ric compare --help-all` shows those of the systems compared."""

    methods: tuple[str, ...] = PAPER
    """Systems, each perhaps with settings of its own (ric:gamma=0.9,rollouts=2); --list shows all names."""
    seeds: int = 5
    """Seeds 0 to N − 1; nothing is claimed from fewer than 5."""
    reference: str | None = None
    """System that the others are compared with; by default the first."""
    set: tuple[str, ...] = ()
    """Settings that every system must have, as SETTING=VALUE: --set epochs=30 is --epochs 30."""
    jobs: int | None = None
    """Runs at once; by default one a CPU core, or one on a GPU."""
    runs: Path = Path("runs/studies")
    """Folder in which runs are looked for and made."""
    out: Path | None = None
    """Folder for the table (CSV, Markdown, LaTeX) and the page, replaced if there; by default comparison-DATA."""
    list: bool = False
    """Show the names that --methods takes, and stop."""


def main(arguments: Sequence[str]) -> None:
    options = _parse(arguments)
    if options.list:
        print("\n".join(f"  {name:<24}{system.about}" for name, system in all_systems().items()))
        return
    require(options.seeds >= 1, "seeds", options.seeds, "at least 1")
    require(options.jobs is None or options.jobs >= 1, "jobs", options.jobs, "at least 1")
    console = Narrator(stderr=True)
    experiments = _experiments(options, typed(arguments, options), console)
    pick_device(options.device)
    out = make_folder(options.out or Path(f"comparison-{experiments[0].benchmark.label}"))
    runner = Runner(options.runs, options.data_dir, options.device, options.jobs)
    found, problems = runner.run(experiments, console)
    if not options.baselines:  # runs of an earlier call may have some
        found = {
            one: [replace(run, evaluation=run.evaluation | {"baselines": {}}) for run in found[one]] for one in found
        }
    runs = list({run.path: run for one in experiments for run in found.get(one, [])}.values())
    if not runs:
        with contextlib.suppress(OSError):
            out.rmdir()  # which only takes away an empty folder
        raise RicnetError(" ".join(problems))
    say([*(f"ric: {problem}" for problem in problems), *(f"note: {note}" for note in _notes(experiments, found))])
    chosen = next((one for one in experiments if one.system == options.reference), experiments[0])
    _present(runs, found.get(chosen, []), out, options.budget)
    if missing := [one.system for one in experiments if not found.get(one)]:
        raise RicnetError(f"{listing(missing)} could not be compared (see above); the table is without.")


def _parse(arguments: Sequence[str]) -> Compare[Any]:
    """The systems decide which settings there are."""
    chosen = look_for(arguments, "compare", "--preset", "--exits", several=["--methods"])
    methods = dict.fromkeys(find_system(name).method for name in chosen.methods or PAPER)
    configs = [unread(arguments, chosen, method) for method in methods]
    default: Compare[Any] = replace(over(Compare, configs[0]), hyper=merged(config.method for config in configs))
    return read(Compare[type(default.hyper)], arguments, "compare", default)  # type: ignore[misc]


def _experiments(options: Compare[Any], given: Mapping[str, Any], console: Console) -> list[Experiment]:
    if options.reference not in (None, *options.methods):
        systems = ", ".join(options.methods)
        raise RicnetError(f"--reference {options.reference} is not among the systems compared: {systems}.")
    data = options.source
    label = short_name(whole_path(data))
    experiments, without = [], dict[str, list[str]]()
    for name in dict.fromkeys(options.methods):
        system = find_system(name)
        own = fitting(given, settings_of(system.method))
        if not _takes_budget(system, options.preset, own):
            own.pop("budget", None)
        for setting in given.keys() - own.keys():
            without.setdefault(setting, []).append(name)
        common = own | parse_settings(options.set, system.method, "--set")
        if "seed" in (*common, *system.changes):
            raise RicnetError("seeds are given by --seeds, which takes 0 to N − 1; leave seed out of the settings.")
        benchmark = Benchmark(label, data, tuple(sorted(common.items())))
        experiments.append(Experiment(name, benchmark, tuple(range(options.seeds)), preset=options.preset))
    for setting, names in sorted(without.items()):
        flag = f"--{setting.replace('_', '-')} {given[setting]}"
        say([f"note: {flag} means nothing to {' and '.join(names)}, compared without it."], console)
    return experiments


def _takes_budget(system: System, preset_name: str, given: Mapping[str, Any]) -> bool:
    """Whether it has what a budget is kept by."""
    known = replace(TYPICAL, exits=given.get("exits", "none") != "none")
    changes = {**given, **system.changes, **system.after}
    method = preset(system.preset or preset_name, system.method, known, changes).method
    return replace(method, **{name: value for name, value in changes.items() if name in vars(method)}).takes_budget


def _notes(experiments: Sequence[Experiment], runs: Runs) -> list[str]:
    """What a reader of the table would otherwise not see."""
    notes, known = [], dict[Path, str]()
    for one in experiments:
        found = runs.get(one, [])
        same = {known.setdefault(run.path, one.system) for run in found} - {one.system}
        notes += [f"{one.system} and {name} are the same system." for name in same]
        fits = [read_json(path) for run in found if (path := run.path / "calibration.json").is_file()]
        left = sum(not fit.get("found") for fit in fits)
        if left:
            notes.append(f"{one.system}: in {left} of {len(fits)} seeds no temperature is best, and it was left at 1.")
    return notes


def _present(runs: Sequence[RunRecord], reference: Sequence[RunRecord], out: Path, budget: float | None) -> None:
    groups = group_seeds(runs)
    against = next((group.label for group in groups if set(_paths(group.runs)) & set(_paths(reference))), None)
    comparison = compare(groups, against)
    replaced = replacing(out / "comparison.csv")
    try:  # before anything is printed: whoever reads may stop, as with `| head`
        _write(comparison, runs, out)
    except OSError as error:
        raise RicnetError(f"the comparison cannot be written ({error}); choose another --out.") from error
    Console().print(terminal_table(comparison))
    halt = "each by its own halt" if budget is None else f"those that can within a budget of {budget:g}"
    print(
        f"Compared as trained: {halt}, no temperature unless the name says so (ric train fits both on validation data)."
    )
    print(f"written  {out}: comparison.csv, comparison.md, comparison.tex, report.html{replaced}")


def _paths(runs: Sequence[RunRecord]) -> list[Path]:
    return [run.path for run in runs]


def _write(comparison: Comparison, runs: Sequence[RunRecord], out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    for ending, text in {"csv": csv_text, "md": markdown, "tex": latex}.items():
        (out / f"comparison.{ending}").write_text(text(comparison), encoding="utf-8")
    write_page(runs, out / "report.html")
