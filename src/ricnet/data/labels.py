"""Labelled tables as data sets: each row is an example, one column holds its class. Also folders of texts."""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from ricnet.data.columns import RARE_ROWS, Columns, fit_columns, quoted
from ricnet.data.dataset import Dataset, GivenSplits, Split
from ricnet.data.images import TEXTS, damage, in_threads, survey
from ricnet.data.tables import Table, is_missing, parse_number
from ricnet.data.texts import Tokenizer, fit_text, read_text_file
from ricnet.errors import RicnetError, listed, nearest, setting
from ricnet.io import shown_name

MANY_CLASSES = 50  # a target of more different numbers, most of them rare, is a measurement
TEXT, CLASS = "text", "class"  # columns of a folder of texts
_WHOLE = re.compile(r"[+-]?\d{1,100}")  # Python's `int` refuses thousands of digits


@dataclass(frozen=True)
class TableTask:
    """Target and inputs to learn from a table. `columns` and `class_names` are those of a model to evaluate on it."""

    target: str | None
    """Column of the classes; None for that of `columns`."""
    text: str | None = None
    """Column of texts to learn from, instead of all others."""
    tokenizer: Tokenizer | None = None
    """Tokenizer of a pretrained checkpoint."""
    columns: Columns | None = None
    class_names: Sequence[str] = ()

    def check(self, header: Table) -> None:
        """Raise if the table lacks the target, the text, or a column that the model reads. Rows of JSON lines may lack
        some of them."""
        if self.columns is not None:
            self.columns.complete(header)
        if header.absent is None:
            self.find_target(header)
            if self.text is not None:
                _check_column(header, self.text)

    def find_target(self, table: Table) -> str:
        target = self.target or (self.columns.target if self.columns else None)
        if target is None:
            short = f", or {shown_name(table.name)}#COLUMN" if table.unit == "line" else ""
            raise RicnetError(
                f"{table.name}: which column is the class? Name it with {setting('target')} COLUMN{short}; "
                f"it has {quoted(table.columns, 10)}."
            )
        if self.target is None and target not in table.columns:
            raise RicnetError(
                f"{table.name} has no column {target!r}, the classes of the run; name the column of classes as "
                f"{shown_name(table.name)}#COLUMN. It has {quoted(table.columns, 10)}."
            )
        return _check_column(table, target)


def _check_column(table: Table, name: str) -> str:
    if name not in table.columns:
        close = nearest(name, table.columns)
        meant = f" (did you mean {close!r}?)" if close else ""
        raise RicnetError(f"{table.name} has no column {name!r}{meant}; it has {quoted(table.columns, 10)}.")
    return name


def labelled_table(table: Table, task: TableTask, test: Table | None = None) -> tuple[str, GivenSplits]:
    """Name and parts of the data set. `test` holds the test rows, of which nothing is learned; without it they are cut
    from the table."""
    target = task.find_target(table)
    if task.columns is not None and task.columns.text is not None:
        task = replace(task, text=task.columns.text.name)
    table, found = _labelled(table, target, task.class_names, task.text)
    notes = [*table.notes, *found]
    if task.columns is None:
        _refuse_measurement(table, target)
        notes += _alike(table.columns[target].values.texts)
    class_names = _sorted_classes(table.columns[target].values.texts)
    # The splits are made before anything is learned: until then, inputs are the numbers of the rows.
    rows, held_out = Split(torch.arange(len(table)), _class_numbers(table, target, class_names)), None
    if test is not None:
        test, said = _labelled(test, _check_column(test, target), class_names, task.text)
        notes += [f"{test.name}: {note}" for note in said]
        numbers = torch.arange(len(table), len(table) + len(test))
        held_out = Split(numbers, _class_numbers(test, target, class_names))
    fill = partial(_encoded, replace(task, target=target), [table] if test is None else [table, test])
    return f"{table.name}#{target}", GivenSplits(rows, class_names, held_out, notes=tuple(notes), fill=fill)


# Rows that have a class


def _labelled(table: Table, target: str, known: Sequence[str], text: str | None) -> tuple[Table, list[str]]:
    """The rows that have a class and, if `text` is given, a text; and notes about the other rows."""
    _refuse_missing_header(table, target)
    codes, texts = table.columns[target].values
    gaps = _missing_cells(texts, known)
    meant = quoted(sorted(filter(None, gaps)))
    named = f" (counted as missing: {meant}; rename it if it is a class)" if meant else ""
    labelled = np.flatnonzero(np.array([cell not in gaps for cell in texts])[codes])
    if not len(labelled):
        raise RicnetError(f"{table.name}: no row has a class in {target!r}{named}; fill in that column.")
    notes, lost = [], len(table) - len(labelled)
    if lost:
        notes.append(f"{'1 row has' if lost == 1 else f'{lost} rows have'} no {target!r}{named}; left out.")
        table = table.take(labelled)
    if text is not None:
        table, said = _with_text(table, text, target)
        notes += said
    return table, notes


def _missing_cells(cells: Sequence[str], known: Sequence[str]) -> set[str]:
    """Cells that count as missing in the column of classes. The cell `none` is a class among words (no damage, beside
    kinds of damage) and missing among numbers. `known` classes, of a model, decide which it is, else the cells."""
    missing = set(filter(is_missing, cells)) - set(known)
    words = any(parse_number(cell) is None for cell in known or cells)
    return {cell for cell in missing if not (words and cell.lower() == "none")}


