"""A table as data: a row an example, a column its class; and a folder of texts, read as such a table."""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from ricnet.data.cells import is_missing, parse_number
from ricnet.data.columns import RARE_ROWS, Columns, fit_columns
from ricnet.data.dataset import Dataset, Parts, Split
from ricnet.data.images import TEXTS, damage, label_files, survey
from ricnet.data.tables import FRAME, Table, frame_table
from ricnet.data.texts import Tokenizer, fit_text, read_text_file
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
    text: str | None = None,
    tokenizer: Tokenizer | None = None,
    test: Table | None = None,
    test_fraction: float | None = None,
) -> Dataset:
    """`columns` and `known`, its classes, are those of a model to be tried on this table; else they are learned from
    its rows, or from the column `text` alone, as the `tokenizer` of a checkpoint cuts it. `test` holds the test rows,
    of which nothing is learned; without it they are cut from the table."""
    target = _check_target(table, target or (columns.target if columns else None))
    if columns is not None and columns.text is not None:
        text = columns.text.name
    table, notes = _labelled(table, target, known, text)
    if columns is None:
        _refuse_measurement(table, target)
    class_names = _classes(table.columns[target].values.texts)
    labels = _class_numbers(table, target, class_names)
    # The rows are divided before anything is learned from them: for now their numbers stand for them.
    rows = Split(torch.arange(len(table)), labels)
    held_out = None
    if test is not None:
        test, said = _labelled(test, _check_target(test, target), class_names, text)
        notes += [f"{test.name}: {note}" for note in said]
        numbers = _class_numbers(test, target, class_names)
        held_out = Split(torch.arange(len(table), len(table) + len(test)), numbers)
    fill = partial(encoded, table, target, columns, text, tokenizer, test=test)
    parts = Parts(rows, class_names, held_out, notes=tuple(notes), fill=fill)
    return parts.dataset(f"{table.name}#{target}", val_fraction, undivided, test_fraction)


def _labelled(table: Table, target: str, known: Sequence[str], text: str | None) -> tuple[Table, list[str]]:
    """The rows that have a class and, if `text` is given, a text; and notes about the other rows."""
    codes, texts = table.columns[target].values
    gaps = _gaps(texts, known)
    labelled = np.flatnonzero(np.array([text not in gaps for text in texts])[codes])
    notes = [*_unlabelled_note(len(table) - len(labelled), target, gaps), *_header_note(table, target)]
    if not len(labelled):
        raise RicnetError(f"{table.name}: no row has a class in {target!r}{_meant(gaps)}; fill in that column.")
    if len(labelled) < len(table):
        table = table.take(labelled)
    if text is None:
        return table, notes
    table, said = _with_text(table, text, target)
    return table, notes + said


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


def encoded(
    table: Table,
    target: str,
    columns: Columns | None,
    text: str | None,
    tokenizer: Tokenizer | None,
    numbered: Dataset,
    test: Table | None = None,
) -> Dataset:
    """Replace row numbers, the inputs of a data set, by the encoded rows. The rows of a `test` table are numbered after
    those of the first."""
    notes, training = numbered.notes, numbered.train.inputs.numpy()
    if columns is None and text is not None:
        columns = Columns(target, (fit_text(table.columns[text].take(training), text, tokenizer),))
    if columns is None:
        columns, said = fit_columns(table, target, training)
        notes = (*notes, *said)
    tables = [table] if test is None else [table, test]
    inputs = torch.cat([columns.encode(each) for each in tables])
    notes = (*notes, *columns.odd_cells(table), *(columns.surprises(test) if test is not None else ()))
    column = columns.text
    texts = None if column is None else [text for each in tables for text in each.columns[column.name]]
    train, val, held_out = (
        replace(part, inputs=inputs[part.inputs], texts=texts and [texts[row] for row in part.inputs.tolist()])
        for part in (numbered.train, numbered.val, numbered.test)
    )
    return replace(numbered, train=train, val=val, test=held_out, columns=columns, notes=notes)


TEXT, CLASS = "text", "class"
"""The columns of a folder of texts."""


def read_text_folder(folder: Path, columns: Columns | None, tokenizer: Tokenizer | None) -> Parts:
    """One subfolder a class, at the top or below train/, val/ and test/; a file is a text."""
    tree = survey(folder, TEXTS)
    labels, texts, broken = list[int](), dict[Path, str](), dict[Path, str]()
    splits = {}
    for part, classes in tree.parts.items():
        first = len(texts)
        for path, label in label_files(classes, tree.class_names).items():
            try:
                text = read_text_file(path)
                if not text:
                    raise RicnetError(f"{path} is empty.")
            except RicnetError as error:
                broken[path] = str(error)
                continue
            texts[path] = text
            labels.append(label)
        splits[part] = Split(torch.arange(first, len(texts)), torch.tensor(labels[first:], dtype=torch.int64))
    if 2 * len(broken) > len(tree.files):
        raise RicnetError(
            f"{folder}: {len(broken)} of {len(tree.files)} texts cannot be read, too many to go on without them; "
            f"{next(iter(broken.values()))}"
        )
    notes = tree.notes if not broken else (*tree.notes, f"{damage(broken, folder)} ({next(iter(broken.values()))})")
    name = columns.text.name if columns is not None and columns.text is not None else TEXT
    table = Table(str(folder), {name: list(texts.values())}, range(len(texts)), "text")
    fill = partial(encoded, table, CLASS, columns, name, tokenizer)
    return Parts(splits["train"], tree.class_names, splits.get("test"), splits.get("val"), notes=notes, fill=fill)


