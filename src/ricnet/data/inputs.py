"""Inputs of `ric predict` and `Classifier.read`: files, folders, patterns, tables, sentences or standard input as one
tensor with names."""

import glob
import io
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from jaxtyping import Num
from torch import Tensor

from ricnet.data.arrays import read_npz_inputs
from ricnet.data.columns import Columns, reads_arrays
from ricnet.data.images import IMAGES, TEXTS, UNSUPPORTED, decode_image, find_files, read_image, read_images
from ricnet.data.tables import Table, parse_table, read_table
from ricnet.data.texts import Text, decode_text, read_text_file
from ricnet.errors import RicnetError, listed
from ricnet.io import decode, is_table, read_arrays, user_path

STANDARD_INPUT = "-"
NAME_LENGTH = 200  # a text is named by its first characters
Part = tuple[list[str], Num[Tensor, "n ..."]]
"""Name of each input, and the inputs."""
S = TypeVar("S")
T = TypeVar("T")


class Found(NamedTuple):
    names: list[str]
    inputs: Num[Tensor, "n ..."]
    notes: list[str]
    """Notes for the user, also about unreadable files in a folder or pattern."""
    problems: list[RicnetError]
    """Errors for paths that were named and cannot be read."""


def read_inputs(specs: Sequence[str], input_shape: tuple[int, ...], columns: Columns | None) -> Found:
    """Read inputs of this shape, encoded by these columns if the model was trained on a table. If nothing can be read,
    the first problem is raised, with its first reason."""
    if not specs:
        raise RicnetError("there is nothing to read; give the paths of files or folders.")
    reader = _Reader(input_shape, columns)
    read, problems = _attempt(reader.read, specs)
    parts = [part for _, own in read for part in own]
    if not parts:
        reasons = [note.removeprefix("skipped: ") for note in reader.notes[:1]]
        raise RicnetError(" ".join([str(problems[0]), *reasons]))
    names, inputs = [name for own, _ in parts for name in own], torch.cat([inputs for _, inputs in parts])
    if reader.text is not None:
        reader.notes += [f"note: {note}" for note in reader.text.notes(reader.texts, reader.text.rows(reader.texts))]
    return Found(names, inputs, reader.notes, problems)


def _attempt(read_one: Callable[[S], T], items: Iterable[S]) -> tuple[list[tuple[S, T]], list[RicnetError]]:
    """The items that can be read, with what is read, and the errors of the others."""
    read: list[tuple[S, T]] = []
    problems: list[RicnetError] = []
    for item in items:
        try:
            read.append((item, read_one(item)))
        except RicnetError as problem:
            problems.append(problem)
    return read, problems


