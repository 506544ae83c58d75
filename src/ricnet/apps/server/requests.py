"""Requests: their fields, and reading their JSON into a tensor. Nothing in them is trusted. Images are decoded in
decoding.py.
"""

import base64
import binascii
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple, TypeVar

import torch
from jaxtyping import Float32, Num
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, WithJsonSchema
from torch import Tensor

from ricnet.apps.server.limits import Limits, Refusal
from ricnet.data.columns import Category, Columns, Number
from ricnet.data.tables import Table
from ricnet.data.texts import Text
from ricnet.errors import RicnetError, listed
from ricnet.io import short
from ricnet.models.classifier import Classifier

SOURCE = "the request"
"""What messages call the table that rows are read from."""


SHOWN = 4
"""Maximum columns or numbers in the example body of an error message."""
NO_AND_YES = (("false", "true"), ("no", "yes"), ("f", "t"), ("n", "y"))
"""How tables write what JSON has as false and true, in capitals or not."""

# After the first mistake the rest is not checked: explaining millions of them would take gigabytes.
Row = Annotated[list[FiniteFloat], Field(max_length=1_000_000, fail_fast=True)]
Rows = Annotated[list[Row], Field(fail_fast=True)]
Texts = Annotated[list[str], Field(fail_fast=True)]
Cell = Annotated[Any, WithJsonSchema({"anyOf": [{"type": kind} for kind in ("string", "number", "boolean", "null")]})]
"""Cells of columns that the model reads are checked in `_as_cell`; others may be anything."""
Record = dict[str, Cell]
Records = Annotated[list[Record], Field(fail_fast=True)]


class Options(BaseModel):
    # Unknown fields are refused by us: pydantic has an explanation for each of a million of them.
    model_config = ConfigDict(extra="allow", json_schema_extra={"additionalProperties": False})

    max_steps: Annotated[
        int | None,
        Field(
            ge=1,
            description="Stop after this many steps at the latest; replaces the model's horizon, up or down. At most "
            "max_steps of the limits in /v1/model.",
        ),
    ] = None
    max_ms: Annotated[
        FiniteFloat | None,
        Field(
            gt=0,
            description="Refine as long as the response can be ready within this many milliseconds after the arrival "
            "of the request's last byte; one step is always made. The request is then not batched with others.",
        ),
    ] = None
    budget: Annotated[
        FiniteFloat | None,
        Field(
            gt=0,
            le=1,
            description="Of a model with exits: the mean share of compute that answers may take, instead of the "
            "server's; from what the first exit costs to 1, the whole network.",
        ),
    ] = None
    abstain_below: Annotated[
        FiniteFloat | None,
        Field(
            gt=0,
            le=1,
            description='Answer "unsure" where the confidence is below this probability; top still names the classes.',
        ),
    ] = None
    top: Annotated[int, Field(ge=1, description="How many classes to name for each input, likeliest first.")] = 1
    trace: Annotated[bool, Field(description="Also return the belief after every step, past the halt, too.")] = False


class Ask(Options):
    """One of features, rows, images and texts."""

    features: Annotated[
        Rows | Row | None, Field(description="For a model of numbers: one row of them, or several.")
    ] = None
    rows: Annotated[
        Records | Record | None,
        Field(description="For a model of a table: one row by the names of its columns, or several; null is unknown."),
    ] = None
    images: Annotated[
        Texts | str | None,
        Field(description="For a model of images: one file in base64, or several; a data: URL will do, too."),
    ] = None
    texts: Annotated[Texts | str | None, Field(description="For a model of texts: one text, or several.")] = None


class File(NamedTuple):
    name: str
    content: bytes


class Asked(NamedTuple):
    names: list[str]
    """What each input is called in the answer."""
    inputs: Num[Tensor, "n ..."]
    notes: tuple[str, ...] = ()
    """What the client should know of them."""


def read_json(body: bytes, classifier: Classifier, limits: Limits) -> tuple[Asked | list[File], Options]:
    """The inputs, or image files to be decoded. One function, so that only a tensor stays in memory while the request
    waits for the model, not the parsed JSON."""
    ask = parse(Ask, body, f"send {_form(classifier)}")
    return _read_ask(ask, classifier, limits), Options(**ask.model_dump(include=set(Options.model_fields)))


