"""The body of a request: its fields as pydantic models, its JSON or its images as a tensor. Nothing in it is trusted.

A small image file can declare gigabytes of pixels, so the header is compared with the limit before anything is decoded.
Large images of all requests share one thread, in which requests take turns: a small image never waits for a large one.
"""

import asyncio
import base64
import binascii
import contextlib
import ctypes
import io
import json
import math
import os
import re
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, NamedTuple, TypeVar

import torch
from jaxtyping import Num, UInt8
from PIL import Image
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, WithJsonSchema
from starlette.requests import ClientDisconnect
from torch import Tensor

from ricnet.apps.server.limits import Limits, Refusal
from ricnet.data.columns import Category, Columns, Date, Number
from ricnet.data.images import FORMATS, MOST_PIXELS, decode_image
from ricnet.data.tables import Table
from ricnet.data.texts import Text
from ricnet.errors import RicnetError, listed
from ricnet.io import short
from ricnet.models.classifier import Classifier

SOURCE = "the request"  # name of the table that rows are read from, in messages
NO_AND_YES = (("false", "true"), ("no", "yes"), ("f", "t"), ("n", "y"))
"""Spellings of JSON's false and true in tables, in any case."""
INPUTS = {"features": "row", "rows": "row", "images": "image", "texts": "text"}
"""Fields that hold inputs, and what one input is called."""
THREADS = min(2, os.cpu_count() or 1)  # for images that are not large, and for JSON
LARGE = 1_000_000  # pixels beyond which an image is large; one million are decoded in about 0.05 s
IMAGES_TOGETHER = 4  # limit on the pixels of all images in a request, in images of the maximum size
DECODE_SECONDS = 5.0  # for one image; a JPEG of thousands of scans can take minutes even if it has few pixels
SCAN_SHARE = 3
"""A JPEG decoded at reduced size counts as at least a third of its pixels: with several scans, its coefficients are
held in memory at full size."""
UNBOUNDED = 1 << 62

# fail_fast: pydantic would otherwise keep an explanation for each of a million mistakes.
Row = Annotated[list[FiniteFloat], Field(max_length=1_000_000, fail_fast=True)]
Rows = Annotated[list[Row], Field(fail_fast=True)]
Texts = Annotated[list[str], Field(fail_fast=True)]
Cell = Annotated[Any, WithJsonSchema({"anyOf": [{"type": kind} for kind in ("string", "number", "boolean", "null")]})]
"""Checked in `_as_cell` if the model reads the column; else it may be anything."""
Record = dict[str, Cell]
Records = Annotated[list[Record], Field(fail_fast=True)]
T = TypeVar("T")


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
    coverage: FiniteFloat | None = Field(None, gt=0, lt=1)
    """Also return a set of classes that contains the true one with this probability, on average over inputs drawn like
    the calibration data of the model; see calibration of /v1/model."""
    top: int = Field(1, ge=1)
    """Number of classes to return for each input, most probable first."""
    trace: bool = False
    """Also return the belief after every step, including those after the halt."""


class Ask(Options):
    """One of features, rows, images and texts."""

    features: Rows | Row | None = None
    """For a model of numbers: one row of them, or several."""
    rows: Records | Record | None = None
    """For a model of a table: one row by column names, or several; null is unknown. Other names are ignored, with a
    note."""
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

    @property
    def shown(self) -> str:
        return short(self.name.strip(), 60) or "the file"

    def unreadable(self) -> Refusal:
        formats = "PNG, JPEG, WebP, GIF, BMP or TIFF"
        return Refusal(422, f"{self.shown} is not a readable image; send a complete {formats}.")


class RequestInputs(NamedTuple):
    """The inputs of a request, with their names and notes for the answer."""

    names: list[str]
    inputs: Num[Tensor, "n ..."]
    notes: tuple[str, ...] = ()


Form = TypeVar("Form", bound=Options)