@dataclass
class _Reader:
    """Reads the inputs of one model, and collects notes."""

    input_shape: tuple[int, ...]
    columns: Columns | None
    notes: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    """Texts from arguments and .txt files, collected for one note."""

    @property
    def of_images(self) -> bool:
        return len(self.input_shape) == 3

    @property
    def text(self) -> Text | None:
        return None if self.columns is None else self.columns.text

    def read(self, spec: str) -> list[Part]:
        if self.text is not None and spec != STANDARD_INPUT and is_sentence(spec):
            return [self._encode_texts(self.text, [spec[:NAME_LENGTH]], [spec])]
        path = user_path(spec)
        if spec == STANDARD_INPUT:
            return [self._read_standard_input()]
        if glob.has_magic(spec) and not path.exists():
            return self._read_pattern(str(path))
        return [self._read_path(path)]

    def _read_path(self, path: Path) -> Part:
        if path.suffix.lower() == ".npz":
            return self._read_npz(path)
        if is_table(path):
            return self._encode(read_table(path, self._known(path).complete), str(path))
        other = TEXTS if self.of_images else IMAGES
        if other.matches(path) or (not self.of_images and self.text is None and path.exists()):
            what = ("is a text" if self.of_images else "is an image") if other.matches(path) else "cannot be read"
            raise RicnetError(f"{path} {what}; this model reads {wanted(self.input_shape, self.columns)}.")
        if self.text is not None:
            return self._read_texts(self.text, path)
        if not path.is_dir():
            return [str(path)], read_image(path, self.input_shape)[None]
        seen: Counter[str] = Counter()
        found = find_files(path, IMAGES, seen)
        if unread := [f"{seen[suffix]} {suffix}" for suffix in sorted(UNSUPPORTED) if seen[suffix]]:
            self.notes.append(f"skipped: files of {path} in unsupported formats ({listed(unread)}); convert them.")
        names, images = self._read_images(found)
        if not names:
            raise RicnetError(f"{path} holds no images that can be read; give a folder of images.")
        return names, images

    def _read_texts(self, column: Text, path: Path) -> Part:
        """A file is one text; a folder has one in each .txt file below it."""
        if not path.is_dir():
            return self._encode_texts(column, [str(path)], [read_text_file(path)])
        texts, problems = _attempt(read_text_file, find_files(path, TEXTS))
        if not texts:
            raise problems[0] if problems else RicnetError(f"{path} holds no .txt files.")
        self.notes += [f"skipped: {problem}" for problem in problems]
        return self._encode_texts(column, [str(file) for file, _ in texts], [text for _, text in texts])

    def _encode_texts(self, column: Text, names: list[str], texts: list[str]) -> Part:
        self.texts += texts
        return names, torch.from_numpy(column.rows(texts))

    def _read_pattern(self, pattern: str) -> list[Part]:
        """Files that match, and those in folders that match. An unreadable one is only noted, unless none can be
        read."""
        matches = glob.glob(pattern, recursive=True)  # noqa: PTH207 — Path.glob takes no absolute pattern
        found = [Path(match) for match in sorted(matches)]
        if not found:
            raise RicnetError(f"{pattern} matches no file; check it.")
        together = [path for path in found if self._is_one_image(path)]
        images = [self._read_images(together)] if together else []
        apart, problems = _attempt(self._read_path, [path for path in found if not self._is_one_image(path)])
        parts = [part for part in [*images, *(own for _, own in apart)] if part[0]]
        if not parts:
            raise problems[0] if problems else RicnetError(f"{pattern} matches no image that can be classified.")
        self.notes += [f"skipped: {problem}" for problem in problems]
        return parts

    def _is_one_image(self, path: Path) -> bool:
        """Whether the path is read as a single image."""
        return self.of_images and path.suffix.lower() != ".npz" and not is_table(path) and not path.is_dir()

    def _read_images(self, paths: Sequence[Path]) -> Part:
        """The readable images; others are noted and left out."""
        images, broken = read_images(paths, self.input_shape)
        self.notes += [f"skipped: {broken[path]}" for path in paths if path in broken]
        return [str(path) for path in paths if path not in broken], images

    def _read_npz(self, path: Path) -> Part:
        kind: Any = "image" if self.of_images else "features" if self.text is None else "tokens"
        rows = read_npz_inputs(path, self.input_shape, kind, self.columns)
        if kind == "tokens":  # a run's examples.npz holds their texts
            texts = read_arrays(path, names=("text",)).get("text")
            if texts is not None and texts.dtype.kind == "U" and texts.shape == rows.shape[:1]:
                return [text[:NAME_LENGTH] for text in texts.tolist()], rows
        return [f"{path}[{row}]" for row in range(len(rows))], rows

    def _read_standard_input(self) -> Part:
        content = sys.stdin.buffer.read()
        if self.of_images:
            return [STANDARD_INPUT], decode_image(io.BytesIO(content), "standard input", self.input_shape)[None]
        if self.text is not None:
            return self._encode_texts(self.text, [STANDARD_INPUT], [decode_text(content, "standard input")])
        try:
            text = decode(content)
        except UnicodeDecodeError as error:
            raise RicnetError(f"standard input is not UTF-8 text ({error}); this model reads CSV rows.") from error
        return self._encode(parse_table(text, "standard input"), STANDARD_INPUT)

    def _known(self, name: str | Path) -> Columns:
        """The model's columns; refuse the table `name` if the model has none."""
        if self.columns is None:
            raise RicnetError(f"{name} is a table, but this model reads {wanted(self.input_shape, None)}.")
        return self.columns

    def _encode(self, table: Table, label: str) -> Part:
        columns = self._known(table.name)
        inputs = columns.encode(table)
        self.notes += [f"note: {surprise}" for surprise in columns.surprises(table)]
        return [f"{label}:{line}" for line in table.lines], inputs


def is_sentence(spec: str) -> bool:
    """Whether the argument is a text to classify rather than a path. Text that looks like a path is a path, even if
    there is no such file."""
    try:
        if user_path(spec).exists():
            return False
    except RicnetError:  # not a valid path
        return True
    one_word = not any(letter.isspace() for letter in spec)
    files = (".npz", *TEXTS.suffixes, *IMAGES.suffixes)
    return not (one_word and ("/" in spec or is_table(spec) or Path(spec).suffix.lower() in files))


def wanted(input_shape: tuple[int, ...], columns: Columns | None) -> str:
    """Inputs that a model reads, for the end of an error message."""
    if len(input_shape) == 3:
        return "images; give image files, a folder, or an .npz file with an array x"
    if columns is not None and columns.text is not None:
        return f"texts; give sentences, .txt files, or a table with a column {columns.text.name!r}"
    if columns is not None:
        npz = ", or an .npz file with an array x" if reads_arrays(columns, (len(columns.inputs),)) else ""
        return f"tables; give a file (.csv, .tsv, .jsonl, .parquet) with the columns it was trained on{npz}"
    return f"rows of {input_shape[0]} features; give an .npz file with an array x"
