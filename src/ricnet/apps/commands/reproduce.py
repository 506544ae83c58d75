"""ric reproduce: the flags of the command; the package `ricnet_paper` is imported when it runs and does the work."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Annotated, Literal

import tyro

from ricnet.apps.cli import make_folder, parse
from ricnet.errors import RicnetError, require, what_else
from ricnet.studies.runner import Runner, read_given
from ricnet.training.console import Narrator, say


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
    paper = _import_paper()
    catalogue: dict[str, str] = paper.CATALOGUE
    if not options.items:
        print("\n".join(f"  {name:<10}{title}" for name, title in catalogue.items()))
        return
    unknown = [item for item in options.items if item not in catalogue and item != "all"]
    if unknown:
        raise RicnetError(f"{unknown[0]!r} cannot be reproduced; {what_else(unknown[0], (*catalogue, 'all'))}")
    require(options.jobs is None or options.jobs >= 1, "jobs", options.jobs, "at least 1")
    given = read_given(options.from_runs) if options.from_runs else None
    out = make_folder(options.out or Path("reproduction") / ("given" if options.from_runs else options.scale))
    runner, scale = Runner(options.runs, options.data_dir, options.device, options.jobs), paper.SCALES[options.scale]
    try:
        made, problems = paper.reproduce(options.items, scale, out, runner, Narrator(stderr=True), given)
    except OSError as error:
        raise RicnetError(f"the results cannot be written ({error}); choose another --out.") from error
    for item in made:
        print(f"{item.name:<22}{item.verdict:<6}{'  '.join(str(path) for path in item.files)}")
    failed = [item.name for item in made if item.verdict == paper.FAIL]
    say(f"ric: {problem}" for problem in problems)
    if problems or failed:
        parts = ["not everything could be made"] * bool(problems)
        parts += [f"not confirmed: {', '.join(failed)}"] * bool(failed)
        raise RicnetError(f"{'; '.join(parts)} (see above).")


def _import_paper() -> ModuleType:
    """Imported by name, so that the library does not depend on the paper."""
    try:
        return import_module("ricnet_paper.reproduce")
    except ModuleNotFoundError as error:
        if error.name != "ricnet_paper":
            raise
        raise RicnetError(
            "ric reproduce needs the package ricnet_paper, which is not installed; install ricnet from its wheel or "
            "its repository, which contain both."
        ) from error
