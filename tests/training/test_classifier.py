import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jaxtyping
import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import ricnet
from ricnet.data import Columns, Dataset
from ricnet.data.columns import Category, Number
from ricnet.errors import RicnetError
from ricnet.training.classifier import OverBudget, as_inputs, budget, looks_raw, start_clock


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
    assert free.steps > none.steps == 1
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


IMAGE = (1, 8, 8)


def test_arrays_tensors_and_lists_are_taken() -> None:
    assert as_inputs(np.zeros((2, *IMAGE), np.uint8), IMAGE, False).shape == (2, *IMAGE)
    tensor = torch.zeros(3, 4)
    assert as_inputs(tensor, (4,), False) is tensor
    assert as_inputs([[1, 2], [3, 4]], (2,), False).tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize("given", ["0.png", Path("0.png"), ["0.png", "1.png"], Image.new("L", (8, 8)), None])
def test_who_gives_files_is_told_how_they_are_read(given: Any) -> None:
    with pytest.raises(RicnetError, match=r"model\.refine\(model\.read\('photo\.png'\)\)\.$"):
        as_inputs(given, IMAGE, False)


@pytest.mark.parametrize("given", [[{"age": 3}], {"age": 3}, [["red", 3.0]], np.zeros((2, 4)), np.array([{}])])
def test_who_gives_cells_is_told_how_tables_are_read(given: Any) -> None:
    with pytest.raises(RicnetError, match=r"model\.refine\(model\.read\('rows\.csv'\)\)\.$"):
        as_inputs(given, (8,), True)


def test_a_model_of_plain_numbers_is_not_sent_to_files() -> None:
    with pytest.raises(RicnetError, match=r"an array of shape \(n, 8\), not something of type list of dict\.$"):
        as_inputs([{"age": 3}], (8,), False)


def test_complex_numbers_are_refused() -> None:
    with pytest.raises(RicnetError, match=r"real numbers, not torch\.complex64"):
        as_inputs(torch.ones(2, 3, dtype=torch.complex64), (3,), False)


def number(mean: float, std: float, flagged: bool = False) -> Number:
    return Number("a number", float(mean), float(std), flagged)


HEIGHT, SHARE = number(170, 10), number(0.5, 0.3)


def test_cells_of_a_table_are_told_from_what_is_made_of_them() -> None:
    columns, random = Columns("kind", (HEIGHT, SHARE)), torch.Generator().manual_seed(0)
    standard = torch.randn(1000, 2, generator=random)
    cells = standard * torch.tensor([10, 0.3]) + torch.tensor([170, 0.5])
    assert looks_raw(cells, columns)
    assert looks_raw(cells[:1].double(), columns)
    assert not looks_raw(standard, columns)
    assert not looks_raw(standard[:0], columns)
    assert not looks_raw(standard.to(torch.int8), columns)


def test_an_outlier_is_no_cell() -> None:
    outlier = torch.tensor([[150.0, 0.1], [0.3, 0.2]])  # 150 standard deviations, or centimetres
    assert not looks_raw(outlier, Columns("kind", (HEIGHT, SHARE)))
    assert not looks_raw(torch.tensor([[150.0, 3.0]]), Columns("kind", (HEIGHT, SHARE)))
    assert not looks_raw(torch.tensor([[1e4, 0.1]]), Columns("kind", (HEIGHT, SHARE)))


def test_columns_of_several_numbers_each_cannot_be_mistaken_for_cells() -> None:
    for column in (number(0, 1, flagged=True), Category("colour", ("blue", "red"), False)):
        assert not looks_raw(torch.tensor([[170.0, 0.0, 1.0]]), Columns("kind", (HEIGHT, column)))


def test_one_input_alone_is_no_batch() -> None:
    with pytest.raises(RicnetError, match=r"not \(8, 8\); one input alone is a batch of one: x\[None\]"):
        as_inputs(np.zeros(IMAGE, np.uint8), IMAGE, False)


def test_real_pixels_are_refused() -> None:
    with pytest.raises(RicnetError, match=r"uint8 from 0 to 255, not torch\.float32"):
        as_inputs(torch.zeros(2, *IMAGE), IMAGE, False)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e300])
def test_the_first_row_with_a_number_that_is_none_is_named(bad: float) -> None:
    rows = np.zeros((5, 3))
    rows[[2, 4], 1] = bad
    with pytest.raises(RicnetError, match=r"^row 2 of the inputs has a number .*drop the row\.$"):
        as_inputs(rows, (3,), False)
    with pytest.raises(RicnetError, match=r"gaps of a table are filled by model\.refine"):
        as_inputs(rows, (3,), True)


def test_what_is_within_is_made_and_what_is_beyond_is_not() -> None:
    with budget(6 + 2):
        layer = nn.Linear(3, 2)
    assert layer.weight.shape == (2, 3)
    with pytest.raises(OverBudget), budget(7):
        nn.Linear(3, 2)
    with pytest.raises(OverBudget), budget(1 << 30):
        nn.Linear(1 << 40, 1 << 40)
    with pytest.raises(OverBudget), budget(5):
        torch.zeros(2, 3)
    assert torch.zeros(2, 3).sum() == 0


CPU = torch.device("cpu")


def answers(
    monkeypatch: pytest.MonkeyPatch, milliseconds: float, *moments: float, costs: tuple[float, ...] = ()
) -> list[bool]:
    """What a clock started at 0 says at each of these moments, in milliseconds."""
    times = iter([0.0, *(moment / 1000 for moment in moments)])
    with monkeypatch.context() as patch:
        patch.setattr("time.perf_counter", lambda: next(times))
        time_left = start_clock(milliseconds, CPU, costs)
        return [time_left() for _ in moments]


def test_a_step_begins_only_if_one_like_the_last_would_end_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    assert answers(monkeypatch, 10.0, 4, 6, 7.9, 9) == [True, True, True, False]
    assert answers(monkeypatch, 10.0, 4, 8) == [True, False]


def test_with_exits_the_next_stage_takes_as_much_longer_as_it_costs_more(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = (0.1, 0.3, 0.4, 1.0)
    assert answers(monkeypatch, 10.0, 1, 3, 3.9, costs=costs) == [True, True, True], "the last takes 5.4 ms"
    assert answers(monkeypatch, 10.0, 1, 3, 4.5, costs=costs) == [True, True, False], "and here it would take 9"
    assert answers(monkeypatch, 2.9, 1, costs=costs) == [False], "the second takes twice as long as the first"


def test_before_any_step_has_been_timed_only_the_limit_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert answers(monkeypatch, 10.0, 9.9) == [True]
    assert answers(monkeypatch, 10.0, 10.1) == [False]