def parse(form: type[Form], given: bytes | Mapping[str, Any], classifier: Classifier | None = None) -> Form:
    """Parse JSON or the fields of a form; messages about unknown fields have an example for the classifier. pydantic's
    parser refuses nesting that would exhaust the stack."""
    try:
        found = form.model_validate_json(given) if isinstance(given, bytes) else form.model_validate(given)
    except ValidationError as error:
        raise Refusal(422, _sentence(error, classifier)) from None
    for name in found.model_extra or ():
        if name == "images":
            raise Refusal(422, "images is a text here; send files.")
        raise Refusal(422, f"there is no field {name[:100]!r}; {_advice(classifier)}.")
    return found


def _sentence(error: ValidationError, classifier: Classifier | None) -> str:
    """A field of several types has an error for each; the deepest is about the type that was meant."""
    errors = error.errors(include_url=False, include_input=False, include_context=False)
    worst = max(reversed(errors), key=lambda one: len(one["loc"]))
    words = worst["msg"][:200]
    if worst["type"] == "json_invalid":
        return f"the body is not valid JSON ({words.removeprefix('Invalid JSON: ')})."
    if not worst["loc"]:
        return f"the body is not a JSON object; {_advice(classifier)}."
    name, *inner = worst["loc"]
    place = str(name)[:100] + "".join(f"[{part}]" for part in inner if isinstance(part, int))
    return f"{place} {words.removeprefix('Input ')}." if words.startswith("Input ") else f"{place}: {words}."


def read_json(body: bytes, classifier: Classifier, limits: Limits) -> tuple[RequestInputs | list[File], Options]:
    """The inputs, or image files to decode. One function, so that only a tensor stays in memory while the request waits
    for the model, not the parsed JSON."""
    ask = parse(Ask, body, classifier)
    given = {field: value for field in INPUTS if (value := getattr(ask, field)) is not None}
    if len(given) != 1:
        raise Refusal(422, "give one of features, rows, images and texts.")
    [(field, value)] = given.items()
    single = not isinstance(value, list) or (field == "features" and not (value and isinstance(value[0], list)))
    values = [value] if single else value
    check_inputs(field, len(values), classifier, limits)
    places = [f"{field}[{place}]" for place in range(len(values))]
    return READERS[field](places, values, classifier), Options(**ask.model_dump(include=set(Options.model_fields)))


def check_inputs(field: str, count: int, classifier: Classifier, limits: Limits) -> None:
    """Refuse inputs that the model does not read, and none or too many of them."""
    if field != field_read(classifier) and not (field == "rows" and classifier.text is not None):
        raise Refusal(422, f"this model reads no {field}; {_advice(classifier)}.")
    if count == 0:
        raise Refusal(422, f"the request has no {INPUTS[field]}; send at least one.")
    if count > limits.max_batch:
        raise Refusal(413, f"the request has {count} inputs; send at most {limits.max_batch} at once.")


def field_read(classifier: Classifier) -> str:
    """The field of a request that holds inputs of this model. A model of texts reads rows too."""
    if len(classifier.input_shape) == 3:
        return "images"
    if classifier.text is not None:
        return "texts"
    return "features" if classifier.columns is None else "rows"


def example(classifier: Classifier) -> dict[str, Any]:
    """A body that this model can answer; of images only its form."""
    columns, field = classifier.columns, field_read(classifier)
    if columns is not None and field == "rows":
        return {field: [{column.name: _example_cell(column) for column in columns.inputs}]}
    return {field: [{"images": "…", "texts": "a sentence"}.get(field, [0] * classifier.input_shape[0])]}


def _example_cell(column: Number | Category | Text) -> str | int:
    if isinstance(column, Category) and column.values:
        return column.values[0]
    return column.show(column.mean) if isinstance(column, Date) else 0


def _advice(classifier: Classifier | None) -> str:
    if classifier is None:
        return "see /docs for the fields"
    files = " with files in base64, or files as a form" * (len(classifier.input_shape) == 3)
    return f"send {short(json.dumps(example(classifier), ensure_ascii=False), 200)}{files}"


