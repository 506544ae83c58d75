"""ric reproduce: the tables, figures and theorems of the paper."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console

from ricnet.apps.cli import make_folder, parse
from ricnet.errors import RicnetError, require, what_else
from ricnet.studies.experiments import find_scale
from ricnet.studies.reproduce import CATALOGUE, FAIL, Made, read_given, reproduce
from ricnet.studies.runner import Runner


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


def main(arguments: Sequence[str]) -> None:
    options: Reproduce = parse(Reproduce, arguments, "reproduce")
    if not options.items:
        print("\n".join(f"  {name:<10}{title}" for name, title in CATALOGUE.items()))
        return
    unknown = [item for item in options.items if item not in CATALOGUE and item != "all"]
    if unknown:
        raise RicnetError(f"{unknown[0]!r} cannot be reproduced; {what_else(unknown[0], (*CATALOGUE, 'all'))}")
    require(options.jobs is None or options.jobs >= 1, "jobs", options.jobs, "at least 1")
    console = Console(stderr=True)
    given = read_given(options.from_runs) if options.from_runs else None
    out = make_folder(options.out or Path("reproduction") / ("given" if options.from_runs else options.scale))
    runner = Runner(options.runs, options.data_dir, options.device, options.jobs)
    try:
        made, problems = reproduce(options.items, find_scale(options.scale), out, runner, console, given)
    except OSError as error:
        raise RicnetError(f"the results cannot be written ({error}); choose another --out.") from error
    _present(made)
    failed = [item.name for item in made if item.verdict == FAIL]
    for problem in problems:
        console.print(f"ric: {problem}", highlight=False, markup=False, soft_wrap=True)
    if problems or failed:
        parts = ["not everything could be made"] * bool(problems)
        parts += [f"not confirmed: {', '.join(failed)}"] * bool(failed)
        raise RicnetError(f"{'; '.join(parts)} (see above).")


def _present(made: Sequence[Made]) -> None:
    for item in made:
        print(f"{item.name:<22}{item.verdict:<6}{'  '.join(str(path) for path in item.files)}")