def labelled_frame(
    frame: "DataFrame",
    target: str | None,
    val_fraction: float,
    text: str | None = None,
    tokenizer: Tokenizer | None = None,
    test: Table | None = None,
    test_fraction: float | None = None,
) -> Dataset:
    """A data frame has no name, so that its column of classes tells one run from another."""
    dataset = labelled_table(
        frame_table(frame),
        target,
        val_fraction,
        text=text,
        tokenizer=tokenizer,
        test=test,
        test_fraction=test_fraction,
    )
    column = dataset.name.removeprefix(f"{FRAME}#")
    return replace(dataset, name=f"data-frame-{UNFIT.sub('-', column).strip('-.')}")


def _with_text(table: Table, text: str, target: str) -> tuple[Table, list[str]]:
    """The rows that have a text, and what the user should know of the others and of other columns."""
    if text == target:
        raise RicnetError(f"{setting('text', text)} is the column of the classes; name the one that holds the texts.")
    _check_column(table, text)
    rows = [row for row, cell in enumerate(table.columns[text]) if cell]
    if not rows:
        raise RicnetError(f"{table.name}: all texts in {text!r} are empty; name the column that holds the texts.")
    others = listed([repr(name) for name in table.columns if name not in (text, target)])
    notes = [f"Only {text!r} is learned from, not {others}."] * bool(others)
    empty = len(table) - len(rows)
    notes += [f"{empty} rows have an empty {text!r}; left out."] * bool(empty)
    return (table.take(rows) if empty else table), notes


def check_columns(header: Table, target: str | None, text: str | None, columns: Columns | None) -> None:
    """Before rows are read, raise if the table lacks the column of classes, of texts, or one that a model reads. A JSON
    row may lack some of them."""
    if columns is not None:
        columns.complete(header)
    if header.absent is None:
        _check_target(header, target or (columns.target if columns else None))
        if text is not None:
            _check_column(header, text)


def _check_target(table: Table, target: str | None) -> str:
    if target is None:
        names = listed([repr(name) for name in table.columns], 10)
        short = f", or {shown_name(table.name)}#COLUMN" if table.unit == "line" else ""
        raise RicnetError(
            f"{table.name}: which column is the class? Say {setting('target')} COLUMN{short}; it has {names}."
        )
    return _check_column(table, target)


def _check_column(table: Table, name: str) -> str:
    if name not in table.columns:
        close = nearest(name, table.columns)
        meant = f" (did you mean {close!r}?)" if close else ""
        names = listed([repr(name) for name in table.columns], 10)
        raise RicnetError(f"{table.name} has no column {name!r}{meant}; it has {names}.")
    return name


def _header_note(table: Table, target: str) -> tuple[str, ...]:
    """Numbers for names: columns may be years or wavelengths, or the first row stands where the names should. It does
    where the column of classes is called like one of them. Columns that are counted, as pandas does, are fine."""
    numbers = [name for name in table.columns if _is_number(name)]
    counted = [[str(n) for n in range(first, first + len(numbers))] for first in (0, 1)]
    if not numbers or (len(numbers) > 1 and numbers in counted):
        return ()
    named = listed([repr(name) for name in numbers])
    if target in table.columns[target].values.texts:
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
    """Cells without a class. Among words `none` is a class, such as no damage beside two kinds of damage; among numbers
    it is missing. If the classes are `known`, this does not depend on the other rows."""
    missing = set(filter(is_missing, cells)) - set(known)
    words = any(parse_number(cell) is None for cell in known or cells)
    return {cell for cell in missing if not (words and cell.lower() == "none")}


def _unlabelled_note(count: int, target: str, gaps: Iterable[str]) -> tuple[str, ...]:
    rows = "1 row has no" if count == 1 else f"{count} rows have no"
    return (f"{rows} {target!r}{_meant(gaps)}; left out.",) if count else ()


def _meant(gaps: Iterable[str]) -> str:
    texts = listed([repr(text) for text in sorted(gaps) if text])
    return f" (read as gaps: {texts}; rename what is a class)" if texts else ""


def _refuse_measurement(table: Table, target: str) -> None:
    counts = table.columns[target].values.counts
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
