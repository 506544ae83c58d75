import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kills import PLACES, VARIANTS

from problems import CPU, assert_same_weights, configured, epochs
from refusals import refusal
from ricnet.data import Dataset
from ricnet.models.run import RunFolder
from ricnet.training.api import run

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
STAGES = [("write", 1), ("write", 2000), ("fsync", 2), ("fsync", 20), ("fsync", 21), ("fsync", 22), ("fsync", 23)]
STAGES += [("rename", number) for number in (1, 2, 10, 11, 12, 13)]
"""Of nine updates with a checkpoint each: config.json, the first state, and every stage of a later checkpoint."""


class Killed(BaseException):
    """Nothing catches it, as nothing catches SIGKILL."""


def fail_at(number: int, place: str, error: BaseException, patch: pytest.MonkeyPatch) -> None:
    """Let a call of `place` fail, and all that follow: a killed process calls nothing, and a full disk stays full."""
    holder, name = PLACES[place]
    plain, calls = getattr(holder, name), []

    def fail(*args: Any) -> Any:
        calls.append(1)
        if len(calls) < number:
            return plain(*args)
        if place == "write":
            plain(args[0], args[1][: len(args[1]) // 2])
        raise error

    patch.setattr(holder, name, fail)


@pytest.mark.parametrize(("place", "number"), STAGES)
@pytest.mark.parametrize("full", [False, True])
def test_a_run_resumes_after_a_kill_at_any_write(
    dataset: Dataset,
    tmp_path: Path,
    finished: Callable[[str], RunFolder],
    monkeypatch: pytest.MonkeyPatch,
    place: str,
    number: int,
    full: bool,
) -> None:
    """After a kill, and after a full disk, which is one sentence."""
    config, folder = configured(dataset, "supervised"), RunFolder(tmp_path / "run")
    fail_at(number, place, FULL if full else Killed(), monkeypatch)
    with refusal("No space left") if full else pytest.raises(Killed):
        run(config, dataset, folder, CPU, checkpoint_seconds=0.0)
    monkeypatch.undo()
    run(config, dataset, folder, CPU, resume=folder.config.is_file())
    assert_same_weights(folder.path, finished("supervised").path)
    assert epochs(folder.path) == epochs(finished("supervised").path)


@pytest.mark.slow
@pytest.mark.attack
def test_killed_at_thirty_random_moments_it_ends_with_the_same_weights(tmp_path: Path) -> None:
    """SIGKILL, for real, at random times and within checkpoints, for every method; see kills.py."""
    command = [sys.executable, str(Path(__file__).with_name("kills.py")), str(tmp_path), "30", "0"]
    paths = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) == 30
    assert {line["variant"] for line in lines} == set(VARIANTS)
    assert not [line for line in lines if not (line["equal"] and line["tidy"])]
