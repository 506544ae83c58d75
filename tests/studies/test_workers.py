import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from ricnet.errors import RicnetError
from ricnet.evaluation.evaluate import read_predictions
from ricnet.studies import runner as running
from ricnet.studies.experiments import Benchmark, Experiment
from ricnet.studies.runner import Runner

QUIET = Console(quiet=True)


def stamps(root: Path) -> dict[str, float]:
    return {path.parent.name: path.stat().st_mtime_ns for path in root.glob("*/evaluation.json")}


def test_runs_are_made_once(ask, tmp_path: Path) -> None:
    runner = Runner(tmp_path / "runs", jobs=1)
    asked = [ask("supervised", seeds=2), ask("supervised-temperature", seeds=2)]
    first, problems = runner.run(asked, QUIET)
    assert not problems
    assert [len(first[one]) for one in asked] == [2, 2]
    before = stamps(runner.root)
    assert len(before) == 4
    plain, scaled = (first[one] for one in asked)
    assert [run.config["seed"] for run in scaled] == [0, 1]
    assert (scaled[0].path / "model.safetensors").read_bytes() == (plain[0].path / "model.safetensors").read_bytes()
    again, _ = runner.run([*asked, ask("label-smoothing")], QUIET)
    assert len(again[ask("label-smoothing")]) == 1
    assert {name: stamp for name, stamp in stamps(runner.root).items() if name in before} == before


def test_two_workers_give_the_same_numbers_as_one(ask, tmp_path: Path) -> None:
    ric = ask("ric", seeds=2)
    one, two = (Runner(tmp_path / str(jobs), jobs=jobs).run([ric], QUIET)[0][ric] for jobs in (1, 2))
    for left, right in zip(one, two, strict=True):
        np.testing.assert_array_equal(read_predictions(left.path).log_beliefs, read_predictions(right.path).log_beliefs)


def test_data_that_is_not_here_and_runs_that_fail_stop_no_other(ask, tmp_path: Path) -> None:
    absent = Experiment("supervised", Benchmark("SVHN", "svhn"), (0,))
    wild = ask("supervised:lr=1e30,optimizer=sgd,clip=none")
    good = ask("supervised")
    runner = Runner(tmp_path / "runs", tmp_path / "nothing", jobs=1)
    runs, problems = runner.run([absent, wild, good], QUIET)
    assert len(runs[good]) == 1
    assert absent not in runs
    assert runs[wild] == []
    assert any("svhn is not here yet" in problem for problem in problems)
    assert any("diverged" in problem for problem in problems)


def test_an_interrupted_run_goes_on(ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, runner = ask("supervised", epochs=3), Runner(tmp_path / "runs", jobs=1)
    run = running.run

    def stop_early(*args, **kwargs):
        def watch(line):
            if line["epoch"] == 2:
                os.kill(os.getpid(), signal.SIGINT)

        return run(*args, **kwargs, watch=watch)

    monkeypatch.setattr(running, "run", stop_early)
    with pytest.raises(RicnetError, match="same command goes on"):
        runner.run([one], QUIET)
    monkeypatch.setattr(running, "run", run)
    (finished,) = runner.run([one], QUIET)[0][one]
    (whole,) = Runner(tmp_path / "whole", jobs=1).run([one], QUIET)[0][one]
    assert [line["epoch"] for line in finished.metrics] == [1, 2, 3]
    assert (finished.path / "model.safetensors").read_bytes() == (whole.path / "model.safetensors").read_bytes()


def start_long_comparison(data: Path, folder: Path, seeds: int) -> subprocess.Popen[str]:
    """Runs that would last for hours, two at once; returns when two have begun."""
    settings = ["--set", "epochs=100000", "batch_size=32", "width=0.1", "patience=none"]
    command = [sys.executable, "-m", "ricnet", "compare", str(data), "--methods", "supervised", "--seeds", str(seeds)]
    process = subprocess.Popen(
        [*command, "--jobs", "2", "--runs", str(folder / "runs"), *settings],
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    until(lambda: len(list((folder / "runs").glob("*/metrics.jsonl"))) >= 2)
    return process


def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"still waiting after {seconds:.0f} s"
        time.sleep(0.2)


def workers_of(process: subprocess.Popen[str]) -> list[int]:
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [int(pid) for pid in children if "spawn_main" in Path(f"/proc/{pid}/cmdline").read_text()]


def test_ctrl_c_stops_all_workers_politely_and_begins_nothing_more(data: Path, tmp_path: Path) -> None:
    """As in a terminal: every worker saves its state, runs that wait in the queue are left, no traceback is shown."""
    process = start_long_comparison(data, tmp_path, seeds=6)
    process.send_signal(signal.SIGINT)
    _, words = process.communicate(timeout=60)
    assert process.returncode == 130, words
    assert "nothing is lost" in words
    assert "Traceback" not in words
    begun = sorted(path.parent.name for path in (tmp_path / "runs").glob("*/config.json"))
    assert begun == ["blobs-supervised-seed0", "blobs-supervised-seed1"]
    assert len(list((tmp_path / "runs").glob("*/state.pt"))) == 2
    assert not list((tmp_path / "runs").glob("*/evaluation.json"))


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="tells processes by /proc")
def test_workers_whose_parent_was_killed_save_their_state_and_stop(data: Path, tmp_path: Path) -> None:
    process = start_long_comparison(data, tmp_path, seeds=2)
    children = workers_of(process)
    assert len(children) == 2
    process.kill()
    process.wait(timeout=60)
    until(lambda: len(list((tmp_path / "runs").glob("*/state.pt"))) == 2, seconds=30)  # before the regular checkpoint
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children))
    assert process.stderr is not None
    process.stderr.close()


def test_an_error_that_is_nobodys_mistake_stops_no_other_run(
    ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = running.run

    def fails_for_seed_0(config, *args, **kwargs):
        if config.seed == 0:
            raise RuntimeError("CUDA out of memory\nwith details")
        return run(config, *args, **kwargs)

    monkeypatch.setattr(running, "run", fails_for_seed_0)
    one = ask("supervised", seeds=2)
    runs, problems = Runner(tmp_path / "runs", jobs=1).run([one], QUIET)
    assert problems == ["blobs-supervised-seed0: CUDA out of memory"]
    assert [record.config["seed"] for record in runs[one]] == [1]
