"""`ric compare` as a user calls it, and its numbers against scikit-learn and plain numpy."""

import csv
import json
import math
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from scipy import stats

from recomputed import recompute
from ricnet.apps.commands.compare import _notes
from ricnet.report.runs import RunRecord
from ricnet.studies.experiments import Benchmark, Experiment

from .conftest import Refused, RunRic

QUICK = ["--epochs", "2", "--batch-size", "32", "--width", "0.1"]


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    y = np.arange(240) % 3
    x = (1.5 * np.eye(4)[y] + rng.normal(size=(240, 4))).astype(np.float32)
    np.savez(tmp_path / "blobs.npz", x=x, y=y)
    return tmp_path / "blobs.npz"


def test_the_numbers_are_those_of_the_saved_predictions(data: Path, run_ric: RunRic) -> None:
    systems = ["supervised", "ric", "supervised-temperature"]
    shown = run_ric("compare", data, "--methods", *systems, "--seeds", 2, "--jobs", 1, *QUICK)
    assert "too few" in shown.out
    with Path("comparison-blobs/comparison.csv").open() as file:
        rows = list(csv.DictReader(file))
    labels = dict(zip(systems, dict.fromkeys(row["system"] for row in rows if row["seeds"]), strict=True))
    for system, label in labels.items():
        found = [recompute(path) for path in sorted(Path("runs/studies").glob(f"blobs-{system}-seed*"))]
        assert len(found) == 2
        for row in (row for row in rows if row["system"] == label and row["metric"] in found[0]):
            values = np.array([entry[row["metric"]] for entry in found])
            assert float(row["mean"]) == pytest.approx(values.mean(), abs=2e-6), row
            half = stats.t.ppf(0.975, 1) * values.std(ddof=1) / math.sqrt(2)
            assert float(row["half_width"]) == pytest.approx(half, abs=1e-5), row
    first, second = ([recompute(p) for p in sorted(Path("runs/studies").glob(f"blobs-{s}-seed*"))] for s in systems[:2])
    nll = next(row for row in rows if row["system"] == labels["ric"] and row["metric"] == "nll")
    differences = [b["nll"] - a["nll"] for a, b in zip(first, second, strict=True)]
    assert float(nll["difference"]) == pytest.approx(np.mean(differences), abs=2e-6)
    assert float(nll["p_value"]) == pytest.approx(stats.ttest_1samp(differences, 0).pvalue, abs=1e-4)
    for name in ("comparison.md", "comparison.tex"):
        assert (Path("comparison-blobs") / name).stat().st_size > 500


def test_baselines_are_rows_of_the_table_and_can_be_left_out(data: Path, run_ric: RunRic) -> None:
    asked = ["compare", data, "--methods", "supervised", "--seeds", 1, "--jobs", 1, *QUICK]
    shown = run_ric(*asked).out
    assert [name for name in ("Base rate", "Logistic regression", "Gradient boosting") if name not in shown] == []
    [run] = Path("runs/studies").iterdir()
    kept = json.loads((run / "evaluation.json").read_text())["baselines"]["Logistic regression"]
    with Path("comparison-blobs/comparison.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["system"] == "Logistic regression"]
    assert {row["metric"]: float(row["mean"]) for row in rows} == {
        name: kept[name] for name in ("accuracy", "ece", "nll", "brier", "seconds")
    }
    assert "Logistic regression" not in run_ric(*asked, "--no-baselines").out
    assert [*Path("runs/studies").iterdir()] == [run]  # it is there: nothing is trained again


def test_a_system_that_cannot_be_trained_is_named_beside_the_table_of_the_others(data: Path, run_ric: RunRic) -> None:
    systems = ["ric", "supervised:encoder=resnet18"]
    said = run_ric("compare", data, "--methods", *systems, "--seeds", 1, "--jobs", 1, *QUICK)
    assert said.code == 2
    assert "supervised:encoder=resnet18 could not be compared" in said.err
    assert "RIC" in Path("comparison-blobs/comparison.md").read_text()


def test_files_are_written_before_the_table_is_printed(
    data: Path, run_ric: RunRic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ricnet.apps.commands.compare.terminal_table", Mock(side_effect=SystemExit(1)))  # as rich does
    assert run_ric("compare", data, "--methods", "supervised", "--seeds", 1, "--jobs", 1, *QUICK).code == 1
    assert {path.suffix for path in Path("comparison-blobs").iterdir()} == {".csv", ".md", ".tex"}


def test_a_second_call_repeats_nothing(data: Path, run_ric: RunRic) -> None:
    call = ["compare", data, "--methods", "supervised", "--seeds", "1", "--jobs", "1", *QUICK]
    made = Path("runs/studies") / "blobs-supervised-seed0" / "evaluation.json"
    first = run_ric(*call)
    assert "1 run to make" in first.err
    assert "(replaced)" not in first.out
    before = made.stat().st_mtime_ns
    again = run_ric(*call)
    assert "to make" not in again.err
    assert "(replaced)" in again.out
    assert made.stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ("--methods rick", "ric"),
        ("--seeds 0", "--seeds 0"),
        ("--jobs 0", "--jobs 0"),
        ("--methods ric:seed=3", "--seeds"),
        ("--out blobs.npz", "--out blobs.npz"),
        ("--epochs 0", "--epochs 0"),
        ("--methods supervised --reference ric", "--reference ric"),
        ("nowhere.npz", "nowhere.npz"),
        ("--methods ric:epsilon=.3 --seeds 1", "ric-snapshots"),
        ("--methods ric --seeds 1 --epsilon 0.3", "ric-snapshots"),
        ("--methods ric:epsilon=much --seeds 1", "epsilon cannot be much; give a number"),
    ],
)
def test_runs_that_cannot_be_compared_are_refused(data: Path, flags: str, named: str, refused: Refused) -> None:
    where = [] if flags.endswith("nowhere.npz") else [data]
    refused(named, "compare", *where, *flags.split())
    assert not list(Path().glob("comparison-*"))


def test_the_names_of_all_systems_can_be_listed(run_ric: RunRic) -> None:
    assert {"ric", "act", "logitnorm"} <= set(run_ric("compare", "--list").out.split())


def test_systems_that_are_the_same_are_named() -> None:
    digits, method = Benchmark("digits", "digits"), {"name": "ric-on-policy"}
    twice = {Experiment(name, digits, (0,)): [_record("ric", method)] for name in ("ric", "ric-marginal")}
    assert _notes(list(twice), twice) == ["ric-marginal and ric are the same system."]


def _record(system: str, method: dict[str, Any]) -> RunRecord:
    return RunRecord(Path(system), system, "", {"method": method}, {}, {}, [], {}, None)