def require_images(count: int, classifier: Classifier, limits: Limits) -> None:
    if len(classifier.input_shape) != 3:
        raise Refusal(422, f"this model reads no images; send {_wanted(classifier)} as JSON.")
    _check_count(count, "image", limits)


Form = TypeVar("Form", bound=Options)


def parse(form: type[Form], given: bytes | Mapping[str, Any], advice: str = "see /docs for those there are") -> Form:
    """Parse JSON or the fields of a form; `advice` ends the message about unknown or missing fields. pydantic's parser
    refuses nesting that would exhaust the stack."""
    try:
        found = form.model_validate_json(given) if isinstance(given, bytes) else form.model_validate(given)
    except ValidationError as error:
        raise Refusal(422, _sentence(error, advice)) from None
    for name in found.model_extra or ():
        if name == "images":
            raise Refusal(422, "images is a text here; send files.")
        raise Refusal(422, f"there is no field {name[:100]!r} to fill in; {advice}.")
    return found


def _sentence(error: ValidationError, advice: str) -> str:
    """A field may be of several types, each with complaints; the deepest one is about the type that was meant."""
    complaints = error.errors(include_url=False, include_input=False, include_context=False)
    worst = max(reversed(complaints), key=lambda complaint: len(complaint["loc"]))
    words = worst["msg"][:200]
    if not worst["loc"]:
        said = f"is no JSON that can be read ({words.removeprefix('Invalid JSON: ')})"
        return f"the body {said if worst['type'] == 'json_invalid' else f'is no JSON object; {advice}'}."
    name, *inner = worst["loc"]
    place = str(name)[:100] + "".join(f"[{part}]" for part in inner if isinstance(part, int))
    return f"{place} {words.removeprefix('Input ')}." if words.startswith("Input ") else f"{place}: {words}."


def _read_ask(ask: Ask, classifier: Classifier, limits: Limits) -> Asked | list[File]:
    if sum(given is not None for given in (ask.features, ask.rows, ask.images, ask.texts)) != 1:
        raise Refusal(422, "give one of features, rows, images and texts.")
    if ask.images is not None:
        texts = [ask.images] if isinstance(ask.images, str) else ask.images
        require_images(len(texts), classifier, limits)
        return [_from_base64(text, i) for i, text in enumerate(texts)]
    if len(classifier.input_shape) == 3:
        raise Refusal(422, "this model reads images; send them as files of a form, or in base64 as images.")
    if ask.texts is not None:
        return _read_texts([ask.texts] if isinstance(ask.texts, str) else ask.texts, classifier, limits)
    if ask.rows is not None:
        return _read_rows([ask.rows] if isinstance(ask.rows, dict) else ask.rows, classifier, limits)
    if (
        classifier.kind == "tokens" or classifier.columns is not None
    ):  # cells are standardised and one-hot encoded first, which bare numbers are not
        reads = "cells by the names of their columns" if classifier.text is None else "texts"
        raise Refusal(422, f"this model reads {reads}; send {_wanted(classifier)}.")
    features: list[Any] = list(ask.features or [])
    rows = features if features and isinstance(features[0], list) else [features]
    return Asked(_places("features", rows), _read_features(rows, classifier.input_shape[0], limits))


def _places(field: str, inputs: Sequence[object]) -> list[str]:
    return [f"{field}[{place}]" for place in range(len(inputs))]


def _wanted(classifier: Classifier) -> str:
    """What to send to a model that reads no images."""
    if classifier.text is not None:
        return '"texts" with a text or several'
    if classifier.columns is None:
        return f'"features" with its {math.prod(classifier.input_shape)} numbers'
    return f'"rows" with {listed([_quoted(column.name) for column in classifier.columns.inputs])}'


