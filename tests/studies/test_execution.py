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
from ricnet.evaluation.predictions import read_predictions
from ricnet.studies import execution
from ricnet.studies.cells import Benchmark, Cell
from ricnet.studies.execution import Workplace, harvest

QUIET = Console(quiet=True)


def stamps(root: Path) -> dict[str, float]:
    return {path.parent.name: path.stat().st_mtime_ns for path in root.glob("*/evaluation.json")}


def test_runs_are_made_once_and_then_taken_from_the_shelf(ask, tmp_path: Path) -> None:
    place = Workplace(tmp_path / "runs", jobs=1)
    cells = [ask("supervised", seeds=2), ask("supervised-temperature", seeds=2)]
    first = harvest(cells, place, QUIET)
    assert not first.problems
    assert [len(first.runs[cell]) for cell in cells] == [2, 2]
    before = stamps(place.root)
    assert len(before) == 4
    plain, scaled = (first.runs[cell] for cell in cells)
    assert [run.config["seed"] for run in scaled] == [0, 1]
    assert (scaled[0].path / "model.safetensors").read_bytes() == (plain[0].path / "model.safetensors").read_bytes()
    again = harvest([*cells, ask("label-smoothing")], place, QUIET)
    assert len(again.runs[ask("label-smoothing")]) == 1
    assert {name: stamp for name, stamp in stamps(place.root).items() if name in before} == before


def test_two_workers_give_the_same_numbers_as_one(ask, tmp_path: Path) -> None:
    cell = ask("ric", seeds=2)
    one = harvest([cell], Workplace(tmp_path / "one", jobs=1), QUIET).runs[cell]
    two = harvest([cell], Workplace(tmp_path / "two", jobs=2), QUIET).runs[cell]
    for left, right in zip(one, two, strict=True):
        np.testing.assert_array_equal(read_predictions(left.path).log_beliefs, read_predictions(right.path).log_beliefs)


def test_data_that_is_not_here_and_runs_that_fail_stop_no_other(ask, tmp_path: Path) -> None:
    absent = Cell("supervised", Benchmark("SVHN", "svhn"), (0,))
    wild = ask("supervised:lr=1e30,optimizer=sgd,clip=none")
    good = ask("supervised")
    found = harvest([absent, wild, good], Workplace(tmp_path / "runs", tmp_path / "nothing", jobs=1), QUIET)
    assert len(found.runs[good]) == 1
    assert absent not in found.runs
    assert found.runs[wild] == []
    assert any("svhn is not here yet" in problem for problem in found.problems)
    assert any("diverged" in problem for problem in found.problems)


def test_an_interrupted_run_goes_on(ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cell, place = ask("supervised", epochs=3), Workplace(tmp_path / "runs", jobs=1)
    run = execution.run

    def stop_early(*args, **kwargs):
        def watch(line):
            if line["epoch"] == 2:
                os.kill(os.getpid(), signal.SIGINT)

        return run(*args, **kwargs, watch=watch)

    monkeypatch.setattr(execution, "run", stop_early)
    with pytest.raises(RicnetError, match="same command goes on"):
        harvest([cell], place, QUIET)
    monkeypatch.setattr(execution, "run", run)
    (finished,) = harvest([cell], place, QUIET).runs[cell]
    whole = harvest([cell], Workplace(tmp_path / "whole", jobs=1), QUIET).runs[cell][0]
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
    workers = workers_of(process)
    assert len(workers) == 2
    process.kill()
    process.wait(timeout=60)
    until(lambda: len(list((tmp_path / "runs").glob("*/state.pt"))) == 2, seconds=30)  # before the regular checkpoint
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))
    assert process.stderr is not None
    process.stderr.close()


def test_an_error_that_is_nobodys_mistake_stops_no_other_run(
    ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = execution.run

    def fails_for_seed_0(config, *args, **kwargs):
        if config.seed == 0:
            raise RuntimeError("CUDA out of memory\nwith details")
        return run(config, *args, **kwargs)

    monkeypatch.setattr(execution, "run", fails_for_seed_0)
    cell = ask("supervised", seeds=2)
    found = harvest([cell], Workplace(tmp_path / "runs", jobs=1), QUIET)
    assert found.problems == ["blobs-supervised-seed0: CUDA out of memory"]
    assert [record.config["seed"] for record in found.runs[cell]] == [1]
