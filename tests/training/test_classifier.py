import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jaxtyping
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import ricnet
from ricnet.data import Columns, Dataset
from ricnet.data.columns import Number
from ricnet.errors import RicnetError


@pytest.fixture
def folder(dataset: Dataset, tmp_path: Path) -> Path:
    ricnet.train(dataset, out=tmp_path / "run", epochs=2, width=0.1, horizon=4)
    return tmp_path / "run"


def test_a_loaded_model_answers_as_the_evaluation_says(folder: Path, dataset: Dataset) -> None:
    model = ricnet.load(folder)
    path = model.refine(dataset.test.inputs)
    evaluation = json.loads((folder / "evaluation.json").read_text())["test"]
    accuracy = (path.final.argmax(-1) == dataset.test.labels).double().mean().item()
    assert accuracy == pytest.approx(evaluation["accuracy"])
    assert path.halt_step.double().mean().item() == pytest.approx(evaluation["mean_steps"])
    assert model.class_names == ("a", "b", "c")


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


def test_inputs_of_another_shape_and_gaps_are_refused(folder: Path) -> None:
    with pytest.raises(RicnetError, match=r"inputs of shape \(4,\), not \(5,\)"):
        ricnet.load(folder).refine(torch.zeros(2, 5))
    with pytest.raises(RicnetError, match="row 1 of the inputs"):
        ricnet.load(folder).refine([[0.0] * 4, [0.0, float("nan"), 0.0, 0.0]])


def test_a_deadline_cuts_the_trajectory_short_and_else_changes_nothing(folder: Path, dataset: Dataset) -> None:
    model, inputs = adjusted(folder), dataset.test.inputs
    free, ample, none = (model.refine(inputs, max_ms=limit) for limit in (None, 1e6, 1e-6))
    assert torch.equal(ample.halt_step, free.halt_step)
    torch.testing.assert_close(ample.log_beliefs, free.log_beliefs)
    assert (free.steps, none.steps) == (4, 1)
    torch.testing.assert_close(none.final, free.at(1))
    with pytest.raises(RicnetError, match=r"^max_ms is 0\.0; it must be above 0"):
        model.refine(inputs, max_ms=0.0)
    with pytest.raises(RicnetError, match=r"^max_steps is 0; it must be above 0\."):
        model.refine(inputs, max_steps=0)


@pytest.mark.parametrize("limit", [0.5, 2.5, True, "3"])
def test_steps_are_whole_numbers_and_a_time_is_a_number(
    folder: Path, dataset: Dataset, limit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # it would refuse them before
    model, inputs = ricnet.load(folder), dataset.test.inputs
    with pytest.raises(RicnetError, match=f"^max_steps is {limit!r}; it must be a whole number"):
        model.refine(inputs, max_steps=limit)
    with pytest.raises(RicnetError, match=r"^max_ms is '3'; it must be a number above 0"):
        model.refine(inputs, max_ms="3")
    assert model.refine(inputs, max_steps=np.int64(2), halt=False).steps == 2


def test_who_gives_cells_to_a_model_of_tables_is_warned(folder: Path, dataset: Dataset) -> None:
    columns = Columns("kind", tuple(Number(name, 170.0, 10.0, False) for name in "abcd"))
    model = replace(ricnet.load(folder), columns=columns)
    with pytest.warns(UserWarning, match=r"look like cells of a table.* model\.refine\(model\.read\('rows\.csv'\)\)"):
        model.refine(torch.full((2, 4), 170.0))
    model.refine(dataset.test.inputs)


def test_it_says_briefly_what_it_is(folder: Path) -> None:
    assert repr(ricnet.load(folder)) == "<Classifier: ric on blobs, 3 classes, encoder mlp>"


def test_recording_changes_no_answer(folder: Path, dataset: Dataset) -> None:
    model, inputs = ricnet.load(folder), dataset.test.inputs
    torch.testing.assert_close(model.recorded().refine(inputs).final, model.refine(inputs).final)


def adjusted(folder: Path) -> ricnet.Classifier:
    """A model that wants to take all its steps."""
    model = ricnet.load(folder)
    return replace(model, method=replace(model.method, halt_threshold=-99.0))


def test_broken_runs_are_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(RicnetError, match="no run at"):
        ricnet.load(tmp_path / "nowhere")
    with pytest.raises(RicnetError, match=r"no config\.json"):
        ricnet.load(tmp_path)
    model, config = folder / "model.safetensors", folder / "config.json"
    with pytest.raises(RicnetError, match=rf"model\.safetensors is a file and not a run; .* \({folder}\)\.$"):
        ricnet.load(model)
    whole = model.read_bytes()
    model.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(RicnetError, match=r"model\.safetensors is damaged"):
        ricnet.load(folder)
    model.unlink()
    with pytest.raises(RicnetError, match="no trained model yet"):
        ricnet.load(folder)
    model.write_bytes(whole)
    entry = json.loads(config.read_text())
    entry["config"]["network"]["width"] = 0.5
    config.write_text(json.dumps(entry))
    with pytest.raises(RicnetError, match="does not fit the network"):
        ricnet.load(folder)
    config.write_text("{")
    with pytest.raises(RicnetError, match="cannot be read"):
        ricnet.load(folder)
