"""`ric report`, one page about runs, and `ric reproduce`, the results of the paper.

`ric reproduce` imports the package `ricnet_paper` when it runs, so that the library does not depend on it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Annotated, Literal

from rich.console import Console

from ricnet.apps.cli import Positional, make_folder, parse, replacing
from ricnet.errors import RicnetError, require, what_else
from ricnet.models.locate import locate
from ricnet.report.comparison import results
from ricnet.report.page import write_page
from ricnet.report.pictures import save_figures
from ricnet.report.runs import group_seeds, read_runs
from ricnet.report.tables import markdown, terminal_table
from ricnet.training.console import Narrator, say


@dataclass(frozen=True)
class Report:
    """Compare finished runs: a table in the terminal, and a page with reliability diagrams, beliefs over steps, halting
    and training curves. Runs that differ only in their seed are one system, shown by its mean and its interval."""

    runs: Annotated[tuple[Path, ...], Positional("RUN...")]
    """Folders that ric train wrote, files of scripts/archive_results.py, or pretrained:NAME."""
    out: Path = Path("report.html")
    """Page to write; a report that exists is replaced."""
    figures: Path | None = None
    """Folder for every figure as PNG and PDF."""
    markdown: bool = False
    """Print the table as Markdown."""


def report(arguments: Sequence[str]) -> None:
    options: Report = parse(Report, arguments, "report")
    if options.out.is_file() and options.out.suffix.lower() not in (".html", ".htm"):
        raise RicnetError(f"--out {options.out} exists and is not a page; give a name that ends in .html.")
    runs = read_runs([locate(run) for run in options.runs])
    page = options.out / "report.html" if options.out.is_dir() else options.out
    written = [f"figures  {options.figures}"] if options.figures else []
    written.append(f"report   {page}{replacing(page)}")
    try:  # before anything is printed, because the reader may close the pipe, as `| head` does
        if options.figures:
            save_figures(runs, options.figures)
        write_page(runs, page)
    except OSError as error:
        raise RicnetError(f"the report cannot be written ({error}); choose another --out or --figures.") from error
    found = results(group_seeds(runs))
    if options.markdown:
        print(markdown(found))
    else:
        Console().print(terminal_table(found))
    say(written)


@dataclass(frozen=True)
class Reproduce:
    """Make tables and figures of the paper, numbered as in the paper, with the data of each as CSV. Runs are shared
    between figures and never repeated; an interrupted reproduction continues with the same command."""

    items: Annotated[tuple[str, ...], Positional("ITEM...")] = ()
    """What to make: table1 to table3, fig1 to fig9, peers, ablations, halting, theory, or all; no item lists them."""
    scale: Literal["smoke", "small", "paper"] = "smoke"
    """smoke: digits, minutes on a laptop; small: about an hour on one GPU; paper: the paper's own setting."""
    out: Path | None = None
    """Folder for the results; by default reproduction/SCALE."""
    runs: Path = Path("runs/studies")
    """Folder of runs: existing ones are reused, new ones are written there."""
    from_runs: tuple[Path, ...] = ()
    """Train nothing: show the runs in these folders, with any settings, on the data sets of --scale (run folders,
    or files that scripts/archive_results.py wrote). Missing runs are marked."""
    jobs: int | None = None
    """Runs at once; by default one per CPU core, or one on a GPU."""
    device: str = "auto"
    """auto (a GPU if there is one), cpu, cuda, cuda:1 …"""
    data_dir: Path | None = None
    """Folder of named data sets; by default $RICNET_DATA, else the user's cache folder."""


def reproduce(arguments: Sequence[str]) -> None:
    options: Reproduce = parse(Reproduce, arguments, "reproduce")
    from ricnet.studies.runner import Runner, read_given

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
        parts = ["some items could not be made"] * bool(problems)
        parts += [f"not confirmed: {', '.join(failed)}"] * bool(failed)
        raise RicnetError(f"{'; '.join(parts)} (see above).")


def _import_paper() -> ModuleType:
    try:
        return import_module("ricnet_paper.reproduce")
    except ModuleNotFoundError as error:
        if error.name != "ricnet_paper":
            raise
        raise RicnetError(
            "ric reproduce needs the package ricnet_paper, which is not installed; install ricnet from its wheel or "
            "its repository, which contain both."
        ) from error
