"""`ric report`, one page about runs, and `ric reproduce`, the results of the paper.

`ric reproduce` imports the package `ricnet_paper` when it runs, so that the library does not depend on it.
"""

from importlib import import_module
from pathlib import Path
from types import ModuleType

from rich.console import Console

from ricnet.apps.cli import make_folder, replacing
from ricnet.apps.commands.options import Report, Reproduce
from ricnet.errors import RicnetError, require, what_else
from ricnet.models.locate import locate
from ricnet.report.comparison import results
from ricnet.report.page import write_page
from ricnet.report.pictures import save_figures
from ricnet.report.runs import group_seeds, read_runs
from ricnet.report.tables import markdown, terminal_table
from ricnet.terminal import Narrator, say


def report(options: Report) -> None:
    if not options.out.is_dir() and options.out.suffix.lower() not in (".html", ".htm"):
        raise RicnetError(f"--out {options.out} is not a page; give a name that ends in .html, or an existing folder.")
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


def reproduce(options: Reproduce) -> None:
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
