"""scripts/run_queue.py: what is trained, in which order, and until when."""

import time
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import run_queue
from queued import train_here, write_data
from ricnet.models.run import RunFolder
from ricnet.report.runs import read_run
from ricnet.training.recipes import configure
from run_queue import Job, archive_of, archive_stopped, read, store, work


def options(folder: Path, **changes: Any) -> Namespace:
    given = {"data_dir": None, "runs": folder / "runs", "to": folder / "archives", "device": "cpu", "jobs": 1}
    return Namespace(**given | {"began": time.monotonic(), "minutes": 60.0, "deadline": 60.0} | changes)


def make_job(given: Namespace, name: str, **changes: Any) -> Job:
    data = store(write_data(given.runs.parent / "data.npz"), given)
    settings = {"epochs": 1, "encoder": "conv", "width": 0.25, "batch_size": 32, **changes}
    return Job(name, configure(read(data), "supervised", "fast", torch.device("cpu"), **settings), data, "cpu")


def finish(job: Job, folder: RunFolder, archives: Path) -> None:
    archive_of(job, archives).write_text("diverged" if folder.has_diverged else "finished")


def left(jobs: list[Job], archives: Path) -> list[Job]:
    return [job for job in jobs if not archive_of(job, archives).is_file()]


def test_finished_runs_are_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    train_here(monkeypatch)
    given = options(tmp_path)
    jobs = [make_job(given, name, seed=seed) for seed, name in enumerate(("first", "second"))]
    assert work(lambda: left(jobs[:1], given.to), finish, given) == []
    changed = archive_of(jobs[0], given.to).stat().st_mtime_ns
    work(lambda: left(jobs, given.to), finish, given)
    assert archive_of(jobs[0], given.to).stat().st_mtime_ns == changed
    assert [line.split()[2] for line in capsys.readouterr().out.splitlines() if "started" in line] == [
        "first",
        "second",
    ]
    archive_of(jobs[0], given.to).unlink()  # a finished folder is archived again without training
    monkeypatch.setattr(run_queue, "run", None)
    assert work(lambda: left(jobs, given.to), finish, given) == []
    assert left(jobs, given.to) == []


def test_nothing_starts_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train_here(monkeypatch)
    given = options(tmp_path, minutes=0.0)
    jobs = [make_job(given, "only")]
    work(lambda: left(jobs, given.to), finish, given)
    assert not (given.runs / "only").exists()


def test_a_failed_run_is_named_and_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train_here(monkeypatch)
    given = options(tmp_path)
    good = make_job(given, "good")
    bad = replace(good, name="bad", config=replace(good.config, oversize=1.25))
    assert work(lambda: left([bad, good], given.to), finish, given) == ["bad"]
    assert archive_of(good, given.to).read_text() == "finished"


def test_a_diverged_run_is_archived_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train_here(monkeypatch)
    given = options(tmp_path)
    job = make_job(given, "wild", optimizer="nesterov", lr=1e30, epochs=3)
    assert work(lambda: left([job], given.to), finish, given) == []
    assert archive_of(job, given.to).read_text() == "diverged"


def archives_what_it_has(job: Job, given: Namespace) -> None:
    lines = list(RunFolder(given.runs / job.name).metrics_lines())
    assert archive_stopped([job], given) == []
    path = given.to / "long-stopped-seed0.json"
    run = read_run(path)
    assert run.config["optimization"]["epochs"] == len(run.metrics) == len(lines)
    assert run.metrics[-1]["val"]["nll"] == pytest.approx(lines[-1]["val"]["nll"], rel=1e-3)
    assert (given.to / "long-stopped-seed0-temperature.json").is_file()
    written = path.stat().st_mtime_ns
    assert archive_stopped([job], given) == []  # it has no more epochs than its archive
    assert path.stat().st_mtime_ns == written


class UntilFirstEpoch(Namespace):
    """The deadline is when the run has written the line of its first epoch."""

    @property
    def deadline(self) -> float:
        return 0.0 if any(self.runs.glob("*/metrics.jsonl")) else 60.0


def test_a_running_process_stops_at_the_deadline_and_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = options(tmp_path)
    job = make_job(given, "long-seed0", epochs=2000, schedule="constant", warmup_epochs=0)
    stopping = UntilFirstEpoch(**{name: value for name, value in vars(given).items() if name != "deadline"})
    assert work(lambda: left([job], given.to), finish, stopping) == []
    folder = RunFolder(given.runs / "long-seed0")
    assert folder.state.is_file()
    assert not folder.finished
    assert left([job], given.to) == [job]
    train_here(monkeypatch)
    archives_what_it_has(replace(job, tempered=True), given)
    assert folder.state.is_file()
    resumed = []
    monkeypatch.setattr(run_queue, "run", lambda *run, resume, console: resumed.append((run[2].path, resume)))
    work(lambda: left([job], given.to), finish, given)
    assert resumed == [(folder.path, True)]


def test_stored_data_may_lack_test_rows(tmp_path: Path) -> None:
    given = options(tmp_path)
    data = write_data(tmp_path / "data.npz")
    whole, without = read(store(data, given)), read(store(data, given, keep_test=False))
    assert len(whole.test) == 24
    assert len(without.test) == 0
    assert torch.equal(whole.val.inputs, without.val.inputs)
    assert len(read(store(data, given), 0.5).train) == len(whole.train) // 2
