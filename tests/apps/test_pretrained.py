"""A model made by scripts/make_pretrained.py stands wherever a run does."""

import json
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import ricnet
from ricnet.apps.cli import main
from ricnet.errors import RicnetError

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture
def tool() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPTS / "make_pretrained.py"))


@pytest.fixture
def shelf(digits_run: Path, tool: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("ricnet.training.run.PRETRAINED", tmp_path / "shelf")
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


def test_every_command_takes_it(shelf: Path, digits_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["predict", "pretrained:tiny", str(digits_run / "examples.npz"), "--json", "--device", "cpu"])
    stored = np.load(digits_run / "examples.npz")
    assert len(capsys.readouterr().out.splitlines()) == len(stored["y"])
    main(["evaluate", "pretrained:tiny", "--json", "--device", "cpu"])
    measured = json.loads(capsys.readouterr().out)["test"]["accuracy"]
    said = json.loads((shelf / "tiny" / "evaluation.json").read_text())["test"]["accuracy"]
    assert measured == pytest.approx(said, abs=0.01)
    main(["report", "pretrained:tiny", "--out", str(shelf / "report.html")])
    assert "RIC" in capsys.readouterr().out
    with pytest.raises(SystemExit) as end:
        main(["predict", "pretrained:large", str(digits_run / "examples.npz")])
    assert end.value.code == 2
    assert "which has pretrained:tiny;" in capsys.readouterr().err


def test_a_model_too_large_to_ship_is_refused(digits_run: Path, tool: dict[str, Any], tmp_path: Path) -> None:
    tool["check_size"].__globals__["MOST_BYTES"] = 1000
    with pytest.raises(RicnetError, match="train a narrower one"):
        tool["make"](digits_run, tmp_path / "shelf", "tiny")
    assert list((tmp_path / "shelf").iterdir()) == []


def test_the_picture_is_drawn_from_the_model(shelf: Path, tmp_path: Path) -> None:
    tool = runpy.run_path(str(SCRIPTS / "draw_prediction.py"))
    run = tool["read_run"]("pretrained:tiny")
    examples = tool["refined"](run)
    np.testing.assert_allclose(examples.log_beliefs, run.examples.log_beliefs, atol=0.05)
    tool["draw"](run, examples, [0], tmp_path / "strip.png")
    assert (tmp_path / "strip.png").stat().st_size > 5000
    with pytest.raises(RicnetError, match="--rows 99 is out of range"):
        tool["draw"](run, examples, [99], tmp_path / "strip.png")
