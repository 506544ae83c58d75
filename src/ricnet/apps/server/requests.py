"""The body of a request: its fields as pydantic models, and its JSON as a tensor. Nothing in it is trusted."""

import base64
import binascii
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, TypeVar

import torch
from jaxtyping import Num
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, WithJsonSchema
from torch import Tensor

from ricnet.apps.server.limits import Limits, Refusal
from ricnet.data.columns import Category, Number
from ricnet.data.tables import Table
from ricnet.data.texts import Text
from ricnet.errors import RicnetError, listed
from ricnet.io import short
from ricnet.models.classifier import Classifier

SOURCE = "the request"
"""Name of the table that rows are read from, in messages."""
SHOWN = 4
"""Maximum columns or numbers in the example body of an error message."""
NO_AND_YES = (("false", "true"), ("no", "yes"), ("f", "t"), ("n", "y"))
"""Spellings of JSON's false and true in tables, in any case."""
INPUTS = {"features": "row", "rows": "row", "images": "image", "texts": "text"}
"""Fields that hold inputs, and what one input is called."""

# fail_fast: pydantic would otherwise keep an explanation for each of a million mistakes.
Row = Annotated[list[FiniteFloat], Field(max_length=1_000_000, fail_fast=True)]
Rows = Annotated[list[Row], Field(fail_fast=True)]
Texts = Annotated[list[str], Field(fail_fast=True)]
Cell = Annotated[Any, WithJsonSchema({"anyOf": [{"type": kind} for kind in ("string", "number", "boolean", "null")]})]
"""Checked in `_as_cell` if the model reads the column; else it may be anything."""
Record = dict[str, Cell]
Records = Annotated[list[Record], Field(fail_fast=True)]


class Options(BaseModel):
    # Unknown fields are refused in `parse`, which stops at the first.
    model_config = ConfigDict(
        extra="allow", json_schema_extra={"additionalProperties": False}, use_attribute_docstrings=True
    )

    max_steps: int | None = Field(None, ge=1)
    """Maximum number of steps; replaces the model's horizon, up or down. Limited by limits.max_steps of /v1/model."""
    max_ms: FiniteFloat | None = Field(None, gt=0)
    """Milliseconds from the arrival of the request's last byte to the response; one step is always made. The request is
    not batched with others."""
    budget: FiniteFloat | None = Field(None, gt=0, le=1)
    """For a model with exits: mean share of compute of the answers, from the cost of the first exit to 1, the whole
    network; replaces the server's."""
    abstain_below: FiniteFloat | None = Field(None, gt=0, le=1)
    """Answer "unsure" if the confidence is below this probability; top still names the classes."""
    top: int = Field(1, ge=1)
    """Number of classes to return for each input, most probable first."""
    trace: bool = False
    """Also return the belief after every step, including those after the halt."""


class Ask(Options):
    """One of features, rows, images and texts."""

    features: Rows | Row | None = None
    """For a model of numbers: one row of them, or several."""
    rows: Records | Record | None = None
    """For a model of a table: one row by column names, or several; null is unknown."""
    images: Texts | str | None = None
    """For a model of images: one file in base64, or several; data: URLs are accepted."""
    texts: Texts | str | None = None
    """For a model of texts: one text, or several."""


class Upload(Options):
    """Image files as a form, which `application` reads; described here for /docs."""

    images: list[bytes]
    """Image files, one field for each: PNG, JPEG, WebP, GIF, BMP, TIFF or PPM."""


class File(NamedTuple):
    name: str
    content: bytes


class Asked(NamedTuple):
    """The inputs of a request, with their names and notes for the answer."""

    names: list[str]
    inputs: Num[Tensor, "n ..."]
    notes: tuple[str, ...] = ()


Form = TypeVar("Form", bound=Options)


def parse(form: type[Form], given: bytes | Mapping[str, Any], advice: str = "see /docs for the fields") -> Form:
    """Parse JSON or the fields of a form; `advice` ends the message about unknown or missing fields. pydantic's parser
    refuses nesting that would exhaust the stack."""
    try:
        found = form.model_validate_json(given) if isinstance(given, bytes) else form.model_validate(given)
    except ValidationError as error:
        raise Refusal(422, _sentence(error, advice)) from None
    for name in found.model_extra or ():
        if name == "images":
            raise Refusal(422, "images is a text here; send files.")
        raise Refusal(422, f"there is no field {name[:100]!r}; {advice}.")
    return found


def _sentence(error: ValidationError, advice: str) -> str:
    """A field of several types has an error for each; the deepest is about the type that was meant."""
    errors = error.errors(include_url=False, include_input=False, include_context=False)
    worst = max(reversed(errors), key=lambda one: len(one["loc"]))
    words = worst["msg"][:200]
    if worst["type"] == "json_invalid":
        return f"the body is not valid JSON ({words.removeprefix('Invalid JSON: ')})."
    if not worst["loc"]:
        return f"the body is not a JSON object; {advice}."
    name, *inner = worst["loc"]
    place = str(name)[:100] + "".join(f"[{part}]" for part in inner if isinstance(part, int))
    return f"{place} {words.removeprefix('Input ')}." if words.startswith("Input ") else f"{place}: {words}."


