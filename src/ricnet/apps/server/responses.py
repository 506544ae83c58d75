"""What clients get, as JSON. The classes say what is in it, for /docs and /openapi.json; the functions make it."""

import io
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Num
from PIL import Image
from pydantic import BaseModel, Field, ValidationError
from torch import Tensor

from ricnet.apps.server.limits import Limits, Refusal
from ricnet.apps.server.requests import Cell
from ricnet.core.trajectory import Trajectory
from ricnet.data.columns import Category, Date
from ricnet.errors import RicnetError
from ricnet.evaluation.evaluate import KINDS, UNSURE
from ricnet.io import read_arrays, read_json
from ricnet.models.classifier import Classifier
from ricnet.models.config import to_json
from ricnet.report.names import system_name
from ricnet.version import __version__

REQUEST_STEPS = 200
"""Largest max_steps of a request, unless the model's own horizon is larger."""

# Answers.


class Ranked(BaseModel):
    name: Annotated[str, Field(alias="class", description="What it is called.")]
    probability: Annotated[float, Field(description="The belief in it at the halt.")]


class Answer(BaseModel):
    """As `ric predict --json` gives it."""

    input: Annotated[str, Field(description="The file's name, or the place in the request, such as rows[0].")]
    answer: Annotated[
        str,
        Field(description="The class believed in most at the halt, or unsure if its belief is below abstain_below."),
    ]
    confidence: Annotated[float, Field(description="The belief in it.")]
    steps: Annotated[int, Field(description="How many steps it took before it stopped.")]
    cost: Annotated[float | None, Field(description="Of a model with exits: the share of compute that it took.")] = None
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
        list[str], Field(description="What to know of the answers, such as cells whose value training had not.")
    ]


class Problem(BaseModel):
    error: Annotated[str, Field(description="One sentence.")]
    request_id: Annotated[str, Field(description="To be found in the server's log.")]


def answers(
    path: Trajectory,
    names: Sequence[str],
    class_names: Sequence[str],
    top: int,
    trace: bool,
    abstain_below: float | None = None,
) -> list[dict[str, Any]]:
    final = path.final
    if not torch.isfinite(final).all():
        raise Refusal(422, "the model has no answer to numbers this far from those it was trained on.")
    best = final.exp().topk(min(top, len(class_names)))
    entries: list[dict[str, Any]] = []
    for name, beliefs, classes, steps in zip(
        names, best.values.tolist(), best.indices.tolist(), path.halt_step.tolist(), strict=True
    ):
        ranked = [{"class": class_names[k], "probability": p} for p, k in zip(beliefs, classes, strict=True)]
        unsure = abstain_below is not None and beliefs[0] < abstain_below
        answer = UNSURE if unsure else class_names[classes[0]]
        said = {"answer": answer, "confidence": beliefs[0], "steps": steps, "top": ranked}
        entries.append({"input": name, **said})
    if path.cost is not None:
        for entry, cost in zip(entries, path.cost.tolist(), strict=True):
            entry["cost"] = cost
    if trace:
        for row, entry in enumerate(entries):
            entry["beliefs"] = path.log_beliefs[:, row].exp().tolist()
            entry["values"] = None if path.values is None else path.values[:, row].tolist()
            entry["halt_probability"] = (
                None if path.halt_probability is None else path.halt_probability[:, row].tolist()
            )
    return entries


# The model.


class Column(BaseModel):
    name: Annotated[str, Field(description="As the table had it.")]
    values: Annotated[list[str] | None, Field(description="What training knew; none of a column of numbers.")] = None
    date: Annotated[str | None, Field(description="Of a column of dates, one as they are written.")] = None


class Inputs(BaseModel):
    kind: Annotated[str, Field(description="image, features, table or text.")]
    shape: Annotated[
        list[int], Field(description="Channels, height and width that images are brought to, or columns, or tokens.")
    ]
    columns: Annotated[list[Column] | None, Field(description="Of a table.")] = None


class Measured(BaseModel):
    n: Annotated[int, Field(description="How many test examples there were.")]
    accuracy: Annotated[float, Field(description="The share of right answers.")]
    ece: Annotated[float, Field(description="Expected calibration error.")]
    mean_steps: Annotated[float, Field(description="How many steps it took on average.")]
    mean_cost: Annotated[float | None, Field(description="With exits: the share of compute, on average.")] = None


class Budget(BaseModel):
    """A threshold, and what came of it on validation data."""

    mean_cost: Annotated[float, Field(description="The share of compute on average; send it as the budget.")]
    accuracy: Annotated[float, Field(description="The share of right answers.")]
    nll: Annotated[float, Field(description="Mean negative log-likelihood.")]
    halt_threshold: Annotated[
        float,
        Field(description="It stops once its value falls below this; without a value, its doubt, 1 − confidence."),
    ]


class Model(BaseModel):
    name: Annotated[str, Field(description="Of the run.")]
    method: Annotated[str, Field(description="How it was trained.")]
    data: Annotated[str, Field(description="What it was trained on.")]
    ricnet: Annotated[str, Field(description="Version of the software that answers.")]
    classes: Annotated[list[str], Field(description="In the order in which beliefs are given.")]
    input: Annotated[Inputs, Field(description="What it reads.")]
    horizon: Annotated[int, Field(description="The most steps it takes.")]
    costs: Annotated[
        list[float] | None,
        Field(description="With exits: the share of compute that is spent after each step; else none."),
    ]
    halt_threshold: Annotated[float | None, Field(description="It stops once its value falls below this.")]
    budget: Annotated[
        float | None, Field(description="The mean share of compute that it keeps unless a request says otherwise.")
    ]
    budgets: Annotated[
        list[Budget] | None,
        Field(description="With exits: those that there are thresholds for; a budget between takes the next below."),
    ]
    test: Annotated[
        Measured | None, Field(description="Measured on test data after training; of another budget, nothing was.")
    ]
    limits: Annotated[dict[str, float | None], Field(description="What a request may ask of this server.")]


