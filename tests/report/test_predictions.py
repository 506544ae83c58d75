from pathlib import Path

import numpy as np
import pytest

from ricnet.errors import RicnetError
from ricnet.evaluation.evaluate import read_predictions

from .systems import CLASSES, STEPS, write_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", n=30)


def rewrite(run: Path, **changes: np.ndarray | None) -> None:
    with np.load(run / "predictions.npz") as stored:
        arrays = {**stored, **changes}
    np.savez(run / "predictions.npz", **{name: array for name, array in arrays.items() if array is not None})


def test_what_the_evaluation_wrote_is_read_back(run: Path) -> None:
    read = read_predictions(run)
    assert read.log_beliefs.shape == (30, CLASSES)
    assert read.step_scores.shape == (STEPS, 30)
    assert read.values is None
    rows = np.arange(30)
    at_halt = read.step_scores[read.halt_step - 1, rows]
    assert at_halt == pytest.approx(read.log_beliefs[rows, read.labels])
    assert np.exp(read.log_beliefs.max(axis=1)) == pytest.approx(read.step_confidence[read.halt_step - 1, rows])


def test_splits_are_kept_apart(run: Path) -> None:
    values = np.full((STEPS, 30), 0.5, dtype=np.float32)
    rewrite(run, val_labels=np.zeros(30, dtype=np.int64), test_values=values)
    assert not read_predictions(run, "val").labels.any()
    assert read_predictions(run, "test").labels.any()
    assert read_predictions(run, "val").values is None
    assert np.array_equal(read_predictions(run, "test").values, values)


def test_older_runs_have_none(run: Path) -> None:
    (run / "predictions.npz").unlink()
    with pytest.raises(RicnetError, match=r"run has no predictions\.npz"):
        read_predictions(run)


@pytest.mark.parametrize(
    "changes",
    [
        {"test_labels": np.zeros(29, dtype=np.int64)},
        {"test_step_correct": np.zeros((STEPS + 1, 30), dtype=bool)},
        {"test_values": np.zeros((STEPS, 29), dtype=np.float32)},
        {"test_halt_step": None},
        {"test_colour": np.zeros(30)},
    ],
)
def test_a_damaged_file_is_named(run: Path, changes: dict[str, np.ndarray | None]) -> None:
    rewrite(run, **changes)
    with pytest.raises(RicnetError, match=r"predictions\.npz is damaged"):
        read_predictions(run)


@pytest.mark.parametrize("content", [b"", b"no archive"])
def test_no_archive_at_all(run: Path, content: bytes) -> None:
    (run / "predictions.npz").write_bytes(content)
    with pytest.raises(RicnetError, match="is damaged"):
        read_predictions(run)
