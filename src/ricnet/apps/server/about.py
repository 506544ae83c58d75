"""What the model is, for GET /v1/model, and the examples that came with it, to try it on."""

import io
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Num
from PIL import Image
from torch import Tensor

from ricnet.apps.server.limits import Limits
from ricnet.data.columns import Columns, Date, Number
from ricnet.errors import RicnetError
from ricnet.io import read_arrays, read_json
from ricnet.report.runs import KINDS
from ricnet.report.titles import system_name
from ricnet.training.classifier import Classifier
from ricnet.training.config import to_json
from ricnet.version import __version__

MEASURES = ("n", "accuracy", "ece", "mean_steps")


class Sample(NamedTuple):
    entry: dict[str, Any]
    """As it is listed."""
    png: bytes | None


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
        "halt_threshold": getattr(method, "halt_threshold", None),
        "test": _measured(classifier.folder),
        "limits": asdict(limits),
    }


def horizon(classifier: Classifier) -> int:
    return int(getattr(classifier.method, "horizon", 1))


def _inputs(classifier: Classifier) -> dict[str, Any]:
    columns, shape = classifier.columns, list(classifier.input_shape)
    kind = "image" if len(shape) == 3 else "features" if columns is None else "table"
    return {"kind": kind, "shape": shape, "columns": _columns(columns)}


def _columns(columns: Columns | None) -> list[dict[str, Any]] | None:
    if columns is None:
        return None
    return [
        {
            "name": column.name,
            "values": None if isinstance(column, Number) else list(column.values),
            "date": column.show(column.mean) if isinstance(column, Date) else None,
        }
        for column in columns.inputs
    ]


def _measured(folder: Path | None) -> dict[str, Any] | None:
    """A model may come without what was measured of it, or with a file that somebody has changed."""
    if folder is None or not (folder / "evaluation.json").is_file():
        return None
    test = read_json(folder / "evaluation.json").get("test")
    found = {key: test.get(key) for key in MEASURES} if isinstance(test, dict) else {}
    return found if found and all(isinstance(value, int | float) for value in found.values()) else None


def samples(classifier: Classifier) -> list[Sample]:
    """Those of examples.npz, which `ric train` leaves with every run; none where there is no such file."""
    path = None if classifier.folder is None else classifier.folder / "examples.npz"
    if path is None or not path.is_file():
        return []
    try:
        stored = read_arrays(path)
        inputs, labels, kinds = stored["x"], stored["y"], stored.get("kind")
        return [
            _sample(classifier, place, torch.from_numpy(inputs[place]), int(labels[place]), kind)
            for place, kind in enumerate([None] * len(labels) if kinds is None else kinds.tolist())
        ]
    except Exception as error:  # zip, numpy and Pillow each complain in their own way
        raise RicnetError(f"{path} cannot be used ({error}); delete it to serve without examples.") from error


def _sample(classifier: Classifier, place: int, x: Num[Tensor, "..."], label: int, kind: int | None) -> Sample:
    entry: dict[str, Any] = {
        "label": classifier.class_names[label],
        "kind": None if kind is None else KINDS[kind],
    }
    if x.ndim == 3:
        return Sample(entry | {"image": f"/v1/examples/{place}.png"}, _png(x))
    columns = classifier.columns
    told = {"features": x.tolist()} if columns is None else {"row": _row(columns, x.tolist())}
    return Sample(entry | told, None)


def _png(x: Num[Tensor, "c h w"]) -> bytes:
    pixels = x.permute(1, 2, 0).numpy()
    with io.BytesIO() as file:
        Image.fromarray(pixels if len(x) == 3 else pixels[..., 0]).save(file, "png")
        return file.getvalue()


def _row(columns: Columns, numbers: list[float]) -> dict[str, str | float | None]:
    """What `Columns.encode` made these numbers of; a rare value, whose name is not kept, as none."""
    cells: dict[str, str | float | None] = {}
    for column in columns.inputs:
        part, numbers = numbers[: column.width], numbers[column.width :]
        if isinstance(column, Number):
            missing = column.flagged and part[1] > 0.5
            value = part[0] * column.std + column.mean
            shown = column.show(value) if isinstance(column, Date) else float(f"{value:.6g}")
            cells[column.name] = None if missing else shown
        else:
            best = int(np.argmax(part))
            cells[column.name] = column.values[best] if part[best] > 0.5 and best < len(column.values) else None
    return cells
