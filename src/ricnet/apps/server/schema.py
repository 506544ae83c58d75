"""What clients send and get, as JSON; the descriptions are those of the API's own page."""

import math
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, WithJsonSchema
from pydantic_core import PydanticCustomError

from ricnet.apps.server.limits import Refusal


def _refuse_not_finite(record: dict[str, Any]) -> dict[str, Any]:
    """The first of them alone, for the reason below; JSON has no such numbers, but its parser reads them."""
    for name, cell in record.items():
        if isinstance(cell, float) and not math.isfinite(cell):
            raise PydanticCustomError("finite_number", "{name} should be a finite number", {"name": repr(name[:100])})
    return record


# At the first mistake the rest is not looked at: millions of them, each with an explanation, would take gigabytes.
Row = Annotated[list[FiniteFloat], Field(max_length=1_000_000, fail_fast=True)]
Rows = Annotated[list[Row], Field(fail_fast=True)]
Texts = Annotated[list[str], Field(fail_fast=True)]
Cell = Annotated[Any, WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "number"}, {"type": "null"}]})]
"""Of those that the model does not read, any will do; the others are looked at where they are read."""
Record = Annotated[dict[str, Cell], AfterValidator(_refuse_not_finite)]
Records = Annotated[list[Record], Field(fail_fast=True)]


class Options(BaseModel):
    # Fields that are not known are refused, but by us: pydantic has an explanation for each of a million of them.
    model_config = ConfigDict(extra="allow", json_schema_extra={"additionalProperties": False})

    max_steps: Annotated[int | None, Field(ge=1, description="Stop after this many steps at the latest.")] = None
    max_ms: Annotated[
        FiniteFloat | None,
        Field(
            gt=0,
            description="Refine for as long as an answer can be had within this many milliseconds of the request's "
            "arrival; one step is always made. The request is then not batched with others.",
        ),
    ] = None
    top: Annotated[int, Field(ge=1, description="How many classes to name for each input, likeliest first.")] = 1
    trace: Annotated[bool, Field(description="Also return the belief after every step, past the halt, too.")] = False


class Ask(Options):
    """One of features, rows and images."""

    features: Annotated[
        Rows | Row | None,
        Field(description="For a model of numbers: one row of them, or several."),
    ] = None
    rows: Annotated[
        Records | Record | None,
        Field(description="For a model of a table: one row by the names of its columns, or several; null is unknown."),
    ] = None
    images: Annotated[
        Texts | str | None,
        Field(description="For a model of images: one file in base64, or several; a data: URL will do, too."),
    ] = None


class Ranked(BaseModel):
    name: Annotated[str, Field(alias="class", description="What it is called.")]
    probability: Annotated[float, Field(description="The belief in it at the halt.")]


class Answer(BaseModel):
    """As `ric predict --json` gives it."""

    input: Annotated[str, Field(description="The file's name, or the place in the request, such as rows[0].")]
    answer: Annotated[str, Field(description="The class believed in most at the halt.")]
    confidence: Annotated[float, Field(description="The belief in it.")]
    steps: Annotated[int, Field(description="How many steps it took before it stopped.")]
    top: Annotated[list[Ranked], Field(description="As many classes as were asked for, likeliest first.")]
    beliefs: Annotated[
        list[list[float]] | None, Field(description="With trace: after every step, in the order of the classes.")
    ] = None
    values: Annotated[
        list[float] | None,
        Field(
            description="With trace, of methods that have one: entry n is the gain expected of going on after n steps; "
            "the first from n = 1 on that falls below halt_threshold is where the model stops."
        ),
    ] = None
    halt_probability: Annotated[
        list[float] | None, Field(description="With trace, of methods that have one: the chance of stopping at a step.")
    ] = None


class Answers(BaseModel):
    predictions: Annotated[list[Answer], Field(description="One for each input, in their order.")]
    notes: Annotated[
        list[str],
        Field(description="What should be known of the answers: cells whose value training had not, for instance."),
    ]