def _with_text(table: Table, text: str, target: str) -> tuple[Table, list[str]]:
    """The rows that have a text, and notes about the other rows and columns."""
    if text == target:
        raise RicnetError(f"{setting('text', text)} is the column of the classes; name the one that holds the texts.")
    _check_column(table, text)
    rows = [row for row, cell in enumerate(table.columns[text]) if cell]
    if not rows:
        raise RicnetError(f"{table.name}: all texts in {text!r} are empty; name the column that holds the texts.")
    others = quoted(name for name in table.columns if name not in (text, target))
    notes = [f"Only {text!r} is learned from, not {others}."] * bool(others)
    empty = len(table) - len(rows)
    notes += [f"{empty} rows have an empty {text!r}; left out."] * bool(empty)
    return (table.take(rows) if empty else table), notes


def _refuse_missing_header(table: Table, target: str) -> None:
    """Names of columns may be numbers (years, wavelengths). But if the target's name is also one of its classes, the
    first line is a row of data."""
    numbers = [name for name in table.columns if parse_number(name) is not None and not is_missing(name)]
    counted = [[str(n) for n in range(first, first + len(numbers))] for first in (0, 1)]
    if numbers and target in table.columns[target].values.texts and not (len(numbers) > 1 and numbers in counted):
        raise RicnetError(
            f"{table.name}: its first line looks like a row of data, with {quoted(numbers)} and the class {target!r}; "
            "add a line of names above it, or rename the column of classes if these are names."
        )


def _refuse_measurement(table: Table, target: str) -> None:
    cells = table.columns[target]
    counts = cells.values.counts
    rare = sum(count < RARE_ROWS for count in counts.values())
    if len(counts) <= MANY_CLASSES or 2 * rare <= len(counts):
        return
    if any(not len(cells.numbers_as(notation).odd) for notation in cells.notations()):
        raise RicnetError(
            f"{table.name}: {target!r} looks like a measurement ({len(counts)} different numbers), not a class; "
            f"choose another {setting('target')}."
        )


def _alike(classes: Sequence[str]) -> list[str]:
    """A note if classes are the same number, or differ in case only."""
    groups = defaultdict[object, list[str]](list)
    for name in sorted(classes):
        number = parse_number(name) is not None and not is_missing(name)
        groups[Decimal(name) if number else name.casefold()].append(name)
    same = [" and ".join(map(repr, group)) for group in groups.values() if len(group) > 1]
    what = "are different classes, though they differ only in case or number format; if they are one, write them alike"
    return [f"{listed(same, 5)} {what}."] * bool(same)


def _sorted_classes(found: Iterable[str]) -> tuple[str, ...]:
    """Whole numbers in numerical order, anything else in alphabetical order."""
    names = sorted(found)
    return tuple(sorted(names, key=int) if all(map(_WHOLE.fullmatch, names)) else names)


def _class_numbers(table: Table, target: str, class_names: Sequence[str]) -> Int64[Tensor, "n"]:
    number = {name: i for i, name in enumerate(class_names)}
    codes, texts = table.columns[target].values
    unknown = next((text for text in texts if text not in number), None)
    if unknown is not None:
        row = int((codes == texts.index(unknown)).argmax())
        raise RicnetError(
            f"{table.place(row)}: the class {unknown!r} is not in the training data, which has "
            f"{listed(list(number))}; remove the row or correct it."
        )
    return torch.from_numpy(np.array([number[text] for text in texts])[codes])


def _encoded(task: TableTask, tables: Sequence[Table], numbered: Dataset) -> Dataset:
    """Replace row numbers, the inputs of a data set, by the encoded rows. The columns are learned from the training
    rows of the first table; rows of the second, the test table, are numbered after those of the first."""
    [table, *others], columns, notes = tables, task.columns, list(numbered.notes)
    training, target = numbered.train.inputs.numpy(), task.target or ""
    if columns is None and task.text is not None:
        columns = Columns(target, (fit_text(table.columns[task.text].take(training), task.text, task.tokenizer),))
    if columns is None:
        columns, said = fit_columns(table, target, training)
        notes += said
    inputs = torch.cat([columns.encode(each) for each in tables])
    notes += [*columns.odd_cells(table), *(note for other in others for note in columns.surprises(other))]
    text = columns.text
    texts = None if text is None else [cell for each in tables for cell in each.columns[text.name]]
    train, val, test = (
        replace(part, inputs=inputs[part.inputs], texts=texts and [texts[row] for row in part.inputs.tolist()])
        for part in (numbered.train, numbered.val, numbered.test)
    )
    return replace(numbered, train=train, val=val, test=test, columns=columns, notes=tuple(notes))


# Folders of texts


def read_text_folder(folder: Path, columns: Columns | None, tokenizer: Tokenizer | None) -> GivenSplits:
    """One subfolder for each class, at the top or below train/, val/ and test/; each file is a text."""
    tree = survey(folder, TEXTS)

    def read(path: Path) -> str:
        text = read_text_file(path)
        if not text:
            raise RicnetError(f"{path} is empty.")
        return text

    texts, broken = in_threads(read, tree.files)
    splits = tree.splits(torch.arange(len(texts)), broken)
    notes, reason = tree.notes, broken[min(broken)] if broken else ""
    if 2 * len(broken) > len(tree.files):
        raise RicnetError(
            f"{folder}: {len(broken)} of {len(tree.files)} texts cannot be read, too many to go on without them; "
            f"{reason}"
        )
    if broken:
        notes = (*notes, f"{damage(broken, folder)} ({reason})")
    name = columns.text.name if columns is not None and columns.text is not None else TEXT
    table = Table(str(folder), {name: texts}, range(len(texts)), "text")
    fill = partial(_encoded, TableTask(CLASS, name, tokenizer, columns), [table])
    return GivenSplits(splits["train"], tree.class_names, splits.get("test"), splits.get("val"), notes=notes, fill=fill)
