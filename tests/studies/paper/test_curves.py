from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ricnet.errors import RicnetError
from ricnet.studies.paper.curves import curve_rows, curves, measured

from .conftest import record, with_curve


def test_a_row_an_epoch_from_the_right_split(tmp_path: Path) -> None:
    low, high = (record(tmp_path / str(seed), seed=seed, epochs=2) for seed in (0, 1))
    for split, key in (("train", "train_eval"), ("validation", "val"), ("test", "test")):
        pair = [with_curve(low, key, "ece", [0.1, 0.2]), with_curve(high, key, "ece", [0.3, 0.2])]
        first, second = curve_rows(pair, split, "ece")
        assert first == {"split": split, "quantity": "ece", "epoch": 1, "n": 2} | {
            "mean": pytest.approx(0.2),
            "half_width": pytest.approx(12.7062 * 0.1, rel=1e-5),
        }
        assert (second["epoch"], second["mean"], second["half_width"]) == (2, pytest.approx(0.2), pytest.approx(0))


def test_a_shorter_run_counts_as_far_as_it_goes(tmp_path: Path) -> None:
    long, short = record(tmp_path / "a", epochs=3), record(tmp_path / "b", seed=1, epochs=2)
    rows = curve_rows([long, short], "validation", "accuracy")
    assert [(row["epoch"], row["n"]) for row in rows] == [(1, 2), (2, 2), (3, 1)]
    assert rows[2]["mean"] == pytest.approx(long.metrics[2]["val"]["accuracy"])
    epochs, tracks = curves([long, short], "validation", "accuracy")
    assert epochs == [1, 2, 3]
    assert np.isnan(tracks).tolist() == [[False] * 3, [False, False, True]]


def test_a_run_without_the_measurement_is_named(tmp_path: Path) -> None:
    run = record(tmp_path / "old")
    run = replace(run, metrics=[{k: v for k, v in entry.items() if k != "test"} for entry in run.metrics])
    with pytest.raises(RicnetError, match=r"old has not measured test\.ece"):
        curve_rows([run], "test", "ece")


def test_runs_that_have_measured_stand_for_those_that_have_not(tmp_path: Path) -> None:
    full, bare = record(tmp_path / "full"), record(tmp_path / "bare", seed=1)
    bare = replace(bare, metrics=[{"epoch": entry["epoch"], "val": entry["val"]} for entry in bare.metrics])
    partly = replace(bare, metrics=[full.metrics[0], *bare.metrics[1:]])
    assert measured([bare, full, partly]) == [full, partly]
    assert measured([bare]) == [bare]