class Column(BaseModel):
    name: Annotated[str, Field(description="As the table had it.")]
    values: Annotated[list[str] | None, Field(description="What training knew; none of a column of numbers.")] = None
    date: Annotated[str | None, Field(description="Of a column of dates, one as they are written.")] = None


class Inputs(BaseModel):
    kind: Annotated[str, Field(description="image, features or table.")]
    shape: Annotated[list[int], Field(description="Channels, height and width that images are brought to, or columns.")]
    columns: Annotated[list[Column] | None, Field(description="Of a table.")] = None


class Measured(BaseModel):
    n: Annotated[int, Field(description="How many test examples there were.")]
    accuracy: Annotated[float, Field(description="The share of right answers.")]
    ece: Annotated[float, Field(description="Expected calibration error.")]
    mean_steps: Annotated[float, Field(description="How many steps it took on average.")]


class Model(BaseModel):
    name: Annotated[str, Field(description="Of the run.")]
    method: Annotated[str, Field(description="How it was trained.")]
    data: Annotated[str, Field(description="What it was trained on.")]
    ricnet: Annotated[str, Field(description="Version of the software that answers.")]
    classes: Annotated[list[str], Field(description="In the order in which beliefs are given.")]
    input: Annotated[Inputs, Field(description="What it reads.")]
    horizon: Annotated[int, Field(description="The most steps it takes.")]
    halt_threshold: Annotated[float | None, Field(description="It stops once its value falls below this.")]
    test: Annotated[Measured | None, Field(description="Measured on test data after training.")]
    limits: Annotated[dict[str, float], Field(description="What a request may ask of this server.")]


class Example(BaseModel):
    label: Annotated[str, Field(description="Its true class.")]
    kind: Annotated[str | None, Field(description="easy, hard, wrong or confused, as the model found it.")]
    image: Annotated[str | None, Field(description="Where to get it.")] = None
    features: Annotated[list[float] | None, Field(description="Or its numbers, to be sent as features.")] = None
    row: Annotated[dict[str, Cell] | None, Field(description="Or its cells, to be sent as rows.")] = None


class Health(BaseModel):
    status: Annotated[str, Field(description="ok, or what is wrong.")]
    requests: Annotated[int, Field(description="Answered so far.")]
    inputs: Annotated[int, Field(description="How many images or rows there were in them.")]
    batches: Annotated[int, Field(description="How often the model was run for them.")]
    model_seconds: Annotated[float, Field(description="How long that took.")]


class Problem(BaseModel):
    error: Annotated[str, Field(description="One sentence.")]
    request_id: Annotated[str, Field(description="To be found in the server's log.")]


def parse_json(body: bytes) -> Ask:
    """Read by pydantic's own parser, which gives up on a depth that would exhaust the stack."""
    try:
        ask = Ask.model_validate_json(body)
    except ValidationError as error:
        raise Refusal(422, _sentence(error)) from None
    _refuse_unknown(ask)
    return ask


def parse_form(fields: dict[str, Any]) -> Options:
    try:
        options = Options.model_validate(fields)
    except ValidationError as error:
        raise Refusal(422, _sentence(error)) from None
    _refuse_unknown(options)
    return options


def _refuse_unknown(found: Options) -> None:
    for name in found.model_extra or ():
        if name == "images":
            raise Refusal(422, "images is a text here; send files.")
        raise Refusal(422, f"there is no field {name[:100]!r} to fill in; see /docs for those there are.")


def _sentence(error: ValidationError) -> str:
    """The first complaint about the form that got furthest, of the several that a field may have."""
    complaints = error.errors(include_url=False, include_input=False, include_context=False)
    worst = max(reversed(complaints), key=lambda complaint: len(complaint["loc"]))
    words = worst["msg"][:200]
    if not worst["loc"]:
        said = f"is no JSON that can be read ({words.removeprefix('Invalid JSON: ')})"
        return f"the body {said if worst['type'] == 'json_invalid' else words.removeprefix('Input ')}."
    name, *inner = worst["loc"]
    place = str(name)[:100] + "".join(f"[{part}]" for part in inner if isinstance(part, int))
    return f"{place} {words.removeprefix('Input ')}." if words.startswith("Input ") else f"{place}: {words}."
