"""Files, folders, patterns, tables or standard input as one tensor with names: what `ric predict` and `Classifier.read`
are given."""

import glob
import io
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Num
from torch import Tensor

from ricnet.data.arrays import read_npz_inputs
from ricnet.data.columns import Columns
from ricnet.data.delimited import Table, parse_table, read_table
from ricnet.data.images import decode_image, find_images, read_image, read_images
from ricnet.data.tables import is_table
from ricnet.errors import RicnetError
from ricnet.paths import user_path

STANDARD_INPUT = "-"
Part = tuple[list[str], Num[Tensor, "n ..."]]
"""What to call each input, and the inputs."""


class Found(NamedTuple):
    names: list[str]
    inputs: Num[Tensor, "n ..."]
    notes: list[str]
    """What one should know of them."""
    problems: list[RicnetError]
    """Why some of what was named is not among them."""


def read_inputs(specs: Sequence[str], input_shape: tuple[int, ...], columns: Columns | None) -> Found:
    """For a model that reads inputs of this shape, made of these columns if it was trained on a table. If nothing can
    be read, the first problem is raised."""
    reading = _Reading(input_shape, columns)
    parts = [part for spec in specs for part in reading.attempt(spec)]
    if not parts:
        raise reading.problems[0]
    names, inputs = [name for own, _ in parts for name in own], torch.cat([inputs for _, inputs in parts])
    return Found(names, inputs, reading.notes, reading.problems)


@dataclass
class _Reading:
    """What the model takes, and what there is to say of what was read for it so far."""

    input_shape: tuple[int, ...]
    columns: Columns | None
    notes: list[str] = field(default_factory=list)
    problems: list[RicnetError] = field(default_factory=list)

    @property
    def of_images(self) -> bool:
        return len(self.input_shape) == 3

    def attempt(self, spec: str) -> Iterator[Part]:
        try:
            yield from self._read(spec)
        except RicnetError as problem:
            self.problems.append(problem)

    def _read(self, spec: str) -> Iterator[Part]:
        path = user_path(spec)
        if spec == STANDARD_INPUT:
            yield self._read_standard_input()
        elif glob.has_magic(spec) and not path.exists():
            yield from self._read_pattern(str(path))
        elif path.suffix.lower() == ".npz":
            yield self._read_npz(path)
        elif is_table(path):
            yield self._encode(read_table(path), str(path))
        elif not self.of_images and path.exists():
            raise RicnetError(f"{path}: this model reads {self._wanted()}.")
        elif path.is_dir():
            yield self._read_many(find_images(path), str(path))
        else:
            yield [str(path)], read_image(path, self.input_shape)[None]

    def _read_pattern(self, pattern: str) -> Iterator[Part]:
        """Files that match; of folders what is in them, as if they had been named."""
        matches = glob.glob(pattern, recursive=True)  # noqa: PTH207 — Path.glob takes no absolute pattern
        found = [Path(match) for match in sorted(matches)]
        if not found:
            raise RicnetError(f"{pattern} matches no file.")
        plain = [path for path in found if not path.is_dir() and path.suffix.lower() != ".npz" and not is_table(path)]
        if plain and self.of_images:
            yield self._read_many(plain, pattern)
        for path in found:
            if path not in plain or not self.of_images:
                yield from self.attempt(str(path))

    def _read_many(self, paths: Sequence[Path], where: str) -> Part:
        """Every image that can be read; a broken one among many is noted and left out."""
        images, broken = read_images(paths, self.input_shape)
        self.notes += [f"skipped: {problem}" for problem in broken.values()]
        if not len(images):
            raise RicnetError(f"{where} holds no images that can be classified.")
        return [str(path) for path in paths if path not in broken], images

    def _read_npz(self, path: Path) -> Part:
        rows = read_npz_inputs(path, self.input_shape, "image" if self.of_images else "features")
        return [f"{path}[{row}]" for row in range(len(rows))], rows

    def _read_standard_input(self) -> Part:
        content = sys.stdin.buffer.read()
        if self.of_images:
            return [STANDARD_INPUT], decode_image(io.BytesIO(content), "standard input", self.input_shape)[None]
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise RicnetError(f"standard input is no text in UTF-8 ({error}); this model reads CSV rows.") from error
        return self._encode(parse_table(text, "standard input"), STANDARD_INPUT)

    def _encode(self, table: Table, label: str) -> Part:
        if self.columns is None:
            raise RicnetError(f"{table.name} is a table, but this model reads {self._wanted()}.")
        inputs = self.columns.encode(table)
        self.notes += [f"note: {surprise}" for surprise in self.columns.surprises(table)]
        return [f"{label}:{line}" for line in table.lines], inputs

    def _wanted(self) -> str:
        if self.of_images:
            return "images; give image files, a folder, or an .npz file with an array x"
        if self.columns is not None:
            return "tables; give a .csv or .tsv file with the columns it was trained on"
        return f"rows of {self.input_shape[0]} features; give an .npz file with an array x"
