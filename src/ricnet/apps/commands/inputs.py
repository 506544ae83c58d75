"""Files, folders, patterns, tables or standard input as one tensor with names: what `ric predict` is asked about, and
what `read` of a classifier is."""

import glob
import io
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from jaxtyping import Num
from rich.console import Console
from torch import Tensor

from ricnet.data import (
    Table,
    decode_image,
    find_images,
    parse_table,
    read_image,
    read_images,
    read_npz_inputs,
    read_table,
)
from ricnet.data.tables import is_table
from ricnet.errors import RicnetError
from ricnet.paths import user_path
from ricnet.training.classifier import Classifier
from ricnet.untrusted import printable

STANDARD_INPUT = "-"
Part = tuple[list[str], Num[Tensor, "n ..."]]
"""What to call each input, and the inputs."""


def read_inputs(specs: Sequence[str], classifier: Classifier) -> Part:
    parts = [part for spec in specs for part in _read(spec, classifier)]
    return [name for names, _ in parts for name in names], torch.cat([inputs for _, inputs in parts])


def warn(sentence: str) -> None:
    Console(stderr=True).print(printable(sentence), highlight=False, markup=False, soft_wrap=True)


def _read(spec: str, classifier: Classifier) -> Iterator[Part]:
    path = user_path(spec)
    if spec == STANDARD_INPUT:
        yield _read_standard_input(classifier)
    elif glob.has_magic(spec) and not path.exists():
        yield from _read_pattern(str(path), classifier)
    elif path.suffix.lower() == ".npz":
        yield _read_npz(path, classifier)
    elif is_table(path):
        yield _encode(read_table(path), str(path), classifier)
    elif not _reads_images(classifier) and path.exists():
        raise RicnetError(f"{path}: this model reads {_wanted(classifier)}.")
    elif path.is_dir():
        yield _read_many(find_images(path), str(path), classifier)
    else:
        yield [str(path)], read_image(path, classifier.input_shape)[None]


def _read_pattern(pattern: str, classifier: Classifier) -> Iterator[Part]:
    """Files that match; of folders what is in them, as if they had been named."""
    matches = glob.glob(pattern, recursive=True)  # noqa: PTH207 — Path.glob takes no absolute pattern
    found = [Path(match) for match in sorted(matches)]
    if not found:
        raise RicnetError(f"{pattern} matches no file.")
    plain = [path for path in found if not path.is_dir() and path.suffix.lower() != ".npz" and not is_table(path)]
    if plain and _reads_images(classifier):
        yield _read_many(plain, pattern, classifier)
    for path in found:
        if path not in plain or not _reads_images(classifier):
            yield from _read(str(path), classifier)


def _read_many(paths: Sequence[Path], where: str, classifier: Classifier) -> Part:
    """Every image that can be read; a broken one among many is named and left out."""
    images, broken = read_images(paths, classifier.input_shape)
    for problem in broken.values():
        warn(f"skipped: {problem}")
    if not len(images):
        raise RicnetError(f"{where} holds no images that can be classified.")
    return [str(path) for path in paths if path not in broken], images


def _read_npz(path: Path, classifier: Classifier) -> Part:
    rows = read_npz_inputs(path, classifier.input_shape, "image" if _reads_images(classifier) else "features")
    return [f"{path}[{row}]" for row in range(len(rows))], rows


def _read_standard_input(classifier: Classifier) -> Part:
    content = sys.stdin.buffer.read()
    if _reads_images(classifier):
        return [STANDARD_INPUT], decode_image(io.BytesIO(content), "standard input", classifier.input_shape)[None]
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RicnetError(f"standard input is no text in UTF-8 ({error}); this model reads CSV rows.") from error
    return _encode(parse_table(text, "standard input"), STANDARD_INPUT, classifier)


def _encode(table: Table, label: str, classifier: Classifier) -> Part:
    columns = classifier.columns
    if columns is None:
        raise RicnetError(f"{table.name} is a table, but this model reads {_wanted(classifier)}.")
    inputs = columns.encode(table)
    for surprise in columns.surprises(table):
        warn(f"note: {surprise}")
    return [f"{label}:{line}" for line in table.lines], inputs


def _reads_images(classifier: Classifier) -> bool:
    return len(classifier.input_shape) == 3


def _wanted(classifier: Classifier) -> str:
    if _reads_images(classifier):
        return "images; give image files, a folder, or an .npz file with an array x"
    if classifier.columns is not None:
        return "tables; give a .csv or .tsv file with the columns it was trained on"
    return f"rows of {classifier.input_shape[0]} features; give an .npz file with an array x"
