"""A table as data: a row an example, a column its class."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from ricnet.data.columns import MISSING, RARE_ROWS, Columns, fit_columns, parse_number
from ricnet.data.dataset import Dataset, Parts, Split
from ricnet.data.tables import FRAME, Table, frame_table
from ricnet.errors import RicnetError, listed, nearest, setting
from ricnet.io import UNFIT, shown_name

if TYPE_CHECKING:
    from pandas import DataFrame

MANY_CLASSES = 50
"""With more numbers than that, most of them rare, a column measures something."""
_WHOLE = re.compile(r"[+-]?\d{1,100}")  # Python refuses to count beyond some thousand digits


def labelled_table(
    table: Table,
    target: str | None,
    val_fraction: float,
    columns: Columns | None = None,
    undivided: bool = False,
    known: Sequence[str] = (),
) -> Dataset:
    """`columns` and `known`, its classes, are those of a model to be tried on this table; else they are learned from
    its rows."""
    target = _check_target(table, target or (columns.target if columns else None))
    gaps = _gaps(table.columns[target], known)
    labelled = [row for row, cell in enumerate(table.columns[target]) if cell not in gaps]
    notes = (*_unlabelled_note(len(table) - len(labelled), target, gaps), *_header_note(table, target))
    if not labelled:
        raise RicnetError(f"{table.name}: no row has a class in {target!r}{_meant(gaps)}; fill in that column.")
    table = table.take(labelled)
    if columns is None:
        _refuse_measurement(table, target)
    class_names = _classes(table.columns[target])
    number = {name: i for i, name in enumerate(class_names)}
    labels = torch.tensor([number[cell] for cell in table.columns[target]])
    # The rows are divided before anything is learned from them: for now their numbers stand for them.
    numbered = Parts(Split(torch.arange(len(table)), labels), class_names, notes=notes)
    dataset = numbered.dataset(f"{table.name}#{target}", val_fraction, undivided)
    if columns is None:
        columns, said = fit_columns(table.take(dataset.train.inputs.tolist()), target)
        dataset = replace(dataset, notes=(*dataset.notes, *said))
    inputs = columns.encode(table)
    train, val, test = (
        replace(part, inputs=inputs[part.inputs]) for part in (dataset.train, dataset.val, dataset.test)
    )
    return replace(dataset, train=train, val=val, test=test, columns=columns)


def labelled_frame(frame: "DataFrame", target: str | None, val_fraction: float) -> Dataset:
    """A data frame has no name, so that its column of classes tells one run from another."""
    dataset = labelled_table(frame_table(frame), target, val_fraction)
    column = dataset.name.removeprefix(f"{FRAME}#")
    return replace(dataset, name=f"data-frame-{UNFIT.sub('-', column).strip('-.')}")


def _check_target(table: Table, target: str | None) -> str:
    names = listed([repr(name) for name in table.columns], 10)
    if target is None:
        short = f", or {shown_name(table.name)}#COLUMN" if table.unit == "line" else ""
        raise RicnetError(
            f"{table.name}: which column is the class? Say {setting('target')} COLUMN{short}; it has {names}."
        )
    if target not in table.columns:
        close = nearest(target, table.columns)
        meant = f" (did you mean {close!r}?)" if close else ""
        raise RicnetError(f"{table.name} has no column {target!r}{meant}; it has {names}.")
    return target


def _header_note(table: Table, target: str) -> tuple[str, ...]:
    """Numbers for names: columns may be years or wavelengths, or the first row stands where the names should. It does
    where the column of classes is called like one of them. Columns that are counted, as pandas does, are fine."""
    numbers = [name for name in table.columns if _is_number(name)]
    counted = [[str(n) for n in range(first, first + len(numbers))] for first in (0, 1)]
    if not numbers or (len(numbers) > 1 and numbers in counted):
        return ()
    named = listed([repr(name) for name in numbers])
    if target in table.columns[target]:
        raise RicnetError(
            f"{table.name}: its first line looks like a row, with {named} and the class {target!r} where the names of "
            "columns should be; put a line of names above it; if these are names, call the column of classes something "
            "else."
        )
    return (f"There are columns called {named}; if that is a row of data, put a line of names above it.",)


def _is_number(text: str) -> bool:
    value = parse_number(text)
    return value is not None and not math.isnan(value)


def _gaps(cells: Sequence[str], known: Sequence[str]) -> set[str]:
    """What stands for no class, as it is written. Among words `none` is a class, such as no damage beside two kinds of
    it; among numbers it is a gap. Where the classes are `known`, a cell means the same whatever the other rows are."""
    missing = {cell for cell in cells if cell.lower() in MISSING} - set(known)
    words = any(parse_number(cell) is None for cell in known or cells)
    return {cell for cell in missing if not (words and cell.lower() == "none")}


def _unlabelled_note(count: int, target: str, gaps: Iterable[str]) -> tuple[str, ...]:
    rows = "1 row has no" if count == 1 else f"{count} rows have no"
    return (f"{rows} {target!r}{_meant(gaps)}; left out.",) if count else ()


def _meant(gaps: Iterable[str]) -> str:
    texts = listed([repr(text) for text in sorted(gaps) if text])
    return f" (read as gaps: {texts}; rename what is a class)" if texts else ""


def _refuse_measurement(table: Table, target: str) -> None:
    counts = Counter(table.columns[target])
    rare = sum(count < RARE_ROWS for count in counts.values())
    if len(counts) > MANY_CLASSES and 2 * rare > len(counts) and None not in map(parse_number, counts):
        raise RicnetError(
            f"{table.name}: {target!r} looks like a measurement ({len(counts)} different numbers), not a class; "
            f"choose another {setting('target')}."
        )


def _classes(cells: Sequence[str]) -> tuple[str, ...]:
    """Whole numbers in their order, anything else by the alphabet."""
    found = set(cells)
    return tuple(sorted(found, key=int) if all(map(_WHOLE.fullmatch, found)) else sorted(found))