def _read_base64(places: list[str], texts: Sequence[str], _: Classifier) -> list[File]:
    files = []
    for place, text in zip(places, texts, strict=True):
        encoded = text.partition(",")[2] if text.startswith("data:") else text
        try:
            files.append(File(place, base64.b64decode(encoded, validate=True)))
        except (binascii.Error, ValueError):
            raise Refusal(422, f"{place} is not in base64.") from None
    return files


def _read_texts(places: list[str], texts: Sequence[str], classifier: Classifier) -> RequestInputs:
    assert classifier.text is not None
    ids = torch.from_numpy(classifier.text.rows(texts))
    classifier.require_ids(ids)  # before the request is batched with others
    useless = {
        "empty texts": [not text.strip() for text in texts],
        "texts without a word that the model knows": classifier.text.unknown(ids.numpy()).tolist(),
    }
    found = {
        what: [place for place, is_so in zip(places, each, strict=True) if is_so] for what, each in useless.items()
    }
    notes = [f"{what}, ignore their predictions: {listed(named)}." for what, named in found.items() if named]
    return RequestInputs(places, ids, tuple(notes))


def _read_features(places: list[str], rows: Sequence[Sequence[float]], classifier: Classifier) -> RequestInputs:
    [width] = classifier.input_shape
    for place, row in zip(places, rows, strict=True):
        if len(row) != width:
            raise Refusal(422, f"{place} has {len(row)} numbers; the model reads {width}.")
    inputs = torch.tensor(rows, dtype=torch.float64).float()
    if not torch.isfinite(inputs).all():
        raise Refusal(422, "a feature is too large; send numbers below 3e38.")
    return RequestInputs(places, inputs)


def _read_rows(places: list[str], rows: Sequence[Mapping[str, Any]], classifier: Classifier) -> RequestInputs:
    columns = classifier.columns
    assert columns is not None
    unread = _unread(rows, columns)
    for place, row in zip(places, rows, strict=True):
        absent = [repr(short(column.name, 60)) for column in columns.inputs if column.name not in row]
        if absent:
            raise Refusal(422, " ".join([f"{place} lacks {listed(absent)}; send null for unknown values.", *unread]))
    cells = {
        column.name: [_as_cell(row[column.name], column, place) for place, row in zip(places, rows, strict=True)]
        for column in columns.inputs
    }
    table = Table(SOURCE, cells, range(len(rows)), "row")
    try:
        return RequestInputs(places, columns.encode(table), (*unread, *columns.surprises(table)))
    except RicnetError as problem:
        raise Refusal(422, re.sub(rf"^{SOURCE}, row (\d+):", r"rows[\1]:", str(problem))) from None


def _unread(rows: Sequence[Mapping[str, Any]], columns: Columns) -> tuple[str, ...]:
    """A note if rows have fields that the model does not read, for instance misspelt ones; the class is allowed."""
    read = {columns.target, *(column.name for column in columns.inputs)}
    names = dict.fromkeys(name for row in rows for name in row if name not in read)
    return (f"The model does not read {listed([repr(short(name, 60)) for name in names])}.",) if names else ()


def _as_cell(value: Any, column: Number | Category | Text, place: str) -> str:
    """The cell as a table would write it: 3.0 as 3, true as training data spelled it."""
    if isinstance(value, bool):
        known = {text.lower(): text for text in getattr(column, "values", ())}
        value = next((known[pair[value]] for pair in NO_AND_YES if known.keys() >= set(pair)), value)
    if isinstance(value, bool) or not isinstance(value, str | int | float | None):
        raise Refusal(422, f"{place}: {short(column.name, 60)!r} should be a text, a number or null.")
    if isinstance(value, float) and not math.isfinite(value):  # not valid JSON, but the parser accepts it
        raise Refusal(422, f"{place}: {short(column.name, 60)!r} should be a finite number; send null if unknown.")
    if isinstance(value, float) and value.is_integer() and math.fabs(value) < 1e15:
        return str(int(value))
    return "" if value is None else str(value).strip()


READERS: dict[str, Callable[[list[str], Any, Classifier], RequestInputs | list[File]]] = {
    "images": _read_base64,
    "features": _read_features,
    "rows": _read_rows,
    "texts": _read_texts,
}


