import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from ricnet.data import Dataset
from ricnet.errors import RicnetError
from ricnet.training import console as tracking
from ricnet.training.api import configure, run, train
from ricnet.training.console import scalars
from ricnet.training.run import RunFolder

CPU = torch.device("cpu")


def points(folder: RunFolder) -> list[tuple[str, int, float]]:
    """As TensorBoard itself reads them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder.curves)).Reload()
    return [(tag, point.step, point.value) for tag in found.Tags()["scalars"] for point in found.Scalars(tag)]


def test_the_numbers_of_a_line_are_scalars() -> None:
    line = {"epoch": 3, "lr": 0.1, "val": {"accuracy": 0.5, "aurc": None}, "note": "text"}
    assert list(scalars(line)) == [("lr", 0.1), ("val/accuracy", 0.5)]


def test_every_epoch_is_a_point_once_even_if_the_run_was_stopped(dataset: Dataset, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    config = configure(dataset, "supervised", "fast", epochs=3, batch_size=32, width=0.1)
    folder = RunFolder(tmp_path / "run")

    def kill(line: dict[str, Any]) -> None:
        if line["epoch"] == 2:
            raise ZeroDivisionError  # after the first curves were written, before a checkpoint was

    with pytest.raises(ZeroDivisionError):
        run(config, dataset, folder, CPU, track="tensorboard", watch=kill, checkpoint_seconds=1e9)
    run(config, dataset, folder, CPU, track="tensorboard", resume=True)
    lines = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    expected = [(name, line["epoch"], value) for line in lines for name, value in scalars(line)]
    assert [line["epoch"] for line in lines] == [1, 2, 3]
    found = points(folder)
    assert Counter((name, step) for name, step, _ in found) == Counter((name, step) for name, step, _ in expected)
    values = {(name, step): value for name, step, value in found}
    for name, step, value in expected:
        assert values[name, step] == pytest.approx(value, rel=1e-6)
    run(config, dataset, folder, CPU, overwrite=True)
    assert not folder.curves.exists()


def test_a_missing_extra_is_named_before_anything_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ricnet.extras.find_spec", lambda name: None)
    with pytest.raises(RicnetError, match=r"needs tensorboard; install with: pip install 'ricnet\[track\]'"):
        tracking.require_tracker("tensorboard")
    with pytest.raises(RicnetError, match=r"^track.* needs tensorboard"):
        train(tmp_path / "nowhere", out=tmp_path / "run", track="tensorboard")
