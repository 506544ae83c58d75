"""Finished runs in memory, with as much in them as the controls read."""

from collections.abc import Callable
from typing import Any

import pytest

from ricnet.report.runs import RunRecord
from ricnet.studies.systems import find_system

MakeRun = Callable[..., RunRecord]


@pytest.fixture(scope="module")
def make_run(tmp_path_factory: pytest.TempPathFactory) -> MakeRun:
    def make(system: str, seed: int = 0, **test: Any) -> RunRecord:
        found = find_system(system)
        path = tmp_path_factory.mktemp("run")
        scores = {"accuracy": 0.9, "ece": 0.05, "ece_signed": -0.05, "nll": 0.3, "mean_steps": 5.0}
        steps = {"mean_steps_correct": 4.0, "mean_steps_wrong": 6.0}
        split = {"n": 1000, "ece_bins": 15, **scores, **steps, **test}
        config = {
            "data": "digits",
            "preset": "fast",
            "seed": seed,
            "calibration": found.after.get("calibration", "none"),
            "method": {"name": found.method, **found.changes_for(2), **found.after},
            "network": {"encoder": "auto", "width": 1.0},
            "optimization": {"epochs": 30},
        }
        data = {"class_names": ["a", "b"], "input_shape": [1, 8, 8]}
        evaluation = {"train": {**split, "accuracy": 0.99}, "val": split, "test": split}
        return RunRecord(path, system, "0.1.0", config, data, {}, [], evaluation, None)

    return make
