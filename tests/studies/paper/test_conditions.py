from dataclasses import replace
from pathlib import Path

import pytest

from ricnet.studies.paper import RECIPES
from ricnet.studies.paper.conditions import conditions, conditions_of, network_name
from ricnet.studies.paper.rows import Rows
from ricnet.studies.scales import SCALES, Scale

from .conftest import MakeRuns, draw, record, texts_of

FIGURES = [f"fig{i}" for i in range(1, 10)]


def test_as_they_stand_in_the_run(scale: Scale, tmp_path: Path) -> None:
    run = record(tmp_path)
    assert conditions_of(scale, [run]) == {
        "scale": "smoke",
        "network": "conv",
        "input": "1 × 8 × 8",
        "epochs": 12,
        "preset": "fast",
    }
    table = replace(run, data={**run.data, "input_shape": [16]})
    assert (conditions_of(scale, [table])["network"], conditions_of(scale, [table])["input"]) == ("mlp", "16 features")
    assert conditions_of(scale, []) == {"scale": "smoke"}


def test_the_encoder_as_built() -> None:
    assert network_name("resnet18", 0.5, (3, 32, 32)) == "resnet18, width 0.5"
    assert network_name("auto", 1.0, (3, 32, 32)) == "resnet18"


def test_one_sentence_that_tells_whose_are_which() -> None:
    shared = {"scale": "paper", "network": "resnet34", "preset": "paper"}
    rows: Rows = [
        {**shared, "benchmark": bench, "system": system, "input": size, "epochs": epochs}
        for bench, size in (("CIFAR-10", "3 × 32 × 32"), ("SVHN", "3 × 32 × 32"), ("ImageWoof", "3 × 224 × 224"))
        for system, epochs in (("SL", 300), ("RIC", 2000))
    ]
    assert conditions(rows) == (
        "Scale paper: resnet34, inputs 3 × 32 × 32 (CIFAR-10 and SVHN) and inputs 3 × 224 × 224 (ImageWoof), "
        "300 epochs (SL) and 2000 epochs (RIC), preset paper"
    )
    assert conditions(rows[:1]) == "Scale paper: resnet34, inputs 3 × 32 × 32, 300 epochs, preset paper"
    assert conditions([{"scale": "smoke", "epochs": "1"}]) == "Scale smoke: 1 epoch"
    assert conditions([{"scale": "small", "missing": "svhn is not here"}]) == "Scale small"


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_says_its_scale(name: str, make_runs: MakeRuns, tmp_path: Path) -> None:
    small = SCALES["small"]
    figure = draw(RECIPES[name], small, make_runs(RECIPES[name].cells(small), epochs=3), tmp_path)
    assert "scale small: " in texts_of(figure).lower()
