from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from problems import CPU, EachEpoch, configured, read_lines
from refusals import refusal
from ricnet.data import Dataset
from ricnet.models.run import RunFolder
from ricnet.training.api import run, train
from ricnet.training.tracking import require_tracker, scalars


def points(folder: RunFolder) -> list[tuple[str, int, float]]:
    """As TensorBoard itself reads them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder.curves)).Reload()
    return [(tag, point.step, point.value) for tag in found.Tags()["scalars"] for point in found.Scalars(tag)]


def test_every_epoch_is_a_point_once_even_if_the_run_was_stopped(dataset: Dataset, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    line = {"epoch": 3, "lr": 0.1, "val": {"accuracy": 0.5, "aurc": None}, "note": "text"}
    assert list(scalars(line)) == [("lr", 0.1), ("val/accuracy", 0.5)]
    config, folder = configured(dataset, "supervised"), RunFolder(tmp_path / "run")

    def kill(line: dict[str, Any]) -> None:
        if line["epoch"] == 2:
            raise ZeroDivisionError  # after the first curves were written, before a checkpoint was

    with pytest.raises(ZeroDivisionError):
        run(config, dataset, folder, CPU, track="tensorboard", callbacks=[EachEpoch(kill)], checkpoint_seconds=1e9)
    run(config, dataset, folder, CPU, track="tensorboard", resume=True)
    lines = read_lines(folder.path)
    assert [line["epoch"] for line in lines] == [1, 2, 3]
    expected = {(name, line["epoch"]): value for line in lines for name, value in scalars(line)}
    found = points(folder)
    assert Counter((name, step) for name, step, _ in found) == Counter(expected.keys())
    assert {(name, step): value for name, step, value in found} == pytest.approx(expected, rel=1e-6)
    run(config, dataset, folder, CPU, overwrite=True)
    assert not folder.curves.exists()


def test_a_missing_extra_is_named_before_anything_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ricnet.errors.find_spec", lambda name: None)
    with refusal("track", "tensorboard", "ricnet[track]"):
        require_tracker("tensorboard")
    with refusal("track", "tensorboard"):
        train(tmp_path / "nowhere", out=tmp_path / "run", track="tensorboard")