class Decoders:
    """The threads that decode images and JSON, and the limits on images."""

    def __init__(self, input_shape: tuple[int, ...], limits: Limits) -> None:
        self._shape, self._most_pixels = input_shape, limits.pixels
        self._threads, self._large = ThreadPoolExecutor(THREADS, "decoder"), ThreadPoolExecutor(1, "large-decoder")
        self._closed = threading.Event()

    async def run(self, function: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *args)

    async def decode(self, files: Sequence[File], gone: Callable[[], Awaitable[bool]]) -> RequestInputs:
        """Decode one image after the other, unless the client has `gone`."""
        images = []
        for file, pixels in zip(files, await self.run(self._count_pixels, files), strict=True):
            if await gone():
                raise ClientDisconnect
            threads, decode = (self._large, self._decode_large) if pixels > LARGE else (self._threads, self._decode)
            images.append(await asyncio.get_running_loop().run_in_executor(threads, decode, file))
        return RequestInputs([file.name for file in files], torch.stack(images))

    def close(self) -> None:
        """Interrupt images being decoded at their next read, and cancel those waiting."""
        self._closed.set()
        for threads in (self._threads, self._large):
            threads.shutdown(wait=False, cancel_futures=True)

    def _count_pixels(self, files: Sequence[File]) -> list[int]:
        """The number of pixels of each image, from its header; refuse images beyond the limits."""
        found: list[int] = []
        most, together = self._most_pixels, IMAGES_TOGETHER * self._most_pixels
        for file in files:
            found.append(_pixels_to_decode(file, self._shape))
            if found[-1] > most:
                takes = f"this server takes images of at most {most / 1e6:g} megapixels"
                raise Refusal(413, f"{file.shown} is too large: {takes}; make it smaller.")
            if sum(found) > together:
                more = f"have more than {together / 1e6:g} megapixels together"
                raise Refusal(413, f"{file.shown} and the images before it {more}; send fewer at once.")
        return found

    def _decode(self, file: File) -> UInt8[Tensor, "c h w"]:
        content = _Interruptible(file.content, self._closed)
        try:
            return decode_image(content, file.name, self._shape)
        except RicnetError as error:
            if not content.interrupted:
                raise file.unreadable() from error
            late = f"takes longer than {DECODE_SECONDS:g} seconds to decode"
            raise Refusal(413, f"{file.shown} {late}; save it as a PNG.") from None

    def _decode_large(self, file: File) -> UInt8[Tensor, "c h w"]:
        try:
            return self._decode(file)
        finally:  # glibc returns freed memory to the system; other C libraries have no malloc_trim
            with contextlib.suppress(OSError, TypeError, AttributeError):
                ctypes.CDLL(None).malloc_trim(0)


class _Interruptible(io.BytesIO):
    """A file whose reads fail after DECODE_SECONDS. Pillow reads in blocks, so this interrupts its decoding."""

    def __init__(self, content: bytes, closed: threading.Event) -> None:
        super().__init__(content)
        self._ends, self._closed = time.perf_counter() + DECODE_SECONDS, closed
        self.interrupted = False

    def read(self, size: int | None = -1) -> bytes:
        if time.perf_counter() > self._ends or self._closed.is_set():
            self.interrupted = True
            raise TimeoutError("decoding takes too long")
        return super().read(size)


def _pixels_to_decode(file: File, input_shape: tuple[int, ...]) -> int:
    """UNBOUNDED beyond MOST_PIXELS, so that every limit refuses it."""
    _, height, width = input_shape
    try:
        with Image.open(io.BytesIO(file.content), formats=FORMATS) as image:
            stored = image.width * image.height
            image.draft(image.mode, (2 * width, 2 * height))  # as decode_image does; it affects JPEGs only
            decoded = image.width * image.height
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        return UNBOUNDED
    except Exception as error:  # decoders fail in many ways
        raise file.unreadable() from error
    if stored > MOST_PIXELS:
        return UNBOUNDED
    return decoded if decoded == stored else max(decoded, stored // SCAN_SHARE)
