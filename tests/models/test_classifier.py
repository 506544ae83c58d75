import shutil
from collections.abc import Callable
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
from made_runs import rewrite, without_manifest
from problems import CPU, read
from refusals import cases, refusal
from ricnet.data import Columns, Dataset
from ricnet.data.columns import Category, Number
from ricnet.models.classifier import as_inputs, looks_raw, start_clock
from ricnet.models.run import RunFolder


@pytest.fixture
def folder(finished: Callable[[str], RunFolder]) -> Path:
    return finished("ric").path


def test_a_loaded_model_has_the_accuracy_and_steps_of_its_evaluation(folder: Path, dataset: Dataset) -> None:
    model = ricnet.load(folder)
    path, evaluation = model.refine(dataset.test.inputs), read(folder / "evaluation.json")["test"]
    accuracy = (path.final.argmax(-1) == dataset.test.labels).double().mean().item()
    assert accuracy == pytest.approx(evaluation["accuracy"])
    assert path.halt_step.double().mean().item() == pytest.approx(evaluation["mean_steps"])
    assert repr(model) == "<Classifier: ric on blobs, 3 classes, encoder tabular>"
    torch.testing.assert_close(model.recorded().refine(dataset.test.inputs).final, path.final)


class Masked(nn.Module):
    """Buffers as in attention: a mask of −∞, and a table that is not saved with the weights."""

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


def test_a_deadline_shortens_the_trajectory_and_changes_no_belief(folder: Path, dataset: Dataset) -> None:
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
def test_max_steps_and_max_ms_are_validated(
    folder: Path, dataset: Dataset, name: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # it would refuse them before
    model, inputs = ricnet.load(folder), dataset.test.inputs
    with refusal(f"{name} is {value!r}"):
        model.refine(inputs, **{name: value})
    assert model.refine(inputs, max_steps=np.int64(2), halt=False).steps == 2


def halve(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def widen(path: Path) -> None:
    rewrite(path, lambda entry: entry["config"]["network"].update(width=0.5))


@pytest.mark.parametrize(
    ("place", "file", "damage", "named"),
    cases(
        {
            "no such folder": ("nowhere", None, None, "nowhere"),
            "no run": ("", None, None, ""),
            "a file of the run": ("run/model.safetensors", None, None, ("model.safetensors", "give the folder")),
            "weights cut off": ("run", "model.safetensors", halve, ("run/model.safetensors", "damaged")),
            "no weights": ("run", "model.safetensors", Path.unlink, "no trained model"),
            "another width": ("run", "config.json", widen, "does not fit"),
            "a damaged config": ("run", "config.json", lambda path: path.write_text("{"), "cannot be read"),
        }
    ),
)
def test_a_broken_run_is_named(
    folder: Path, tmp_path: Path, place: str, file: str | None, damage: Callable[[Path], object], named: Any
) -> None:
    run = without_manifest(shutil.copytree(folder, tmp_path / "run"))
    if file is not None:
        damage(run / file)
    with refusal(tmp_path / place, named):
        ricnet.load(tmp_path / place)


IMAGE = (1, 8, 8)
FILES, CELLS = "model.refine(model.read('photo.png'))", "model.refine(model.read('rows.csv'))"
COMPLEX = torch.ones(2, 3, dtype=torch.complex64)


def test_inputs_may_be_arrays_tensors_or_lists() -> None:
    assert as_inputs(np.zeros((2, *IMAGE), np.uint8), IMAGE, False).shape == (2, *IMAGE)
    tensor = torch.zeros(3, 4)
    assert as_inputs(tensor, (4,), False) is tensor
    assert as_inputs([[1, 2], [3, 4]], (2,), False).tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("given", "shape", "of_table", "named"),
    [
        *((given, IMAGE, False, FILES) for given in ("0.png", Path("0.png"), ["0.png", "1.png"], None)),
        (Image.new("L", (8, 8)), IMAGE, False, FILES),
        *((given, (8,), True, CELLS) for given in ([{"age": 3}], {"age": 3}, [["red", 3.0]], np.array([{}]))),
        (np.zeros((2, 4)), (8,), True, CELLS),
        ([{"age": 3}], (8,), False, "(n, 8)"),  # a model of plain numbers is not sent to files
        (torch.zeros(2, 5), (4,), False, "(5,)"),
        (COMPLEX, (3,), False, "complex64"),
        (np.zeros(IMAGE, np.uint8), IMAGE, False, "x[None]"),
        (torch.zeros(2, *IMAGE), IMAGE, False, "uint8"),
    ],
)
def test_errors_of_wrong_inputs_say_what_to_give(
    given: Any, shape: tuple[int, ...], of_table: bool, named: str
) -> None:
    with refusal(named):
        as_inputs(given, shape, of_table)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e300])
