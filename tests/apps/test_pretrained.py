"""A model made by scripts/make_pretrained.py can be used like a run."""

import json
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import ricnet
from refusals import refusal

from .conftest import Refused, RunRic

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture
def tool() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPTS / "make_pretrained.py"))


@pytest.fixture
def shelf(digits_run: Path, tool: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("ricnet.models.locate.PRETRAINED", tmp_path / "shelf")
    tool["make"](digits_run, tmp_path / "shelf", "tiny")
    return tmp_path / "shelf"


def test_matrices_are_halved_and_nothing_else(shelf: Path, digits_run: Path) -> None:
    before, after = (load_file(folder / "model.safetensors") for folder in (digits_run, shelf / "tiny"))
    for name, tensor in before.items():
        assert after[name].dtype == (torch.float16 if tensor.dim() > 1 else tensor.dtype), name
        torch.testing.assert_close(after[name].to(tensor.dtype), tensor, rtol=1e-3, atol=1e-6)
    assert sorted(path.name for path in shelf.iterdir()) == ["tiny"]


def test_it_answers_as_its_run_does(shelf: Path, digits_run: Path) -> None:
    images = np.load(digits_run / "examples.npz")["x"]
    run, made = ricnet.load(digits_run), ricnet.load("pretrained:tiny")
    assert all(weight.dtype == torch.float32 for weight in made.model.parameters())
    torch.testing.assert_close(made.refine(images).final, run.refine(images).final, rtol=0.02, atol=0.02)


def test_every_command_takes_it(shelf: Path, digits_run: Path, run_ric: RunRic, refused: Refused) -> None:
    stored = digits_run / "examples.npz"
    said = run_ric("predict", "pretrained:tiny", stored, "--json", "--device", "cpu")
    assert len(said.records) == len(np.load(stored)["y"])
    measured = json.loads(run_ric("evaluate", "pretrained:tiny", "--json", "--device", "cpu").out)["test"]["accuracy"]
    expected = json.loads((shelf / "tiny" / "evaluation.json").read_text())["test"]["accuracy"]
    assert measured == pytest.approx(expected, abs=0.01)
    assert "RIC" in run_ric("report", "pretrained:tiny", "--out", shelf / "report.html").out
    refused("pretrained:tiny", "predict", "pretrained:large", stored)


def test_a_model_too_large_to_ship_is_refused(digits_run: Path, tool: dict[str, Any], tmp_path: Path) -> None:
    tool["check_size"].__globals__["MOST_BYTES"] = 1000
    with refusal("narrower"):
        tool["make"](digits_run, tmp_path / "shelf", "tiny")
    assert list((tmp_path / "shelf").iterdir()) == []


def test_the_picture_is_drawn_from_the_model(shelf: Path, tmp_path: Path) -> None:
    tool = runpy.run_path(str(SCRIPTS / "draw_prediction.py"))
    run = tool["read_run"](tool["locate"]("pretrained:tiny"))
    examples = tool["refined"](run)
    np.testing.assert_allclose(examples.log_beliefs, run.examples.log_beliefs, atol=0.05)
    tool["draw"](run, examples, [0], tmp_path / "strip.png")
    assert (tmp_path / "strip.png").stat().st_size > 5000
    with refusal("--rows 99"):
        tool["draw"](run, examples, [99], tmp_path / "strip.png")
