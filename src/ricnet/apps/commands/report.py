"""ric report: one page about a run, or comparing several."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from ricnet.apps.cli import parse, replacing
from ricnet.errors import RicnetError
from ricnet.models.locate import locate
from ricnet.report.comparison import results
from ricnet.report.page import write_page
from ricnet.report.pictures import save_figures
from ricnet.report.runs import group_seeds, read_runs
from ricnet.report.tables import markdown, terminal_table
from ricnet.training.console import say


@dataclass(frozen=True)
class Report:
    """Compare finished runs: a table in the terminal, and a page with reliability diagrams, beliefs over steps, halting
    and training curves. Runs that differ only in their seed are one system, shown by its mean and its interval."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN...")]
    """Folders that ric train wrote, files of scripts/archive_results.py, or pretrained:NAME."""
    out: Path = Path("report.html")
    """Page to write; a report that is there is replaced."""
    figures: Path | None = None
    """Folder for every figure as PNG and PDF."""
    markdown: bool = False
    """Print the table as Markdown."""


def main(arguments: Sequence[str]) -> None:
    options: Report = parse(Report, arguments, "report")
    if not options.runs:
        raise RicnetError("ric report needs at least one run: give the folders that ric train wrote.")
    if options.out.is_file() and options.out.suffix.lower() not in (".html", ".htm"):
        raise RicnetError(f"--out {options.out} is there and is no page; give a name that ends in .html.")
    runs = read_runs([locate(run) for run in options.runs])
    page = options.out / "report.html" if options.out.is_dir() else options.out
    written = [f"figures  {options.figures}"] if options.figures else []
    written.append(f"report   {page}{replacing(page)}")
    try:  # before anything is printed: whoever reads may stop, as with `| head`
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
