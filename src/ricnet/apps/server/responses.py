"""Responses as JSON: pydantic models describe them in /docs and /openapi.json, functions make them."""

import io
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Num
from PIL import Image
from pydantic import BaseModel, Field, ValidationError

from ricnet.apps.server.limits import Limits
from ricnet.apps.server.requests import Cell, field_read
from ricnet.data.columns import Category, Date
from ricnet.errors import RicnetError
from ricnet.evaluation.choices import NEVER
from ricnet.evaluation.examples import KINDS
from ricnet.io import read_arrays, read_json, shown_name
from ricnet.methods import Method
from ricnet.models.classifier import Classifier
from ricnet.models.config import to_json
from ricnet.report.names import system_name
from ricnet.version import __version__

REQUEST_STEPS = 200  # largest max_steps of a request, unless the model's own horizon is larger


class Ranked(BaseModel):
    name: str = Field(alias="class", description="Name of the class.")
    probability: float = Field(description="Its probability at the halt.")


class Answer(BaseModel):
    """As `ric predict --json` gives it."""

    input: str = Field(description="File name, or place in the request, such as rows[0].")
    answer: str = Field(
        description="Most probable class at the halt, or unsure if it is below abstain_below; with ric serve --costs "
        "the class of least expected cost, or unsure."
    )
    confidence: float = Field(description="Probability of that class.")
    steps: int = Field(description="Steps until the halt.")
    cost: float | None = Field(None, description="With exits: share of compute that was used.")
    top: list[Ranked] = Field(description="The most probable classes, as many as requested.")
    set: list[str] | None = Field(None, description="With coverage: the classes of the prediction set, likely first.")
    sets: list[list[str]] | None = Field(None, description="With coverage and trace: the set after every step.")
    expected_cost: float | None = Field(None, description="With ric serve --costs: expected cost of the answer.")
    costs: list[float] | None = Field(None, description="With trace and exits: share of compute after every step.")
    beliefs: list[list[float]] | None = Field(None, description="With trace: probabilities after every step, by class.")
    values: list[float] | None = Field(
        None,
        description="With trace, if the method has values: entry n is the gain expected from further steps after step "
        "n; the model stops at the first n from 1 on with a value below halt_threshold.",
    )
    halt_probability: list[float] | None = Field(
        None, description="With trace, for ACT and PonderNet: probability of halting at each step."
    )


class Answers(BaseModel):
    predictions: list[Answer] = Field(description="One for each input, in their order.")
    notes: list[str] = Field(description="Warnings about the inputs, such as cells with a value not seen in training.")


class Problem(BaseModel):
    error: str = Field(description="One sentence.")
    request_id: str = Field(description="Id of the request in the server's log.")


class Column(BaseModel):
    name: str = Field(description="As in the table.")
    values: list[str] | None = Field(None, description="Values seen in training; null for numbers.")
    date: str | None = Field(None, description="For dates: an example.")


class Inputs(BaseModel):
    kind: str = Field(description="image, features, table or text.")
    shape: list[int] = Field(description="Channels, height and width that images are resized to; columns; or tokens.")
    columns: list[Column] | None = Field(None, description="For a table.")


class Measured(BaseModel):
    n: int = Field(description="Test examples.")
    accuracy: float = Field(description="Share of correct answers.")
    ece: float = Field(description="Expected calibration error.")
    mean_steps: float = Field(description="Mean number of steps.")
    mean_cost: float | None = Field(None, description="With exits: mean share of compute.")


class Budget(BaseModel):
    """A halting threshold, and its results on validation data."""

    mean_cost: float = Field(description="Mean share of compute; send it as the budget.")
    accuracy: float = Field(description="Share of correct answers.")
    nll: float = Field(description="Mean negative log-likelihood.")
    halt_threshold: float = Field(description="Stops if the value (or, without one, 1 − confidence) is below this.")


class Model(BaseModel):
    name: str = Field(description="Name of the run.")
    method: str = Field(description="Training method.")
    data: str = Field(description="Training data.")
    ricnet: str = Field(description="Version of the server.")
    classes: list[str] = Field(description="In the order of beliefs.")
    input: Inputs = Field(description="Inputs of the model.")
    horizon: int = Field(description="Maximum number of steps.")
    costs: list[float] | None = Field(description="With exits: share of compute used after each step.")
    halt_threshold: float | None = Field(description="The model stops if its value is below this; null if never.")
    budget: float | None = Field(description="Mean share of compute, unless a request sets its own.")
    budgets: list[Budget] | None = Field(description="With exits; a budget between two of them takes the lower.")
    calibration: int = Field(description="Calibration examples; n allow a coverage of up to n / (n + 1).")
    test: Measured | None = Field(description="Results on test data after training; null with another budget.")
    limits: dict[str, float | None] = Field(description="Limits on requests to this server.")


