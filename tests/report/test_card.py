from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

from ricnet.report.card import DIAGRAM, draw_diagram, model_card
from ricnet.report.runs import RunRecord, read_run

MakeRun = Callable[..., Path]
NETWORK = {"encoder": "auto", "width": 1.0}
COURSE = {"epochs": 40, "batch_size": 128, "optimizer": "adamw", "lr": 0.003}


@pytest.fixture
def run(make_run: MakeRun) -> RunRecord:
    return read_run(make_run(network=NETWORK, optimization=COURSE))


def header_of(card: str) -> Any:
    return yaml.safe_load(card.split("---\n")[1])


def test_the_header_is_what_the_hub_reads(run: RunRecord) -> None:
    header = header_of(model_card(run.config, run.data, "ada/digits", run))
    assert (header["library_name"], header["pipeline_tag"]) == ("ricnet", "image-classification")
    [index] = header["model-index"]
    [result] = index["results"]
    assert (index["name"], result["dataset"]["split"]) == ("digits", "test")
    assert {m["type"]: m["value"] for m in result["metrics"]}["nll"] == run.test["nll"]


def test_a_card_says_that_training_collapsed(run: RunRecord) -> None:
    collapses = ({"epoch": 7, "accuracy": 0.2, "best_accuracy": 0.5},)
    card = model_card(run.config, run.data, "ada/digits", replace(run, collapses=collapses))
    assert "Training collapsed in epoch 7: training accuracy 20.0 %, 30.0 points below its best." in card
    assert "collapsed" not in model_card(run.config, run.data, "ada/digits", run)


def test_untrusted_names_are_escaped_in_yaml_and_markdown(make_run: MakeRun) -> None:
    names = ["<script>", "a: b", "---", "*x*", "|", "# y", "`", "[l](u)", "'", '"']
    run = read_run(make_run(data='/x/my: "data"', class_names=names, network=NETWORK, optimization=COURSE))
    card = model_card(run.config, run.data, "ada/odd", run)
    assert header_of(card)["model-index"][0]["results"][0]["dataset"]["name"] == 'my: "data"'
    assert "<script>" not in card
    assert r"\*x\*" in card
    assert "/x/" not in card


def test_a_thousand_classes_are_counted(make_run: MakeRun) -> None:
    run = read_run(make_run(class_names=[f"c{k}" for k in range(10)], network=NETWORK, optimization=COURSE))
    card = model_card(run.config, run.data | {"class_names": [f"c{k}" for k in range(1000)]}, "ada/many", run)
    assert "c19 and 980 more." in card
    assert "It knows 1000 classes" in card


def test_a_card_without_measurements(run: RunRecord) -> None:
    stepping = run.config | {"method": {"name": "ric", "horizon": 4}}
    card = model_card(stepping, run.data, "ada/digits", None)
    assert "no measurements of this model" in card
    assert "changes it in up to" in card
    assert "step by step" not in card
    assert DIAGRAM not in card
    assert "model-index" not in header_of(card)
    assert "## Recipe" not in card


def test_each_kind_of_data_is_described(run: RunRecord) -> None:
    stepping = run.config | {"method": {"name": "ric", "horizon": 4}}
    rows = model_card(stepping, run.data | {"input_shape": [7]}, "ada/wine", None)
    assert header_of(rows)["pipeline_tag"] == "tabular-classification"
    assert "rows of 7 numbers" in rows
    assert "changes it in up to 4 steps" in rows
    one_pass = model_card(run.config | {"method": {"name": "supervised"}}, run.data, "ada/sl", None)
    assert "in one pass" in one_pass
    own = model_card(run.config | {"network": {"encoder": "custom", "width": 1}}, run.data, "ada/own", None)
    assert 'ricnet.load("ada/own", encoder=encoder)' in own


def test_a_text_is_read_in_the_pieces_of_its_encoder(run: RunRecord) -> None:
    for tokenizer, pieces in ((None, "first 9 words and word pairs "), ({"content": "{}"}, "first 9 tokens ")):
        columns = {"inputs": [{"kind": "text", "name": "says", "tokens": 9, "tokenizer": tokenizer}]}
        card = model_card(run.config, run.data | {"input_shape": [9], "columns": columns}, "ada/films", None)
        assert pieces in card
        assert header_of(card)["pipeline_tag"] == "text-classification"


def test_the_diagram_is_drawn(run: RunRecord, tmp_path: Path) -> None:
    draw_diagram(run, tmp_path)
    assert np.asarray(Image.open(tmp_path / DIAGRAM).convert("L")).std() > 10
