"""From the bytes of a request to a tensor: images and numbers that strangers send, so nothing in them is trusted.

An image's size is read from its header and held against the limit before any pixel is decoded: a file of a few
kilobytes can claim to be gigabytes of them.
"""

import base64
import binascii
import io
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float32, Num, UInt8
from PIL import Image
from torch import Tensor

from ricnet.apps.server.limits import Limits, Refusal
from ricnet.apps.server.schema import Ask, Options, parse_json
from ricnet.data.columns import Columns
from ricnet.data.images import FORMATS, decode_image
from ricnet.data.tables import Table
from ricnet.errors import RicnetError, listed
from ricnet.report.words import short
from ricnet.training.classifier import Classifier

REQUEST = "the request"
"""What rows are called where a table has the name of its file."""


class File(NamedTuple):
    name: str
    content: bytes


class Asked(NamedTuple):
    names: list[str]
    """What each input is called in the answer."""
    inputs: Num[Tensor, "n ..."]
    notes: tuple[str, ...] = ()
    """What the client should know of them."""


def read_files(files: Sequence[File], classifier: Classifier, limits: Limits) -> Asked:
    if len(classifier.input_shape) != 3:
        raise Refusal(422, f"this model reads no images; send {_wanted(classifier)} as JSON.")
    _check_count(len(files), "image", limits)
    _check_pixels(files, limits)
    inputs = torch.stack([_decode(file, classifier.input_shape) for file in files])
    return Asked([file.name for file in files], inputs)


def read_json(body: bytes, classifier: Classifier, limits: Limits) -> tuple[Asked, Options]:
    """At one go, so that of a request that waits for the model only a tensor is kept, not all that was parsed."""
    ask = parse_json(body)
    return _read_ask(ask, classifier, limits), Options(**ask.model_dump(include=set(Options.model_fields)))


def _read_ask(ask: Ask, classifier: Classifier, limits: Limits) -> Asked:
    given = [name for name in ("features", "rows", "images") if getattr(ask, name) is not None]
    if len(given) != 1:
        raise Refusal(422, "give one of features, rows and images.")
    if ask.images is not None:
        texts = [ask.images] if isinstance(ask.images, str) else ask.images
        return read_files([_from_base64(text, i) for i, text in enumerate(texts)], classifier, limits)
    if len(classifier.input_shape) == 3:
        raise Refusal(422, "this model reads images; send them as files of a form, or in base64 as images.")
    if ask.rows is not None:
        return _read_rows([ask.rows] if isinstance(ask.rows, dict) else ask.rows, classifier, limits)
    if classifier.columns is not None:  # its cells are standardised and spread out first, which numbers alone are not
        raise Refusal(422, f"this model reads cells by the names of their columns; send {_wanted(classifier)}.")
    features = ask.features or []
    rows = features if features and isinstance(features[0], list) else [features]
    return Asked(_places("features", rows), _read_features(rows, classifier.input_shape[0], limits))  # type: ignore[arg-type]


def _places(field: str, inputs: Sequence[object]) -> list[str]:
    return [f"{field}[{place}]" for place in range(len(inputs))]


def _check_count(count: int, what: str, limits: Limits) -> None:
    if count == 0:
        raise Refusal(422, f"the request holds no {what}; send one or more.")
    if count > limits.max_batch:
        raise Refusal(413, f"the request holds {count} inputs; send at most {limits.max_batch} at once.")


def _check_pixels(files: Sequence[File], limits: Limits) -> None:
    pixels = 0
    for file in files:
        try:
            with Image.open(io.BytesIO(file.content), formats=FORMATS) as image:
                pixels += image.width * image.height
        except (Image.DecompressionBombError, Image.DecompressionBombWarning):
            pixels = limits.pixels + 1
        except Exception:  # decoders fail in many ways
            raise _no_image(file) from None
        if pixels > limits.pixels:
            together = "is" if len(files) == 1 else "and those before it are"
            raise Refusal(
                413, f"{_shown(file)} {together} larger than {limits.max_megapixels:g} megapixels; make it smaller."
            )


def _decode(file: File, input_shape: tuple[int, ...]) -> UInt8[Tensor, "c h w"]:
    try:
        return decode_image(io.BytesIO(file.content), file.name, input_shape)
    except RicnetError:
        raise _no_image(file) from None


def _no_image(file: File) -> Refusal:
    return Refusal(422, f"{_shown(file)} is no image that can be read; send a whole PNG, JPEG, WebP, GIF, BMP or TIFF.")


def _shown(file: File) -> str:
    return short(file.name.strip(), 60) or "the file"


def _from_base64(text: str, place: int) -> File:
    encoded = text.partition(",")[2] if text.startswith("data:") else text
    try:
        return File(f"images[{place}]", base64.b64decode(encoded, validate=True))
    except (binascii.Error, ValueError):
        raise Refusal(422, f"images[{place}] is not in base64.") from None


def _read_features(rows: Sequence[Sequence[float]], width: int, limits: Limits) -> Float32[Tensor, "n width"]:
    _check_count(len(rows), "row", limits)
    for place, row in enumerate(rows):
        if len(row) != width:
            raise Refusal(422, f"features[{place}] has {len(row)} numbers; the model reads {width}.")
    inputs = torch.tensor(rows, dtype=torch.float64).float()
    if not torch.isfinite(inputs).all():
        raise Refusal(422, "a feature is too large; send numbers below 3e38.")
    return inputs


def _read_rows(rows: Sequence[Mapping[str, Any]], classifier: Classifier, limits: Limits) -> Asked:
    columns = classifier.columns
    if columns is None:
        raise Refusal(422, f"this model knows no names of columns; send {_wanted(classifier)}.")
    _check_count(len(rows), "row", limits)
    table = _as_table(rows, columns)
    try:
        return Asked(_places("rows", rows), columns.encode(table), columns.surprises(table))
    except RicnetError as problem:  # speaks of lines, as of a file
        raise Refusal(422, re.sub(rf"^{REQUEST}, line (\d+):", r"rows[\1]:", str(problem))) from None


def _as_table(rows: Sequence[Mapping[str, Any]], columns: Columns) -> Table:
    """Of the columns the model knows; its lines are the places of the rows."""
    names = [column.name for column in columns.inputs]
    for place, row in enumerate(rows):
        absent = [_quoted(name) for name in names if name not in row]
        if absent:
            raise Refusal(422, f"rows[{place}] lacks {listed(absent)}; send null for what is unknown.")
    cells = {name: [_as_cell(row[name], name, place) for place, row in enumerate(rows)] for name in names}
    return Table(REQUEST, cells, list(range(len(rows))))


def _as_cell(value: Any, column: str, place: int) -> str:
    """As a table has it, where every number was text: 3.0 of JSON is the 3 of a column that counts."""
    if isinstance(value, bool) or not isinstance(value, str | int | float | None):
        raise Refusal(422, f"rows[{place}]: {_quoted(column)} should be a text, a number or null.")
    if value is None:
        return ""
    if isinstance(value, float) and value.is_integer() and math.fabs(value) < 1e15:
        return str(int(value))
    return str(value).strip()


def _wanted(classifier: Classifier) -> str:
    """What to send to a model that reads no images."""
    if classifier.columns is None:
        return f'"features" with its {math.prod(classifier.input_shape)} numbers'
    return f'"rows" with {listed([_quoted(column.name) for column in classifier.columns.inputs])}'


def _quoted(column: str) -> str:
    return repr(short(column, 60))
