"""Answers, the description of the model, and its examples."""

import base64
import io
import json
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from PIL import Image

from refusals import refusal
from ricnet.apps.server.limits import Limits
from ricnet.apps.server.responses import describe
from ricnet.evaluation.choices import NEVER
from ricnet.models.classifier import Classifier
from ricnet.report.names import ALGORITHMS

from .asking import beliefs, png, post
from .conftest import serving


def test_answers_below_a_confidence_are_unsure(
    client: httpx.Client, digits: Classifier, inputs: torch.Tensor, capsys: pytest.CaptureFixture[str]
) -> None:
    images = [png(x[0]) for x in inputs[:8]]
    sure = post(client, *images).json()["predictions"]
    between = float(np.median([said["confidence"] for said in sure]))
    for fields in ({}, {"trace": "true"}, {"top": 3}):
        told = post(client, *images, abstain_below=between, **fields).json()["predictions"]
        assert [said["answer"] for said in told] == [
            "unsure" if said["confidence"] < between else said["answer"] for said in sure
        ]
        assert [said["top"][0]["class"] for said in told] == [said["answer"] for said in sure]
    encoded = [base64.b64encode(image).decode() for image in images]
    in_json = client.post("/v1/predict", json={"images": encoded, "abstain_below": 1}).json()["predictions"]
    assert {said["answer"] for said in in_json} == {"unsure"}


def test_description_of_the_model(client: httpx.Client, digits_run: Path) -> None:
    model = client.get("/v1/model").json()
    assert model["name"] == "tested"
    assert model["method"] in ALGORITHMS
    assert model["data"] == "digits"
    assert model["classes"] == [str(k) for k in range(10)]
    assert model["input"] == {"kind": "image", "shape": [1, 8, 8], "view": [1, 8, 8], "columns": None}
    assert model["horizon"] == 4
    assert model["limits"]["max_batch"] == 8
    assert model["test"]["accuracy"] == json.loads((digits_run / "evaluation.json").read_text())["test"]["accuracy"]
    assert str(digits_run.parent) not in json.dumps(model)


def test_the_target_of_a_table_may_have_a_slash(table: Classifier) -> None:
    named = replace(table, config=replace(table.config, data="/home/ada/k.csv#Ziel / Klasse (v2)"))
    assert describe(named, "run", Limits())["data"] == "k.csv#Ziel / Klasse (v2)"


def test_a_model_that_takes_every_step_has_no_threshold(digits: Classifier) -> None:
    assert describe(digits, "run", Limits())["halt_threshold"] == digits.method.halt_threshold  # type: ignore[attr-defined]
    patient = replace(digits, method=replace(digits.method, halt_threshold=NEVER))  # type: ignore[call-arg]
    assert describe(patient, "run", Limits())["halt_threshold"] is None


def test_examples_come_back_as_they_were(client: httpx.Client, digits_run: Path, inputs: torch.Tensor) -> None:
    stored = np.load(digits_run / "examples.npz")
    listed = client.get("/v1/examples").json()
    assert [entry["label"] for entry in listed] == [str(k) for k in stored["y"]]
    assert {entry["kind"] for entry in listed} <= {"easy", "hard", "wrong", "confused"}
    for entry, pixels in zip(listed, inputs, strict=True):
        image = Image.open(io.BytesIO(client.get(entry["image"]).content))
        assert np.array_equal(np.asarray(image), pixels[0])


def test_examples_of_a_table_are_its_cells(table_client: httpx.Client, table: Classifier) -> None:
    """Asked again, they get the answers that they got after training."""
    assert table.folder is not None
    assert table_client.get("/v1/model").json()["input"]["columns"] == [
        {"name": "weight", "values": None, "date": None},
        {"name": "colour", "values": ["blue", "green", "red"], "date": None},
    ]
    stored = np.load(table.folder / "examples.npz")
    rows = [entry["row"] for entry in table_client.get("/v1/examples").json()]
    said = table_client.post("/v1/predict", json={"rows": rows, "top": 3}).json()["predictions"]
    final = table.refine(stored["x"]).final.exp()
    assert np.allclose([beliefs(answer, table) for answer in said], final, atol=1e-3)


def test_a_model_without_or_with_invalid_evaluation(features: Classifier, tmp_path: Path) -> None:
    """Without examples, and without what was measured of it, or with numbers that are none."""
    alone, file = replace(features, folder=tmp_path), tmp_path / "evaluation.json"
    with serving(alone) as client:
        assert client.get("/v1/examples").json() == []
        assert client.get("/v1/model").json()["test"] is None
    file.write_text('{"test": {"n": 3, "accuracy": "high", "ece": 0.1, "mean_steps": []}}')
    assert describe(alone, "tested", Limits())["test"] is None
    file.write_text('{"test": {"n": 3, "accuracy": NaN, "ece": 0.1, "mean_steps": 2}}')
    with refusal("evaluation.json", "NaN"):
        describe(alone, "tested", Limits())