def read_json(body: bytes, classifier: Classifier, limits: Limits) -> tuple[Asked | list[File], Options]:
    """The inputs, or image files to decode. One function, so that only a tensor stays in memory while the request waits
    for the model, not the parsed JSON."""
    ask = parse(Ask, body, f"send {example(classifier)}")
    given = {field: value for field in INPUTS if (value := getattr(ask, field)) is not None}
    if len(given) != 1:
        raise Refusal(422, "give one of features, rows, images and texts.")
    [(field, value)] = given.items()
    single = not isinstance(value, list) or (field == "features" and not (value and isinstance(value[0], list)))
    values = [value] if single else value
    check_inputs(field, len(values), classifier, limits)
    places = [f"{field}[{place}]" for place in range(len(values))]
    options = Options(**ask.model_dump(include=set(Options.model_fields)))
    if field == "images":
        return [_from_base64(*each) for each in zip(places, values, strict=True)], options
    return READERS[field](places, values, classifier), options


def check_inputs(field: str, count: int, classifier: Classifier, limits: Limits) -> None:
    """Refuse inputs that the model does not read, and none or too many of them."""
    if field not in _fields_read(classifier):
        raise Refusal(422, f"this model reads no {field}; send {example(classifier)}.")
    if count == 0:
        raise Refusal(422, f"the request has no {INPUTS[field]}; send at least one.")
    if count > limits.max_batch:
        raise Refusal(413, f"the request has {count} inputs; send at most {limits.max_batch} at once.")


def _fields_read(classifier: Classifier) -> tuple[str, ...]:
    if len(classifier.input_shape) == 3:
        return ("images",)
    if classifier.columns is not None:
        return ("rows",) if classifier.text is None else ("texts", "rows")
    return ("features",) if classifier.kind == "features" else ()


def example(classifier: Classifier) -> str:
    """An example body for this model, with at most SHOWN columns or numbers."""
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


def _from_base64(place: str, text: str) -> File:
    encoded = text.partition(",")[2] if text.startswith("data:") else text
    try:
        return File(place, base64.b64decode(encoded, validate=True))
    except (binascii.Error, ValueError):
        raise Refusal(422, f"{place} is not in base64.") from None


def _read_texts(places: list[str], texts: Sequence[str], classifier: Classifier) -> Asked:
    assert classifier.text is not None
    empty = [place for place, text in zip(places, texts, strict=True) if not text.strip()]
    ids = torch.from_numpy(classifier.text.rows(texts))
    try:  # before the request is batched with others
        classifier.require_ids(ids)
    except RicnetError as error:
        raise Refusal(422, str(error)) from error
    return Asked(places, ids, (f"empty texts, of which nothing is known: {listed(empty)}.",) if empty else ())


def _read_features(places: list[str], rows: Sequence[Sequence[float]], classifier: Classifier) -> Asked:
    [width] = classifier.input_shape
    for place, row in zip(places, rows, strict=True):
        if len(row) != width:
            raise Refusal(422, f"{place} has {len(row)} numbers; the model reads {width}.")
    inputs = torch.tensor(rows, dtype=torch.float64).float()
    if not torch.isfinite(inputs).all():
        raise Refusal(422, "a feature is too large; send numbers below 3e38.")
    return Asked(places, inputs)


def _read_rows(places: list[str], rows: Sequence[Mapping[str, Any]], classifier: Classifier) -> Asked:
    columns = classifier.columns
    assert columns is not None
    for place, row in zip(places, rows, strict=True):
        absent = [_quoted(column) for column in columns.inputs if column.name not in row]
        if absent:
            raise Refusal(422, f"{place} lacks {listed(absent)}; send null for unknown values.")
    cells = {
        column.name: [_as_cell(row[column.name], column, place) for place, row in zip(places, rows, strict=True)]
        for column in columns.inputs
    }
    table = Table(SOURCE, cells, range(len(rows)), "row")
    try:
        return Asked(places, columns.encode(table), columns.surprises(table))
    except RicnetError as problem:
        raise Refusal(422, re.sub(rf"^{SOURCE}, row (\d+):", r"rows[\1]:", str(problem))) from None


READERS: dict[str, Callable[[list[str], Any, Classifier], Asked]] = {
    "features": _read_features,
    "rows": _read_rows,
    "texts": _read_texts,
}


def _as_cell(value: Any, column: Number | Category | Text, place: str) -> str:
    """The cell as a table would write it: 3.0 as 3, true as training data spelled it."""
    if isinstance(value, bool):
        known = {text.lower(): text for text in getattr(column, "values", ())}
        value = next((known[pair[value]] for pair in NO_AND_YES if known.keys() >= set(pair)), value)
    if isinstance(value, bool) or not isinstance(value, str | int | float | None):
        raise Refusal(422, f"{place}: {_quoted(column)} should be a text, a number or null.")
    if value is None:
        return ""
    if isinstance(value, float) and not math.isfinite(value):  # not valid JSON, but the parser accepts it
        raise Refusal(422, f"{place}: {_quoted(column)} should be a finite number; send null if unknown.")
    if isinstance(value, float) and value.is_integer() and math.fabs(value) < 1e15:
        return str(int(value))
    return str(value).strip()


def _quoted(column: Number | Category | Text) -> str:
    return repr(short(column.name, 60))