class Health(BaseModel):
    status: str = Field(description="ok, or what is wrong.")
    requests: int = Field(description="Answered so far.")
    inputs: int = Field(description="Images, rows or texts in them.")
    batches: int = Field(description="Runs of the model for them.")
    model_seconds: float = Field(description="Time of these runs.")


def describe(classifier: Classifier, name: str, limits: Limits) -> dict[str, Any]:
    """A `Model`. It holds no path of this machine: of the data, only the name."""
    method, config = classifier.method, to_json(classifier.config)
    return {
        "name": name,
        "method": system_name(config | {"method": config["method"] | {"readout": getattr(method, "readout", None)}}),
        "data": shown_name(classifier.config.data),
        "ricnet": __version__,
        "classes": list(classifier.class_names),
        "input": _inputs(classifier),
        "horizon": horizon(classifier),
        "costs": list(getattr(classifier.model, "costs", ())) or None,
        "halt_threshold": _threshold(method),
        "budget": classifier.budget,
        "budgets": [asdict(point) for point in classifier.budgets] or None,
        "calibration": 0 if classifier.calibration is None else len(classifier.calibration),
        "test": _measured(classifier.folder) if classifier.budget is None else None,
        "limits": asdict(limits) | {"max_steps": most_steps(classifier)},
    }


def _threshold(method: Method[Any]) -> float | None:
    """None without a value function, and for a model that always takes all steps."""
    threshold: float | None = getattr(method, "halt_threshold", None)
    return None if threshold == NEVER else threshold


def horizon(classifier: Classifier) -> int:
    return int(getattr(classifier.inference, "horizon", 1))


def most_steps(classifier: Classifier) -> int:
    """Largest max_steps of a request: the beliefs of all steps are held in memory."""
    return max(REQUEST_STEPS, horizon(classifier))


def _inputs(classifier: Classifier) -> dict[str, Any]:
    kind = {"images": "image", "texts": "text", "features": "features", "rows": "table"}[field_read(classifier)]
    columns = None
    if classifier.columns is not None and kind == "table":
        columns = []
        for column in classifier.columns.inputs:
            values = list(column.values) if isinstance(column, Category) else None
            date = column.show(column.mean) if isinstance(column, Date) else None
            columns.append({"name": column.name, "values": values, "date": date})
    shape, view = list(classifier.input_shape), list(classifier.view_shape)
    return {"kind": kind, "shape": shape, "view": view, "columns": columns}


def _measured(folder: Path | None) -> dict[str, Any] | None:
    """Test results; None if evaluation.json is missing or invalid."""
    if folder is None or not (folder / "evaluation.json").is_file():
        return None
    try:
        return Measured.model_validate(read_json(folder / "evaluation.json").get("test"), strict=True).model_dump()
    except ValidationError:
        return None


class Example(BaseModel):
    label: str = Field(description="True class.")
    kind: str = Field(description="easy, hard, wrong or confused, by the model's own answer.")
    image: str | None = Field(None, description="Address of the image.")
    features: list[float] | None = Field(None, description="Numbers to send as features.")
    row: dict[str, Cell] | None = Field(None, description="Cells to send as rows.")
    text: str | None = Field(None, description="Text to send as texts; it may be cut short.")


def examples(classifier: Classifier) -> tuple[list[dict[str, Any]], dict[str, bytes]]:
    """Each `Example` of examples.npz, which `ric train` writes, and images as PNG; none without that file."""
    path = None if classifier.folder is None else classifier.folder / "examples.npz"
    if path is None or not path.is_file():
        return [], {}
    try:
        stored = read_arrays(path)
        entries = [_example(classifier, stored, place) for place in range(len(stored["kind"]))]
        images = {str(place): _png(stored["x"][place]) for place, entry in enumerate(entries) if "image" in entry}
        return entries, images
    except Exception as error:  # zip, numpy and Pillow raise many types
        raise RicnetError(f"{path} cannot be used ({error}); delete it to serve without examples.") from error


def _example(classifier: Classifier, stored: dict[str, np.ndarray], place: int) -> dict[str, Any]:
    x = stored["x"][place]
    entry = {"label": classifier.class_names[int(stored["y"][place])], "kind": KINDS[stored["kind"][place].item()]}
    if classifier.kind == "tokens":
        return entry | ({"text": str(stored["text"][place])} if "text" in stored else {})
    if x.ndim == 3:
        return entry | {"image": f"/v1/examples/{place}.png"}
    if classifier.columns is None:
        return entry | {"features": x.tolist()}
    return entry | {"row": classifier.columns.cells(x.tolist())}


def _png(x: Num[np.ndarray, "c h w"]) -> bytes:
    with io.BytesIO() as file:
        Image.fromarray(x[0] if len(x) == 1 else np.moveaxis(x, 0, -1)).save(file, "png")
        return file.getvalue()
