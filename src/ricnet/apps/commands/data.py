"""`ric data`: lists, downloads and checks the named data sets."""

import sys
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table

from ricnet.apps.commands.options import Data
from ricnet.data import check_dataset, get_dataset, list_datasets
from ricnet.data.registry import data_folder, find_source
from ricnet.errors import RicnetError, what_else
from ricnet.io import printable

ACTIONS = ("list", "get", "check")


def data(options: Data) -> None:
    if options.action not in ACTIONS:
        raise RicnetError(f"ric data {options.action} is unknown; {what_else(options.action, ACTIONS)}")
    if options.action == "list":
        _list(options.data_dir)
    elif options.name is None:
        raise RicnetError(f"ric data {options.action} needs the name of a data set; ric data list shows them.")
    elif options.action == "get":
        _get(options.name, options.data_dir)
    else:
        _check(options.name, options.data_dir)


def _list(folder: Path | None) -> None:
    table = Table("name", "what it is", "here", box=None, padding=(0, 2, 0, 0))
    for listing in list_datasets(folder):
        table.add_row(listing.name, listing.title, "yes" if listing.present else "no")
    table.columns[0].no_wrap = True
    Console().print(table)
    print(printable(f"folder: {data_folder(folder)}; ric data get NAME downloads a data set"), file=sys.stderr)


def _get(name: str, folder: Path | None) -> None:
    if not find_source(name).files:
        print(f"{name} needs no files.")
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        tasks = {}

        def show(file: str, done: int, total: int | None) -> None:
            if file not in tasks:
                tasks[file] = bar.add_task(file, total=total)
            bar.update(tasks[file], completed=done, total=total)

        listing = get_dataset(name, folder, show)
    for file in listing.files:
        print(f"{file.name}: {file.path}")


def _check(name: str, folder: Path | None) -> None:
    check = check_dataset(name, folder)
    for file in check.files:
        print(f"{file.name}: {file.checksum} ({file.path})")
    print(f"input shape: {check.input_shape}")
    for part, by_class in check.class_counts.items():
        counts = by_class.values()
        print(f"{part}: {sum(counts):,} rows, {min(counts):,} to {max(counts):,} a class ({len(counts)} classes)")
    for note in check.notes:
        print(f"note: {note}")
    if any(file.checksum == "differs" for file in check.files):
        raise RicnetError(f"a file of {name} is not the published one; delete it and run: ric data get {name}")