def test_the_first_row_that_is_not_finite_is_named(bad: float) -> None:
    rows = np.zeros((5, 3))
    rows[[2, 4], 1] = bad
    with refusal("row 2"):
        as_inputs(rows, (3,), False)
    with refusal("row 2", "model.refine"):
        as_inputs(rows, (3,), True)


HEIGHT, SHARE = Number("height", 170.0, 10.0, False), Number("share", 0.5, 0.3, False)


def test_raw_cells_of_a_table_are_recognised(folder: Path, dataset: Dataset) -> None:
    columns, random = Columns("kind", (HEIGHT, SHARE)), torch.Generator().manual_seed(0)
    standard = torch.randn(1000, 2, generator=random)
    cells = standard * torch.tensor([10, 0.3]) + torch.tensor([170, 0.5])
    for raw in (cells, cells[:1].double()):
        assert looks_raw(raw, columns)
    outlier = torch.tensor([[150.0, 0.1], [0.3, 0.2]])  # 150 standard deviations, or centimetres
    others = (torch.tensor([[150.0, 3.0]]), torch.tensor([[1e4, 0.1]]))
    for inputs in (standard, standard[:0], standard.to(torch.int8), outlier, *others):
        assert not looks_raw(inputs, columns)
    for column in (replace(SHARE, flagged=True), Category("colour", ("blue", "red"), False)):  # two numbers each
        assert not looks_raw(torch.tensor([[170.0, 0.0, 1.0]]), Columns("kind", (HEIGHT, column)))
    four = Columns("kind", tuple(replace(HEIGHT, name=name) for name in "abcd"))
    model = replace(ricnet.load(folder), columns=four)
    with pytest.warns(UserWarning, match=r"model\.read\('rows\.csv'\)"):
        model.refine(torch.full((2, 4), 170.0))
    model.refine(dataset.test.inputs)


@pytest.mark.parametrize(
    ("costs", "moments", "answers"),
    [
        ((), (4, 6, 6.9, 8.5), [True, True, True, False]),  # a step like the last and a millisecond must fit in
        ((), (3, 5, 7.1), [True, True, False]),
        ((), (3, 3.1, 9.5, 9.55, 9.7), [True, True, False, True, False]),  # of short steps, three more of them
        ((), (4, 8), [True, False]),
        ((), (9.9,), [True]),  # before any step has been timed only the limit counts
        ((), (10.1,), [False]),
        ((0.1, 0.3, 0.4, 1.0), (0, 1, 3, 3.9), [True, True, True, False]),  # the next is as much longer as it costs
        ((0.1, 0.3, 0.4, 1.0), (0, 1, 3, 3.7), [True, True, True, True]),
        ((0.1, 1.0), (0, 1), [True, False]),
        ((0.1, 1.0), (0, 0.8), [True, True]),
    ],
)
def test_time_left_of_a_deadline_of_ten_milliseconds(
    monkeypatch: pytest.MonkeyPatch, costs: tuple[float, ...], moments: tuple[float, ...], answers: list[bool]
) -> None:
    times = iter([0.0, *(moment / 1000 for moment in moments)])
    with monkeypatch.context() as patch:
        patch.setattr("time.perf_counter", lambda: next(times))
        time_left = start_clock(10.0, CPU, costs)
        assert [time_left() for _ in moments] == answers