def _form(classifier: Classifier) -> str:
    """An example of a body for this model, with at most SHOWN columns or numbers."""
    if len(classifier.input_shape) == 3:
        return '{"images": "…"} with a file in base64, or files as a form'
    if classifier.text is not None:
        return '{"texts": "…"}, or a list of texts'
    if classifier.columns is None:
        width = classifier.input_shape[0]
        return f'{{"features": [{", ".join(["0"] * width) if width <= SHOWN else "0, 0, …"}]}} with {width} numbers'
    names = [json.dumps(short(column.name, 60), ensure_ascii=False) for column in classifier.columns.inputs]
    cells = [f"{name}: …" for name in names[:SHOWN]] + ["…"] * (len(names) > SHOWN)
    return f'{{"rows": {{{", ".join(cells)}}}}}, or a list of such rows'


def _quoted(column: str) -> str:
    return repr(short(column, 60))


def _check_count(count: int, what: str, limits: Limits) -> None:
    if count == 0:
        raise Refusal(422, f"the request holds no {what}; send one or more.")
    if count > limits.max_batch:
        raise Refusal(413, f"the request holds {count} inputs; send at most {limits.max_batch} at once.")


def _from_base64(text: str, place: int) -> File:
    encoded = text.partition(",")[2] if text.startswith("data:") else text
    try:
        return File(f"images[{place}]", base64.b64decode(encoded, validate=True))
    except (binascii.Error, ValueError):
        raise Refusal(422, f"images[{place}] is not in base64.") from None


# Texts, numbers, and rows of a table.


def _read_texts(texts: Sequence[str], classifier: Classifier, limits: Limits) -> Asked:
    column = classifier.text
    if column is None:
        raise Refusal(422, f"this model reads no texts; send {_wanted(classifier)}.")
    _check_count(len(texts), "text", limits)
    empty = [place for place, text in zip(_places("texts", texts), texts, strict=True) if not text.strip()]
    notes = (f"empty, so that nothing is known of them: {listed(empty)}.",) if empty else ()
    ids = torch.from_numpy(column.rows(texts))
    try:  # here, where it concerns nobody else
        classifier.require_ids(ids)
    except RicnetError as error:
        raise Refusal(422, str(error)) from error
    return Asked(_places("texts", texts), ids, notes)


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
    except RicnetError as problem:  # speaks of rows, as of a data frame
        raise Refusal(422, re.sub(rf"^{SOURCE}, row (\d+):", r"rows[\1]:", str(problem))) from None


def _as_table(rows: Sequence[Mapping[str, Any]], columns: Columns) -> Table:
    """Of the columns the model knows."""
    names = [column.name for column in columns.inputs]
    for place, row in enumerate(rows):
        absent = [_quoted(name) for name in names if name not in row]
        if absent:
            raise Refusal(422, f"rows[{place}] lacks {listed(absent)}; send null for what is unknown.")
    cells = {
        column.name: [_as_cell(row[column.name], column, place) for place, row in enumerate(rows)]
        for column in columns.inputs
    }
    return Table(SOURCE, cells, range(len(rows)), "row")


def _as_cell(value: Any, column: Number | Category | Text, place: int) -> str:
    """As the text of a table: JSON's 3.0 is the 3 of a column of whole numbers, its true what training wrote for it."""
    if isinstance(value, bool) and (spelled := _spelled(value, column)) is not None:
        return spelled
    if isinstance(value, bool) or not isinstance(value, str | int | float | None):
        raise Refusal(422, f"rows[{place}]: {_quoted(column.name)} should be a text, a number or null.")
    if value is None:
        return ""
    if isinstance(value, float) and not math.isfinite(value):  # JSON has no such numbers, but its parser reads them
        raise Refusal(422, f"rows[{place}]: {_quoted(column.name)} should be a finite number; send null if unknown.")
    if isinstance(value, float) and value.is_integer() and math.fabs(value) < 1e15:
        return str(int(value))
    return str(value).strip()


def _spelled(value: bool, column: Number | Category | Text) -> str | None:
    """None where it is no column of yes and no."""
    known = {text.lower(): text for text in getattr(column, "values", ())}
    return next((known[pair[value]] for pair in NO_AND_YES if known.keys() >= set(pair)), None)