class Health(BaseModel):
    status: Annotated[str, Field(description="ok, or what is wrong.")]
    requests: Annotated[int, Field(description="Answered so far.")]
    inputs: Annotated[int, Field(description="How many images or rows there were in them.")]
    batches: Annotated[int, Field(description="How often the model was run for them.")]
    model_seconds: Annotated[float, Field(description="How long that took.")]


def describe(classifier: Classifier, name: str, limits: Limits) -> dict[str, Any]:
    """No path of this machine is in it: of the data, only what it is called."""
    method, config = classifier.method, to_json(classifier.config)
    return {
        "name": name,
        "method": system_name(config | {"method": config["method"] | {"readout": getattr(method, "readout", None)}}),
        "data": Path(classifier.config.data).name,
        "ricnet": __version__,
        "classes": list(classifier.class_names),
        "input": _inputs(classifier),
        "horizon": horizon(classifier),
        "costs": list(getattr(classifier.model, "costs", ())) or None,
        "halt_threshold": getattr(method, "halt_threshold", None),
        "budget": classifier.budget,
        "budgets": [asdict(point) for point in classifier.budgets] or None,
        "test": _measured(classifier.folder) if classifier.budget is None else None,
        "limits": asdict(limits) | {"max_steps": most_steps(classifier)},
    }


def horizon(classifier: Classifier) -> int:
    return int(getattr(classifier.asked, "horizon", 1))


def most_steps(classifier: Classifier) -> int:
    """Largest max_steps of a request: the beliefs of all steps are held in memory."""
    return max(REQUEST_STEPS, horizon(classifier))


def _inputs(classifier: Classifier) -> dict[str, Any]:
    columns, shape = classifier.columns, list(classifier.input_shape)
    if classifier.text is not None:
        return {"kind": "text", "shape": shape, "columns": None}
    if columns is None:
        return {"kind": "image" if len(shape) == 3 else "features", "shape": shape, "columns": None}
    described = [
        {
            "name": column.name,
            "values": list(column.values) if isinstance(column, Category) else None,
            "date": column.show(column.mean) if isinstance(column, Date) else None,
        }
        for column in columns.inputs
    ]
    return {"kind": "table", "shape": shape, "columns": described}


def _measured(folder: Path | None) -> dict[str, Any] | None:
    """A model may come without what was measured of it, or with a file that somebody has changed."""
    if folder is None or not (folder / "evaluation.json").is_file():
        return None
    test = read_json(folder / "evaluation.json").get("test")
    try:
        return Measured.model_validate(test, strict=True).model_dump()
    except ValidationError:
        return None


# Examples that came with the model, to try it on.


class Example(BaseModel):
    label: Annotated[str, Field(description="Its true class.")]
    kind: Annotated[str, Field(description="easy, hard, wrong or confused, as the model found it.")]
    image: Annotated[str | None, Field(description="Where to get it.")] = None
    features: Annotated[list[float] | None, Field(description="Or its numbers, to be sent as features.")] = None
    row: Annotated[dict[str, Cell] | None, Field(description="Or its cells, to be sent as rows.")] = None
    text: Annotated[str | None, Field(description="Or its text, perhaps cut short, to be sent as texts.")] = None


class Sample(NamedTuple):
    entry: dict[str, Any]
    """As it is listed."""
    png: bytes | None


def samples(classifier: Classifier) -> list[Sample]:
    """Those of examples.npz, which `ric train` leaves with every run; none where there is no such file."""
    path = None if classifier.folder is None else classifier.folder / "examples.npz"
    if path is None or not path.is_file():
        return []
    try:
        stored = read_arrays(path)
        inputs, labels, kinds, texts = stored["x"], stored["y"], stored["kind"], stored.get("text")
        return [
            _sample(classifier, place, torch.from_numpy(inputs[place]), int(labels[place]), kind, texts)
            for place, kind in enumerate(kinds.tolist())
        ]
    except Exception as error:  # zip, numpy and Pillow each complain in their own way
        raise RicnetError(f"{path} cannot be used ({error}); delete it to serve without examples.") from error


def _sample(
    classifier: Classifier,
    place: int,
    x: Num[Tensor, "..."],
    label: int,
    kind: int,
    texts: np.ndarray | None,
) -> Sample:
    entry: dict[str, Any] = {"label": classifier.class_names[label], "kind": KINDS[kind]}
    if classifier.kind == "tokens":
        return Sample(entry | ({} if texts is None else {"text": str(texts[place])}), None)
    if x.ndim == 3:
        return Sample(entry | {"image": f"/v1/examples/{place}.png"}, _png(x))
    columns = classifier.columns
    content = {"features": x.tolist()} if columns is None else {"row": columns.cells(x.tolist())}
    return Sample(entry | content, None)


def _png(x: Num[Tensor, "c h w"]) -> bytes:
    pixels = x.permute(1, 2, 0).numpy()
    with io.BytesIO() as file:
        Image.fromarray(pixels if len(x) == 3 else pixels[..., 0]).save(file, "png")
        return file.getvalue()
