"""scripts/study_little_data.py: how many updates and rounds each share gets, and the table."""

import json
import math
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import study_little_data as study
from archive_results import archive_run
from queued import train_here, write_data
from ricnet.data import Dataset, Split
from ricnet.models.config import Config
from run_queue import Job

MakeRun = Callable[..., Path]
ROWS = 8_123  # training photographs of ImageWoof after a tenth is held out


def split(rows: int) -> Split:
    return Split(torch.zeros(1, 3, 16, 16, dtype=torch.uint8).expand(rows, -1, -1, -1), torch.arange(rows) % 10)


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> list[Job]:
    """The real queue, for images of the right number but a small size."""
    data = tmp_path_factory.mktemp("data") / "photographs.pt"
    torch.save(Dataset("photographs", split(ROWS), split(10), split(10), tuple("abcdefghij")), data)
    return study.jobs(data, Namespace(device="cpu", data="imagewoof", epochs=600, resolution=None))


def share(config: Config) -> tuple[int, int]:
    """Updates of a run, and updates per epoch."""
    per_epoch = round(config.train_fraction * ROWS) // config.optimization.batch_size
    return config.optimization.epochs * per_epoch, per_epoch


def test_all_shares_get_the_updates_of_600_epochs_of_all_photographs(planned: list[Job]) -> None:
    runs = [job.config for job in planned if job.config.preset == "paper"]
    assert len(runs) == 36
    for config in runs:
        updates, per_epoch = share(config)
        assert 600 * 31 <= updates < 600 * 31 + per_epoch
    assert [config.optimization.epochs for config in runs[::9]] == [6_200, 2_658, 1_240, 600]


def test_rounds_are_five_passes_through_all_photographs(planned: list[Job]) -> None:
    rounds = {job.config.method.snapshot_period(1) for job in planned if job.name.startswith("algorithm-1")}
    assert rounds == {155}
    on_policy = next(job.config.method for job in planned if job.name.startswith("on-policy"))
    assert (on_policy.snapshot_period(31), on_policy.rollouts, on_policy.credit, on_policy.c_max) == (1, 1, "joint", 10)


def test_the_smallest_share_comes_first(planned: list[Job]) -> None:
    assert [job.name for job in planned[:4]] == [f"{s}-10-seed0" for s in ("algorithm-1", "on-policy", "sl")] + [
        "algorithm-1-10-seed1"
    ]
    assert [job.config.train_fraction for job in planned[::12]] == [0.1, 0.25, 0.5, 1.0]
    assert {(job.config.calibration, job.config.halt_rule) for job in planned} == {("none", "value")}


def test_a_trial_from_data_to_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    train_here(monkeypatch)
    for name, value in {"SHARES": (0.5,), "SEEDS": (0,), "NETWORK": {"encoder": "conv", "width": 0.25}}.items():
        monkeypatch.setattr(study, name, value)
    monkeypatch.delitem(study.SYSTEMS, "fast")  # chooses its own epochs
    archives = tmp_path / "archives"
    places = ["--runs", str(tmp_path / "runs"), "--to", str(archives), "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", ["study", "--data", write_data(tmp_path / "data.npz"), "--epochs", "1", *places])
    study.main()
    assert "0 failed, 0 left" in capsys.readouterr().out
    names = ["algorithm-1-50-seed0", "on-policy-50-seed0", "sl-50-seed0", "sl-50-seed0-temperature"]
    assert sorted(path.stem for path in archives.iterdir()) == names
    assert json.loads((archives / f"{names[3]}.json").read_text())["derived_from"] == names[2]
    monkeypatch.setattr(sys, "argv", ["study", "--data", str(tmp_path / "data.npz"), "--epochs", "2", *places])
    with pytest.raises(SystemExit, match="other settings"):
        study.main()


def test_a_trial_is_not_mixed_with_the_study(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["study", "--data", "digits"])
    with pytest.raises(SystemExit):
        study.main()


def test_differences_are_paired_by_seed(make_run: MakeRun, tmp_path: Path) -> None:
    accuracies = {"algorithm-1": (0.5, 0.6, 0.7), "sl": (0.4, 0.5, 0.7)}
    for system, values in accuracies.items():
        for seed, accuracy in enumerate(values):
            path = archive_run(make_run(f"{system}-10-seed{seed}", seed=seed), tmp_path / "archives")
            entry = json.loads(path.read_text())
            entry["evaluation"]["test"]["accuracy"] = accuracy
            path.write_text(json.dumps(entry))
    text = study.table(tmp_path / "archives")
    half = 4.303 * 100 * math.sqrt(1 / 300) / math.sqrt(3)  # differences 0.1, 0.1, 0
    assert f"| 10 | RIC, Algorithm 1 less SL | 3 | +6.67 ± {10 * half / 10:.2f} |" in text
    assert "| 10 | SL | 3 | 53.33 ±" in text
    assert "fast" not in text


def test_without_archives_there_is_no_table(tmp_path: Path) -> None:
    assert study.table(tmp_path) == "No run is archived yet."
