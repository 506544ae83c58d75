import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jaxtyping
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import ricnet
from made_runs import without_manifest
from problems import read
from refusals import refusal
from ricnet.data import Dataset
from ricnet.models.run import RunFolder


@pytest.fixture
def folder(finished: Callable[[str], RunFolder]) -> Path:
    return finished("ric").path


def test_a_loaded_model_answers_as_the_evaluation_says(folder: Path, dataset: Dataset) -> None:
    model = ricnet.load(folder)
    path, evaluation = model.refine(dataset.test.inputs), read(folder / "evaluation.json")["test"]
    accuracy = (path.final.argmax(-1) == dataset.test.labels).double().mean().item()
    assert accuracy == pytest.approx(evaluation["accuracy"])
    assert path.halt_step.double().mean().item() == pytest.approx(evaluation["mean_steps"])
    assert repr(model) == "<Classifier: ric on blobs, 3 classes, encoder mlp>"
    torch.testing.assert_close(model.recorded().refine(dataset.test.inputs).final, path.final)


class Masked(nn.Module):
    """Buffers as attention has them: a mask of −∞, and a table that is not saved with the weights."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.full((4, 4), -torch.inf).triu(1))
        self.register_buffer("positions", torch.zeros(1000, 4), persistent=False)
        self.layer = nn.Linear(4, 8)

    def forward(self, inputs: Tensor) -> Tensor:
        seen: Tensor = self.layer(inputs + self.positions[0]) + torch.zeros(500, 8).sum(0)
        return seen


def test_an_encoder_may_have_masks_and_tables_of_its_own(dataset: Dataset, tmp_path: Path) -> None:
    model = ricnet.train(dataset, out=tmp_path / "run", encoder=Masked(), epochs=2, horizon=2, average=0.9)
    assert model.refine(dataset.test.inputs).final.isfinite().all()


def test_a_deadline_cuts_the_trajectory_short_and_else_changes_nothing(folder: Path, dataset: Dataset) -> None:
    model, inputs = ricnet.load(folder), dataset.test.inputs
    eager = replace(model, method=replace(model.method, halt_threshold=-99.0))  # it wants to take all its steps
    free, ample, none = (eager.refine(inputs, max_ms=limit) for limit in (None, 1e6, 1e-6))
    assert torch.equal(ample.halt_step, free.halt_step)
    torch.testing.assert_close(ample.log_beliefs, free.log_beliefs)
    assert free.steps > none.steps == 1
    torch.testing.assert_close(none.final, free.at(1))


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_steps", value) for value in (0, 0.5, 2.5, True, "3")] + [("max_ms", 0.0), ("max_ms", "3")],
)
def test_limits_are_numbers_above_zero_and_steps_whole(
    folder: Path, dataset: Dataset, name: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # it would refuse them before
    model, inputs = ricnet.load(folder), dataset.test.inputs
    with refusal(f"{name} is {value!r}"):
        model.refine(inputs, **{name: value})
    assert model.refine(inputs, max_steps=np.int64(2), halt=False).steps == 2


def test_broken_runs_are_named(folder: Path, tmp_path: Path) -> None:
    for place in (tmp_path / "nowhere", tmp_path):
        with refusal(place):
            ricnet.load(place)
    run = without_manifest(shutil.copytree(folder, tmp_path / "run"))
    model, config = run / "model.safetensors", run / "config.json"
    with refusal(model, f"({run})"):
        ricnet.load(model)
    whole, entry = model.read_bytes(), read(config)
    model.write_bytes(whole[: len(whole) // 2])
    with refusal(model, "damaged"):
        ricnet.load(run)
    model.unlink()
    with refusal("no trained model"):
        ricnet.load(run)
    model.write_bytes(whole)
    entry["config"]["network"]["width"] = 0.5
    for text, named in ((json.dumps(entry), "does not fit"), ("{", "cannot be read")):
        config.write_text(text)
        with refusal(run, named):
            ricnet.load(run)
